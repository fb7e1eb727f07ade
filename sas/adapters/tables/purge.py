"""Removes finished orders from the table: each in one transaction, several together if they fit.

If an order has more rows than one transaction takes, its past is removed first. Its state row is
removed last, so an interrupted removal is found again.
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


class Purge:
    """The removal of orders from one table."""

    def __init__(self, table: Table, shards: int) -> None:
        self._table = table
        self._shards = shards

    def _partition(self, order: Order) -> str:
        return shard_of(order.order_id, self._shards)

    async def remove(self, *orders: Order) -> set[str]:
        """Remove finished orders; return the ids of the removed ones.

        Raises:
            IllegalMoveError: an order is not finished.
            StoreUnavailableError: no answer. The orders stay listed as finished until all of them
                is gone.
        """
        for order in orders:
            check_finished(order)
        gone: set[str] = set()
        batches: dict[str, list[tuple[str, list[Operation]]]] = {}
        found = await asyncio.gather(*(self._deletions(order) for order in orders))
        for order, deletions in zip(orders, found, strict=True):
            partition = self._partition(order)
            batch = batches.setdefault(partition, [])
            if sum(len(one) for _, one in batch) + len(deletions) > OPERATIONS_MAX:
                gone |= await self._purge_batch(partition, batches.pop(partition))
                batch = batches.setdefault(partition, [])
            if deletions:
                batch.append((order.order_id, deletions))
        for partition, batch in batches.items():
            gone |= await self._purge_batch(partition, batch)
        return gone

    async def _purge_batch(
        self, partition: str, batch: Sequence[tuple[str, list[Operation]]]
    ) -> set[str]:
        """Remove some orders in one transaction; return the removed ones: all or none."""
        whole = [operation for _, deletions in batch for operation in deletions]
        done = whole and await self._transact_once(partition, whole)
        return {order_id for order_id, _ in batch} if done else set()

    async def _deletions(self, order: Order) -> list[Operation]:
        """Return what removes an order in one transaction; empty if it changed or is gone.

        Of an order with more rows than one transaction takes, the past is removed first.
        """
        partition = self._partition(order)
        past, last = await self._rows_to_purge(partition, order)
        token: str | None = str(order.token)
        if len(past) + len(last) > OPERATIONS_MAX:
            token = await self._purge_past(partition, order, past, OPERATIONS_MAX - len(last))
        if token is None or not last:
            return []
        guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)
        return [guard, *past, *last[1:]]

    async def _purge_past(
        self, partition: str, order: Order, past: list[Operation], room: int
    ) -> str | None:
        """Remove the first of ``past`` until at most ``room`` are left; return the new ETag."""
        state = await self._table.get(partition, keys.state(order.order_id))
        if state is None or state.metadata["etag"] != order.token:
            return None
        token = str(order.token)
        same = {name: value for name, value in state.items() if name != "PartitionKey"}
        while len(past) > room:
            some = past[: OPERATIONS_MAX - 1]
            guard = Operation("update", same, token)
            etags = await self._transact_once(partition, [guard, *some])
            if not etags or not etags[0]:
                return None
            token = etags[0]
            del past[: len(some)]
        return token

    async def _rows_to_purge(
        self, partition: str, order: Order
    ) -> tuple[list[Operation], list[Operation]]:
        """Return two lists of deletions: the past, and the rest with the state row first.

        Both are empty if the order is gone.

        The past: last errors, journal, causes, payloads without a reference, payloads in use.
        """
        order_id = order.order_id
        state = keys.state(order_id)
        low, high = keys.aggregate(order_id)
        found = await self._table.rows(partition, keys.whole(order_id), select=["RowKey"])
        all_keys = [str(row["RowKey"]) for row in found]
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
            except UnknownOutcomeError as unknown:
                raise self._table.unavailable(unknown.__cause__ or unknown) from unknown


def _payload_keys(order: Order) -> set[str]:
    """Return the row keys of the payloads that an order refers to."""
    contents = [order.details.payload, *(step.result for step in order.steps)]
    return {
        keys.payload_chunk(order.order_id, ref.sha256, number)
        for ref in contents
        if isinstance(ref, PayloadRef)
        for number in range(ref.chunks)
    }
