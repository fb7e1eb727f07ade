"""Supervisor: finds expired steps and has them recovered. It knows no business and no agents.

The pattern's page says that it "shouldn't have knowledge of the actual business operations". So it
gets ``Rules`` (what comes first, thresholds, times) and sends no requests: it commits states, wakes
the scheduler, notifies and alerts. A timer starts a sweep every ten seconds:

1. **Lead.** One instance takes a short lease, and renews it during the sweep. The others do
   nothing. The lease only saves work. If two instances sweep at once, the ETag of each order lets
   one of them win, so correctness does not depend on it.
2. **Go through the shards.** The sweep begins behind the last shard of the one before, so no shard
   is always the last.
3. **Read the due rows** of a shard whose time has come, the oldest first, up to a limit. A due row
   says when to act on something. It is written in the same transaction as the order that it is
   about, so no expired step is without one.
4. **Act on each row**, a few rows at once. What follows depends on its kind:

   * ``StepDue``: the CompleteBy of a step has passed. The step is excused, counted as failed, or
     woken again (``sas.domain.expire``).
   * ``DeadlineDue``: the deadline of a whole order has passed.
   * ``OutDue``: the messages of a journal row may not be sent yet. They are sent again.
   * ``DeferredDue``: the version before held a message here. It is moved to the held messages.
   * ``OtherDue``: the row cannot be read here. It is left to a newer version, or reported.

   A change by the supervisor has no message that would be redelivered. So it leaves an out row
   until its messages are sent (``sas.engine.outbox``).
5. **Skip what fails.** One row or shard must not stop the others. A row is never removed because
   its handling failed, so a later sweep finds it again:

   * The store did not answer, or other instances won: the next sweep tries again.
   * The bus did not answer: the row is paused for a short while.
   * Only another version can act on it: the row is paused, and reported after ``DEPLOY_TIME``.
   * The row or its order is broken: the operator is alerted, and the row is paused for longer.

   ``_paused`` is in the memory of this instance. It stops bad rows from filling every sweep,
   because they stay the oldest. If the instance dies, another one tries them sooner.
6. **End in time.** When the function's time is over, or the bus failed several times in a row,
   nothing new begins. The rows that remain are still there for the next sweep.
7. **Run the sweep tasks** of the features, such as the alerts of incidents.
8. **Send held messages** (``sas.engine.held``). They come last and have a time of their own. So
   however many are held, no due row waits for them.

If the instance dies in a sweep, the lease ends by itself and another instance sweeps. A change that
was committed is not repeated: its due row was replaced in the same transaction, and the epoch of
the row no longer fits. Messages of it that were not sent are found by their out row.
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
from sas.engine.held import HeldMessages
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
SWEEP_LEASE = "supervisor"
LEASE_TIME = timedelta(seconds=8)
"""Shorter than the timer's ten seconds: when the instance that swept dies at any moment, the second
firing after that finds the lease free.
"""
SWEEP_DUE_MAX = 2000
"""Most due rows of one sweep. The rest waits for the next sweep."""
SHARD_DUE_MAX = 100
"""Most due rows of one shard in a sweep, so that every shard is read."""
ROWS_AT_ONCE = 8
BROKEN_ROW_PAUSE = timedelta(minutes=5)
"""Pause before an order that cannot be supervised is tried again: its rows are broken, or its
workflow was changed. Its due row stays the oldest, and must not block all others.
"""
BUS_FAILURES_MAX = 3
"""A sweep ends after this many sends in a row without an answer. Each one takes ten seconds."""
BUS_PAUSE = timedelta(seconds=15)
"""Pause before a due row is tried again after the bus failed. Other rows come first."""
LEFT_ROW_PAUSE_MIN = timedelta(seconds=5)
"""First pause of a due row that is left to an instance of another version. Each pause doubles."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """What one sweep did, by kind of transition."""

    ends_at: datetime
    led: bool = True
    looked_at: int = 0
    failed: int = 0
    left_to_others: int = 0
    shards_read: int = 0
    shards_failed: int = 0
    bus_failures: int = 0
    """How often in a row the bus did not answer."""
    oldest: datetime | None = None
    done: Counter[str] = field(default_factory=Counter)

    def saw(self, rows: Sequence[Due]) -> None:
        """Count due rows, and remember the oldest."""
        self.looked_at += len(rows)
        times = [row.at for row in rows if row.order_id]
        if self.oldest is not None:
            times.append(self.oldest)
        self.oldest = min(times, default=None)


class Supervisor:
    """Runs on a timer. The numbers are those of the module's text."""

    def __init__(
        self,
        context: Context,
        rules_of: Callable[[str, int], Rules],
        excuses: Excuses,
        function_time: timedelta,
        *,
        held_messages: HeldMessages,
    ) -> None:
        self._context = context
        self._rules_of = rules_of
        self._excuses = excuses
        self._function_time = function_time
        self._held = held_messages
        self._paused: dict[Due, datetime] = {}
        self._lease_ends_at: datetime | None = None
        self._next_shard = random.randrange(256)  # noqa: S311  instances begin at different ones

    async def sweep(self) -> Sweep:
        """Go through every shard's due rows once, oldest first, within bounds.

        An order or a shard that fails is logged and counted, and the others go on.

        Raises:
            StoreUnavailableError: not one shard could be read.
        """
        with tracing.span("supervisor sweep", actor="supervisor"):
            return await self._sweep()

    async def _sweep(self) -> Sweep:
        now = self._context.clock.now()
        sweep = Sweep(ends_at=now + self._function_time)
        if not await self._leads():  # 1. Lead.
            sweep.led = False
            return sweep
        self._excuses.begin_sweep()
        gate = asyncio.Semaphore(ROWS_AT_ONCE)
        self._paused = {row: until for row, until in self._paused.items() if until > now}
        shards = list(self._context.store.shards)
        resting = Counter(shard_of(row.order_id, len(shards)) for row in self._paused)
        is_any_held = await self._held.send_answers()
        for _ in shards:  # 2. Go through the shards.
            # 6. End in time.
            if sweep.looked_at >= SWEEP_DUE_MAX or self._is_over(sweep) or not await self._leads():
                break
            shard = shards[self._next_shard % len(shards)]
            self._next_shard += 1  # the next sweep goes on behind the last shard of this one
            # 3. Read the due rows.
            rows = await self._due(shard, now, resting[shard], sweep)
            sweep.saw(rows)
            if rows:  # 4. Act on each row.
                await asyncio.gather(*(self._guarded(row, sweep, gate) for row in rows))
        if sweep.shards_failed and not sweep.shards_read:
            raise StoreUnavailableError("no shard could be read: the next sweep tries again")
        for task in self._context.sweep_tasks:  # 7. Run the sweep tasks.
            await task()
        if is_any_held:
            await self._held.send()  # 8. Send held messages.
        metrics.swept((now - (sweep.oldest or now)).total_seconds())
        if sweep.looked_at:
            log.info(
                "sweep: %d due, %d failed, %s", sweep.looked_at, sweep.failed, dict(sweep.done)
            )
        return sweep

    async def _leads(self) -> bool:
        """Take or renew the lease; False if another instance sweeps."""
        now, ends_at = self._context.clock.now(), self._lease_ends_at
        if ends_at is not None and ends_at - now > LEASE_TIME / 2:
            return True
        led = await self._lease(now + LEASE_TIME)
        self._lease_ends_at = now + LEASE_TIME if led else None
        return led

    async def _lease(self, until: datetime) -> bool:
        now, holder = self._context.clock.now(), self._context.instance
        try:
            return await self._context.store.acquire_lease(SWEEP_LEASE, holder, until, now)
        except (StoreUnavailableError, StoreMismatchError) as error:  # it only saves work
            log.warning("the sweep goes on without its lease: %s", error)
            return True

    def _is_over(self, sweep: Sweep) -> bool:
        """Return whether nothing new may begin in a sweep."""
        return sweep.bus_failures >= BUS_FAILURES_MAX or self._context.clock.now() >= sweep.ends_at

    async def _due(self, shard: str, now: datetime, resting: int, sweep: Sweep) -> list[Due]:
        """Return a shard's due rows, oldest first, without the ``resting`` ones among them."""
        try:
            rows = await self._context.store.due(shard, now, SHARD_DUE_MAX + resting)
        except Exception as error:  # one shard must not stop the sweep of all others
            sweep.shards_failed += 1
            log.warning("shard %s waits for the next sweep: %s", shard, error)
            if not isinstance(error, StoreUnavailableError):
                log.exception("shard %s could not be read", shard)
                await self._report(f"shard {shard}", error)
            return []
        sweep.shards_read += 1
        return [row for row in rows if row not in self._paused][:SHARD_DUE_MAX]

    async def _guarded(self, row: Due, sweep: Sweep, gate: asyncio.Semaphore) -> None:
        async with gate:
            if self._is_over(sweep):
                return
            try:
                word = await self._act_on(row)
            # 5. Skip what fails.
            except (StoreUnavailableError, BusUnavailableError, ContentionError) as error:
                sweep.failed += 1
                log.warning("order %s waits for the next sweep: %s", row.order_id, error)
                if isinstance(error, BusUnavailableError):
                    sweep.bus_failures += 1
                    self._paused[row] = self._context.clock.now() + BUS_PAUSE
            except OtherVersionError as error:
                sweep.left_to_others += 1
                await self._leave(row, error)
            except Exception as error:  # one broken order must not stop the sweep of all others
                sweep.failed += 1
                self._paused[row] = self._context.clock.now() + BROKEN_ROW_PAUSE
                log.exception("order %s could not be supervised", row.order_id)
                key = row.row_key if isinstance(row, OtherDue) else row.order_id
                await self._report("a due row or its order", error, key)
            else:
                sweep.bus_failures = 0
                if word:
                    sweep.done[word] += 1

    async def _report(self, part: str, error: Exception, *order_ids: str) -> None:
        """Alert the operator of rows that the supervisor skips: one incident for all of them."""
        now = self._context.clock.now()
        text = (
            f"The supervisor cannot read {part} ({type(error).__name__}) and skips it. All "
            "others go on. The log of the supervisor says why: repair its rows, or remove them."
        )
        scope = f"supervisor, {type(error).__name__}"
        incident = Incident(
            kind=AlertKind.UNREADABLE,
            scope=scope,
            text=text,
            since=now,
            until=now + BROKEN_ROW_PAUSE,
        )
        try:
            if isinstance(error, StoreMismatchError):
                await self._context.report_mismatch(error, *order_ids)
            else:
                await self._context.incidents.report(incident, *order_ids)
        except (UnavailableError, UndeliverableError) as outage:
            log.warning("the alert of a row that cannot be read is sent later: %s", outage)

    async def _leave(self, row: Due, error: OtherVersionError) -> None:
        """Leave a due row to an instance of another version. Report it if there seems to be none.

        An order whose workflow is missing is reported where its row is postponed.
        """
        now = self._context.clock.now()
        self._paused[row] = now + min(max(LEFT_ROW_PAUSE_MIN, now - row.at), BROKEN_ROW_PAUSE)
        log.warning("order %s is left to an instance of another version: %s", row.order_id, error)
        if now - row.at >= DEPLOY_TIME:
            text = (
                "orders have a newer format than this version knows, and no instance of the newer "
                "version acts on them: deploy it again"
            )
            await self._report("an order", StoreMismatchError(text, "newer format"), row.order_id)

    async def _act_on(self, row: Due) -> str | None:
        match row:
            case OutDue():
                return await self._send_out(row)
            case OtherDue():
                await self._context.store.load(row.order_id)  # it may be of a newer version
                raise ValueError(f"{row.row_key!r} is a due row of an unknown kind: remove it")
            case DeferredDue():
                await self._context.store.hold_deferred(row)
                return "held"
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
        excuse, judged_by = None, None
        if isinstance(row, StepDue):
            excuse, judged_by = await self._excuse(row)

        def decide(order: Order | None, now: datetime) -> Decision | None:
            nonlocal word
            decision = None
            if order is not None and judged_by in {None, _complete_by(order, row)}:
                decision = self._decide(order, row, now, excuse)
            word = decision.what if decision is not None else None
            return decision

        def span(order: Order) -> AbstractContextManager[object]:
            step = order.steps[row.step].name if isinstance(row, StepDue) else None
            return _span(order, "supervisor expire", step)

        trigger = Trigger(by=f"supervisor {self._context.instance}")
        await TransitionRunner(self._context, None, span).run(row.order_id, trigger, decide)
        return word

    async def _excuse(self, row: StepDue) -> tuple[Excuse | None, datetime | None]:
        """Return why a due step has not failed, if it is dispatched and past its CompleteBy.

        The second value is the CompleteBy that this is about. To read queues takes time: if the
        step got more of it meanwhile, the next sweep judges it.
        """
        order = await self._context.load(row.order_id)
        if order is None or row.step >= len(order.steps):
            return None, None
        step = order.steps[row.step]
        late = step.complete_by is not None and step.complete_by <= self._context.clock.now()
        if not (step.dispatched and late):
            return None, step.complete_by
        return await self._excuses.of(order, step), step.complete_by

    def _decide(
        self, order: Order, row: StepDue | DeadlineDue, now: datetime, excuse: Excuse | None
    ) -> Decision | None:
        try:
            rules = self._rules_of(order.details.workflow, order.details.version)
        except UnknownWorkflowError as error:
            if now - row.at < DEPLOY_TIME:
                raise
            if isinstance(row, DeadlineDue):
                return postpone_deadline(order, str(error), now=now)
            return postpone(order, row.step, str(error), now=now)
        if isinstance(row, DeadlineDue):
            return expire_deadline(order, rules, now=now)
        return expire(order, row.step, row.epoch, rules, now=now, excuse=excuse)


def _complete_by(order: Order, row: StepDue | DeadlineDue) -> datetime | None:
    if isinstance(row, DeadlineDue) or row.step >= len(order.steps):
        return None
    return order.steps[row.step].complete_by


def _span(order: Order, name: str, step: str | None = None) -> AbstractContextManager[object]:
    """Return a span of the order's own trace, linked to the sweep's."""
    details = order.details
    return tracing.of_order(name, details.traceparent, order_id=details.order_id, step=step)
