"""The delay of each queue. All instances share it through the store.

Nothing is written while no message is late. An instance that receives a late message records its
delay, at most every few seconds. Schedulers and supervisors read the delays as seldom.
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
from sas.ports import Clock, ConflictError, StateStore, StoreUnavailableError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
EVERY = timedelta(seconds=3)
"""Shortest time between two writes of one queue's delay, and between two reads of all."""
INCIDENT_DELAY_MIN = timedelta(minutes=1)
"""A longer delay of a queue is an incident."""


def queue_delays(store: StateStore) -> SharedValues[QueueDelay]:
    """Return the delays that all instances share, by queue."""
    return SharedValues(store, "queue-delay|", QueueDelay)


class QueueDelays(ExpiryGrace):
    """The delays as this instance knows them. Also a ``RuleSource``: requests get a grace."""

    def __init__(self, store: StateStore, clock: Clock, queues: Queues) -> None:
        self._shared = queue_delays(store)
        self._clock = clock
        self._queues = queues
        self._known: dict[str, QueueDelay] = {}
        self._looked_at: datetime | None = None
        self._noted_at: dict[str, datetime] = {}

    async def record(self, delivery: Delivery) -> None:
        """See ``ExpiryGrace.record``. Only the first delivery of a late message is recorded.

        If the store is down, or a rival records the same queue, nothing is written: another late
        message follows.
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
        except (ConflictError, UnavailableError) as failed:
            log.debug("the delay of queue %s was not recorded: %s", queue, failed)

    async def refresh(self) -> None:
        """See ``ExpiryGrace.refresh``. It reads at most every ``EVERY``."""
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
        """See ``sas.engine.hooks.RuleSource``: sets the grace of every route."""
        replies = self._delay_of(lane(self._queues.replies, urgent=urgent))
        found = {
            (number, route): replies + self._delay_of(self._queues.agent(agent, urgent=urgent))
            for number, step in enumerate(workflow.steps)
            for route, agent in enumerate(step.agents)
        }
        grace = {at: delays.grace(delay) for at, delay in found.items() if delay}
        return replace(rules, grace=grace) if grace else rules

    async def long_delays(self) -> tuple[Sequence[Incident], Sequence[tuple[AlertKind, str]]]:
        """Health check: return an incident for each long delay. It is over after some minutes."""
        await self.refresh()
        now = self._clock.now()
        found = [
            _incident(queue, one)
            for queue, one in self._known.items()
            if now - one.at <= delays.FRESH and one.delay >= INCIDENT_DELAY_MIN
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
        f"Messages wait {found.delay.total_seconds():.0f} s in queue {queue} before they are "
        "received. Nothing is lost, and steps get more time. If it lasts, check that the function "
        "of that queue has enough instances."
    )
    scope = f"queue {queue}"
    return Incident(AlertKind.QUEUE_DELAY, scope, text, found.at, found.at + delays.FRESH)
