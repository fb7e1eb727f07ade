"""All rows of the table as an export has them, and an empty table that gets them back.

**What fits together in an export.** The app runs on while rows are read.

1. A page is a snapshot of one partition, and the rows of an order follow each other. So an order
   within one page is whole and of one moment.
2. The last order of each page may go on behind it. It is read again alone. If it takes several
   pages, its state row must have the same ETag before and after.
3. In each partition the orders are read first, the index rows afterwards, and held messages at
   the end. So these rows are younger than the orders, and may contradict them. Two kinds are
   needed all the same: the *out* rows and the held messages. If a message was not sent when its
   order was read, its row was still there afterwards, unless the message was sent in the meantime.

**What a restore writes.** All rows of the export as they are, but for these:

4. The due rows of steps and deadlines, and the lists of failed and finished orders, follow from
   the orders: they are computed, as each commit does. If an order cannot be read, it gets a due
   row, so that the supervisor finds it and alerts.
5. An order's ``Seq`` is raised by ``SEQ_GAP``. After the export the order went on, and its message
   ids hold its seq. Without the gap, different messages would get the same ids, and duplicate
   detection, which remembers a notification for a week, would drop them.
6. Leases are left out: they are over.

**A restore can be interrupted.** Until all rows are there, the row ``meta`` names the export and
no number of shards, so that no app works on half of the orders. The same restore again writes the
same rows again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice

import msgspec

from sas.adapters.tables import keys
from sas.adapters.tables.group_transaction import typed
from sas.adapters.tables.operations import OPERATIONS_MAX, due_row
from sas.adapters.tables.rows import Entity, order_from, stopped_row
from sas.adapters.tables.store import LOAD_ATTEMPTS_MAX, RESTORING, TableStore
from sas.adapters.tables.table import Table
from sas.domain.change import DeadlineDue, StepDue, due_rows
from sas.ports import CorruptOrderError, StoreUnavailableError

SEQ_GAP = 100_000
"""More transitions than an order makes between its export and the loss of the table."""
TRANSACTION_BYTES_MAX = 900_000
"""Most bytes of JSON in a transaction of several rows, so that its body has less than 1 MiB."""
TRANSACTIONS_AT_ONCE = 8
_ORDERS = ("order|", "order}")
_INDEXES = (("", "order|"), ("order}", "~"))
_EVERYTHING = ("", "~")
_COMPUTED = (StepDue, DeadlineDue)
_LEFT_OUT = frozenset({"attention", "done", "lease", keys.META_ROW})


class TableNotEmptyError(Exception):
    """The table holds rows already: nothing was written."""


async def rows_of(store: TableStore) -> AsyncIterator[Entity]:
    """Yield every row, with the type of each value: by partition, the rows of an order together."""
    await store.open()
    for partition in (keys.META_PARTITION, *store.shards, keys.HELD_PARTITION):
        async for row in _orders(store.table, partition):
            yield _plain(row)
        for span in _INDEXES:  # 3. The index rows afterwards.
            async for page in store.table.raw_pages(partition, span):
                for row in page:
                    yield _plain(row)


async def _orders(table: Table, partition: str) -> AsyncIterator[Entity]:
    last = ""
    async for page in table.raw_pages(partition, _ORDERS):
        orders = [(name, list(rows)) for name, rows in groupby(page, _order_of) if name != last]
        if not orders:
            continue
        for _, rows in orders[:-1]:  # 1. Whole orders of one page.
            for row in rows:
                yield row
        last = orders[-1][0]
        for row in await _read_alone(table, partition, last):  # 2. The last one alone.
            yield row


async def _read_alone(table: Table, partition: str, name: str) -> list[Entity]:
    """Return all rows of one order, as they were at one moment."""
    order_id = keys.unescape(name)
    for _ in range(LOAD_ATTEMPTS_MAX):
        pages = [page async for page in table.raw_pages(partition, keys.whole(order_id))]
        rows = [row for page in pages for row in page]
        if len(pages) <= 1:
            return rows
        etags = [row["odata.etag"] for row in rows if row["RowKey"] == keys.state(order_id)]
        state = await table.get(partition, keys.state(order_id))
        if etags == ([state.metadata["etag"]] if state else []):
            return rows
    raise StoreUnavailableError(f"order {order_id} changes too fast to be exported: export again")


def _order_of(row: Entity) -> str:
    """Return the part of a row's key that names its order."""
    return str(row["RowKey"]).split("|")[1]


