"""Decides which receiver gets the next message of a queue.

`PlainDispatch` serves queues without sessions: the receivers with credit take turns.
`SessionDispatch` serves queues with sessions: a message goes to the owner of its session. A queue
calls both by the same methods: `offer`, `add_credit` and `detach`.

Rules of sessions (Microsoft, "Message sessions"):

- A session is an ordered group of messages. At most one receiver owns it at a time.
- It exists while it has messages, state or an owner.
- The next free session is the one that has waited longest with messages and without an owner.
- If the owner closes the session, its messages come again and no delivery is counted. If the
  session's lock expires, a delivery is counted for each message that the owner had locked.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from devstack.servicebus.core.errors import SessionCannotBeLockedError, SessionLockLostError
from devstack.servicebus.core.message import Message

#: A receiver in receive-and-delete mode keeps its session so long after the lock's end, unless
#: another receiver asks for that session.
GRACE_S = 1.0


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """One session. ``locked_until`` is in seconds since 1970, and valid while it has an owner."""

    id: str
    ready: list[int] = field(default_factory=list)
    locked: dict[bytes, Message] = field(default_factory=dict)
    owner: "Consumer | None" = None
    locked_until: float = 0.0
    state: bytes | None = None
    updated_at: float = 0.0
    count: int = 0

    @property
    def ends_at(self) -> float:
        """When to take the session away from its owner.

        A receiver in receive-and-delete mode holds no message lock. For such a receiver the broker
        waits `GRACE_S` longer, like the service. So a receiver that waits for a whole lock duration
        can still close the session itself.
        """
        presettled = self.owner is not None and self.owner.presettled
        return self.locked_until + (GRACE_S if presettled else 0)


class Consumer(Protocol):
    """A receiver, as a queue sees it.

    `deliver` and `session_granted` must not call the queue, which is in the middle of its own work.
    `session_refused` and `session_lost` may, because the queue has finished with the receiver.
    ``presettled`` means receive-and-delete: a message is removed when it is delivered.
    """

    credit: int
    presettled: bool
    session: Session | None

    @property
    def holder(self) -> object:
        """The receiver's connection. Session operations must come from it."""

    def deliver(self, message: Message, token: bytes) -> None:
        """Take one message and lower ``credit`` by one; ``token`` is the lock token."""

    def session_granted(self, session: Session) -> None:
        """Take note: the consumer owns the session."""

    def session_refused(self) -> None:
        """Take note: no session was free in time."""

    def session_lost(self) -> None:
        """Take note: the session's lock expired."""


class MessageStore(Protocol):
    """The part of a queue that a dispatch uses. See `Queue` for the methods."""

    def take_ready(self, ready: list[int], now: float) -> Message | None:
        """Pop the next message that can be delivered."""

    def deliver(self, consumer: Consumer, message: Message, now: float) -> None:
        """Lock or remove a message, and give it to the consumer."""

    def unlock(self, message: Message, now: float, *, count: bool) -> None:
        """Remove a message's lock."""

    def lock_ends_at(self, now: float) -> float:
        """Return the end of a lock that is taken now."""

    def wake(self, at: float) -> None:
        """Ask for a sweep at ``at``."""


