"""How late messages are received, as all instances tell each other through the store.

Nothing is written while nothing is late. An instance that receives a late message notes it, every
few seconds at most. Whoever gives steps their time, or judges an expiry, reads as seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.queues import Queues, lane
from sas.domain.workflow import Rules, Workflow
from sas.engine.delivery import Delivery
from sas.engine.hooks import ExpiryGrace
from sas.engine.shared_values import SharedValues
from sas.features.queue_delay import rules as delays
from sas.features.queue_delay.rules import QueueDelay
from sas.ports import Clock, ConflictError, StateStore, StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
EVERY = timedelta(seconds=3)
"""How often at most an instance notes the delay of one queue, and reads all of them."""
WORTH_TELLING = timedelta(minutes=1)
"""The delay from which on the operator is told of a queue."""


def queue_delays(store: StateStore) -> SharedValues[QueueDelay]:
    """Return the delays that all instances share, by queue."""
    return SharedValues(store, "queue-delay|", QueueDelay)


class QueueDelays(ExpiryGrace):
    """What this instance knows of the delays. Also a ``RuleSource``: requests get more time."""

    def __init__(self, store: StateStore, clock: Clock, queues: Queues) -> None:
        self._shared = queue_delays(store)
        self._clock = clock
        self._queues = queues
        self._known: dict[str, QueueDelay] = {}
        self._looked_at: datetime | None = None
        self._noted_at: dict[str, datetime] = {}

    async def record(self, delivery: Delivery) -> None:
        """See ``ExpiryGrace.record``: notes a message that is received late, for the first time.

        Where the store is down, or a rival notes the same, nothing is written: it is noted again.
        """
        queue, enqueued_at = delivery.queue, delivery.enqueued_at
        if enqueued_at is None or (delivery.count or 1) > 1:
            return
        now = self._clock.now()
        found = QueueDelay(now - enqueued_at.replace(tzinfo=enqueued_at.tzinfo or UTC), now)
        if found.delay < delays.LATE or self._within(self._noted_at.get(queue), now):
            return
        self._noted_at[queue] = now
        try:
            before = await self._shared.read(queue)
            known = before.value if before else None
            if known and self._within(known.at, now) and known.delay >= found.delay / 2:
                return
            await self._shared.write(queue, found, before)
        except (ConflictError, StoreUnavailableError) as failed:
            log.debug("the delay of %s was not noted: %s", queue, failed)

    async def refresh(self) -> None:
        """See ``ExpiryGrace.refresh``; does nothing within some seconds of the last time."""
        now = self._clock.now()
        if self._within(self._looked_at, now):
            return
        self._looked_at = now
        try:
            found = await self._shared.all()
        except StoreUnavailableError as down:
            log.warning("queue delays could not be read: %s", down)
            return
        self._known = {queue: one.value for queue, one in found.items()}

    @property
    def delay(self) -> timedelta:
        """See ``ExpiryGrace.delay``."""
        return delays.longest(self._known.values(), self._clock.now())

    def adjust(self, rules: Rules, workflow: Workflow, now: datetime, *, urgent: bool) -> Rules:  # noqa: ARG002
        """See ``sas.engine.hooks.RuleSource``: a request gets the delay of its queues on top."""
        replies = self._delay_of(lane(self._queues.replies, urgent=urgent))
        found = {
            (number, route): replies + self._delay_of(self._queues.agent(agent, urgent=urgent))
            for number, step in enumerate(workflow.steps)
            for route, agent in enumerate(step.agents)
        }
        grace = {at: delays.grace(delay) for at, delay in found.items() if delay}
        return replace(rules, grace=grace) if grace else rules

    async def long_delays(self) -> tuple[Sequence[Incident], Sequence[tuple[AlertKind, str]]]:
        """Return an incident for each queue that is far behind. Those that are over end by time."""
        await self.refresh()
        now = self._clock.now()
        found = [
            _incident(queue, one)
            for queue, one in self._known.items()
            if now - one.at <= delays.FRESH and one.delay >= WORTH_TELLING
        ]
        return found, ()

    def _delay_of(self, queue: str) -> timedelta:
        known = [self._known[queue]] if queue in self._known else []
        return delays.longest(known, self._clock.now())

    @staticmethod
    def _within(then: datetime | None, now: datetime) -> bool:
        return then is not None and now - then < EVERY


def _incident(queue: str, found: QueueDelay) -> Incident:
    text = (
        f"Messages lie {found.delay.total_seconds():.0f} s in queue {queue} before they are "
        "received. Nothing is lost, and steps are given more time for it. If it lasts, see whether "
        "the function of that queue has instances enough."
    )
    scope = f"queue {queue}"
    return Incident(AlertKind.BEHIND, scope, text, found.at, found.at + delays.FRESH)
