"""One queue of Service Bus, sans-IO: no sockets, no clock of its own, no tasks.

The life of a message, with what moves it:

    arrive -> (scheduled ->) ready -> delivered, locked -> completed        gone
                              ^             |
                              +-- abandoned, released, lock ended
                                            +-> deferred (taken by its number)
                                            +-> dead-lettered, or delivered too often
    time to live over, while nobody holds it: dead-lettered or dropped

Every method takes ``now`` in seconds since 1970. Locks outlive the link that took them; that a
lock has ended is noticed by `sweep`, which the house calls once the queue's wake-up has come.
What a receiver says about a message is in settlement.py; who gets the next message, in
dispatch.py and sessions.py; what ``$management`` may look up, in browse.py.
"""

from collections.abc import Sequence
from heapq import heappop

from devstack.servicebus.core.admission import check_admission, check_sendable
from devstack.servicebus.core.dispatch import Dispatch, PlainDispatch
from devstack.servicebus.core.due import DueHeap, DuplicateHistory
from devstack.servicebus.core.durations import FOREVER_S
from devstack.servicebus.core.message import Message, MessageState
from devstack.servicebus.core.ports import Consumer, House
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.sessions import SessionDispatch


class QueueCore:
    """The messages of one queue and what becomes of them."""

    def __init__(
        self,
        name: str,
        properties: QueueProperties,
        house: House,
        *,
        dead_letters: "QueueCore | None" = None,
        created_at: float = 0.0,
    ) -> None:
        self.name = name
        self.properties = properties
        self.house = house
        self.dead_letters = dead_letters
        self.created_at = self.updated_at = self.accessed_at = created_at
        self.messages: dict[int, Message] = {}
        self.locked: dict[bytes, Message] = {}
        self.history = DuplicateHistory()
        self.bytes = 0
        self.scheduled_count = 0
        self.last_sequence = 0
        self.wake_at: float | None = None
        self.sessions = SessionDispatch(self) if properties.requires_session else None
        self.dispatch: Dispatch = self.sessions or PlainDispatch(self)
        self._schedule = DueHeap()
        self._expiry = DueHeap()

    @property
    def used_bytes(self) -> int:
        """What counts against the quota: the messages and the dead letters."""
        return self.bytes + (self.dead_letters.bytes if self.dead_letters else 0)

    # -- messages come in ---------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message], now: float) -> list[int]:
        """Take all of ``messages`` or none; return their sequence numbers.

        A duplicate within the window is dropped and answered with the first one's number.
        Raises EntityDisabledError, QuotaExceededError, MessageSizeExceededError, NotAllowedError.
        """
        check_sendable(self)
        check_admission(self, messages)
        self.accessed_at = now
        return [self.arrive(message, now) for message in messages]

    def arrive(self, message: Message, now: float, hops: int = 0) -> int:
        """Put one admitted message in; return its sequence number."""
        settings = self.properties
        if settings.requires_duplicate_detection:
            first = self.history.find(message.message_id, now, settings.duplicate_window_s)
            if first is not None:
                return first
        self.last_sequence += 1
        sequence = message.sequence = self.last_sequence
        if settings.requires_duplicate_detection:
            self.history.remember(message.message_id, now, sequence)
            self.house.journal.remembered(self, message.message_id, now, sequence)
        if message.enqueued_at == 0.0:
            message.enqueued_at = now
        if settings.default_ttl_s < FOREVER_S:
            message.limit_ttl(settings.default_ttl_s)
        if message.scheduled_at is not None and message.scheduled_at > now:
            message.state = MessageState.SCHEDULED
            self.keep(message)
            self.house.journal.stored(self, message)
        else:
            self._become_active(message, now, hops)
        return sequence

    def _become_active(self, message: Message, now: float, hops: int = 0) -> None:
        message.state = MessageState.ACTIVE
        if self.properties.forward_to:
            self.house.forward(self, message, now, hops)
            return
        if message.ttl_s is not None:
            message.expires_at = now + message.ttl_s
        self.keep(message)
        self.house.journal.stored(self, message)
        self.dispatch.offer(message, now)

    def keep(self, message: Message) -> None:
        """Enter a message into the books: counts, session, moments at which it falls due."""
        self.messages[message.sequence] = message
        self.bytes += message.size
        if self.sessions is not None:
            self.sessions.kept(message)
        if message.state is MessageState.SCHEDULED and message.scheduled_at is not None:
            self.scheduled_count += 1
            self._schedule.push(message.scheduled_at, message.sequence)
            self.wake(message.scheduled_at)
        if message.expires_at is not None:
            self._expiry.push(message.expires_at, message.sequence)
            self.wake(message.expires_at)

    def restore(self, message: Message, now: float) -> None:
        """Put a message back that nobody holds, after a restart."""
        self.keep(message)
        if message.state is MessageState.ACTIVE:
            self.dispatch.offer(message, now)

    def restore_lock(self, message: Message, token: bytes) -> None:
        """Put a lock back, after a restart; locks come in the order of their ends."""
        message.token = token
        self.locked[token] = message
        self.dispatch.unordered_until(message.locked_until)
        self.wake(message.locked_until)

    # -- messages go out ----------------------------------------------------------------

    def take_ready(self, ready: list[int], now: float) -> Message | None:
        """Pop the next message of a line that can be given; the overdue are left to `sweep`."""
        while ready:
            message = self.messages.get(heappop(ready))
            if message is None:
                continue
            if message.expires_at is not None and message.expires_at <= now:
                self.wake(now)
                continue
            return message
        return None

    def deliver(self, consumer: Consumer, message: Message, now: float) -> None:
        """Give a message: locked, or removed at once where the consumer settles first."""
        token = self.house.new_token()
        if consumer.settles_first:
            self.remove(message)
        else:
            self.lock(message, token, consumer, now)
        consumer.deliver(message, token)

    def lock(self, message: Message, token: bytes, consumer: Consumer | None, now: float) -> None:
        """Lock a message: for the queue's lock duration, or as long as its session is held."""
        session = consumer.session if consumer is not None else None
        message.token = token
        self.locked[token] = message
        if session is None:
            message.locked_until = self.lock_ends_at(now)
            self.wake(message.locked_until)
        else:
            message.locked_until = session.locked_until
            session.locked[token] = message
        self.house.journal.changed(self, message)

    def lock_ends_at(self, now: float) -> float:
        """Say until when a lock taken now lasts."""
        return now + self.properties.lock_duration_s

    # -- messages leave, or come back ---------------------------------------------------

    def remove(self, message: Message) -> None:
        """Forget a message of this queue."""
        del self.messages[message.sequence]
        self.bytes -= message.size
        if message.state is MessageState.SCHEDULED:
            self.scheduled_count -= 1
        if message.token is not None:
            self._drop_lock(message)
        if self.sessions is not None:
            self.sessions.forgotten(message)
        self.house.journal.removed(self, message)

    def _drop_lock(self, message: Message) -> None:
        if message.token is not None:
            self.locked.pop(message.token, None)
            if self.sessions is not None:
                self.sessions.unlocked(message)
            message.token = None

    def unlock(self, message: Message, now: float, *, count: bool) -> None:
        """Take the lock off; dead-letter a message that was delivered too often."""
        self._drop_lock(message)
        if count:
            message.delivery_count += 1
            limit = self.properties.max_delivery_count
            if self.dead_letters is not None and message.delivery_count >= limit:
                self.bury(
                    message,
                    now,
                    "MaxDeliveryCountExceeded",
                    f"Message could not be consumed after {message.delivery_count} "
                    "delivery attempts.",
                )
                return
        self.house.journal.changed(self, message)
        if message.state is MessageState.DEFERRED:
            return
        if message.expires_at is not None and message.expires_at <= now:
            self._expire(message, now)
        elif self.properties.forward_to:
            self.remove(message)
            self.house.forward(self, message, now, 0)
        else:
            self.dispatch.offer(message, now)

    def bury(
        self, message: Message, now: float, reason: str | None, description: str | None
    ) -> None:
        """Bring a message to this queue's dead letters, or where they are forwarded to."""
        self.remove(message)
        message.tell_reason(reason, description)
        message.enqueued_sequence = message.enqueued_sequence or message.sequence
        message.expires_at = message.ttl_s = message.scheduled_at = None
        message.state = MessageState.ACTIVE
        if not self.house.forward_dead(self, message, now) and self.dead_letters is not None:
            self.dead_letters.take_dead(message, now)

    def take_dead(self, message: Message, now: float) -> None:
        """Take a dead letter of this queue's parent; it keeps its number, as in the service."""
        self.last_sequence = max(self.last_sequence, message.sequence)
        self.put_back(message, now)

    def put_back(self, message: Message, now: float) -> None:
        """Put a message in that has its number already: a dead letter, or one never sent."""
        self.keep(message)
        self.house.journal.stored(self, message)
        self.dispatch.offer(message, now)

    # -- time passes --------------------------------------------------------------------

    def wake(self, at: float) -> None:
        """Ask for a sweep at ``at``, unless an earlier one is coming anyway."""
        if self.wake_at is None or at < self.wake_at:
            self.house.wake(self, at)

    def sweep(self, now: float) -> float | None:
        """Do what has fallen due; return when to be called again, None for not at all."""
        while (sequence := self._schedule.pop_due(now)) is not None:
            self._activate(self.messages.get(sequence), now)
        self.dispatch.sweep(now)
        while (sequence := self._expiry.pop_due(now)) is not None:
            overdue = self.messages.get(sequence)
            if overdue is not None and overdue.token is None:
                self._expire(overdue, now)
        self._expiry.compact(self.messages.__contains__)
        self._schedule.compact(self.messages.__contains__)
        self.dispatch.compact()
        moments = (self._schedule.next_at(), self._expiry.next_at(), self.dispatch.next_due())
        return min((moment for moment in moments if moment is not None), default=None)

    def expire_locks(self, now: float) -> int:
        """End every lock now, of messages or sessions; return how many ended."""
        ended = self.dispatch.expire_locks(now)
        self.wake(now)
        return ended

    def _activate(self, message: Message | None, now: float) -> None:
        if message is None or message.state is not MessageState.SCHEDULED:
            return
        self.remove(message)
        self.last_sequence += 1
        message.sequence = self.last_sequence
        message.enqueued_at = now
        self._become_active(message, now)

    def _expire(self, message: Message, now: float) -> None:
        if message.state is not MessageState.ACTIVE:
            return
        if self.properties.dead_letter_on_expiration and self.dead_letters is not None:
            self.bury(
                message, now, "TTLExpiredException", "The message expired and was dead lettered."
            )
        else:
            self.remove(message)
