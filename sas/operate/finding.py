"""Find orders by their index rows, load them if needed, and group them by how they failed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sas.domain.change import Due
from sas.domain.ids import check_order_id
from sas.domain.order import Order, OrderState, StepRecord, StepState
from sas.operate.errors import NotPossibleError, UsageError
from sas.ports import CorruptOrderError, OtherVersionError, StateStore, Summary

BATCH_ORDERS = 200
"""Orders that are loaded in one batch. Memory holds one batch of orders."""
SUMMARIES_MAX = 12_800
"""Index rows in the largest batch."""
LOADS_AT_ONCE = 32
"""Orders that are loaded at the same time."""
UNDER_WAY_MAX = 1_000_000
"""How many due rows of one shard are read at most."""
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_FIRST_WINDOW = timedelta(minutes=1)
SHARE_MIN = 10
"""Of one shard so many finished orders are looked for at least: its share may be uneven."""
FINISHED_MAX = 1_000_000
"""Finished orders that are read at once at most."""
END_OF_TIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""All due rows are due before this moment."""

_STATES = {
    "error": OrderState.ERROR,
    "processed": OrderState.PROCESSED,
    "compensated": OrderState.COMPENSATED,
    "rejected": OrderState.REJECTED,
}
"""The states of queries that one state of an order answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderQuery:
    """Which orders to find, and how many at most.

    ``since`` leaves out orders that came into their state before that moment.
    """

    state: str
    workflow: str | None = None
    fingerprint: str | None = None
    limit: int = 50
    since: datetime | None = None


def is_failed(step: StepRecord) -> bool:
    """Return whether a step is in Error."""
    return step.process_state is StepState.ERROR


def in_words(counts: Counter[str]) -> str:
    """Return the ten highest counts in words, the highest first."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common(10))


async def load(store: StateStore, order_id: str) -> Order:
    """Return one order.

    Raises:
        UsageError: no order can have this id.
        NotPossibleError: there is no such order.
    """
    try:
        check_order_id(order_id)
    except ValueError as error:
        raise UsageError(str(error)) from None
    order = await store.load(order_id)
    if order is None:
        raise NotPossibleError(no_such_order(order_id))
    return order


def no_such_order(order_id: str) -> str:
    """Return the sentence that there is no such order, and what to check."""
    return (
        f"there is no order {order_id!r} here: check the id, and that this is the app's "
        "table; a finished order may have been purged"
    )


async def load_all(
    store: StateStore, ids: Sequence[str], unreadable: dict[str, str] | None = None
) -> list[Order]:
    """Return the orders with these ids, without those that do not exist.

    ``unreadable`` gets why an order cannot be read, by its id. Without it the first one raises.
    """
    gate = asyncio.Semaphore(LOADS_AT_ONCE)

    async def fetch(order_id: str) -> Order | None:
        async with gate:
            try:
                return await store.load(order_id)
            except (CorruptOrderError, OtherVersionError) as error:
                if unreadable is None:
                    raise
                unreadable[order_id] = str(error)
                return None

    orders = await asyncio.gather(*(fetch(order_id) for order_id in ids))
    return [order for order in orders if order is not None]


async def each(
    store: StateStore, query: OrderQuery, unreadable: dict[str, str] | None = None
) -> AsyncIterator[Order]:
    """Yield orders in Error, under way or Processed. Memory holds one batch of orders.

    ``unreadable`` gets why an order cannot be read, by its id. Without it the first one raises.

    Orders in Error or Processed come in the order in which they came into this state. Of the orders
    under way, those come first that the supervisor looks at first.
    """
    remaining = query.limit
    async for ids in _candidates(store, query):
        for order in await load_all(store, ids, unreadable):
            if _matches(order, query):
                yield order
                remaining -= 1
                if not remaining:
                    return


async def newest_finished(store: StateStore, query: OrderQuery, now: datetime) -> list[Summary]:
    """Return the index rows of finished orders, the newest first. No order is loaded.

    The table sorts these rows with the oldest first. So one shard tells first since when there may
    be enough of them: orders are spread evenly over the shards.
    """
    share = query.limit // len(store.shards) + SHARE_MIN
    earliest = query.since or _EARLIEST
    while True:
        since = await _since_share(store, query, now, share)
        rows = await store.finished(FINISHED_MAX, since=since)
        matches = [summary for summary in rows if may_match(summary, query)]
        if len(matches) >= query.limit or since <= earliest:
            return matches[::-1][: query.limit]
        share *= 4