def _plain(row: Entity) -> Entity:
    return {name: value for name, value in row.items() if not _is_of_the_service(name)}


def _is_of_the_service(name: str) -> bool:
    return name.startswith(("odata.", "Timestamp"))


async def restore(
    table: Table, rows: Iterable[Entity], *, name: str, at: datetime, shards: Sequence[str]
) -> AsyncIterator[int]:
    """Write the rows of an export into an empty table; yield how many were written, now and then.

    ``name`` is the id of the export, ``at`` its time. After an interruption, call it again.

    Raises:
        TableNotEmptyError: the table has rows of something else.
        StoreUnavailableError: no answer, or no right to write.
        OtherVersionError: a newer version wrote an order.
    """
    meta = await _begin(table, name, shards)
    transactions, written = _transactions(restored(rows, at)), 0
    while some := list(islice(transactions, TRANSACTIONS_AT_ONCE)):
        await asyncio.gather(*(table.overwrite(partition, batch) for partition, batch in some))
        written += sum(len(batch) for _, batch in some)
        yield written
    await table.put(keys.META_PARTITION, meta)


async def _begin(table: Table, name: str, shards: Sequence[str]) -> Entity:
    """Say in the row ``meta`` that a restore goes on; return that row as it is afterwards."""
    await table.create()
    meta = await table.get(keys.META_PARTITION, keys.META_ROW)
    if meta is None or meta.get(RESTORING) != name:
        for partition in (keys.META_PARTITION, *shards, keys.HELD_PARTITION):
            if await table.rows(partition, _EVERYTHING, limit=1, select=["RowKey"]):
                raise TableNotEmptyError(
                    "the table is not empty, and nothing was written: stop the app and delete the "
                    "table, or name a new one (SAS_TABLE)"
                )
        await table.put(keys.META_PARTITION, {"RowKey": keys.META_ROW, RESTORING: name})
    return {"RowKey": keys.META_ROW, "Shards": len(shards)}


def restored(rows: Iterable[Entity], at: datetime) -> Iterator[Entity]:
    """Yield the rows to write for those of an export: see the top, 4. to 6."""
    for (partition, name), group in groupby(rows, _group_of):
        if name:
            yield from _order_with_indexes(partition, keys.unescape(name), list(group), at)
            continue
        for row in group:
            kind = row["RowKey"].split("|")[0]
            is_computed = kind == "due" and isinstance(keys.parse_due(row["RowKey"]), _COMPUTED)
            if not is_computed and kind not in _LEFT_OUT:
                yield row


def _order_with_indexes(
    partition: str, order_id: str, rows: list[Entity], at: datetime
) -> Iterator[Entity]:
    """Yield the rows of an order, and the index rows that follow from it (4.)."""
    for row in rows:
        if row["RowKey"] == keys.state(order_id) and isinstance(row.get("Seq"), int):
            row["Seq"] += SEQ_GAP  # 5. No message id comes twice.
    yield from rows
    low, high = keys.aggregate(order_id)
    by_key = {
        row["RowKey"]: {name: value for name, value in row.items() if "@" not in name}
        for row in rows
        if low <= row["RowKey"] < high
    }
    if all(keys.is_error(row_key) for row_key in by_key):
        return  # an agent wrote it after its order was purged
    indexes: list[Entity | None]
    try:
        order = order_from(order_id, by_key, "")
    except CorruptOrderError:
        indexes = [due_row(StepDue(at=at, order_id=order_id, step=0, epoch=0))]
    else:
        indexes = [*map(due_row, due_rows(order)), stopped_row(order)]
    for index in indexes:
        if index is not None:
            yield {"PartitionKey": partition, **index}


def _group_of(row: Entity) -> tuple[str, str]:
    """Return the partition of a row, and the part of its key that names its order, if it has."""
    is_of_order = row["RowKey"].startswith("order|")
    return row["PartitionKey"], _order_of(row) if is_of_order else ""


def _transactions(rows: Iterable[Entity]) -> Iterator[tuple[str, list[Entity]]]:
    """Yield the rows in groups that one transaction takes, each with its partition."""
    for partition, group in groupby(rows, lambda row: str(row["PartitionKey"])):
        batch: list[Entity] = []
        batch_bytes = 0
        for row in group:
            size = len(msgspec.json.encode(typed(partition, row)))
            is_full = batch and batch_bytes + size > TRANSACTION_BYTES_MAX
            if len(batch) == OPERATIONS_MAX or is_full:
                yield partition, batch
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += size
        yield partition, batch
