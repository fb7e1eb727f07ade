"""One queue of Service Bus, without sockets, clock or tasks.

The life of a message, and the events that move it:

    enqueue -> (scheduled ->) ready -> delivered, locked -> completed: removed
                                ^              |
                                +-- abandoned, released, lock expired
                                               +-> deferred (received by its number)
                                               +-> dead-lettered, or delivered too often
    ready, and its time to live is over: dead-lettered or removed

Theory of operation. The numbers stand again at the steps in the code, step 6 in operations.py.

1. *Admit.* A send brings one message or a batch. The queue checks every message before it changes
   anything, so it takes the whole batch or none of it. The sender is told of a refusal and still
   has its messages. (A sender that settles its messages itself asks for no answer, and gets none.)
2. *Number.* An accepted message gets the next sequence number. A sender that lost our
   acknowledgement sends the message again. With duplicate detection the message-id is in the
   history until its window ends, so the queue drops the copy and acknowledges it like the first.
   Without duplicate detection there are two messages: Service Bus promises "at least once", and so
   do we.
3. *Add.* `index` makes the message part of the queue, and the journal records it, before a receiver
   can get it. A message with a time in the future waits as SCHEDULED, and gets a new number at that
   time. A queue that forwards passes the message on. If the target cannot take it, the message goes
   to the transfer dead letters with the reason.
4. *Offer.* The dispatch keeps a heap of the numbers of the ready messages, or one for each session.
   A number in the heap says only that a message may be ready: `take_ready` skips the numbers of
   removed messages, and leaves expired messages to the sweep. Whatever makes a message ready offers
   it, so that none stays behind.
5. *Deliver.* The queue locks the message under a new token, or removes it for a receiver in
   receive-and-delete mode, and only then hands it to the receiver. A locked message stays in the
   queue until it is settled. If the receiver crashes, the lock ends by itself (8). A session gives
   up the locks of its messages as soon as its receiver is gone. In receive-and-delete mode a crash
   can lose the message; the receiver chose that.
6. *Settle.* A receiver settles a message by its token (operations.py), while the lock lasts. The
   locks of a session last until the sweep takes the session from its receiver. A receiver that is
   too late gets an error, because another one may have the message already.
7. *Unlock.* A message that was abandoned, or whose lock ended, is offered again (4), and `unlock`
   counts the delivery. A deferred message stays deferred instead. At the maximum the message goes
   to the dead letters, so that a poison message does not come back for ever. A message that did not
   reach its receiver whole, or that the receiver releases, comes back without a count.
8. *Sweep.* Locks end, messages expire and scheduled messages become ready by time. `_due` is a heap
   of (time, number): a reminder to look at a message, and not a fact. The sweep reads the message
   itself. A renewed lock leaves an old reminder behind, at which nothing is due. So the rule is:
   whoever sets a time on a message plans a reminder for it. The locks of a session are the
   exception: the session's dispatch knows when they end.
9. *Record.* The method that makes a change records it in the journal. The change is durable at the
   next commit. No byte that tells a client of it leaves before (see storage.py). The fault
   `expire_locks` is an exception: the sweep that follows records the end of each lock.

Who writes and who reads: everything runs on one event loop, and no method awaits. So a method sees
no half-done change of another one. The callers are the links and requests of all connections, the
timer that sweeps, the management port, and the program that owns the broker.

- ``messages``, ``bytes``, ``scheduled_count``: only `index` and `remove` write them. All read them.
- ``locked`` and a message's ``token``: written together by `lock`, `restore_lock` and `_drop_lock`;
  a message has a token exactly while it is in ``locked``.
- ``last_sequence``: written by `accept`, `_enqueue_scheduled`, and by the recovery after a restart.
  It never decreases.
- a message's ``state``: written by the queue, by `operations.defer`, and by the recovery.
- ``history``: written by `accept` and by the recovery.
- ``_due``: written by `_plan` and `sweep`.
- ``wake_at``: the namespace writes it, when `wake` asks for a sweep and when the sweep begins. The
  namespace and `wake` read it.

Each ``now`` is in seconds since 1970. The lock of a message outlives the link that took it, except
in a session.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from devstack.servicebus.core import errors
from devstack.servicebus.core.dispatch import Consumer, PlainDispatch, Session, SessionDispatch
from devstack.servicebus.core.message import Message, MessageState
from devstack.servicebus.core.properties import FOREVER_S, QueueProperties

_DUE_MAX = 1024


class Journal:
    """Records the changes that must survive a crash (step 9). None is durable before the commit.

    This class keeps nothing, for a broker without a data directory. See `SqliteJournal`.
    """

    def stored(self, queue: "Queue", message: Message) -> None:
        """Record a message that arrived, or whose properties changed."""

    def changed(self, queue: "Queue", message: Message) -> None:
        """Record a message's lock, delivery count or state."""

    def removed(self, queue: "Queue", message: Message) -> None:
        """Record that a message was removed from this queue."""

    def remembered(self, queue: "Queue", message_id: Any, at: float, sequence: int) -> None:
        """Record an entry of the duplicate detection history."""

    def session_changed(self, queue: "Queue", session: Session) -> None:
        """Record a session's state."""

    def queue_changed(self, queue: "Queue") -> None:
        """Record a queue that was created or changed."""

    def queue_deleted(self, queue: "Queue") -> None:
        """Record that a queue was deleted with its messages."""


