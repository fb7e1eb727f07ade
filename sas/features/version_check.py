"""Feature: a version of a workflow is never redefined while orders of it exist.

An order is pinned to the version it was submitted with, and its records are numbered by that
version's steps. So these must not change under a version: the steps and their order, what comes
after what, the agents, whether a step can be undone, and what follows a failure. Times, thresholds
and notifications may be tuned at any time; they hold for orders in flight from then on.

The fingerprint of each version is stored when it is first used. A process compares it once for each
version, so no order pays for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.engine.hooks import VersionCheck
from sas.ports import ConflictError, StateStore, StoreMismatchError


def fingerprint(workflow: Workflow) -> str:
    """Return 64 hex digits that change when the definition changes in what orders rely on."""
    rules = workflow.rules
    steps = [
        [step.name, step.agent, list(rule.after), step.undo is not None, *step.alternatives]
        for step, rule in zip(workflow.steps, rules.steps, strict=True)
    ]
    shape = [workflow.name, workflow.version, workflow.on_failure.value, steps]
    text = json.dumps(shape, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def value_name(name: str, version: int) -> str:
    """Return the name of the shared value that keeps the fingerprint of a version."""
    return f"workflow-{name}-{version}"


class Versions(VersionCheck):
    """Compares definitions with the fingerprints in the store. See ``sas.engine.hooks``."""

    def __init__(self, store: StateStore, workflows: Iterable[Workflow]) -> None:
        self._store = store
        self._known: Mapping[tuple[str, int], str] = {
            (workflow.name, workflow.version): fingerprint(workflow) for workflow in workflows
        }
        self._checked: set[tuple[str, int]] = set()

    async def check(self, order: Order) -> None:
        """See ``VersionCheck.check``.

        An unknown workflow is not this feature's matter: whoever decides about the order says so.
        """
        key = (order.details.workflow, order.details.version)
        if order.rejected or key in self._checked or key not in self._known:
            return
        name = value_name(*key)
        found = await self._store.read_shared(name)
        if found is None:
            try:
                found = await self._store.write_shared(name, self._known[key], None)
            except ConflictError:  # another process was first
                found = await self._store.read_shared(name)
        if found is None or found.value != self._known[key]:
            raise StoreMismatchError(
                f"workflow {key[0]!r} version {key[1]} is defined otherwise than when its orders "
                "were begun: give the new definition a version of its own and keep the old one "
                "(sas workflows check says which orders use it)"
            )
        self._checked.add(key)
