"""Purger: removes finished orders that are older than the retention, oldest first.

It runs beside live orders: each run is bounded, and the order's token guards each removal. Orders
that it could not remove are still listed as finished, and the next run continues with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from sas.codec.record import record_of, to_line
from sas.domain.change import HeldDue, OtherDue, OutDue
from sas.domain.content import PayloadRef
from sas.domain.ids import shard_of
from sas.domain.order import FINISHED, Order
from sas.engine.context import Context
from sas.engine.outbox import OUT_AGAIN_AFTER
from sas.ports import Exporter, StoreUnavailableError, Summary
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
T = TypeVar("T", Summary, Order)
R = TypeVar("R")
LEASE = "purge"
PURGE_ORDERS_MAX = 20_000
"""Most orders that one run looks at."""
BATCH = 50
"""Orders read, exported and removed before the next are looked for."""
AT_ONCE = 4
EXPORT_BYTES_MAX = 16 * 1024 * 1024
"""Offloaded content that is read for one export. A single order may have more."""
SHARD_DUE_MAX = 10_000
"""Most due rows of one shard that are searched for messages not yet sent."""


@dataclass(slots=True)
class Purge:
    """What one run did."""

    led: bool = True
    looked_at: int = 0
    removed: int = 0
    left: int = 0
    """Orders that changed since they were listed, have messages not yet sent, or were too many."""
    failed: int = 0
    late: timedelta = timedelta(0)
    """By how much the oldest order that is left is over its retention."""
    stop_at: datetime | None = field(default=None, compare=False)


class Purger:
    """Runs on a timer."""

    def __init__(
        self,
        context: Context,
        retention: timedelta,
        exporter: Exporter | None = None,
        function_time: timedelta = timedelta(minutes=8),
    ) -> None:
        self._context = context
        self._function_time = function_time
        self._retention = retention
        self._exporter = exporter

    async def run(self) -> Purge:
        """Remove orders that are too old, within bounds.

        An order that fails is logged and counted, and the others go on. An order that cannot be
        exported is not removed. When the function's time is over, nothing new begins.

        Raises:
            StoreUnavailableError: the list of finished orders could not be read.
        """
        with tracing.span("purge", actor="purge"):
            return await self._run()

    async def _run(self) -> Purge:
        began = self._context.clock.now()
        store, holder = self._context.store, self._context.instance
        stop_at = began + self._function_time
        if not await store.acquire_lease(LEASE, holder, stop_at, began):
            return Purge(led=False)
        found = Purge(stop_at=stop_at)
        unsent, unknown = await self._unsent(began, stop_at)
        until, since, ended = began - self._retention, None, False
        seen: set[tuple[datetime, str]] = set()
        while found.looked_at < PURGE_ORDERS_MAX and self._context.clock.now() < stop_at:
            batch = await store.finished(BATCH + len(seen), since=since, until=until)
            fresh = [one for one in batch if (one.at, one.order_id) not in seen][:BATCH]
            if not fresh:
                ended = True
                break
            found.looked_at += len(fresh)
            sent = [
                one
                for one in fresh
                if one.order_id not in unsent
                and shard_of(one.order_id, len(store.shards)) not in unknown
            ]
            found.left += len(fresh) - len(sent)
            await self._purge(sent, until, found)
            since = fresh[-1].at
            seen |= {(one.at, one.order_id) for one in fresh}
            seen = {one for one in seen if one[0] == since}
        if not ended or found.removed < found.looked_at:
            left = await store.finished(1, until=until)
            found.late = until - left[0].at if left else timedelta(0)
        metrics.purged(found.late.total_seconds())
        log.info("purge of what ended before %s: %s", until, found)
        return found

    async def _unsent(self, now: datetime, stop_at: datetime) -> tuple[set[str], set[str]]:
        """Return the orders with messages that are not known to be sent, and the shards where they
        are not known: those cannot be read, or have too many due rows. Nothing there is removed.
        """
        store, ids, unknown = self._context.store, set[str](), set(self._context.store.shards)
        for shard in store.shards:
            if self._context.clock.now() >= stop_at:
                break
            try:
                rows = await store.due(shard, now + 2 * OUT_AGAIN_AFTER, SHARD_DUE_MAX)
            except StoreUnavailableError as down:
                log.warning("nothing of shard %s is purged now: %s", shard, down)
                continue
            if len(rows) >= SHARD_DUE_MAX:
                log.warning("nothing of shard %s is purged: %d rows are due", shard, len(rows))
                continue
            unknown.remove(shard)
            unsent = OutDue | HeldDue | OtherDue
            ids.update(row.order_id for row in rows if isinstance(row, unsent))
        return ids, unknown

    async def _purge(self, batch: Sequence[Summary], until: datetime, found: Purge) -> None:
        store = self._context.store

        async def load(one: Summary) -> Order | None:
            order = await store.load(one.order_id)
            if order is not None and _may_go(order, until):
                return order
            found.left += 1
            return None

        async def remove(order: Order) -> None:
            if await store.purge(order):
                found.removed += 1
            else:
                found.left += 1

        loaded = await self._each(load, batch, found)
        for orders in _parts([order for order in loaded if order is not None]):
            await self._each(remove, await self._exported(orders, found), found)

    async def _exported(self, orders: list[Order], found: Purge) -> list[Order]:
        """Export orders, and return those that may be removed now."""
        if self._exporter is None:
            return orders
        lines = await self._each(self._line, orders, found)
        read = [(one, line) for one, line in zip(orders, lines, strict=True) if line is not None]
        try:
            await self._exporter.export([line for _, line in read])
        except OSError:
            found.failed += len(read)
            log.exception("%d orders are kept: they could not be exported", len(read))
            return []
        return [order for order, _ in read]

    async def _line(self, order: Order) -> str:
        """Return an order as a line of the export."""
        journal = await self._context.store.journal(order.order_id)
        whole = await self._context.content.fetch_all(order)
        return to_line(record_of(whole, journal, content=True))

    async def _each(
        self, work: Callable[[T], Awaitable[R]], orders: Sequence[T], found: Purge
    ) -> list[R | None]:
        """Return the results of ``work``, a few at a time; None for an order that failed."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(order: T) -> R | None:
            async with gate:
                if found.stop_at is not None and self._context.clock.now() >= found.stop_at:
                    found.left += 1
                    return None
                try:
                    return await work(order)
                except StoreUnavailableError as down:
                    log.warning("order %s waits for the next purge: %s", order.order_id, down)
                except Exception:  # one broken order must not keep all others
                    log.exception("order %s could not be purged", order.order_id)
                found.failed += 1
                return None

        return await asyncio.gather(*(one(order) for order in orders))


def _parts(orders: list[Order]) -> Iterator[list[Order]]:
    """Split orders into parts whose offloaded content fits in memory."""
    part: list[Order] = []
    size = 0
    for order in orders:
        contents = [order.details.payload, *(step.result for step in order.steps)]
        own = sum(content.size for content in contents if isinstance(content, PayloadRef))
        if part and size + own > EXPORT_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(order)
        size += own
    if part:
        yield part


def _may_go(order: Order, until: datetime) -> bool:
    """Return whether a loaded order has ended long enough ago."""
    ended = order.rejected or order.process_state in FINISHED
    return ended and order.settled_at is not None and order.settled_at <= until