class QueueOwner(Protocol):
    """What a queue needs from its namespace."""

    journal: Journal
    new_token: Callable[[], bytes]

    def wake(self, queue: "Queue", at: float) -> None:
        """Call ``queue.sweep`` at ``at``."""

    def forward(self, source: "Queue", message: Message, now: float, hops: int) -> None:
        """Move a message to the queue that ``source`` forwards to."""

    def forward_dead(self, source: "Queue", message: Message, now: float) -> bool:
        """Move a dead letter to where ``source`` forwards them. Return False if it cannot."""


class Queue:
    """The messages of one queue.

    ``parts`` are two more queues: its dead letters, and the messages that it could not forward
    (the transfer dead letters). These have no parts themselves.
    """

    def __init__(
        self,
        name: str,
        properties: QueueProperties,
        namespace: QueueOwner,
        *,
        parts: "Sequence[Queue]" = (),
        created_at: float = 0.0,
    ) -> None:
        self.name = name
        self.properties = properties
        self.namespace = namespace
        self.parts = parts
        self.dead_letters = parts[0] if parts else None
        self.created_at = self.updated_at = self.accessed_at = created_at
        self.messages: dict[int, Message] = {}
        self.locked: dict[bytes, Message] = {}
        self.history = DuplicateHistory()
        self.bytes = 0
        self.scheduled_count = 0
        self.last_sequence = 0
        self.wake_at: float | None = None
        self.sessions = SessionDispatch(self) if properties.requires_session else None
        self.dispatch: PlainDispatch | SessionDispatch = self.sessions or PlainDispatch(self)
        self._due: list[tuple[float, int]] = []

    def enqueue(self, messages: Sequence[Message], now: float) -> list[int]:
        """Take all of ``messages`` or none; return their sequence numbers.

        A duplicate within the window is dropped; its number is that of the first one.
        Raises EntityDisabledError, QuotaExceededError, MessageSizeExceededError, NotAllowedError.
        """
        # 1. Nothing is changed before every message is checked.
        self.check_sendable()
        self.check_admission(messages)
        self.accessed_at = now
        return [self.accept(message, now) for message in messages]

    def accept(self, message: Message, now: float, hops: int = 0) -> int:
        """Add one admitted message; return its sequence number."""
        settings = self.properties
        # 2. A duplicate is acknowledged with the number of the first message.
        if settings.requires_duplicate_detection:
            first_sequence = self.history.find(message.message_id, now, settings.duplicate_window_s)
            if first_sequence is not None:
                return first_sequence
        self.last_sequence += 1
        sequence = message.sequence = self.last_sequence
        if settings.requires_duplicate_detection:
            self.history.remember(message.message_id, now, sequence)
            self.namespace.journal.remembered(self, message.message_id, now, sequence)
        if message.enqueued_at == 0.0:
            message.enqueued_at = now
        if settings.default_ttl_s < FOREVER_S:
            message.limit_ttl(settings.default_ttl_s)
        # 3. A scheduled message is counted and recorded, but not offered.
        if message.scheduled_at is not None and message.scheduled_at > now:
            message.state = MessageState.SCHEDULED
            self.index(message)
            self.namespace.journal.stored(self, message)
        else:
            self._activate(message, now, hops)
        return sequence

    def _activate(self, message: Message, now: float, hops: int = 0) -> None:
        message.state = MessageState.ACTIVE
        if message.ttl_s is not None and not self.properties.forward_to:
            message.expires_at = now + message.ttl_s
        self.insert(message, now, hops)

    def insert(self, message: Message, now: float, hops: int = 0) -> None:
        """Add or forward a message that has its number.

        It is new, a dead letter, or one that a presettled receiver did not get whole.
        """
        # 3. The queue and the journal have the message before a receiver can get it.
        if self.properties.forward_to:
            self.namespace.forward(self, message, now, hops)
            return
        self.index(message)
        self.namespace.journal.stored(self, message)
        self.dispatch.offer(message, now)  # 4.

    def index(self, message: Message) -> None:
        """Add a message to the counts, its session and the due times."""
        self.messages[message.sequence] = message
        self.bytes += message.size
        if self.sessions is not None:
            self.sessions.added(message)
        if message.state is MessageState.SCHEDULED and message.scheduled_at is not None:
            self.scheduled_count += 1
            self._plan(message.scheduled_at, message)
        if message.expires_at is not None:
            self._plan(message.expires_at, message)

    def restore(self, message: Message, now: float) -> None:
        """Add a message without a lock, after a restart."""
        self.index(message)
        if message.state is MessageState.ACTIVE:
            self.dispatch.offer(message, now)

    def restore_lock(self, message: Message, token: bytes) -> None:
        """Add a lock, after a restart."""
        message.token = token
        self.locked[token] = message
        self.lock_until(message, message.locked_until)

    def take_ready(self, ready: list[int], now: float) -> Message | None:
        """Pop the next message of ``ready`` that can be delivered; `sweep` handles expired ones."""
        # 4. A number may be that of a message that was removed meanwhile.
        while ready:
            message = self.messages.get(heapq.heappop(ready))
            if message is None:
                continue
            if message.expires_at is not None and message.expires_at <= now:
                self.wake(now)
                continue
            return message
        return None

    def deliver(self, consumer: Consumer, message: Message, now: float) -> None:
        """Lock a message, or remove it for a presettled consumer, and deliver it."""
        # 5. The lock or the removal is recorded before the consumer gets the message.
        token = self.namespace.new_token()
        if consumer.presettled:
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
            self.lock_until(message, self.lock_ends_at(now))
        else:
            message.locked_until = session.locked_until
            session.locked[token] = message
        self.namespace.journal.changed(self, message)

    def lock_until(self, message: Message, at: float) -> None:
        """Set the end of a message's lock."""
        message.locked_until = at
        self._plan(at, message)

    def lock_ends_at(self, now: float) -> float:
        """Return the end of a lock that is taken now."""
        return now + self.properties.lock_duration_s

    def remove(self, message: Message) -> None:
        """Remove a message from this queue."""
        del self.messages[message.sequence]
        self.bytes -= message.size
        if message.state is MessageState.SCHEDULED:
            self.scheduled_count -= 1
        if message.token is not None:
            self._drop_lock(message, message.token)
        if self.sessions is not None:
            self.sessions.removed(message)
        self.namespace.journal.removed(self, message)

    def _drop_lock(self, message: Message, token: bytes) -> None:
        self.locked.pop(token, None)
        if self.sessions is not None:
            self.sessions.unlocked(message)
        message.token = None

    def unlock(self, message: Message, now: float, *, count: bool) -> None:
        """Remove the lock; dead-letter a message that was delivered too often."""
        # 7. The dead letters have no dead letters of their own: there the count has no limit.
        if message.token is not None:
            self._drop_lock(message, message.token)
        if count:
            message.delivery_count += 1
            limit = self.properties.max_delivery_count
            if self.dead_letters is not None and message.delivery_count >= limit:
                description = (
                    f"Message could not be consumed after {message.delivery_count} delivery "
                    "attempts."
                )
                self.move_to_dead_letters(message, now, "MaxDeliveryCountExceeded", description)
                return
        self.namespace.journal.changed(self, message)
        if message.state is MessageState.DEFERRED:
            return
        if message.expires_at is not None and message.expires_at <= now:
            self._expire(message, now)
        elif self.properties.forward_to:
            self.remove(message)
            self.namespace.forward(self, message, now, 0)
        else:
            self.dispatch.offer(message, now)

    def move_to_dead_letters(
        self, message: Message, now: float, reason: str | None, description: str | None
    ) -> None:
        """Move a message to this queue's dead letters, or to where they are forwarded.

        The message keeps its sequence number among the dead letters, as in the service.
        """
        self.remove(message)
        message.add_dead_letter_reason(reason, description)
        message.enqueued_sequence = message.enqueued_sequence or message.sequence
        message.expires_at = message.ttl_s = message.scheduled_at = None
        message.state = MessageState.ACTIVE
        dead_letters = self.dead_letters
        if not self.namespace.forward_dead(self, message, now) and dead_letters is not None:
            dead_letters.insert(message, now)

    def _plan(self, at: float, message: Message) -> None:
        """Remind the sweep of a message at ``at``.

        A reminder is outdated if its message is gone or has another time now. Outdated reminders
        are dropped when they are more than half of the heap. So a queue with a time to live of an
        hour does not keep reminders of all messages of that hour.
        """
        # 8. Each time that is set on a message passes here, except the lock of a session.
        heapq.heappush(self._due, (at, message.sequence))
        if len(self._due) > _DUE_MAX + 4 * len(self.messages):
            self._due = [entry for entry in self._due if self._is_current(*entry)]
            heapq.heapify(self._due)
        self.wake(at)

    def _is_current(self, at: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        if message is None:
            return False
        locked_until = None if message.token is None else message.locked_until
        return at in {message.scheduled_at, locked_until, message.expires_at}

    def wake(self, at: float) -> None:
        """Ask for a sweep at ``at``, unless an earlier one is planned."""
        if self.wake_at is None or at < self.wake_at:
            self.namespace.wake(self, at)

    def sweep(self, now: float) -> float | None:
        """Do what is due; return the time of the next sweep, None for no sweep."""
        if self.sessions is not None:
            self.sessions.sweep(now)
        # 8. A reminder may be outdated: the message itself says what is due.
        while self._due and (self._due[0][0] <= now or not self._is_current(*self._due[0])):
            message = self.messages.get(heapq.heappop(self._due)[1])
            if message is not None:
                self._do_due(message, now)
        moments = [at for at, _ in self._due[:1]]
        if self.sessions is not None and (at := self.sessions.next_due()) is not None:
            moments.append(at)
        return min(moments, default=None)

    def _do_due(self, message: Message, now: float) -> None:
        """Do what is due for a message, if anything. A session ends the locks of its messages."""
        if message.state is MessageState.SCHEDULED:
            if message.scheduled_at is not None and message.scheduled_at <= now:
                self._enqueue_scheduled(message, now)
        elif message.token is not None:
            if self.sessions is None and message.locked_until <= now:
                self.unlock(message, now, count=True)
        elif message.expires_at is not None and message.expires_at <= now:
            self._expire(message, now)

    def expire_locks(self, now: float) -> int:
        """End every lock of messages or sessions now; return their number."""
        self.wake(now)
        if self.sessions is not None:
            return self.sessions.expire_locks(now)
        for message in self.locked.values():
            self.lock_until(message, now)
        return len(self.locked)

    def _enqueue_scheduled(self, message: Message, now: float) -> None:
        self.remove(message)
        self.last_sequence += 1
        message.sequence = self.last_sequence
        message.enqueued_at = now
        self._activate(message, now)

    def _expire(self, message: Message, now: float) -> None:
        if message.state is not MessageState.ACTIVE:
            return
        if self.properties.dead_letter_on_expiration and self.dead_letters is not None:
            description = "The message expired and was dead lettered."
            self.move_to_dead_letters(message, now, "TTLExpiredException", description)
        else:
            self.remove(message)

    def change_properties(self, properties: QueueProperties, now: float) -> None:
        """Set other properties. Locks keep their ends."""
        self.properties = properties
        self.updated_at = now
        self.forward_waiting(now)

    def forward_waiting(self, now: float) -> None:
        """Forward the ready messages if the queue forwards."""
        if not self.properties.forward_to:
            return
        ready_messages = [
            message
            for message in self.messages.values()
            if message.token is None and message.state is MessageState.ACTIVE
        ]
        for message in ready_messages:
            self.remove(message)
            self.namespace.forward(self, message, now, 0)

    def check_admission(self, messages: Sequence[Message]) -> None:
        """Raise if the queue cannot take all of ``messages``.

        Raises EntityDisabledError, MessageSizeExceededError, NotAllowedError (no session id on a
        queue that requires sessions), QuotaExceededError.
        """
        settings = self.properties
        self.check_status(sends=True)
        limit = settings.max_message_kilobytes * 1024
        total = self.bytes + (self.dead_letters.bytes if self.dead_letters else 0)
        for message in messages:
            total += message.size
            if message.size > limit:
                raise errors.MessageSizeExceededError(
                    f"a message of {message.size} bytes is larger than the {limit} bytes that "
                    f"queue '{self.name}' takes; send less or raise MaxMessageSizeInKilobytes"
                )
            if settings.requires_session and message.session_id is None:
                raise errors.NotAllowedError(
                    f"queue '{self.name}' requires sessions: give every message a session id"
                )
        if total > settings.max_size_megabytes << 20:
            raise errors.QuotaExceededError(
                f"queue '{self.name}' would hold {total} bytes and may hold "
                f"{settings.max_size_megabytes} MB; receive from it or raise MaxSizeInMegabytes"
            )

    def check_status(self, *, sends: bool = False, receives: bool = False) -> None:
        """Raise EntityDisabledError if the queue's status forbids sends or receives."""
        status = self.properties.status
        if (sends and not status.sends) or (receives and not status.receives):
            raise errors.EntityDisabledError(
                f"Messaging entity '{self.name}' is currently disabled: its status is "
                f"{status.value}; set it to Active"
            )

    def check_sendable(self) -> None:
        """Raise EntityDisabledError or NotAllowedError if clients may not send."""
        self.check_status(sends=True)
        if self.dead_letters is None:
            raise errors.NotAllowedError(
                f"'{self.name}' holds dead letters and takes no other messages; send to the "
                "queue itself"
            )

    def check_browsable(self) -> None:
        """Raise NotAllowedError if the queue forwards: clients cannot peek or receive there."""
        target = self.properties.forward_to
        if target:
            raise errors.NotAllowedError(
                "Cannot create a message receiver or a message browser on an entity with "
                f"auto-forwarding enabled: use '{target}', the queue that '{self.name}' forwards to"
            )

    def check_receivable(self) -> None:
        """Raise EntityDisabledError or NotAllowedError if clients may not receive."""
        self.check_browsable()
        self.check_status(receives=True)


class DuplicateHistory:
    """The message-ids of the duplicate detection window, each with its time and sequence number."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, tuple[float, int]] = OrderedDict()

    def find(self, message_id: Any, now: float, window_s: float) -> int | None:
        """Return the sequence number of the first message with this id, None for a new id."""
        while self._entries and next(iter(self._entries.values()))[0] <= now - window_s:
            self._entries.popitem(last=False)
        entry = self._entries.get(message_id)
        return None if entry is None else entry[1]

    def remember(self, message_id: Any, now: float, sequence: int) -> None:
        """Record an id, or that it came again after its window."""
        self._entries[message_id] = (now, sequence)
        self._entries.move_to_end(message_id)

    def oldest_sequence(self) -> int:
        """Return the smallest sequence number in the history, 0 if it is empty."""
        return next(iter(self._entries.values()), (0.0, 0))[1]
