"""A state store that refuses orders of a workflow whose definition changed under its version.

The fingerprint of each version is kept in the table when it is first used. It is looked at
once per process and version, so that no order pays for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sas.adapters.tables import TableStore
from sas.domain.changes import Change
from sas.domain.fingerprint import cell_of, fingerprint
from sas.domain.model import Order
from sas.domain.workflow import Workflow
from sas.ports import ConflictError, StateStore, StoreMismatchError


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
        name = cell_of(*key)
        found = await store.read_cell(name)
        if found is None:
            try:
                found = await store.write_cell(name, self._known[key], None)
            except ConflictError:  # another process was first
                found = await store.read_cell(name)
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
