"""A message bus in memory that behaves like Service Bus where the actors depend on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from sas.ports import BusUnavailableError, Clock, Message, Peeked, UndeliverableError
from sas.telemetry.tracing import carried

MESSAGE_BYTES_MAX = 256 * 1024
OVERHEAD_BYTES = 512
"""Room for headers and annotations: a message this close to the limit is too large."""


class BusFault(Enum):
    """Faults that a test can inject into a send."""

    UNAVAILABLE = "nothing was sent: BusUnavailableError"
    LOST_ANSWER = "the message was sent, but the sender gets BusUnavailableError"


@dataclass(frozen=True, slots=True)
class Queued:
    """One message in a queue. ``sequence`` increases over all queues."""

    sequence: int
    message: Message
    enqueued_at: datetime
    visible_at: datetime
    expires_at: datetime | None


@dataclass(slots=True)
class Queue:
    """One queue: its settings, its messages that wait, are locked, or expired."""

    name: str
    duplicate_window: timedelta | None = None
    time_to_live: timedelta | None = None
    length_max: int | None = None
    waiting: list[Queued] = field(default_factory=list)
    expired: list[Queued] = field(default_factory=list)
    locked: list[Queued] = field(default_factory=list)
    ids_seen: dict[str, datetime] = field(default_factory=dict)


class MemoryBus:
    """Queues in memory. A message to a queue that was not declared is undeliverable.

    ``take`` returns and removes the oldest visible message. Faults: ``fail_next`` sets those of
    the next messages; ``plan`` is called with each message and decides, for seeded simulations.
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
        """Create queues. ``duplicate_window`` turns duplicate detection on.

        ``time_to_live`` is the default of the queue, and the maximum of a message.
        """
        for name in names:
            self.queues[name] = Queue(name, duplicate_window, time_to_live, length_max)

    def fail_next(self, *faults: BusFault) -> None:
        """Inject these faults into the next messages, one each."""
        self._faults.extend(faults)

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order. See ``MessageBus.send``."""
        for message in messages:
            fault = self._faults.popleft() if self._faults else self.plan(message)
            if fault is BusFault.UNAVAILABLE:
                raise BusUnavailableError(f"queue {message.queue}: an injected fault")
            self._enqueue(message)
            if fault is BusFault.LOST_ANSWER:
                raise BusUnavailableError(f"queue {message.queue}: sent, but the answer was lost")

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def take(self, queue: str) -> Message | None:
        """Remove the oldest visible message and return it; None if no message is visible."""
        found = self.take_queued(queue)
        return found.message if found else None

    def take_queued(self, queue: str) -> Queued | None:
        """Return and remove the oldest visible message, with the times of its queue entry."""
        found = next(iter(self._visible(self.queues[queue])), None)
        if found is not None:
            self.queues[queue].waiting.remove(found)
        return found

    def messages(self, queue: str) -> list[Message]:
        """Return all visible messages, oldest first, and leave them in the queue."""
        return [queued.message for queued in self._visible(self.queues[queue])]

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        found = self.queues.get(queue)
        if found is None:
            raise BusUnavailableError(f"there is no queue {queue!r}")
        self._visible(found)  # removes what expired
        first = sorted([*found.waiting, *found.locked], key=lambda one: one.sequence)[:limit]
        return [
            Peeked(
                one.message.message_id,
                one.message.body,
                max(one.enqueued_at, one.visible_at),
                one.message.properties,
            )
            for one in first
        ]

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
                f"the message has {len(message.body)} bytes: more than the bus accepts", message
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
