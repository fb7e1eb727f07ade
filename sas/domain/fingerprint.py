"""What of a workflow's definition the orders in flight rely on, as one short text.

An order is pinned to the version it was submitted with, and its records are numbered by
that version's steps. So these may not change under a version: which steps, in which order,
after which others, by which agents, whether each can be undone, and what follows a failure.
Times, thresholds and notifications are not part of it: they may be tuned at any time, and
hold for orders in flight from then on.
"""

from __future__ import annotations

import hashlib
import json

from sas.domain.workflow import Workflow


def fingerprint(workflow: Workflow) -> str:
    """Return 64 hex digits that change when the definition does, in what orders rely on."""
    rules = workflow.rules
    steps = [
        [step.name, step.agent, list(rule.after), step.undo is not None, *step.alternatives]
        for step, rule in zip(workflow.steps, rules.steps, strict=True)
    ]
    shape = [workflow.name, workflow.version, workflow.on_failure.value, steps]
    text = json.dumps(shape, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def cell_of(name: str, version: int) -> str:
    """Return the name of the store's cell that keeps the fingerprint of a version."""
    return f"workflow-{name}-{version}"
