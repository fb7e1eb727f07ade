"""The rows of orders in memory, because Azurite reads its whole table for each query."""

from __future__ import annotations

from collections.abc import Container

from lab.fuzz.table import MemoryTable, Rows
from samples.demo.verdict import ids_of
from sas.adapters.tables import keys
from sas.adapters.tables.store import TableStore
from sas.domain.ids import shard_of
from sas.domain.messages import JournalEntry, Notify
from sas.domain.order import FINISHED, Order
from sas.ports import StateStore


class Archive:
    """Orders and journals, as they were in the table at the last read of each order."""

    def __init__(self, store: TableStore) -> None:
        self._table = store
        self._rows: dict[str, Rows] = {}

    async def read(self, order_id: str) -> StateStore:
        """Read the rows of an order, unless they are here. Return a store of only these rows."""
        shard = shard_of(order_id, len(self._table.shards))
        if order_id not in self._rows:
            rows = await self._table.table.rows(shard, keys.whole(order_id))
            self._rows[order_id] = {(shard, str(row["RowKey"])): row for row in rows}
        table = MemoryTable(self._rows[order_id])
        return TableStore(table, shards=len(self._table.shards))

    async def load(self, order_id: str) -> Order | None:
        """See ``StateStore.load``."""
        return await (await self.read(order_id)).load(order_id)

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """See ``StateStore.journal``."""
        return await (await self.read(order_id)).journal(order_id)

    async def move(self, order_id: str, notification_ids: Container[str]) -> bool:
        """Move one order from the table to here; return whether it was moved.

        The order stays if it is not finished, or if one of its notifications has not arrived:
        ``notification_ids`` are those that have.

        Raises:
            StoreUnavailableError: no answer.
        """
        order, journal = await self.load(order_id), await self.journal(order_id)
        if order is not None and order.process_state in FINISHED:
            notices = ids_of(Notify, order_id, journal)
            if all(own_id in notification_ids for own_id in notices):
                return order_id in await self._table.purge(order)
        del self._rows[order_id]
        return False
