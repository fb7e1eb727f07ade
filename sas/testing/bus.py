"""A message bus in memory that behaves like Service Bus where the actors depend on it.

The contract tests run against this bus and against the real ones. The rules that it has:

1. **Sending.** Messages are sent in order, one after the other. If one fails, those before it were
   sent. A queue that is missing, a right that is missing and a message that is too large raise
   ``UndeliverableError``, because the same message would fail again. All else raises
   ``BusUnavailableError`` (``QueueFullError`` beyond ``length_max``), and the sender may try again.
2. **Duplicate detection.** Within its window a queue drops a message whose MessageId it has seen,
   also if the first was completed long ago. The sender is not told, so sending again is
   safe. Dead letters are never dropped as duplicates.
3. **Order and schedule.** A queue delivers by the time at which a message becomes visible. That is
   the time when it came, or the later time for which it is scheduled.
4. **Locks.** A receiver locks a message and renews the lock while it works. Only the holder of the
   lock can complete or abandon the message. A receiver that lost the lock changes nothing, because
   the message is back in its queue, has another receiver, or is a dead letter.
5. **Deliveries.** Each receive counts. A message that comes back after its last delivery becomes a
   dead letter: in the queue's own subqueue, or in the queue to which dead letters are forwarded.
   There its deliveries count from zero, and its own time to live counts no more.
6. **Expiry.** A message expires at the earlier of its own time to live and that of its queue, and
   becomes a dead letter or is dropped. As in Service Bus, this happens when somebody reads from
   the queue.
7. **Outages.** A queue that is away takes and gives nothing, and no lock is renewed. Each lock ends
   at a moment that is drawn within the lock time. If the outage ends before that moment, the
   receiver renews its lock again. Otherwise the message goes back, and another receiver may get it
   while the first handler still works.

It has no sessions and no transactions, because no actor uses them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from sas.ports import (
    PEEK_BYTES_MAX,
    BusUnavailableError,
    Clock,
    Message,
    Peeked,
    QueueFullError,
    TooLargeForQueueError,
    UndeliverableError,
)
from sas.telemetry.tracing import carried
from sas.telemetry.usage import Usage

MESSAGE_BYTES_MAX = 256 * 1024
OVERHEAD_BYTES = 512
"""Bytes of headers and annotations of a message, without the application's properties."""
PEEK_PAGE = 100
"""Most messages that are read at once."""
DEAD_LETTERS = "/$DeadLetterQueue"
"""The name of a queue's own dead-letter queue is the queue's name and this suffix."""


