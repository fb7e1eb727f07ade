"""Supervisor: finds what has expired and has it recovered. It knows no business, no agents.

A timer has no redelivery, so each of its transitions leaves an out row until its
messages are sent. Several may sweep at once: the lease only saves work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import uuid4

from sas.domain.change import Change, DeadlineDue, Decision, Due, OutDue, StepDue, next_change
from sas.domain.expire import expire, expire_deadline, postpone, postpone_deadline
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.domain.workflow import Rules, UnknownWorkflowError
from sas.engine.context import Context
from sas.engine.outbox import OUT_AGAIN_AFTER
from sas.engine.transition import CONFLICTS_MAX, backoff
from sas.features.incidents.health import check_health
from sas.ports import BusUnavailableError, ConflictError, StoreUnavailableError
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)

LEASE = "supervisor"
SWEEP_DUE_MAX = 2000
"""Due rows that one sweep takes at most; what is left waits for the next."""
SHARD_DUE_MAX = 100
"""Due rows taken from one shard before the next has its turn, so that none starves."""
AT_ONCE = 8
REST = timedelta(minutes=5)
"""So long an order that nobody can help (its rows are broken, its workflow was changed) is left
alone: its due row stays the oldest, and would keep its place before all others for ever.
"""


@dataclass(slots=True)
class Sweep:
    """What one sweep did, by kind of transition."""

    led: bool = True
    looked_at: int = 0
    failed: int = 0
    oldest: datetime | None = None
    done: dict[str, int] = field(default_factory=dict)

    def saw(self, rows: Sequence[Due]) -> None:
        """Count due rows, and remember the oldest."""
        self.looked_at += len(rows)
        known = () if self.oldest is None else (self.oldest,)
        self.oldest = min((*known, *(row.at for row in rows)), default=None)

    def count(self, what: str) -> None:
        """Count one transition."""
        self.done[what] = self.done.get(what, 0) + 1


class Supervisor:
    """Runs on a timer."""

    def __init__(
        self,
        context: Context,
        rules_of: Callable[[str, int], Rules],
        lease_time: timedelta = timedelta(seconds=60),
    ) -> None:
        self._context = context
        self._rules_of = rules_of
        self._lease_time = lease_time
        self._resting: dict[Due, datetime] = {}

    async def sweep(self) -> Sweep:
        """Go through every shard's due rows once, oldest first, within bounds.

        An order that cannot be helped now is logged and counted; the others go on, and its due row
        brings it back: in the next sweep where the store or the bus is down, after ``REST``
        where something is wrong with the order itself.
        """
        with tracing.span("supervisor sweep", actor="supervisor"):
            return await self._sweep()

    async def _sweep(self) -> Sweep:
        now = self._context.clock.now()
        holder = self._context.instance
        store = self._context.store
        if not await store.acquire_lease(LEASE, holder, now + self._lease_time, now):
            return Sweep(led=False)
        found = Sweep()
        gate = asyncio.Semaphore(AT_ONCE)
        self._resting = {row: until for row, until in self._resting.items() if until > now}
        shards = list(store.shards)
        resting = Counter(shard_of(row.order_id, len(shards)) for row in self._resting)
        first = int(now.timestamp()) % len(shards)
        for shard in shards[first:] + shards[:first]:
            if found.looked_at >= SWEEP_DUE_MAX:
                break
            rows = await self._due(shard, now, resting[shard])
            found.saw(rows)
            if rows:
                await self._context.lags.look()
            await asyncio.gather(*(self._guarded(row, found, gate) for row in rows))
        await check_health(self._context)
        metrics.swept((now - (found.oldest or now)).total_seconds())
        if found.looked_at:
            log.info("sweep: %d due, %d failed, %s", found.looked_at, found.failed, found.done)
        return found

    async def _due(self, shard: str, now: datetime, resting: int) -> list[Due]:
        """Return a shard's due rows, oldest first, without the ``resting`` ones among them."""
        rows = await self._context.store.due(shard, now, SHARD_DUE_MAX + resting)
        return [row for row in rows if row not in self._resting][:SHARD_DUE_MAX]

    async def _guarded(self, row: Due, found: Sweep, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                what = await self._look_at(row)
            except (StoreUnavailableError, BusUnavailableError) as down:
                found.failed += 1
                log.warning("order %s waits for the next sweep: %s", row.order_id, down)
            except Exception:  # one order's trouble must not stop the sweep of all others
                found.failed += 1
                self._resting[row] = self._context.clock.now() + REST
                log.exception("order %s could not be supervised", row.order_id)
            else:
                if what:
                    found.count(what)

    async def _look_at(self, row: Due) -> str | None:
        if isinstance(row, OutDue):
            return await self._send_out(row)
        return await self._expire(row)

    async def _send_out(self, row: OutDue) -> str | None:
        store = self._context.store
        order = await store.load(row.order_id)
        entry = await store.entry(row.order_id, row.seq)
        if order is None or entry is None:
            log.error("order %s: out row of seq %d without a journal row", row.order_id, row.seq)
            await store.remove_out(row)
            return None
        with _of(order, "supervisor send"):
            await self._context.outbox.send(order, entry, None, out=row)
        return "sent again"

    async def _expire(self, row: StepDue | DeadlineDue) -> str | None:
        for attempt in range(CONFLICTS_MAX):
            order = await self._context.store.load(row.order_id)
            if order is None:
                return None
            now = self._context.clock.now()
            decision = self._decide(order, row, now)
            if decision is None:
                return None
            out_at = now + OUT_AGAIN_AFTER
            change = next_change(
                order,
                decision,
                by=f"supervisor {self._context.instance}",
                commit_id=uuid4().hex,
                cause=None,
                at=now,
                out_at=out_at,
            )
            step = None if isinstance(row, DeadlineDue) else order.steps[row.step].name
            with _of(order, "supervisor expire", step):
                if decision.condition is not None:
                    await self._context.conditions.met(decision.condition, row.order_id)
                if await self._committed(change, out_at):
                    return decision.what
            await self._context.clock.sleep(backoff(attempt))
        return None

    async def _committed(self, change: Change, out_at: datetime) -> bool:
        try:
            after = await self._context.commit(change)
        except ConflictError:
            return False
        if not change.entry.messages:
            return True
        out = OutDue(out_at, after.order_id, change.entry.seq)
        await self._context.outbox.send(after, change.entry, None, out=out)
        return True

    def _decide(self, order: Order, row: StepDue | DeadlineDue, now: datetime) -> Decision | None:
        try:
            rules = self._rules_of(order.details.workflow, order.details.version)
        except UnknownWorkflowError as unknown:
            if isinstance(row, DeadlineDue):
                return postpone_deadline(order, str(unknown), now=now)
            return postpone(order, row.step, str(unknown), now=now)
        if isinstance(row, DeadlineDue):
            return expire_deadline(order, rules, now=now)
        behind = self._context.lags.worst
        return expire(order, row.step, row.epoch, rules, now=now, behind=behind)


def _of(order: Order, what: str, step: str | None = None) -> AbstractContextManager[object]:
    """What is done to an order belongs to the order's own trace, linked to the sweep's."""
    details = order.details
    return tracing.of_order(what, details.traceparent, order_id=details.order_id, step=step)