async def _since_share(store: StateStore, query: OrderQuery, now: datetime, share: int) -> datetime:
    """Return since when one shard has so many finished orders that match, or the earliest time."""
    window, earliest = _FIRST_WINDOW, query.since or _EARLIEST
    while now - window > earliest:
        rows = await store.finished(FINISHED_MAX, since=now - window, shard=store.shards[0])
        matches = [summary for summary in rows if may_match(summary, query)]
        if len(matches) >= share:
            return matches[-share].at
        window *= 8
    return earliest


async def under_way(store: StateStore) -> list[str]:
    """Return the ids of all orders that have a due row, sorted by the time of that row.

    Every order with an open step has a due row. A few others have one too: of a deadline, or of
    messages that may be unsent.
    """
    rows = sorted(await due_rows(store), key=lambda row: row.at)
    return list(dict.fromkeys(row.order_id for row in rows if row.order_id))


async def due_rows(store: StateStore) -> list[Due]:
    """Return the due rows of all shards."""
    lists = await asyncio.gather(
        *(store.due(shard, END_OF_TIME, UNDER_WAY_MAX) for shard in store.shards)
    )
    return [row for rows in lists for row in rows]


async def summaries(
    store: StateStore,
    *,
    in_error: bool,
    since: datetime | None = None,
    until: datetime | None = None,
) -> AsyncIterator[list[Summary]]:
    """Yield the summaries of orders in Error, or of finished orders, in batches that grow.

    Each read begins at the moment of the last summary of the batch before, because several orders
    can have the same moment. The summaries that were in the batch before are left out.
    """
    last_keys: set[tuple[datetime, str]] = set()
    size = BATCH_ORDERS
    while True:
        limit = size + len(last_keys)
        if in_error:
            batch = await store.attention(limit, since=since)
        else:
            batch = await store.finished(limit, since=since, until=until)
        new_summaries = [
            summary for summary in batch if (summary.at, summary.order_id) not in last_keys
        ]
        if not new_summaries:
            return
        yield new_summaries
        size = min(size * 4, SUMMARIES_MAX)
        since = new_summaries[-1].at
        last_keys = {(summary.at, summary.order_id) for summary in batch if summary.at == since}


def since(order: Order) -> datetime:
    """Return since when an order is in its state.

    For an order under way, this is when one of its steps last changed.
    """
    return order.stopped_at or max(step.since for step in order.steps)


def _matches(order: Order, query: OrderQuery) -> bool:
    state = _STATES.get(query.state)
    settled = order.rejected or order.stopped_at is not None
    return (
        (order.process_state is state if state else not settled)
        and query.workflow in {None, order.details.workflow}
        and (query.fingerprint is None or query.fingerprint in order.fingerprints)
        and (query.since is None or since(order) >= query.since)
    )


async def _candidates(store: StateStore, query: OrderQuery) -> AsyncIterator[list[str]]:
    """Yield the ids of orders that may match, a batch at a time."""
    if query.state == "running":
        for batch in batched(await under_way(store)):
            yield batch
        return
    in_error = query.state == "error"
    async for summaries_read in summaries(store, in_error=in_error, since=query.since):
        matches = [summary for summary in summaries_read if may_match(summary, query)]
        for batch in batched([summary.order_id for summary in matches]):
            yield batch


def batched(order_ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ids in batches of ``BATCH_ORDERS``."""
    for start in range(0, len(order_ids), BATCH_ORDERS):
        yield list(order_ids[start : start + BATCH_ORDERS])


def may_match(summary: Summary, query: OrderQuery) -> bool:
    """Return whether an order may match, as far as its index row tells."""
    return (
        _STATES.get(query.state, summary.process_state) is summary.process_state
        and query.workflow in {None, summary.workflow}
        # An older version wrote no fingerprints.
        and (not summary.fingerprints or query.fingerprint in {None, *summary.fingerprints})
    )
