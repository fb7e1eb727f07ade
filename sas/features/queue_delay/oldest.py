"""The age of the oldest message in each queue of orders, as a metric.

An order has no row before its function takes it. So only its queue tells that it waits, for
instance because the function is disabled or fails before it reads a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sas.features.queue_delay.front import QueueFront
from sas.ports import BusUnavailableError, Clock, MessageBus
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)
MEASURE_AFTER = timedelta(minutes=1)


class OldestOrders:
    """Measures queues once a minute. A method of it is a ``sas.engine.hooks.SweepTask``."""

    def __init__(self, bus: MessageBus, clock: Clock, queues: Sequence[str]) -> None:
        self._bus = bus
        # A sender may say of what comes in an hour that it was put back: that hides nothing here.
        self._front = QueueFront(bus, clock, lambda message, _: message.is_scheduled)
        self._clock = clock
        self._queues = queues
        self._measured_at: datetime | None = None

    async def measure(self) -> None:
        """Record the age of each queue's oldest message, 0 if there is none.

        A message that a function handles counts. One that is put back waits as a scheduled copy. It
        does not count, and begins anew when its time comes.
        """
        now = self._clock.now()
        if self._measured_at is not None and now - self._measured_at < MEASURE_AFTER:
            return
        self._measured_at = now
        for queue in self._queues:
            try:
                since = await self._oldest(queue)
            except BusUnavailableError as error:
                log.warning("the oldest message of queue %s is not measured: %s", queue, error)
                continue
            metrics.oldest_order(queue, (now - (since or now)).total_seconds())

    async def _oldest(self, queue: str) -> datetime | None:
        """Return since when the oldest message waits that is not scheduled."""
        messages = await self._bus.peek(queue, 1)
        if messages and messages[0].is_scheduled:  # others may wait behind it
            messages = await self._front.read(queue)
        return next((each.enqueued_at for each in messages if not each.is_scheduled), None)
