"""A message bus in memory, with the properties of Service Bus that the actors rely on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from sas.ports import BusUnavailableError, Clock, Message, UndeliverableError
from sas.telemetry.tracing import carried

MESSAGE_BYTES_MAX = 256 * 1024
OVERHEAD_BYTES = 512
"""What headers and annotations may add: a message this close to the limit is too large."""


class BusFault(Enum):
    """What a send can be made to suffer."""

    UNAVAILABLE = "nothing was sent: BusUnavailableError"
    LOST_ANSWER = "the message was sent, the sender learns BusUnavailableError"


@dataclass(frozen=True, slots=True)
class Queued:
    """One message in a queue. ``sequence`` is unique in the bus and rises."""

    sequence: int
    message: Message
    enqueued_at: datetime
    visible_at: datetime
    expires_at: datetime | None


@dataclass(slots=True)
class Queue:
    """One queue: its settings, what waits in it and what expired unread."""

    name: str
    duplicate_window: timedelta | None = None
    time_to_live: timedelta | None = None
    length_max: int | None = None
    waiting: list[Queued] = field(default_factory=list)
    expired: list[Queued] = field(default_factory=list)
    ids_seen: dict[str, datetime] = field(default_factory=dict)


class MemoryBus:
    """Queues in memory. A queue must be declared; a message to any other is undeliverable.

    Receiving is the driver's: ``take`` hands out the oldest visible message and forgets it.
    Faults: ``fail_next`` for the next sends, or ``plan``, asked before each message with the
    message, for a seeded simulation.
    """

    def __init__(self, clock: Clock) -> None:
        self.queues: dict[str, Queue] = {}
        self.sent = 0
        self.plan: Callable[[Message], BusFault | None] = lambda _: None
        self._clock = clock
        self._faults: deque[BusFault] = deque()
        self._sequence = 0

    def declare(
        self,
        *names: str,
        duplicate_window: timedelta | None = None,
        time_to_live: timedelta | None = None,
        length_max: int | None = None,
    ) -> None:
        """Create queues; ``duplicate_window`` switches duplicate detection on.

        ``time_to_live`` is the queue's default, and the longest a message may ask for.
        """
        for name in names:
            self.queues[name] = Queue(name, duplicate_window, time_to_live, length_max)

    def fail_next(self, *faults: BusFault) -> None:
        """Make the next messages suffer these faults, one each."""
        self._faults.extend(faults)

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages in their order. See ``MessageBus.send``."""
        for message in messages:
            fault = self._faults.popleft() if self._faults else self.plan(message)
            if fault is BusFault.UNAVAILABLE:
                raise BusUnavailableError(f"queue {message.queue}: a fault was asked for")
            self._enqueue(message)
            if fault is BusFault.LOST_ANSWER:
                raise BusUnavailableError(f"queue {message.queue}: sent, but the answer was lost")

    async def close(self) -> None:
        """Nothing is held."""

    def take(self, queue: str) -> Message | None:
        """Return the oldest visible message and forget it; None where there is none."""
        found = self.take_queued(queue)
        return found.message if found else None

    def take_queued(self, queue: str) -> Queued | None:
        """Return the oldest visible message, with when it was queued, and forget it."""
        found = self._visible(self.queues[queue])
        if not found:
            return None
        self.queues[queue].waiting.remove(found[0])
        return found[0]

    def messages(self, queue: str) -> list[Message]:
        """Return every visible message, oldest first, without taking any."""
        return [queued.message for queued in self._visible(self.queues[queue])]

    def next_change(self) -> datetime | None:
        """Return when the next scheduled message becomes visible, if any is scheduled."""
        now = self._clock.now()
        times = [q.visible_at for queue in self.queues.values() for q in queue.waiting]
        return min((at for at in times if at > now), default=None)

    def _visible(self, queue: Queue) -> list[Queued]:
        now = self._clock.now()
        gone = [q for q in queue.waiting if q.expires_at is not None and q.expires_at <= now]
        for queued in gone:
            queue.waiting.remove(queued)
            queue.expired.append(queued)
        visible = [q for q in queue.waiting if q.visible_at <= now]
        return sorted(visible, key=lambda q: (q.visible_at, q.sequence))

    def _enqueue(self, message: Message) -> None:
        queue = self.queues.get(message.queue)
        if queue is None:
            raise UndeliverableError(f"there is no queue {message.queue!r}", message)
        if len(message.body) + OVERHEAD_BYTES > MESSAGE_BYTES_MAX:
            raise UndeliverableError(
                f"the message has {len(message.body)} bytes: more than the bus takes", message
            )
        if queue.length_max is not None and len(queue.waiting) >= queue.length_max:
            raise BusUnavailableError(f"queue {queue.name} is full")
        self.sent += 1
        now = self._clock.now()
        if not self._is_duplicate(queue, message.message_id, now):
            queue.waiting.append(self._queued(queue, message, now))

    def _queued(self, queue: Queue, message: Message, now: datetime) -> Queued:
        self._sequence += 1
        message = replace(message, properties={**message.properties, **carried()})
        visible_at = max(now, message.scheduled_at or now)
        asked = [t for t in (message.time_to_live, queue.time_to_live) if t is not None]
        expires_at = visible_at + min(asked) if asked else None
        return Queued(self._sequence, message, now, visible_at, expires_at)

    @staticmethod
    def _is_duplicate(queue: Queue, message_id: str, now: datetime) -> bool:
        if queue.duplicate_window is None:
            return False
        seen = queue.ids_seen
        for old in [key for key, at in seen.items() if at + queue.duplicate_window <= now]:
            del seen[old]
        if message_id in seen:
            return True
        seen[message_id] = now
        return False
