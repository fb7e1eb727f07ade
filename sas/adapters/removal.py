"""Removing a finished order, so that no crash and no operator can find half of one.

Up to 100 rows go in one transaction, guarded by the state row's ETag. Where there are more,
the oldest journal and cause rows go first, and content that nothing refers to, each
transaction rewriting the state row under its ETag: an order that an operator touched meanwhile
is left alone from there on. The aggregate, the content it refers to and the row that lists it
as finished go last, together: at most 99 rows (6 chunks of a payload; of each of 30 steps its
row and 2 chunks of its result).
"""

from __future__ import annotations

from collections.abc import Sequence

from sas.adapters import keys, rows
from sas.adapters.commit import OPERATIONS_MAX, Operation
from sas.adapters.table import RefusedTransactionError, Table, UnknownOutcomeError
from sas.domain.change import check_finished
from sas.domain.content import PayloadRef
from sas.domain.order import Order


async def remove(table: Table, partition: str, order: Order) -> bool:
    """Remove a finished order; False where it changed, or went, since it was loaded.

    Raises:
        IllegalMoveError: it is not finished.
        StoreUnavailableError: no answer; it is listed as finished until it is wholly gone.
    """
    check_finished(order)
    past, last = await _rows_of(table, partition, order)
    token: str | None = str(order.token)
    if len(past) + len(last) > OPERATIONS_MAX:
        token = await _remove_past(table, partition, order, past, OPERATIONS_MAX - len(last))
    if token is None:
        return False
    guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)
    return bool(await _transact(table, partition, [guard, *past, *last[1:]]))


async def _remove_past(
    table: Table, partition: str, order: Order, past: list[Operation], room: int
) -> str | None:
    """Remove from the front of ``past`` until ``room`` is enough for it; return the new ETag."""
    state = await table.get(partition, keys.state(order.order_id))
    if state is None or state.metadata["etag"] != order.token:
        return None
    token = str(order.token)
    same = {name: value for name, value in state.items() if name != "PartitionKey"}
    while len(past) > room:
        some = past[: OPERATIONS_MAX - 1]
        etags = await _transact(table, partition, [Operation("update", same, token), *some])
        if not etags or not etags[0]:
            return None
        token = etags[0]
        del past[: len(some)]
    return token


async def _rows_of(
    table: Table, partition: str, order: Order
) -> tuple[list[Operation], list[Operation]]:
    """Return the deletion of what is past (journal, causes, unused content; last the content in
    use), and of the rest, state first.
    """
    order_id = order.order_id
    state = keys.state(order_id)
    low, high = keys.aggregate(order_id)
    pages = table.pages(partition, keys.whole(order_id), select=["RowKey"])
    found = [str(row["RowKey"]) async for page in pages for row in page]
    used = _used(order)
    past = [key for key in found if not low <= key < high]
    past.sort(key=lambda key: (key in used, key))
    rest = [key for key in found if low <= key < high and key != state]
    listed = rows.settled_row(order)
    if listed is not None:
        rest.append(str(listed["RowKey"]))
    return [_delete(key) for key in past], [_delete(key) for key in (state, *rest)]


def _used(order: Order) -> set[str]:
    """Return the keys of the content that an order refers to."""
    contents = [order.details.payload, *(step.result for step in order.steps)]
    return {
        keys.payload_chunk(order.order_id, ref.sha256, number)
        for ref in contents
        if isinstance(ref, PayloadRef)
        for number in range(ref.chunks)
    }


async def _transact(
    table: Table, partition: str, operations: Sequence[Operation]
) -> list[str | None]:
    """Return the new ETags; nothing where a rival came first.

    Raises:
        StoreUnavailableError: whether it was written is unknown; the next run finds out.
    """
    async with table.within_time():
        try:
            return await table.transact(partition, operations)
        except RefusedTransactionError:
            return []
        except UnknownOutcomeError as unknown:
            raise table.unavailable(unknown.__cause__ or unknown) from unknown


def _delete(row_key: str) -> Operation:
    return Operation("delete", {"RowKey": row_key})
