"""Reads a queue from behind what lies in front of it and comes much later.

A peek reads some megabytes. Messages that are scheduled for next year would fill each of them, and
hide what waits behind. Service Bus gives a message a new place when its time comes. So where only
such messages were read, no message will ever wait, and the next read begins behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from sas.engine.receiver import TIMES
from sas.features.queue_delay import rules
from sas.ports import Clock, MessageBus, Peeked

SCAN_MAX = 1_000
"""Most messages that one read takes. Large ones are fewer: see ``MessageBus.peek``."""
FORGOTTEN_AFTER = timedelta(hours=1)
"""The next read begins in front again: a queue that was deleted and made again counts anew."""


def comes_much_later(message: Peeked, now: datetime) -> bool:
    """Return whether a message is scheduled, and comes too late to excuse a step."""
    put_back = TIMES in message.properties
    is_late = rules.comes_much_later(message.enqueued_at, now, put_back=put_back)
    return message.is_scheduled and is_late


class QueueFront:
    """Remembers of each queue up to where only messages lie that ``passes`` says can be left out.

    These must be scheduled.
    """

    def __init__(
        self,
        bus: MessageBus,
        clock: Clock,
        passes: Callable[[Peeked, datetime], bool] = comes_much_later,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._passes = passes
        self._passed: dict[str, tuple[int, datetime]] = {}

    async def read(self, queue: str) -> list[Peeked]:
        """Return messages of a queue as ``MessageBus.peek``, without those in front.

        Raises:
            BusUnavailableError: it cannot be read now. The next read begins in front.
        """
        now = self._clock.now()
        after, until = self._passed.pop(queue, (0, now))
        if until <= now:
            after, until = 0, now + FORGOTTEN_AFTER
        messages = await self._bus.peek(queue, SCAN_MAX, after)
        for message in messages:
            if not self._passes(message, now):
                break
            after = message.sequence
        self._passed[queue] = after, until
        return messages
