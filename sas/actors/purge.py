"""Purger: removes finished orders that are older than the retention, oldest first in each shard.

Shards are purged side by side, and several orders go in one transaction. It runs beside live
orders: each run ends with its function's time, and the order's token guards each removal. Orders
that it could not remove are still listed as finished, and the next run continues with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from sas.domain.change import OUT_AGAIN_AFTER, OtherDue, OutDue
from sas.domain.order import FINISHED, Order
from sas.engine.context import Context
from sas.ports import OtherVersionError, StoreUnavailableError, Summary
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
T = TypeVar("T", Summary, Order)
R = TypeVar("R")
PURGE_LEASE = "purge"
LISTED_MAX = 50
"""Orders of a shard that are listed at once."""
REMOVED_TOGETHER = 6
"""Orders of a shard that are read and removed together: usually in one transaction."""
SEARCHED_DUE_MAX = 10_000
"""Most due rows of one shard that are searched for messages not yet sent."""


@dataclass(slots=True, kw_only=True)
class Purge:
    """What one run did."""

    led: bool = True
    looked_at: int = 0
    removed: int = 0
    remaining: int = 0
    """Orders that changed since they were listed, have messages not yet sent, or came too late."""
    failed: int = 0
    late: timedelta = timedelta(0)
    """How long the oldest order that is left is past its retention."""
    stop_at: datetime | None = field(default=None, compare=False)


class Purger:
    """Runs on a timer."""

    def __init__(self, context: Context, retention: timedelta, function_time: timedelta) -> None:
        self._context = context
        self._function_time = function_time
        self._retention = retention

    async def run(self) -> Purge:
        """Remove orders that are too old, within the function's time.

        An order or a shard that fails is logged, and the others go on. When the function's time is
        over, nothing new begins.

        Raises:
            StoreUnavailableError: the finished orders of no shard could be listed.
        """
        with tracing.span("purge", actor="purge"):
            return await self._run()

    async def _run(self) -> Purge:
        began = self._context.clock.now()
        store, holder = self._context.store, self._context.instance
        stop_at = began + self._function_time
        if not await store.acquire_lease(PURGE_LEASE, holder, stop_at, began):
            return Purge(led=False)
        purge = Purge(stop_at=stop_at)
        until = began - self._retention
        shards = (self._shard(shard, began, until, purge) for shard in store.shards)
        errors = [error for error in await asyncio.gather(*shards) if error is not None]
        if len(errors) == len(store.shards):
            raise errors[0]
        if not errors:
            await self._measure_lag(until, purge)
        log.info("purge of what ended before %s: %s", until, purge)
        return purge

    async def _measure_lag(self, until: datetime, purge: Purge) -> None:
        if self._is_over(purge) or purge.removed < purge.looked_at:
            oldest = await self._context.store.finished(1, until=until)
            purge.late = until - oldest[0].at if oldest else timedelta(0)
        metrics.purged(purge.late.total_seconds())

    async def _shard(
        self, shard: str, now: datetime, until: datetime, purge: Purge
    ) -> StoreUnavailableError | None:
        """Purge one shard; return why its finished orders could not be listed to the end."""
        store, since = self._context.store, None
        unsent = await self._unsent(shard, now)
        # Orders that ended at ``since`` are listed again, because the time alone divides the list.
        listed: set[tuple[datetime, str]] = set()
        while not self._is_over(purge):
            try:
                limit = LISTED_MAX + len(listed)
                page = await store.finished(limit, since=since, until=until, shard=shard)
            except StoreUnavailableError as error:
                log.warning("shard %s waits for the next purge: %s", shard, error)
                return error
            orders = [order for order in page if (order.at, order.order_id) not in listed]
            orders = orders[:LISTED_MAX]
            if not orders:
                break
            purge.looked_at += len(orders)
            quiet: list[Summary] = []
            if unsent is not None:
                quiet = [order for order in orders if order.order_id not in unsent]
            purge.remaining += len(orders) - len(quiet)
            for first in range(0, len(quiet), REMOVED_TOGETHER):
                await self._purge(quiet[first : first + REMOVED_TOGETHER], until, purge)
            since = orders[-1].at
            listed |= {(order.at, order.order_id) for order in orders}
            listed = {(at, order_id) for at, order_id in listed if at == since}
        return None

    def _is_over(self, purge: Purge) -> bool:
        return purge.stop_at is not None and self._context.clock.now() >= purge.stop_at

    async def _unsent(self, shard: str, now: datetime) -> set[str] | None:
        """Return the orders of a shard with messages that are not known to be sent.

        None if they are not known: the shard cannot be read, or has too many due rows. Nothing
        there is removed.
        """
        try:
            rows = await self._context.store.due(shard, now + 2 * OUT_AGAIN_AFTER, SEARCHED_DUE_MAX)
        except StoreUnavailableError as error:
            log.warning("nothing of shard %s is purged now: %s", shard, error)
            return None
        if len(rows) >= SEARCHED_DUE_MAX:
            log.warning("nothing of shard %s is purged: %d rows are due", shard, len(rows))
            return None
        return {row.order_id for row in rows if isinstance(row, OutDue | OtherDue)}

    async def _purge(self, batch: Sequence[Summary], until: datetime, purge: Purge) -> None:
        """Load and remove some orders of one shard."""

        async def load(summary: Summary) -> Order | None:
            order = await self._context.store.load(summary.order_id)
            if order is not None and _may_go(order, until):
                return order
            purge.remaining += 1
            return None

        loaded = await self._each(load, batch, purge)
        await self._remove([order for order in loaded if order is not None], purge)

    async def _remove(self, orders: Sequence[Order], purge: Purge) -> None:
        """Remove orders together. Orders that are still there are tried again, one by one."""

        async def remove(order: Order) -> None:
            if await self._context.store.purge(order):
                purge.removed += 1
            else:
                purge.remaining += 1

        removed: set[str] = set()
        if not self._is_over(purge):
            try:
                removed = await self._context.store.purge(*orders)
            except Exception as error:  # noqa: BLE001  one broken order must not keep the others
                log.info("orders of one shard are removed one by one: %r", error)
        purge.removed += len(removed)
        await self._each(
            remove, [order for order in orders if order.order_id not in removed], purge
        )

    async def _each(
        self, work: Callable[[T], Awaitable[R]], orders: Sequence[T], purge: Purge
    ) -> list[R | None]:
        """Return the results of ``work``; None for an order that failed."""

        async def guarded(order: T) -> R | None:
            if self._is_over(purge):
                purge.remaining += 1
                return None
            try:
                return await work(order)
            except (StoreUnavailableError, OtherVersionError) as error:
                log.warning("order %s waits for the next purge: %s", order.order_id, error)
            except Exception:  # one broken order must not keep all others
                log.exception("order %s could not be purged", order.order_id)
            purge.failed += 1
            return None

        return await asyncio.gather(*(guarded(order) for order in orders))


def _may_go(order: Order, until: datetime) -> bool:
    """Return whether a loaded order has ended long enough ago."""
    ended = order.rejected or order.process_state in FINISHED
    return ended and order.stopped_at is not None and order.stopped_at <= until
