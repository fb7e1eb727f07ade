"""Finds orders by their index rows, loads them if needed, and groups them by how they failed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sas.domain.change import Due
from sas.domain.ids import check_order_id
from sas.domain.order import Order, OrderState, StepRecord, StepState
from sas.operate.errors import NotPossibleError, UsageError
from sas.ports import StateStore, Summary

BATCH = 200
CONCURRENT = 8
"""Requests to the store at the same time."""
UNDER_WAY_MAX = 1_000_000
"""Due rows read of one shard at most."""
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_WINDOW = timedelta(minutes=10)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)

STATES = ("error", "running", "finished", "processed", "compensated", "rejected")
_FINISHED = {
    "processed": frozenset({OrderState.PROCESSED}),
    "compensated": frozenset({OrderState.COMPENSATED}),
    "rejected": frozenset({OrderState.REJECTED}),
}
_LOADED = {"error": OrderState.ERROR, "processed": OrderState.PROCESSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which orders are looked for: at most ``limit``, in their state since ``since`` or later."""

    state: str
    workflow: str | None = None
    fingerprint: str | None = None
    limit: int = 50
    since: datetime | None = None


def is_failed(step: StepRecord) -> bool:
    """Return whether a step is in Error."""
    return step.process_state is StepState.ERROR


def doing(order: Order) -> str:
    """Return which steps of an order are open, in a few words."""
    said = [
        f"{step.name} {'rests' if step.resting else 'is out' if step.dispatched else 'is ready'}"
        for step in order.steps
        if step.complete_by is not None
    ]
    return ", ".join(said)


def fingerprint(step: StepRecord) -> str:
    """Return ``step/code`` of a failed step. Steps that failed alike have the same."""
    return f"{step.name}/{step.error.code if step.error else 'unknown'}"


def fingerprints(order: Order) -> list[str]:
    """Return the fingerprint of every failed step."""
    return [fingerprint(step) for step in order.steps if is_failed(step)]


def grouped(orders: Iterable[Order], step: str | None = None) -> str:
    """Return how many orders have each fingerprint (of one step, where it is named)."""
    every = (one for order in orders for one in fingerprints(order))
    return in_words(Counter(one for one in every if step is None or one.startswith(f"{step}/")))


def in_words(counts: Counter[str]) -> str:
    """Return counts of fingerprints in words, the most frequent first."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common(10))


async def load(store: StateStore, order_id: str) -> Order:
    """Return one order.

    Raises:
        UsageError: no order can have this id.
        NotPossibleError: there is no such order.
    """
    try:
        check_order_id(order_id)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from None
    order = await store.load(order_id)
    if order is None:
        raise NotPossibleError(no_such_order(order_id))
    return order


def no_such_order(order_id: str) -> str:
    """Say that there is no such order, and what to check."""
    return (
        f"there is no order {order_id!r} here: check the id, and that this is the app's "
        "table; a finished order may have been purged"
    )


async def load_all(store: StateStore, ids: Sequence[str]) -> list[Order]:
    """Return those of these orders that exist, a few requests at a time."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(order_id: str) -> Order | None:
        async with gate:
            return await store.load(order_id)

    loaded = await asyncio.gather(*(one(order_id) for order_id in ids))
    return [order for order in loaded if order is not None]


async def each(store: StateStore, wanted: Wanted) -> AsyncIterator[Order]:
    """Yield orders in Error, under way or Processed, the oldest first; one batch in memory."""
    left = wanted.limit
    async for ids in _candidates(store, wanted):
        for order in await load_all(store, ids):
            if _fits(order, wanted):
                yield order
                left -= 1
                if not left:
                    return


async def newest_finished(store: StateStore, wanted: Wanted, now: datetime) -> list[Summary]:
    """Return the index rows of finished orders, the newest first. No order is loaded.

    The table sorts them oldest first. So windows of time are read from now backwards, each twice as
    long as the one before.
    """
    first = wanted.since or _LONG_AGO
    found: dict[tuple[datetime, str], Summary] = {}
    until: datetime | None = None
    window = _WINDOW
    while len(found) < wanted.limit and (until is None or until > first):
        since = max(first, (until or now) - window)
        rows: list[Summary] = []
        async for batch in summaries(store, in_error=False, since=since, until=until):
            rows += [one for one in batch if _is_wanted(one, wanted)]
        found |= {(one.at, one.order_id): one for one in reversed(rows)}
        until, window = since, window * 2
    return list(found.values())[: wanted.limit]


def _is_wanted(one: Summary, wanted: Wanted) -> bool:
    states = _FINISHED.get(wanted.state)
    return (states is None or one.process_state in states) and (
        wanted.workflow in {None, one.workflow}
    )


async def under_way(store: StateStore) -> list[str]:
    """Return the ids of all orders with an open step, the longest due first.

    Each has a due row.
    """
    rows: list[Due] = []
    for shard in store.shards:
        rows += await store.due(shard, _END_OF_TIME, UNDER_WAY_MAX)
    rows.sort(key=lambda row: row.at)
    return list(dict.fromkeys(row.order_id for row in rows if row.order_id))


async def summaries(
    store: StateStore,
    *,
    in_error: bool,
    since: datetime | None = None,
    until: datetime | None = None,
    size: int | None = None,
) -> AsyncIterator[list[Summary]]:
    """Yield all summaries in batches. Each batch begins at the last moment of the one before."""
    seen: set[tuple[datetime, str]] = set()
    while True:
        most = (size or BATCH) + len(seen)
        if in_error:
            batch = await store.attention(most, since=since)
        else:
            batch = await store.finished(most, since=since, until=until)
        fresh = [one for one in batch if (one.at, one.order_id) not in seen]
        if not fresh:
            return
        yield fresh
        since = fresh[-1].at
        seen = {(one.at, one.order_id) for one in batch if one.at == since}


def since(order: Order) -> datetime:
    """Return since when an order has been in its state."""
    return order.stopped_at or max(step.since for step in order.steps)


def _fits(order: Order, wanted: Wanted) -> bool:
    state = _LOADED.get(wanted.state)
    settled = order.rejected or order.stopped_at is not None
    return (
        (order.process_state is state if state else not settled)
        and wanted.workflow in {None, order.details.workflow}
        and (wanted.fingerprint is None or wanted.fingerprint in fingerprints(order))
        and (wanted.since is None or since(order) >= wanted.since)
    )


async def _candidates(store: StateStore, wanted: Wanted) -> AsyncIterator[list[str]]:
    if wanted.state == "running":
        ids = await under_way(store)
        for start in range(0, len(ids), BATCH):
            yield ids[start : start + BATCH]
        return
    state = _LOADED[wanted.state]
    in_error = state is OrderState.ERROR
    async for batch in summaries(store, in_error=in_error, since=wanted.since):
        right = [one for one in batch if one.process_state is state]
        yield [one.order_id for one in right if wanted.workflow in {None, one.workflow}]
