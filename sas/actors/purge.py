"""Purger: removes finished orders that are older than the retention, oldest first.

It works beside live orders: bounded per run, a few at a time, each removal guarded by the
order's own token. What it leaves (the time is up, the store is down, it crashed) is still
listed as finished, and the next run takes it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.codec.record import record_of, to_line
from sas.domain.change import OutDue
from sas.domain.content import PayloadRef
from sas.domain.order import FINISHED, Order
from sas.engine.context import Context
from sas.engine.outbox import OUT_AGAIN_AFTER
from sas.ports import Exporter, StoreUnavailableError, Summary
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)

LEASE = "purge"
PURGE_ORDERS_MAX = 20_000
"""Orders that one run looks at, at most."""
PURGE_TIME_MAX = timedelta(minutes=8)
"""Within the ten minutes that a function has."""
BATCH = 50
"""Orders read, exported and removed before the next are looked for."""
AT_ONCE = 4
EXPORT_BYTES_MAX = 16 * 1024 * 1024
"""Content kept apart that is read before it is exported (one order may have more)."""
SHARD_DUE_MAX = 10_000
"""Due rows of one shard that are looked through for messages not yet sent."""


@dataclass(slots=True)
class Purge:
    """What one run did."""

    led: bool = True
    looked_at: int = 0
    removed: int = 0
    left: int = 0
    """Changed since they were listed (an operator had a hand in them), or not all was sent."""
    failed: int = 0


class Purger:
    """Runs on a timer."""

    def __init__(
        self, context: Context, retention: timedelta, exporter: Exporter | None = None
    ) -> None:
        self._context = context
        self._retention = retention
        self._exporter = exporter

    async def run(self) -> Purge:
        """Remove what is too old, within bounds.

        One order's trouble is logged and counted, the others go on. What cannot be exported
        is not removed.

        Raises:
            StoreUnavailableError: not even the list of finished orders could be read.
        """
        with tracing.span("purge", actor="purge"):
            return await self._run()

    async def _run(self) -> Purge:
        began = self._context.clock.now()
        store, holder = self._context.store, self._context.instance
        if not await store.acquire_lease(LEASE, holder, began + PURGE_TIME_MAX, began):
            return Purge(led=False)
        found = Purge()
        unsent = await self._unsent(began)
        if unsent is None:
            return found
        until, since = began - self._retention, None
        seen: set[tuple[datetime, str]] = set()
        while found.looked_at < PURGE_ORDERS_MAX and self._in_time(began):
            batch = await store.finished(BATCH + len(seen), since=since, until=until)
            fresh = [one for one in batch if (one.at, one.order_id) not in seen][:BATCH]
            if not fresh:
                break
            found.looked_at += len(fresh)
            told = [one for one in fresh if one.order_id not in unsent]
            found.left += len(fresh) - len(told)
            await self._purge(told, until, found)
            since = fresh[-1].at
            seen |= {(one.at, one.order_id) for one in fresh}
            seen = {one for one in seen if one[0] == since}
        log.info("purge of what ended before %s: %s", until, found)
        return found

    async def _unsent(self, now: datetime) -> set[str] | None:
        """Return the orders with messages not yet known to be sent; None where the supervisor is
        so far behind that they cannot all be known: then nothing is removed.
        """
        ids: set[str] = set()
        for shard in self._context.store.shards:
            rows = await self._context.store.due(shard, now + 2 * OUT_AGAIN_AFTER, SHARD_DUE_MAX)
            if len(rows) >= SHARD_DUE_MAX:
                log.warning("nothing is purged: shard %s has %d rows due", shard, len(rows))
                return None
            ids.update(row.order_id for row in rows if isinstance(row, OutDue))
        return ids

    def _in_time(self, began: datetime) -> bool:
        return self._context.clock.now() - began < PURGE_TIME_MAX

    async def _purge(self, batch: Sequence[Summary], until: datetime, found: Purge) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        loaded = await asyncio.gather(*(self._load(one, until, found, gate) for one in batch))
        for orders in _parts([order for order in loaded if order is not None]):
            if await self._exported(orders, found, gate):
                await asyncio.gather(*(self._remove(order, found, gate) for order in orders))

    async def _exported(self, orders: list[Order], found: Purge, gate: asyncio.Semaphore) -> bool:
        """Export orders; one that cannot be read is taken off the list."""
        if self._exporter is None:
            return True
        made = await asyncio.gather(*(self._line(order, found, gate) for order in orders))
        orders[:] = [order for order, line in zip(orders, made, strict=True) if line is not None]
        try:
            await self._exporter.export([line for line in made if line is not None])
        except OSError:
            found.failed += len(orders)
            log.exception("%d orders are kept: they could not be exported", len(orders))
            return False
        return True

    async def _load(
        self, one: Summary, until: datetime, found: Purge, gate: asyncio.Semaphore
    ) -> Order | None:
        """Return an order that may go."""
        async with gate:
            try:
                order = await self._context.store.load(one.order_id)
                if order is not None and _may_go(order, until):
                    return order
                found.left += 1
            except Exception as wrong:  # noqa: BLE001  one order must not keep all others
                self._note(one.order_id, wrong, found)
        return None

    async def _line(self, order: Order, found: Purge, gate: asyncio.Semaphore) -> str | None:
        """Return an order as a line of the export."""
        store = self._context.store
        async with gate:
            try:
                journal = await store.journal(order.order_id)
                return to_line(
                    record_of(await self._context.content.fetch_all(order), journal, content=True)
                )
            except Exception as wrong:  # noqa: BLE001  one order must not keep all others
                self._note(order.order_id, wrong, found)
        return None

    async def _remove(self, order: Order, found: Purge, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                if await self._context.store.purge(order):
                    found.removed += 1
                else:
                    found.left += 1
            except Exception as wrong:  # noqa: BLE001  one order must not keep all others
                self._note(order.order_id, wrong, found)

    def _note(self, order_id: str, wrong: Exception, found: Purge) -> None:
        found.failed += 1
        if isinstance(wrong, StoreUnavailableError):
            log.warning("order %s waits for the next purge: %s", order_id, wrong)
        else:
            log.error("order %s could not be purged", order_id, exc_info=wrong)


def _parts(orders: list[Order]) -> Iterator[list[Order]]:
    """Part orders so that the content of each part, read for an export, fits in memory."""
    part: list[Order] = []
    size = 0
    for order in orders:
        own = _offloaded_bytes(order)
        if part and size + own > EXPORT_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(order)
        size += own
    if part:
        yield part


def _offloaded_bytes(order: Order) -> int:
    """Return the bytes of an order's content that are offloaded."""
    contents = [order.details.payload, *(step.result for step in order.steps)]
    return sum(content.size for content in contents if isinstance(content, PayloadRef))


def _may_go(order: Order, until: datetime) -> bool:
    """Return whether an order ended, and long enough ago, as it is loaded now."""
    ended = order.rejected or order.process_state in FINISHED
    return ended and order.settled_at is not None and order.settled_at <= until
