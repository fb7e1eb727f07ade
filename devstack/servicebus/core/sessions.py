"""Sessions: ordered lanes of messages, each held by at most one receiver.

Rules: Microsoft, "Message sessions". A session exists while it has messages, state or an owner.
The next free session is the one that has had messages and no owner for longest. Messages of a
session that its owner closed come again without counting a delivery; those of a session whose
lock expired count one.
"""

import heapq
from collections import deque
from collections.abc import Iterator

from devstack.servicebus.core.dispatch import Store
from devstack.servicebus.core.errors import SessionCannotBeLockedError, SessionLockLostError
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.ports import Consumer

GRACE_S = 1.0


class Session:
    """One session. ``locked_until`` is in seconds since 1970 and valid while it has an owner."""

    __slots__ = ("count", "id", "locked", "locked_until", "owner", "ready", "state", "updated_at")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready: list[int] = []
        self.locked: dict[bytes, Message] = {}
        self.owner: Consumer | None = None
        self.locked_until = 0.0
        self.state: bytes | None = None
        self.updated_at = 0.0
        self.count = 0


def _ends_at(session: Session) -> float:
    """Say when to take the session away from its owner.

    A receiver that settles first holds no message: it is left a moment longer, as the service
    does, so that one which waits exactly a lock's duration leaves by itself.
    """
    owner = session.owner
    return session.locked_until + (GRACE_S if owner is not None and owner.settles_first else 0)


class SessionDispatch:
    """The sessions of one queue: who holds which, and who waits for one.

    ``_free`` holds the sessions with messages to give and no owner, in the order in which they
    became so.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: dict[str, Session] = {}
        self._free: dict[str, None] = {}
        self._held: dict[str, Session] = {}
        self._waiters: deque[tuple[float, Consumer]] = deque()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def open(self, session_id: str) -> Session:
        """Give a session, a new one where there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(session_id)
        return session

    def held_by(self, session_id: str, holder: object) -> Session:
        """Give a session held by a receiver of ``holder``. Raises SessionLockLostError."""
        session = self._held.get(session_id)
        if session is None or session.owner is None or session.owner.holder is not holder:
            raise SessionLockLostError(
                f"The lock of session '{session_id}' is not held by this connection: it has "
                "expired or was never taken. Accept the session again."
            )
        return session

    def accept(self, consumer: Consumer, session_id: str, now: float) -> None:
        """Give the named session to a consumer. Raises SessionCannotBeLockedError."""
        session = self._held.get(session_id)
        if session is not None and session.locked_until > now:
            raise SessionCannotBeLockedError(
                f"The requested session '{session_id}' cannot be accepted. "
                "It is locked by another receiver; wait until it closes."
            )
        if session is not None:
            self._lose(session, now)
        self._grant(self.open(session_id), consumer, now)

    def accept_next(self, consumer: Consumer, now: float, patience_s: float) -> None:
        """Give the next free session to a consumer, now or within ``patience_s`` seconds."""
        self._waiters.append((now + patience_s, consumer))
        self._offer_sessions(now)
        if consumer.session is None:
            self._store.wake(now + patience_s)

    def renew(self, session: Session, now: float) -> float:
        """Lengthen a session's lock; return its new end."""
        session.locked_until = self._store.lock_ends_at(now)
        self._store.wake(session.locked_until)
        for message in session.locked.values():
            message.locked_until = session.locked_until
        return session.locked_until

    def _grant(self, session: Session, consumer: Consumer, now: float) -> None:
        session.owner = consumer
        session.locked_until = self._store.lock_ends_at(now)
        consumer.session = session
        self._held[session.id] = session
        self._free.pop(session.id, None)
        self._store.wake(session.locked_until)
        consumer.session_granted(session)

    def _offer_sessions(self, now: float) -> None:
        while self._waiters and self._free:
            session = self._sessions[next(iter(self._free))]
            _, consumer = self._waiters.popleft()
            self._grant(session, consumer, now)

    def kept(self, message: Message) -> None:
        """Count the message in its session."""
        self.open(message.session_id or "").count += 1

    def forgotten(self, message: Message) -> None:
        """Count the message out of its session."""
        session = self.open(message.session_id or "")
        session.count -= 1
        self.forget_if_empty(session)

    def unlocked(self, message: Message) -> None:
        """Take the message out of what its session holds locked."""
        session = self._sessions.get(message.session_id or "")
        if session is not None and message.token is not None:
            session.locked.pop(message.token, None)

    def forget_if_empty(self, session: Session) -> None:
        """Drop a session without messages, state or owner."""
        if session.count == 0 and session.owner is None and session.state is None:
            self._free.pop(session.id, None)
            self._sessions.pop(session.id, None)

    def offer(self, message: Message, now: float) -> None:
        """Put the message into its lane and give it to the session's owner, if there is one."""
        session = self.open(message.session_id or "")
        heapq.heappush(session.ready, message.sequence)
        if session.owner is not None:
            self._pump(session.owner, now)
            return
        self._free[session.id] = None
        self._offer_sessions(now)

    def want(self, consumer: Consumer, now: float) -> None:
        """Give a session's owner what its credit allows."""
        self._pump(consumer, now)

    def _pump(self, consumer: Consumer, now: float) -> None:
        session = consumer.session
        if session is None or session.owner is not consumer:
            return
        while consumer.credit > 0:
            message = self._store.take_ready(session.ready, now)
            if message is None:
                return
            self._store.deliver(consumer, message, now)

    def leave(self, consumer: Consumer, now: float) -> None:
        """A receiver is gone: its session is free at once, its wait is over."""
        self._waiters = deque(entry for entry in self._waiters if entry[1] is not consumer)
        session = consumer.session
        if session is not None and session.owner is consumer:
            self._set_free(session, now, count=False)

    def _lose(self, session: Session, now: float) -> None:
        owner = session.owner
        self._set_free(session, now, count=True)
        if owner is not None:
            owner.session_lost()

    def _set_free(self, session: Session, now: float, *, count: bool) -> None:
        if session.owner is not None:
            session.owner.session = None
        session.owner = None
        self._held.pop(session.id, None)
        for message in list(session.locked.values()):
            self._store.unlock(message, now, count=count)
        if session.ready:
            self._free[session.id] = None
            self._offer_sessions(now)
        self.forget_if_empty(session)

    def unordered_until(self, moment: float) -> None:
        """Nothing to note: every session is looked at anyway."""

    def sweep(self, now: float) -> None:
        """End the locks and the waits that have lasted long enough."""
        for session in [held for held in self._held.values() if _ends_at(held) <= now]:
            self._lose(session, now)
        late = [consumer for deadline, consumer in self._waiters if deadline <= now]
        self._waiters = deque(entry for entry in self._waiters if entry[0] > now)
        for consumer in late:
            consumer.session_refused()

    def next_due(self) -> float | None:
        """Say when the next lock or the next wait ends."""
        moments = [_ends_at(session) for session in self._held.values()]
        moments += [deadline for deadline, _ in self._waiters]
        return min(moments, default=None)

    def compact(self) -> None:
        """Let go of numbers of expired messages, and of lanes that hold nothing else."""
        for session in [self._sessions[session_id] for session_id in self._free]:
            if not any(number in self._store.messages for number in session.ready):
                session.ready.clear()
                self._free.pop(session.id, None)

    def expire_locks(self, now: float) -> int:
        """Let the lock of every session end at ``now``; return how many there were."""
        for session in self._held.values():
            session.locked_until = now
        return len(self._held)
