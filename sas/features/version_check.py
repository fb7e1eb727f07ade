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
from collections.abc import Iterable, Mapping

from sas.adapters.table_store import TableStore
from sas.domain.change import Change
from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.ports import ConflictError, StateStore, StoreMismatchError


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


def value_name(name: str, version: int) -> str:
    """Return the name of the store's cell that keeps the fingerprint of a version."""
    return f"workflow-{name}-{version}"


class Versions:
    """Compares definitions with what the table remembers of them."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._known: Mapping[tuple[str, int], str] = {
            (workflow.name, workflow.version): fingerprint(workflow) for workflow in workflows
        }
        self._checked: set[tuple[str, int]] = set()

    async def check(self, store: StateStore, order: Order) -> None:
        """Have the version of an order remembered, or compared with what is.

        An unknown workflow is no matter of this: whoever decides upon the order says so.

        Raises:
            StoreMismatchError: the definition is another than the one orders were begun with.
        """
        key = (order.details.workflow, order.details.version)
        if order.rejected or key in self._checked or key not in self._known:
            return
        name = value_name(*key)
        found = await store.read_shared(name)
        if found is None:
            try:
                found = await store.write_shared(name, self._known[key], None)
            except ConflictError:  # another process was first
                found = await store.read_shared(name)
        if found is None or found.value != self._known[key]:
            raise StoreMismatchError(
                f"workflow {key[0]!r} version {key[1]} is defined otherwise than when its orders "
                "were begun: give the new definition a version of its own and keep the old one "
                "(sas workflows check says which orders use it)"
            )
        self._checked.add(key)


class VersionedStore(TableStore):
    """The state store of a deployment that has these workflows."""

    versions = Versions(())

    async def load(self, order_id: str) -> Order | None:
        """See ``StateStore.load``.

        Raises:
            StoreMismatchError: as ``Versions.check``.
        """
        order = await super().load(order_id)
        if order is not None:
            await self.versions.check(self, order)
        return order

    async def commit(self, change: Change) -> Order:
        """See ``StateStore.commit``.

        Raises:
            StoreMismatchError: as ``Versions.check``.
        """
        await self.versions.check(self, change.after)
        return await super().commit(change)
