"""Supervisor: finds expired steps and has them recovered. It knows no business and no agents.

The pattern's page says that it "shouldn't have knowledge of the actual business operations". So it
gets ``Rules`` (what comes first, thresholds, times) and sends no requests: it commits states, wakes
the scheduler, notifies and alerts.

A timer has no redelivery, so each of its transitions leaves an out row until its messages are sent.
Several supervisors may sweep at once: the order's ETag lets one of them win. A short lease, renewed
during the sweep, avoids double work. Correctness does not depend on it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sas.domain.change import (
    DeadlineDue,
    Decision,
    DeferredDue,
    Due,
    Incident,
    OtherDue,
    OutDue,
    StepDue,
    Trigger,
)
from sas.domain.claim import is_cancelled
from sas.domain.expire import (
    DEPLOY_TIME,
    Excuse,
    expire,
    expire_deadline,
    postpone,
    postpone_deadline,
)
from sas.domain.ids import shard_of
from sas.domain.messages import AlertKind
from sas.domain.order import Order
from sas.domain.workflow import Rules, UnknownWorkflowError
from sas.engine.context import Context
from sas.engine.hooks import Excuses
from sas.engine.transition import ContentionError, TransitionRunner
from sas.ports import (
    BusUnavailableError,
    OtherVersionError,
    StoreMismatchError,
    StoreUnavailableError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
LEASE = "supervisor"
LEASE_TIME = timedelta(seconds=8)
"""Shorter than the timer's ten seconds: when the instance that swept dies at any moment, the second
firing after that finds the lease free.
"""
SWEEP_DUE_MAX = 2000
"""Most due rows of one sweep. The rest waits for the next sweep."""
SHARD_DUE_MAX = 100
"""Most due rows of one shard in a sweep, so that every shard is read."""
AT_ONCE = 8
REST = timedelta(minutes=5)
"""Pause before an order that cannot be supervised is looked at again: its rows are broken, or its
workflow was changed. Its due row stays the oldest, and must not block all others.
"""
BUS_FAILURES_MAX = 3
"""A sweep ends after this many sends in a row without an answer. Each one takes ten seconds."""
BUS_REST = timedelta(seconds=15)
"""Pause before a due row is looked at again after the bus failed. Other rows come first."""
SOON = timedelta(seconds=5)
"""First pause of a due row that is left to an instance of another version. Each pause doubles."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """What one sweep did, by kind of transition."""

    ends_at: datetime
    led: bool = True
    looked_at: int = 0
    failed: int = 0
    left: int = 0
    shards_read: int = 0
    shards_failed: int = 0
    bus_failures: int = 0
    """How often in a row the bus did not answer."""
    oldest: datetime | None = None
    done: Counter[str] = field(default_factory=Counter)

    def saw(self, rows: Sequence[Due]) -> None:
        """Count due rows, and remember the oldest."""
        self.looked_at += len(rows)
        known = () if self.oldest is None else (self.oldest,)
        self.oldest = min((*known, *(row.at for row in rows if row.order_id)), default=None)


class Supervisor:
    """Runs on a timer."""

    def __init__(
        self,
        context: Context,
        rules_of: Callable[[str, int], Rules],
        excuses: Excuses,
        function_time: timedelta,
    ) -> None:
        self._context = context
        self._rules_of = rules_of
        self._excuses = excuses
        self._function_time = function_time
        self._resting: dict[Due, datetime] = {}
        self._lease_ends_at: datetime | None = None
        self._next_shard = random.randrange(256)  # noqa: S311  instances begin at different ones

    async def sweep(self) -> Sweep:
        """Go through every shard's due rows once, oldest first, within bounds.

        An order or a shard that fails is logged and counted, and the others go on. If the store or
        the bus is down, the next sweep looks at it again. If an order itself is broken, the
        operator is alerted, and a sweep after ``REST`` looks at it. When the function's time is
        over, or the bus does not answer, nothing new begins: the next sweep goes on.

        Raises:
            StoreUnavailableError: not one shard could be read.
        """
        with tracing.span("supervisor sweep", actor="supervisor"):
            return await self._sweep()

    async def _sweep(self) -> Sweep:
        now = self._context.clock.now()
        found = Sweep(ends_at=now + self._function_time)
        if not await self._leads():
            found.led = False
            return found
        self._excuses.begin_sweep()
        gate = asyncio.Semaphore(AT_ONCE)
        self._resting = {row: until for row, until in self._resting.items() if until > now}
        shards = list(self._context.store.shards)
        resting = Counter(shard_of(row.order_id, len(shards)) for row in self._resting)
        for _ in shards:
            if found.looked_at >= SWEEP_DUE_MAX or self._is_over(found) or not await self._leads():
                break
            shard = shards[self._next_shard % len(shards)]
            self._next_shard += 1  # the next sweep goes on behind the last shard of this one
            rows = await self._due(shard, now, resting[shard], found)
            found.saw(rows)
            if rows:
                await asyncio.gather(*(self._guarded(row, found, gate) for row in rows))
        if found.shards_failed and not found.shards_read:
            raise StoreUnavailableError("no shard could be read: the next sweep tries again")
        for task in self._context.sweep_tasks:
            await task()
        metrics.swept((now - (found.oldest or now)).total_seconds())
        if found.looked_at:
            log.info(
                "sweep: %d due, %d failed, %s", found.looked_at, found.failed, dict(found.done)
            )
        return found

    async def _leads(self) -> bool:
        """Take or renew the lease; False if another instance sweeps."""
        now, known = self._context.clock.now(), self._lease_ends_at
        if known is not None and known - now > LEASE_TIME / 2:
            return True
        led = await self._lease(now + LEASE_TIME)
        self._lease_ends_at = now + LEASE_TIME if led else None
        return led

    async def _lease(self, until: datetime) -> bool:
        now, holder = self._context.clock.now(), self._context.instance
        try:
            return await self._context.store.acquire_lease(LEASE, holder, until, now)
        except (StoreUnavailableError, StoreMismatchError) as down:  # it only saves work
            log.warning("the sweep goes on without its lease: %s", down)
            return True

    def _is_over(self, found: Sweep) -> bool:
        """Return whether nothing new may begin in a sweep."""
        return found.bus_failures >= BUS_FAILURES_MAX or self._context.clock.now() >= found.ends_at

    async def _due(self, shard: str, now: datetime, resting: int, found: Sweep) -> list[Due]:
        """Return a shard's due rows, oldest first, without the ``resting`` ones among them."""
        try:
            rows = await self._context.store.due(shard, now, SHARD_DUE_MAX + resting)
        except Exception as down:  # one shard must not stop the sweep of all others
            found.shards_failed += 1
            log.warning("shard %s waits for the next sweep: %s", shard, down)
            if not isinstance(down, StoreUnavailableError):
                log.exception("shard %s could not be read", shard)
                await self._report(f"shard {shard}", down)
            return []
        found.shards_read += 1
        return [row for row in rows if row not in self._resting][:SHARD_DUE_MAX]

    async def _guarded(self, row: Due, found: Sweep, gate: asyncio.Semaphore) -> None:
        async with gate:
            if self._is_over(found):
                return
            try:
                what = await self._look_at(row)
            except (StoreUnavailableError, BusUnavailableError, ContentionError) as down:
                found.failed += 1
                log.warning("order %s waits for the next sweep: %s", row.order_id, down)
                if isinstance(down, BusUnavailableError):
                    found.bus_failures += 1
                    self._resting[row] = self._context.clock.now() + BUS_REST
            except OtherVersionError as lacks:
                found.left += 1
                await self._leave(row, lacks)
            except Exception as broken:  # one broken order must not stop the sweep of all others
                found.failed += 1
                self._resting[row] = self._context.clock.now() + REST
                log.exception("order %s could not be supervised", row.order_id)
                key = row.row_key if isinstance(row, OtherDue) else row.order_id
                await self._report("a due row or its order", broken, key)
            else:
                found.bus_failures = 0
                if what:
                    found.done[what] += 1

    async def _report(self, what: str, broken: Exception, *order_ids: str) -> None:
        """Alert the operator of rows that the supervisor skips: one incident for all of them."""
        now = self._context.clock.now()
        text = (
            f"The supervisor cannot read {what} ({type(broken).__name__}) and skips it. All "
            "others go on. The log of the supervisor says why: repair its rows, or remove them."
        )
        scope = f"supervisor, {type(broken).__name__}"
        incident = Incident(
            kind=AlertKind.UNREADABLE, scope=scope, text=text, since=now, until=now + REST
        )
        try:
            if isinstance(broken, StoreMismatchError):
                await self._context.report_mismatch(broken, *order_ids)
            else:
                await self._context.incidents.report(incident, *order_ids)
        except (UnavailableError, UndeliverableError) as down:
            log.warning("the alert of a row that cannot be read is sent later: %s", down)

    async def _leave(self, row: Due, lacks: OtherVersionError) -> None:
        """Leave a due row to an instance of another version. Report it if there seems to be none.

        An order whose workflow is missing is reported where its row is postponed.
        """
        now = self._context.clock.now()
        self._resting[row] = now + min(max(SOON, now - row.at), REST)
        log.warning("order %s is left to an instance of another version: %s", row.order_id, lacks)
        if now - row.at >= DEPLOY_TIME:
            text = (
                "orders have a newer format than this version knows, and no instance of the newer "
                "version acts on them: deploy it again"
            )
            await self._report("an order", StoreMismatchError(text, "newer format"), row.order_id)

    async def _look_at(self, row: Due) -> str | None:
        match row:
            case OutDue():
                return await self._send_out(row)
            case OtherDue(order_id=""):
                raise ValueError(f"{row.row_key!r} is not the key of a due row: remove it")
            case OtherDue():
                await self._context.store.load(row.order_id)  # it may be of a newer version
                raise ValueError(f"{row.row_key!r} is a due row of an unknown kind: remove it")
            case DeferredDue():
                await self._context.outbox.resend(row)
                return "sent later"
            case _:
                return await self._expire(row)

    async def _send_out(self, row: OutDue) -> str | None:
        store = self._context.store
        order = await store.load(row.order_id)
        entry = await store.entry(row.order_id, row.seq)
        if order is None or entry is None:
            log.error("order %s: out row of seq %d without a journal row", row.order_id, row.seq)
            await store.remove_due(row)
            return None
        with _span(order, "supervisor send"):
            await self._context.outbox.send(order, entry, None, out=row)
        return "sent again"

    async def _expire(self, row: StepDue | DeadlineDue) -> str | None:
        """Apply the decision about an expiry; return its journal word, None without a decision."""
        word: str | None = None
        excuse = await self._excuse(row) if isinstance(row, StepDue) else None

        def decide(order: Order | None, now: datetime) -> Decision | None:
            nonlocal word
            decision = None if order is None else self._decide(order, row, now, excuse)
            word = decision.what if decision is not None else None
            return decision

        def span(order: Order) -> AbstractContextManager[object]:
            step = order.steps[row.step].name if isinstance(row, StepDue) else None
            return _span(order, "supervisor expire", step)

        trigger = Trigger(by=f"supervisor {self._context.instance}")
        await TransitionRunner(self._context, None, span).run(row.order_id, trigger, decide)
        return word

    async def _excuse(self, row: StepDue) -> Excuse | None:
        """Return why a due step has not failed, if it is dispatched and past its CompleteBy."""
        order = await self._context.load(row.order_id)
        if order is None or order.rejected or row.step >= len(order.steps):
            return None
        step = order.steps[row.step]
        late = step.complete_by is not None and step.complete_by <= self._context.clock.now()
        if not (step.dispatched and late and step.epoch == row.epoch) or is_cancelled(step):
            return None
        return await self._excuses.of(order, step)

    def _decide(
        self, order: Order, row: StepDue | DeadlineDue, now: datetime, excuse: Excuse | None
    ) -> Decision | None:
        try:
            rules = self._rules_of(order.details.workflow, order.details.version)
        except UnknownWorkflowError as unknown:
            if now - row.at < DEPLOY_TIME:
                raise
            if isinstance(row, DeadlineDue):
                return postpone_deadline(order, str(unknown), now=now)
            return postpone(order, row.step, str(unknown), now=now)
        if isinstance(row, DeadlineDue):
            return expire_deadline(order, rules, now=now)
        return expire(order, row.step, row.epoch, rules, now=now, excuse=excuse)


def _span(order: Order, name: str, step: str | None = None) -> AbstractContextManager[object]:
    """Return a span of the order's own trace, linked to the sweep's."""
    details = order.details
    return tracing.of_order(name, details.traceparent, order_id=details.order_id, step=step)
