"""What the table holds at the end of a run, in memory: Azurite walks all rows for each query."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Container, Sequence

from azure.data.tables import TableEntity

from samples.demo.verdict import ids_of
from sas.adapters import keys
from sas.adapters.table import Table
from sas.adapters.table_store import TableStore
from sas.domain.ids import shard_of
from sas.domain.messages import Notify
from sas.domain.order import FINISHED

ALL_KEYS = ("", "\uffff")


class Archive:
    """Orders and journals as they were read once. ``store`` reads from here only."""

    def __init__(self, store: TableStore) -> None:
        self._table, self._copy = store, _Copy(store.table)
        self.store = TableStore(self._copy, shards=len(store.shards))

    async def read(self) -> None:
        """Read all rows that are still in the table. Nothing may be at work on it."""
        for shard in self._table.shards:
            await self._copy.read(shard, ALL_KEYS)

    async def move(self, order_id: str, seen: Container[str]) -> bool:
        """Move one order from the table to here; return whether it was moved.

        It stays if it is not finished, or if a notification of it is not ``seen``.

        Raises:
            StoreUnavailableError: no answer.
        """
        shard = shard_of(order_id, len(self._table.shards))
        await self._copy.read(shard, keys.whole(order_id))
        order = await self.store.load(order_id)
        if order is None or order.process_state not in FINISHED:
            return False
        journal = await self.store.journal(order_id)
        if not all(own_id in seen for own_id in ids_of(Notify, order_id, journal)):
            return False
        return order_id in await self._table.purge(order)


class _Copy(Table):
    """Rows that were read from a table."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.client, table.retry_budget, table.meter, table.transactions)
        self._real = table
        self._rows: dict[str, dict[str, TableEntity]] = {}
        self._sorted: dict[str, list[str]] = {}

    async def read(self, partition: str, span: tuple[str, str]) -> None:
        rows = self._rows.setdefault(partition, {})
        rows.update({str(row["RowKey"]): row for row in await self._real.rows(partition, span)})
        self._sorted.pop(partition, None)

    async def pages(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,  # noqa: ARG002  all columns are there
    ) -> AsyncIterator[list[TableEntity]]:
        """See ``Table.pages``."""
        rows = self._rows.get(partition, {})
        names = self._sorted.get(partition)
        if names is None:
            names = self._sorted[partition] = sorted(rows)
        low, high = (bisect_left(names, key) for key in span)
        if found := names[low:high][:limit]:
            yield [rows[name] for name in found]
