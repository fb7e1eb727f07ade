"""Which orders a command is about: found by index rows, loaded only where they are shown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sas.cli.errors import UsageError
from sas.domain.order import Order, OrderState, StepState
from sas.ports import StateStore, Summary

BATCH = 200
AT_ONCE = 8
FOREVER = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
UNDER_WAY_MAX = 1_000_000
"""Due rows read of one shard at most."""

STATES = ("error", "running", "finished", "processed", "compensated", "rejected")
_FINISHED = {
    "processed": frozenset({OrderState.PROCESSED}),
    "compensated": frozenset({OrderState.COMPENSATED}),
    "rejected": frozenset({OrderState.REJECTED}),
}

_LOADED = {"error": OrderState.ERROR, "processed": OrderState.PROCESSED}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for. ``limit`` bounds what is found; ``since`` when it came to where it is."""

    state: str
    workflow: str | None = None
    fingerprint: str | None = None
    limit: int = 50
    since: datetime | None = None


def fingerprints(order: Order) -> list[str]:
    """Return ``step/code`` for every failed step: the same for orders that failed alike."""
    failed = (step for step in order.steps if step.process_state is StepState.ERROR)
    return [f"{step.name}/{step.error.code if step.error else 'unknown'}" for step in failed]


def grouped(orders: Iterable[Order], step: str | None = None) -> str:
    """Return how many orders there are of each fingerprint (of one step alone, where it is named),
    most frequent first.
    """
    return spelled(
        Counter(
            one
            for order in orders
            for one in fingerprints(order)
            if step is None or one.startswith(f"{step}/")
        )
    )


def spelled(counts: Counter[str]) -> str:
    """Return counts of fingerprints in words, the most frequent first."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common(10))


async def find(store: StateStore, wanted: Wanted) -> list[Order]:
    """Return orders in Error, under way or Processed, loaded, the oldest first."""
    return [order async for order in each(store, wanted)]


async def each(store: StateStore, wanted: Wanted) -> AsyncIterator[Order]:
    """Yield orders in Error, under way or Processed, loaded, the oldest first, as they are found:
    no more of them is held than one batch.
    """
    left = wanted.limit
    async for ids in _candidates(store, wanted):
        for order in await load_all(store, ids):
            if _fits(order, wanted):
                yield order
                left -= 1
                if not left:
                    return


async def find_finished(store: StateStore, wanted: Wanted) -> list[Summary]:
    """Return finished orders as their index rows tell of them, the oldest first."""
    states = _FINISHED.get(wanted.state)
    found: list[Summary] = []
    async for batch in summaries(store, in_error=False, since=wanted.since):
        found += [
            summary
            for summary in batch
            if (states is None or summary.process_state in states)
            and wanted.workflow in {None, summary.workflow}
        ]
        if len(found) >= wanted.limit:
            break
    return found[: wanted.limit]


async def load_all(store: StateStore, ids: Sequence[str]) -> list[Order]:
    """Return the orders of these ids that are there, a few requests at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def load(order_id: str) -> Order | None:
        async with gate:
            return await store.load(order_id)

    loaded = await asyncio.gather(*(load(order_id) for order_id in ids))
    return [order for order in loaded if order is not None]


async def under_way(store: StateStore) -> list[str]:
    """Return the ids of all orders with a step whose turn it is: each has a due row."""
    ids: dict[str, None] = {}
    for shard in store.shards:
        rows = await store.due(shard, FOREVER, UNDER_WAY_MAX)
        ids.update((row.order_id, None) for row in rows)
    return list(ids)


async def summaries(
    store: StateStore,
    *,
    in_error: bool,
    since: datetime | None = None,
    until: datetime | None = None,
) -> AsyncIterator[list[Summary]]:
    """Yield all summaries in batches: each begins at the last moment of the one before."""
    seen: set[tuple[datetime, str]] = set()
    while True:
        most = BATCH + len(seen)
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


def moment(text: str) -> datetime:
    """Return the moment that an argument names, UTC unless it says otherwise.

    Raises:
        UsageError: it names none.
    """
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text[:40]!r} is no moment: give one like 2026-11-21 or 2026-11-21T03:00"
        ) from None


def _fits(order: Order, wanted: Wanted) -> bool:
    state = _LOADED.get(wanted.state)
    right_state = order.process_state is state if state else not _settled(order)
    return (
        right_state
        and wanted.workflow in {None, order.details.workflow}
        and (wanted.fingerprint is None or wanted.fingerprint in fingerprints(order))
        and (wanted.since is None or since(order) >= wanted.since)
    )


def since(order: Order) -> datetime:
    """Return since when an order is where it is."""
    return order.settled_at or max(step.since for step in order.steps)


def _settled(order: Order) -> bool:
    return order.rejected or order.settled_at is not None


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