class BusFault(Enum):
    """Faults that a test can inject into a send."""

    UNAVAILABLE = "nothing was sent: BusUnavailableError"
    LOST_ANSWER = "the message was sent, but the sender gets BusUnavailableError"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How a queue is configured. None means: no limit, off, or nowhere.

    Without ``forwards_dead_letters_to`` the dead letters stay in the queue's own dead-letter queue.
    """

    lock_time: timedelta = timedelta(minutes=1)
    deliveries_max: int | None = None
    duplicate_window: timedelta | None = None
    time_to_live: timedelta | None = None
    dead_letters_expired: bool = False
    forwards_dead_letters_to: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Queued:
    """One message in a queue. ``sequence`` increases over all queues.

    It can be received from ``visible_at`` on: later than ``enqueued_at``, if it is scheduled.
    ``deliveries`` counts how often it was received. ``has_holder`` says that a receiver holds its
    lock, and may settle it. ``lock_ends_at`` says when the lock ends by itself; it is None while
    the lock is renewed. ``source`` is the queue that a dead letter comes from.
    """

    sequence: int
    message: Message
    enqueued_at: datetime
    visible_at: datetime
    expires_at: datetime | None
    deliveries: int = 0
    source: str | None = None
    has_holder: bool = False
    lock_ends_at: datetime | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Queue:
    """One queue: its rules, and its messages that wait, are locked, or expired.

    A queue that ``is_away`` is disabled, so it takes no send, receive, peek or settlement. A queue
    that ``refuses`` takes no send, because it is full, disabled for sending or throttled. A queue
    that ``forbids`` gives the app no right to send.
    """

    name: str
    rules: QueueRules
    length_max: int | None = None
    is_away: bool = False
    refuses: bool = False
    forbids: bool = False
    waiting: list[Queued] = field(default_factory=list)
    expired: list[Queued] = field(default_factory=list)
    locked: list[Queued] = field(default_factory=list)
    ids_seen: dict[str, datetime] = field(default_factory=dict)


class MemoryBus:
    """Queues in memory. A message to a queue that was not declared is undeliverable.

    A function host uses ``receive`` and then ``complete`` or ``abandon``. ``take`` receives and
    completes at once. ``meter`` counts sends and peeks, but no receives, because the host receives.

    Faults: ``fail_next`` sets the faults of the next messages. For all other messages ``plan``
    returns the fault; a simulation with a seed sets it. ``cut`` takes the whole namespace or some
    queues away.

    ``on_sent`` is called for each message that a queue accepts, also for a duplicate that it drops.
    ``on_given_up`` is called for each message that becomes a dead letter, ``on_completed`` for each
    message that its receiver completed.
    """

    def __init__(self, clock: Clock) -> None:
        self.queues: dict[str, Queue] = {}
        self.meter = Usage()
        self.plan: Callable[[Message], BusFault | None] = lambda _: None
        self.on_sent: Callable[[Message], None] = lambda _: None
        self.on_given_up: Callable[[Queued], None] = lambda _: None
        self.on_completed: Callable[[Queued], None] = lambda _: None
        self.is_away = False
        self.rng = random.Random(0)  # noqa: S311  a simulation repeats itself
        self._clock = clock
        self._faults: deque[BusFault] = deque()
        self._sequence = 0
        self._ties = itertools.count()
        self._ends: list[tuple[datetime, int, Queue, Queued]] = []

    def declare(
        self,
        *names: str,
        rules: QueueRules | None = None,
        duplicate_window: timedelta | None = None,
        time_to_live: timedelta | None = None,
        length_max: int | None = None,
    ) -> None:
        """Create queues with ``rules``. Without them the queues have only the two other rules.

        ``duplicate_window`` turns duplicate detection on. ``time_to_live`` is the default of the
        messages of the queue, and their maximum.
        """
        rules = rules or QueueRules(duplicate_window=duplicate_window, time_to_live=time_to_live)
        for name in names:
            self.queues[name] = Queue(name=name, rules=rules, length_max=length_max)

    def fail_next(self, *faults: BusFault) -> None:
        """Inject these faults into the next messages, one each."""
        self._faults.extend(faults)

    # --- for senders ---

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order. See ``MessageBus.send``."""
        room: dict[str, int] = {}
        for message in messages:
            if message.queue in self.queues and self.queues[message.queue].forbids:
                raise UndeliverableError(f"no right to send to {message.queue}", message)
            size = _size_of(message)
            if size > room.get(message.queue, 0):  # it needs a new batch
                self.meter.sends += 1
                room[message.queue] = MESSAGE_BYTES_MAX
            room[message.queue] -= size
            # 1. What was sent before this message stays sent.
            fault = self._faults.popleft() if self._faults else self.plan(message)
            if fault is BusFault.UNAVAILABLE:
                raise BusUnavailableError(f"queue {message.queue}: an injected fault")
            self._enqueue(message)
            if fault is BusFault.LOST_ANSWER:
                raise BusUnavailableError(f"queue {message.queue}: sent, but the answer was lost")

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        source = self.queues.get(queue)
        if source is None:
            raise BusUnavailableError(f"there is no queue {queue!r}")
        if not self.reachable(source):
            raise BusUnavailableError(f"queue {queue} is away")
        self._expire(source)
        self._activate(source)
        behind = [each for each in (*source.waiting, *source.locked) if each.sequence > after]
        ordered = sorted(behind, key=lambda queued: queued.sequence)[:limit]
        messages = [
            Peeked(
                message_id=queued.message.message_id,
                body=queued.message.body,
                enqueued_at=queued.visible_at,
                properties=queued.message.properties,
                sequence=queued.sequence,
                is_scheduled=queued.visible_at > self._clock.now(),
                source=queued.source,
            )
            for queued in ordered
        ]
        bytes_before = itertools.accumulate((message.size for message in messages), initial=0)
        peeked = [
            message
            for message, size in zip(messages, bytes_before, strict=False)
            if size < PEEK_BYTES_MAX
        ]
        pages = -(-len(peeked) // PEEK_PAGE)
        is_end = len(peeked) == len(ordered) < limit
        self.meter.peeks += pages + is_end  # one more page, which is empty, marks the end
        return peeked

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    # --- for receivers ---

    def receive(self, queue: str, renewed_for: timedelta | None = None) -> Queued | None:
        """Lock the oldest visible message and return it; None if no message is visible.

        Its lock is renewed until the message is settled, or for ``renewed_for``.
        """
        source = self.queues[queue]
        if not self.reachable(source):
            return None
        now = self._clock.now()
        while source.waiting and source.waiting[0].visible_at <= now:
            queued = source.waiting.pop(0)
            if queued.expires_at is not None and queued.expires_at <= now:
                self._expired(source, queued)
                continue
            queued.deliveries += 1  # 5.
            queued.has_holder = True  # 4.
            source.locked.append(queued)
            if renewed_for is not None:
                self._lock_ends(source, queued, now + renewed_for + source.rules.lock_time)
            return queued
        return None

    def lock(self, queue: str, sequences: Collection[int]) -> list[Queued]:
        """Lock these visible messages for the queue's lock time. If one is gone, lock none."""
        source, now = self.queues[queue], self._clock.now()
        candidates = [queued for queued in source.waiting if queued.sequence in sequences]
        visible = [queued for queued in candidates if queued.visible_at <= now]
        if len(visible) < len(sequences) or not self.reachable(source):
            return []
        for queued in visible:
            source.waiting.remove(queued)
            queued.deliveries += 1
            queued.has_holder = True
            source.locked.append(queued)
            self._lock_ends(source, queued, now + source.rules.lock_time)
        return visible

    def complete(self, queued: Queued) -> bool:
        """Remove a locked message; False if its lock is lost, or its queue is away."""
        source = self._held(queued)
        if source is None:
            return False
        source.locked.remove(queued)
        queued.has_holder = False
        self.on_completed(queued)
        return True

    def abandon(self, queued: Queued) -> None:
        """Give a locked message back at once. The queue dead-letters it after its last delivery."""
        source = self._held(queued)
        if source is not None:
            self._give_back(source, queued)

    def give_up(self, queued: Queued) -> None:
        """Dead-letter a locked message, as if its lock was lost in its last delivery.

        Its receiver does not notice this, and goes on.
        """
        source = self._held(queued)
        if source is not None and source.rules.deliveries_max is not None:
            source.locked.remove(queued)
            self._dead_letter(source, self._released(queued), "MaxDeliveryCountExceeded")
            queued.has_holder = False

    def give_up_first(self, queue: str) -> None:
        """Dead-letter the first message of a queue."""
        queued = self.receive(queue)
        if queued is not None:
            self.give_up(queued)

    def let_go(self, queued: Queued) -> None:
        """Stop the renewal of a lock, because its holder died. The lock then ends by itself."""
        source = self.queues[queued.message.queue]
        if queued.has_holder and queued in source.locked:
            queued.has_holder = False
            self._lock_ends_soon(source, queued)

    def deliver_again(self, queued: Queued) -> None:
        """Deliver a message once more, although its first receiver goes on or has completed it."""
        source = self.queues[queued.message.queue]
        insort(source.waiting, self._released(queued), key=_place)

    def end_locks(self) -> None:
        """Give back the messages whose locks have ended."""
        now = self._clock.now()
        while self._ends and self._ends[0][0] <= now:
            at, _, source, queued = heapq.heappop(self._ends)
            if queued.lock_ends_at == at and queued in source.locked:
                self._give_back(source, queued)

    @property
    def next_lock_end(self) -> datetime | None:
        """When the next lock ends by itself; None if all locks are renewed."""
        return self._ends[0][0] if self._ends else None

    def take(self, queue: str) -> Message | None:
        """Remove the oldest visible message and return it; None if no message is visible."""
        queued = self.receive(queue)
        if queued is None:
            return None
        self.complete(queued)
        return queued.message

    def is_empty(self, queue: str) -> bool:
        """Return whether a queue holds nothing, scheduled and locked messages included."""
        source = self.queues[queue]
        if source.waiting:
            self._expire(source)
        return not (source.waiting or source.locked)

    def messages(self, queue: str) -> list[Message]:
        """Return all visible messages, oldest first, and leave them in the queue."""
        source, now = self.queues[queue], self._clock.now()
        self._expire(source)
        return [queued.message for queued in source.waiting if queued.visible_at <= now]

    # --- outages ---

    def reachable(self, queue: Queue) -> bool:
        """Return whether a queue can be reached at all."""
        return not self.is_away and not queue.is_away

    @property
    def arrivals(self) -> int:
        """How many messages have come into any queue so far, dead letters among them."""
        return self._sequence

    @property
    def refuses_any(self) -> bool:
        """Return whether a queue takes no message now."""
        return self.is_away or any(queue.is_away or queue.refuses for queue in self.queues.values())

    def cut(self, *names: str) -> None:
        """Take queues away; without names, the namespace. Locks are not renewed meanwhile."""
        self.is_away = self.is_away or not names
        for queue in self._named(names):
            queue.is_away = queue.is_away or bool(names)
            for queued in queue.locked:  # 7. nobody can renew them
                if queued.lock_ends_at is None:
                    self._lock_ends_soon(queue, queued)

    def mend(self, *names: str) -> None:
        """Bring queues back; without names, the namespace. Live receivers renew their locks."""
        self.is_away = self.is_away and bool(names)
        for queue in self._named(names):
            queue.is_away = queue.is_away and not names
            for queued in queue.locked:
                if queued.has_holder and self.reachable(queue):
                    queued.lock_ends_at = None

    def _named(self, names: Sequence[str]) -> Iterable[Queue]:
        return [self.queues[name] for name in names] if names else self.queues.values()

    # --- inside ---

    def _held(self, queued: Queued) -> Queue | None:
        """Return the queue of a message that its receiver can settle; None if it cannot."""
        # 4. A receiver that lost the lock settles nothing.
        source = self.queues[queued.message.queue]
        if not queued.has_holder or queued not in source.locked:
            return None
        if self.reachable(source):
            return source
        queued.has_holder = False  # its lock ends by itself
        return None

    def _lock_ends_soon(self, queue: Queue, queued: Queued) -> None:
        time_left = queue.rules.lock_time * self.rng.random()
        self._lock_ends(queue, queued, self._clock.now() + time_left)

    def _lock_ends(self, queue: Queue, queued: Queued, at: datetime) -> None:
        queued.lock_ends_at = at
        heapq.heappush(self._ends, (at, next(self._ties), queue, queued))

    def _give_back(self, queue: Queue, queued: Queued) -> None:
        queue.locked.remove(queued)
        released = self._released(queued)
        queued.has_holder = False
        limit = queue.rules.deliveries_max  # 5.
        if limit is not None and queued.deliveries >= limit:
            self._dead_letter(queue, released, "MaxDeliveryCountExceeded")
        else:
            insort(queue.waiting, released, key=_place)

    def _released(self, queued: Queued) -> Queued:
        return replace(queued, has_holder=False, lock_ends_at=None)

    def _expire(self, queue: Queue) -> None:
        now = self._clock.now()  # 6.
        outdated = [
            queued
            for queued in queue.waiting
            if queued.expires_at is not None and queued.expires_at <= now
        ]
        for queued in outdated:
            queue.waiting.remove(queued)
            self._expired(queue, queued)

    def _activate(self, queue: Queue) -> None:
        """Give scheduled messages whose time has come a new place, as Service Bus does."""
        now = self._clock.now()
        for queued in queue.waiting:
            if queued.enqueued_at < queued.visible_at <= now:
                self._sequence += 1
                queued.sequence, queued.enqueued_at = self._sequence, queued.visible_at

    def _expired(self, queue: Queue, queued: Queued) -> None:
        if queue.rules.dead_letters_expired:
            self._dead_letter(queue, queued, "TTLExpiredException")
        else:
            queue.expired.append(queued)

    def _dead_letter(self, queue: Queue, queued: Queued, reason: str) -> None:
        """Move a message to where its queue forwards dead letters, with a new delivery count."""
        name = queue.rules.forwards_dead_letters_to or queue.name + DEAD_LETTERS
        if name not in self.queues:
            self.declare(name)
        properties = {**queued.message.properties, "DeadLetterReason": reason}
        message = replace(
            queued.message, queue=name, properties=properties, time_to_live=None, scheduled_at=None
        )
        letter = self._queued(self.queues[name], message, self._clock.now())
        letter.source = queued.source or queue.name
        self.on_given_up(queued)
        insort(self.queues[name].waiting, letter, key=_place)

    def _enqueue(self, message: Message) -> None:
        if self.is_away:
            raise BusUnavailableError("the namespace is away")
        queue = self.queues.get(message.queue)
        if queue is None:
            raise UndeliverableError(f"there is no queue {message.queue!r}", message)
        size = _size_of(message)
        if size > MESSAGE_BYTES_MAX:
            raise TooLargeForQueueError(
                f"the message has {size} bytes: more than the bus accepts", message
            )
        if queue.length_max is not None and len(queue.waiting) >= queue.length_max:
            raise QueueFullError(f"queue {queue.name} is full")
        if queue.is_away or queue.refuses:
            raise BusUnavailableError(f"queue {queue.name} takes no message now")
        self.on_sent(message)
        self.meter.messages += 1
        self.meter.message_bytes += len(message.body)
        now = self._clock.now()
        if not self._is_duplicate(queue, message.message_id, now):
            properties = {**message.properties, **carried()}
            queued = self._queued(queue, replace(message, properties=properties), now)
            insort(queue.waiting, queued, key=_place)

    def _queued(self, queue: Queue, message: Message, now: datetime) -> Queued:
        self._sequence += 1
        visible_at = max(now, message.scheduled_at or now)  # 3.
        lifetimes = [
            time for time in (message.time_to_live, queue.rules.time_to_live) if time is not None
        ]
        expires_at = visible_at + min(lifetimes) if lifetimes else None
        return Queued(
            sequence=self._sequence,
            message=message,
            enqueued_at=now,
            visible_at=visible_at,
            expires_at=expires_at,
        )

    @staticmethod
    def _is_duplicate(queue: Queue, message_id: str, now: datetime) -> bool:
        window = queue.rules.duplicate_window  # 2.
        if window is None:
            return False
        ids = queue.ids_seen
        while ids and (oldest := next(iter(ids))) and ids[oldest] + window <= now:
            del ids[oldest]
        if message_id in ids:
            return True
        ids[message_id] = now
        return False


def _place(queued: Queued) -> tuple[datetime, int]:
    """Return the place of a message in its queue: by time, and at one time by its sequence."""
    return queued.visible_at, queued.sequence


def _size_of(message: Message) -> int:
    properties = message.properties.items()
    return (
        OVERHEAD_BYTES
        + len(message.body)
        + sum(len(key.encode()) + len(text.encode()) for key, text in properties)
    )