class PlainDispatch:
    """Messages by sequence number, receivers with credit in turn."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._ready: list[int] = []
        self._with_credit: deque[Consumer] = deque()

    def offer(self, message: Message, now: float) -> None:
        """Give a ready message to the next receiver with credit, or keep it for one."""
        heapq.heappush(self._ready, message.sequence)
        if self._with_credit:
            self._pump(now)

    def add_credit(self, consumer: Consumer, now: float) -> None:
        """Serve a receiver that was granted credit, and line it up for later messages."""
        if consumer.credit > 0 and consumer not in self._with_credit:
            self._with_credit.append(consumer)
        self._pump(now)

    def detach(self, consumer: Consumer, now: float) -> None:  # noqa: ARG002 (one signature)
        """Remove a receiver. Its locks stay until they end."""
        if consumer in self._with_credit:
            self._with_credit.remove(consumer)

    def _pump(self, now: float) -> None:
        consumers = self._with_credit
        while consumers and self._ready:
            consumer = consumers[0]
            if consumer.credit <= 0:
                consumers.popleft()
                continue
            message = self._store.take_ready(self._ready, now)
            if message is None:
                return
            self._store.deliver(consumer, message, now)
            consumers.rotate(-1)


class SessionDispatch:
    """The sessions of one queue, their owners, and the receivers that wait for a session.

    ``_owned`` has the sessions with an owner. ``_free`` has the sessions without an owner that
    were offered messages; the one that waits longest is first (the dict serves as an ordered set).
    A session stays there until it is empty, even if its ready messages have expired meanwhile.
    ``_waiters`` has the receivers that wait for a free session, each with its deadline.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._sessions: dict[str, Session] = {}
        self._free: dict[str, None] = {}
        self._owned: dict[str, Session] = {}
        self._waiters: deque[tuple[float, Consumer]] = deque()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def open(self, session_id: str) -> Session:
        """Return the session; create it if it does not exist."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(id=session_id)
        return session

    def held_by(self, session_id: str, holder: object) -> Session:
        """Return a session that a receiver of ``holder`` owns. Raises SessionLockLostError."""
        session = self._owned.get(session_id)
        if session is None or session.owner is None or session.owner.holder is not holder:
            raise SessionLockLostError(
                f"The lock of session '{session_id}' is not held by this connection: it has "
                "expired or was never taken. Accept the session again."
            )
        return session

    def accept(self, consumer: Consumer, session_id: str, now: float) -> None:
        """Give the named session to a consumer. Raises SessionCannotBeLockedError."""
        session = self._owned.get(session_id)
        if session is not None and session.locked_until <= now:
            self._expire(session, now)  # a receiver that waits for any session may get it now
        if session_id in self._owned:
            raise SessionCannotBeLockedError(
                f"The requested session '{session_id}' cannot be accepted. "
                "It is locked by another receiver; wait until it closes."
            )
        self._grant(self.open(session_id), consumer, now)

    def accept_next(self, consumer: Consumer, now: float, timeout_s: float) -> None:
        """Give the next free session to a consumer, now or within ``timeout_s`` seconds."""
        self._waiters.append((now + timeout_s, consumer))
        self._serve_waiters(now)
        if consumer.session is None:
            self._store.wake(now + timeout_s)

    def renew(self, session: Session, now: float) -> float:
        """Extend a session's lock; return its new end."""
        session.locked_until = self._store.lock_ends_at(now)
        self._store.wake(session.locked_until)
        for message in session.locked.values():
            message.locked_until = session.locked_until
        return session.locked_until

    def _grant(self, session: Session, consumer: Consumer, now: float) -> None:
        session.owner = consumer
        session.locked_until = self._store.lock_ends_at(now)
        consumer.session = session
        self._owned[session.id] = session
        self._free.pop(session.id, None)
        self._store.wake(session.locked_until)
        consumer.session_granted(session)

    def _serve_waiters(self, now: float) -> None:
        while self._waiters and self._free:
            session = self._sessions[next(iter(self._free))]
            _, consumer = self._waiters.popleft()
            self._grant(session, consumer, now)

    def _expire(self, session: Session, now: float) -> None:
        owner = session.owner
        self._release(session, now, count=True)
        if owner is not None:
            owner.session_lost()

    def _release(self, session: Session, now: float, *, count: bool) -> None:
        if session.owner is not None:
            session.owner.session = None
        session.owner = None
        self._owned.pop(session.id, None)
        for message in list(session.locked.values()):
            self._store.unlock(message, now, count=count)
        # Unlocking the first message may have given the session to a waiting receiver already.
        if session.owner is None and session.ready and session.count:
            self._free[session.id] = None
            self._serve_waiters(now)
        self._drop_if_empty(session)

    def _drop_if_empty(self, session: Session) -> None:
        if session.count == 0:
            session.ready.clear()
            self._free.pop(session.id, None)
            if session.owner is None and session.state is None:
                self._sessions.pop(session.id, None)

    def added(self, message: Message) -> None:
        """Count a message that was added to the queue."""
        self.open(message.session_id or "").count += 1

    def removed(self, message: Message) -> None:
        """Count off a message that was removed from the queue."""
        session = self.open(message.session_id or "")
        session.count -= 1
        self._drop_if_empty(session)

    def unlocked(self, message: Message) -> None:
        """Remove a message from its session's locks."""
        session = self._sessions.get(message.session_id or "")
        if session is not None and message.token is not None:
            session.locked.pop(message.token, None)

    def offer(self, message: Message, now: float) -> None:
        """Give a ready message to its session's owner, or keep it for one."""
        session = self.open(message.session_id or "")
        heapq.heappush(session.ready, message.sequence)
        if session.owner is not None:
            self.add_credit(session.owner, now)
            return
        self._free[session.id] = None
        self._serve_waiters(now)

    def add_credit(self, consumer: Consumer, now: float) -> None:
        """Give a session's owner as many messages as it has credit for."""
        session = consumer.session
        if session is None or session.owner is not consumer:
            return
        while consumer.credit > 0:
            message = self._store.take_ready(session.ready, now)
            if message is None:
                return
            self._store.deliver(consumer, message, now)

    def detach(self, consumer: Consumer, now: float) -> None:
        """Remove a receiver: its session is free at once, and it no longer waits for one."""
        self._waiters = deque(entry for entry in self._waiters if entry[1] is not consumer)
        session = consumer.session
        if session is not None and session.owner is consumer:
            self._release(session, now, count=False)

    def sweep(self, now: float) -> None:
        """End the expired locks and waits."""
        expired_sessions = [session for session in self._owned.values() if session.ends_at <= now]
        for session in expired_sessions:
            self._expire(session, now)
        late_consumers = [consumer for deadline, consumer in self._waiters if deadline <= now]
        self._waiters = deque(entry for entry in self._waiters if entry[0] > now)
        for consumer in late_consumers:
            consumer.session_refused()

    def next_due(self) -> float | None:
        """Return when the next lock or wait ends, or None if there is none."""
        moments = [session.ends_at for session in self._owned.values()]
        moments += [deadline for deadline, _ in self._waiters]
        return min(moments, default=None)

    def expire_locks(self, now: float) -> int:
        """Let the lock of every session end at ``now``; return their number."""
        for session in self._owned.values():
            session.locked_until = now
        return len(self._owned)
