"""Removes finished orders from the table, so that no crash leaves half of one.

1. The rows of several orders of a shard go in one transaction of at most 100 operations. Each order
   brings its state row, guarded by the ETag that it was loaded with. So if an operator changed one
   of them meanwhile, nothing of this transaction is removed.
2. If an order has more rows, its *past* goes first: the last errors of its steps, then journal rows
   (the oldest first), cause rows, and payloads that nothing refers to. Only as many rows go as must
   go, so that one transaction takes all others. Each of these transactions writes the state row
   again under its ETag. So if an operator changes the order meanwhile, the next transaction is
   refused, and the rest of the order stays.
3. The rest goes last, in one transaction: the aggregate, the payloads that it refers to, and the
   row that lists the order as finished. These are at most 99 rows: details, state and the listing
   row, 6 chunks of a payload, and for each of 30 steps its row and 2 chunks.

After a crash between two transactions the order is still listed as finished, and the next run
removes the rest. After a lost answer nothing is tried again. The next run finds the order and
removes it, or finds that it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sas.adapters.tables import keys
from sas.adapters.tables.operations import OPERATIONS_MAX, Operation, deletion
from sas.adapters.tables.rows import stopped_row
from sas.adapters.tables.table import RefusedTransactionError, Table, UnknownOutcomeError
from sas.domain.change import check_finished
from sas.domain.content import PayloadRef
from sas.domain.ids import shard_of
from sas.domain.order import Order


class FinishedOrders:
    """The finished orders of one table, which can be removed from it."""

    def __init__(self, table: Table, shards: int) -> None:
        self._table = table
        self._shards = shards

    def _partition(self, order: Order) -> str:
        return shard_of(order.order_id, self._shards)

    async def remove(self, *orders: Order) -> set[str]:
        """Remove finished orders; return the ids of those that were removed.

        Raises:
            IllegalMoveError: an order is not finished.
            StoreUnavailableError: no answer. The orders stay listed as finished until all of them
                is gone.
        """
        for order in orders:
            check_finished(order)
        removed: set[str] = set()
        batches: dict[str, list[tuple[str, list[Operation]]]] = {}
        per_order = await asyncio.gather(*(self._deletions(order) for order in orders))
        for order, deletions in zip(orders, per_order, strict=True):
            partition = self._partition(order)
            batch = batches.setdefault(partition, [])
            size = sum(len(rows) for _, rows in batch)
            if size + len(deletions) > OPERATIONS_MAX:
                removed |= await self._purge_batch(partition, batches.pop(partition))
                batch = batches.setdefault(partition, [])
            if deletions:
                batch.append((order.order_id, deletions))
        for partition, batch in batches.items():
            removed |= await self._purge_batch(partition, batch)
        return removed

    async def _purge_batch(
        self, partition: str, batch: Sequence[tuple[str, list[Operation]]]
    ) -> set[str]:
        """Remove some orders in one transaction; return the ids of all of them, or none."""
        operations = [operation for _, deletions in batch for operation in deletions]
        if not operations or not await self._transact_once(partition, operations):
            return set()
        return {order_id for order_id, _ in batch}

    async def _deletions(self, order: Order) -> list[Operation]:
        """Return what removes an order in one transaction; empty if it changed or is gone.

        Of an order with more rows than one transaction takes, the past is removed first.
        """
        partition = self._partition(order)
        # 2. The past, if one transaction does not take all rows.
        past, rest = await self._rows_to_purge(partition, order)
        token: str | None = str(order.token)
        if len(past) + len(rest) > OPERATIONS_MAX:
            token = await self._purge_past(partition, order, past, OPERATIONS_MAX - len(rest))
        if token is None or not rest:
            return []
        # 1. and 3. The rest, behind the state row that guards all of it.
        guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)
        return [guard, *past, *rest[1:]]

    async def _purge_past(
        self, partition: str, order: Order, past: list[Operation], room: int
    ) -> str | None:
        """Remove the first of ``past`` until at most ``room`` are left; return the new ETag."""
        state = await self._table.get(partition, keys.state(order.order_id))
        if state is None or state.metadata["etag"] != order.token:
            return None
        token = str(order.token)
        row = {name: value for name, value in state.items() if name != "PartitionKey"}
        while len(past) > room:
            oldest = past[: min(OPERATIONS_MAX - 1, len(past) - room)]
            guard = Operation("update", row, token)
            etags = await self._transact_once(partition, [guard, *oldest])
            if not etags or not etags[0]:
                return None
            token = etags[0]
            del past[: len(oldest)]
        return token

    async def _rows_to_purge(
        self, partition: str, order: Order
    ) -> tuple[list[Operation], list[Operation]]:
        """Return two lists of deletions: the past, and the rest with the state row first.

        Both are empty if the order is gone. The payloads that the order refers to stand at the end
        of the past, so that they go last.
        """
        order_id = order.order_id
        state = keys.state(order_id)
        low, high = keys.aggregate(order_id)
        rows = await self._table.rows(partition, keys.whole(order_id), select=["RowKey"])
        all_keys = [str(row["RowKey"]) for row in rows]
        if state not in all_keys:
            return [], []
        used = _payload_keys(order)
        past = [key for key in all_keys if not low <= key < high or keys.is_error(key)]
        rest = [key for key in all_keys if key not in {state, *past}]
        past.sort(key=lambda key: (key in used, key))
        listed = stopped_row(order)
        if listed is not None:
            rest.append(str(listed["RowKey"]))
        return [deletion(key) for key in past], [deletion(key) for key in (state, *rest)]

    async def _transact_once(self, partition: str, batch: Sequence[Operation]) -> list[str | None]:
        """Return the new ETags; an empty list if another instance changed the order.

        Raises:
            StoreUnavailableError: it is unknown whether it was written; the next run finds out.
        """
        async with self._table.within_time():
            try:
                return await self._table.transact(partition, batch)
            except RefusedTransactionError:
                return []
            except UnknownOutcomeError as error:
                raise self._table.unavailable(error.__cause__ or error) from error


def _payload_keys(order: Order) -> set[str]:
    """Return the row keys of the payloads that an order refers to."""
    contents = [order.details.payload, *(step.result for step in order.steps)]
    return {
        keys.payload_chunk(order.order_id, content.sha256, number)
        for content in contents
        if isinstance(content, PayloadRef)
        for number in range(content.chunks)
    }
