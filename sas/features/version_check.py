"""Feature: version check. A workflow version is never redefined while orders of it exist.

An order keeps the version that it was submitted with, and its records are numbered by the steps of
that version. So these must not change under one version: the steps, their order and dependencies,
the agents, whether a step has an undo, and the failure policy. Times, thresholds and notifications
may change at any time; then they also hold for orders under way.

The hash of each version's definition is stored when it is first used. A process compares it only
once for each version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.ports import ConflictError, CorruptOrderError, StateStore, StoreMismatchError


def definition_hash(workflow: Workflow) -> str:
    """Return 64 hex digits that differ if a part of the definition differs that must not change."""
    rules = workflow.rules
    steps = [
        [step.name, step.agent, list(rule.after), step.undo is not None, *step.alternatives]
        for step, rule in zip(workflow.steps, rules.steps, strict=True)
    ]
    shape = [workflow.name, workflow.version, workflow.on_failure.value, steps]
    text = json.dumps(shape, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def value_name(name: str, version: int) -> str:
    """Return the name of the shared value that keeps the definition hash of a version."""
    return f"workflow-{name}-{version}"


class Versions:
    """Compares definitions with the stored hashes.

    See ``sas.engine.hooks.VersionCheck``.
    """

    def __init__(self, store: StateStore, workflows: Iterable[Workflow]) -> None:
        self._store = store
        self._workflows = {(workflow.name, workflow.version): workflow for workflow in workflows}
        self._known: Mapping[tuple[str, int], str] = {
            key: definition_hash(workflow) for key, workflow in self._workflows.items()
        }
        self._checked: set[tuple[str, int]] = set()

    async def check(self, order: Order) -> None:
        """See ``VersionCheck.check``. An unknown workflow passes: the actor reports it."""
        key = (order.details.workflow, order.details.version)
        if order.rejected or key not in self._known:
            return
        if key not in self._checked:
            await self._compare(key)
        _check_steps(order, self._workflows[key])

    async def _compare(self, key: tuple[str, int]) -> None:
        """Compare a version with its stored definition_hash; store it at its first use."""
        name = value_name(*key)
        stored = await self._store.read_shared(name)
        if stored is None:
            try:
                stored = await self._store.write_shared(name, self._known[key], None)
            except ConflictError:  # another process was first
                stored = await self._store.read_shared(name)
        if stored is None or stored.value != self._known[key]:
            raise StoreMismatchError(
                f"workflow {key[0]!r} version {key[1]} was redefined since its orders began: give "
                "the new definition a version of its own and keep the old one "
                "(sas workflows check says which orders use it)",
                f"workflow {key[0]} {key[1]}",
            )
        self._checked.add(key)


def _check_steps(order: Order, workflow: Workflow) -> None:
    """Refuse an order whose rows were changed by hand to steps or agents that do not exist.

    Raises:
        CorruptOrderError: the steps are not those of the workflow.
    """
    if len(order.steps) != len(workflow.steps):
        count = len(workflow.steps)
        raise CorruptOrderError(
            order.order_id, f"it has {len(order.steps)} steps, and its workflow {count}"
        )
    for step, definition in zip(order.steps, workflow.steps, strict=True):
        if step.name != definition.name or step.call.route >= len(definition.agents):
            raise CorruptOrderError(
                order.order_id, f"Name or Route of step {step.number} does not fit"
            )
