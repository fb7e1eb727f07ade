"""Links on which the broker sends: a queue's receivers, and the answers to requests."""

from collections import deque
from typing import TYPE_CHECKING

from devstack.servicebus.amqp import encode
from devstack.servicebus.core import settlement
from devstack.servicebus.core.admission import check_receivable
from devstack.servicebus.core.errors import (
    BrokerError,
    NotAllowedError,
    OperationTimeoutError,
    SessionLockLostError,
)
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.core.sessions import Session
from devstack.servicebus.wire.attach import Attach, session_filter, source_with_session
from devstack.servicebus.wire.link import Link

if TYPE_CHECKING:
    from devstack.servicebus.wire.session import AmqpSession

#: .NET ticks (100 ns since the year 1) at 1970-01-01.
_TICKS_1970 = 621355968000000000
_COUNT, _CREDIT, _DRAIN, _ECHO = 5, 6, 8, 9
_U32 = 0xFFFFFFFF


class Outlet(Link):
    """Keeps the peer's credit."""

    def __init__(
        self, session: "AmqpSession", attach: Attach, handle: int, queue: QueueCore | None
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self.credit = 0
        self.count = 0

    def on_flow(self, fields: list[object], now: float) -> None:
        """Take the peer's credit, send what it allows, answer a drain."""
        granted, seen = fields[_CREDIT], fields[_COUNT]
        if isinstance(granted, int):
            base = seen if isinstance(seen, int) else 0
            credit = (base + granted - self.count) & _U32
            self.credit = 0 if credit > _U32 >> 1 else credit
            self.credited(now)
        if fields[_DRAIN]:
            self.count = (self.count + self.credit) & _U32
            self.credit = 0
            self.drained(now)
            self.send_flow(self.count, 0, drain=True)
        elif fields[_ECHO]:
            self.send_flow(self.count, self.credit)

    def credited(self, now: float) -> None:
        """Credit has come: send what waits for it."""
        raise NotImplementedError

    def drained(self, now: float) -> None:
        """The peer wants nothing more than has been sent."""


class QueueOutlet(Outlet):
    """A receiver of a queue; the queue sees it as a `Consumer`."""

    def __init__(
        self, session: "AmqpSession", attach: Attach, handle: int, queue: QueueCore
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self.queue_core = queue
        self.settles_first = attach.sender_settles == 1
        self.session: Session | None = None

    @property
    def holder(self) -> object:
        """The connection: session operations must come on it."""
        return self.wire

    def opened(self, now: float) -> None:
        """Answer at once, or wait for a session."""
        self.check()
        asked, session_id = session_filter(self.attach)
        sessions = self.queue_core.sessions
        if sessions is None:
            if asked:
                raise NotAllowedError(f"queue '{self.queue_core.name}' does not require sessions")
            self.answer_attach()
        elif not asked:
            raise NotAllowedError(
                "It is not possible for an entity that requires sessions to create a "
                "non-sessionful message receiver. Ask for a session."
            )
        elif session_id is None:
            timeout = self.attach.properties.get("com.microsoft:timeout")
            limits = self.hub.limits
            patience = timeout / 1000 if isinstance(timeout, int) else limits.session_wait_s
            sessions.accept_next(self, now, min(patience, limits.session_wait_max_s))
        elif isinstance(session_id, str):
            sessions.accept(self, session_id, now)
        else:
            raise NotAllowedError(f"a session id is text, not {session_id!r:.100}")

    def check(self) -> None:
        """Raise BrokerError where the queue gives nothing."""
        check_receivable(self.queue_core)

    def session_granted(self, session: Session) -> None:
        """Answer the attach with the session that was chosen and the end of its lock."""
        ticks = int(session.locked_until * 10_000_000) + _TICKS_1970
        locked = encode.symbol("com.microsoft:locked-until-utc")
        self.answer_attach(
            source=source_with_session(self.attach.source, session.id),
            properties=encode.map_([(locked, encode.int64(ticks))]),
        )

    def session_refused(self) -> None:
        """Refuse the attach that waited in vain."""
        self.detach(
            OperationTimeoutError.condition,
            "The operation did not complete within the allotted timeout: no session of queue "
            f"'{self.queue_core.name}' has messages and is free.",
        )

    def session_lost(self) -> None:
        """End the link: its session's lock expired."""
        self.detach(SessionLockLostError.condition, "The session lock has expired.")

    def credited(self, now: float) -> None:
        """Tell the queue."""
        self.queue_core.dispatch.want(self, now)

    def deliver(self, message: Message, token: bytes) -> None:
        """Send a message, as soon as the peer's window allows."""
        self.credit -= 1
        self.count = (self.count + 1) & _U32
        self.session_of_link.transmit(self, message, token)

    def drained(self, now: float) -> None:
        """Let go of what waits for the peer's window."""
        for message, token in self.session_of_link.waiting(self):
            self.give_back(message, token, now)

    def give_back(self, message: Message | None, token: bytes, now: float) -> None:
        """Release a message that was never sent; one without a lock was removed already."""
        if self.settles_first:
            if message is not None:
                self.queue_core.put_back(message, now)
            return
        try:
            settlement.release(self.queue_core, token, now)
        except BrokerError:
            return

    def gone(self, now: float) -> None:
        """Leave the queue; what was not sent yet goes back to it."""
        begun = self.session_of_link.begun(self)
        waiting = self.session_of_link.waiting(self)
        self.queue_core.dispatch.leave(self, now)
        for token in begun:
            self.give_back(None, token, now)
        for message, token in waiting:
            self.give_back(message, token, now)


class ReplyOutlet(Outlet):
    """Where answers to requests on ``node`` go out, settled."""

    def __init__(
        self,
        session: "AmqpSession",
        attach: Attach,
        handle: int,
        queue: QueueCore | None,
        node: str,
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self.node = node
        self.target_address = attach.target_address
        self._waiting: deque[bytes] = deque()

    def opened(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer the attach and be found by requests."""
        self.answer_attach()
        self.wire.replies.append(self)

    def reply(self, payload: bytes) -> None:
        """Send one answer, or keep it until there is credit for it."""
        if len(self._waiting) >= self.hub.limits.replies_waiting_per_link:
            self.wire.cut()
            return
        self._waiting.append(payload)
        self.credited(self.hub.clock())

    def credited(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Send the answers that the credit allows."""
        while self._waiting and self.credit > 0:
            self.credit -= 1
            self.count = (self.count + 1) & _U32
            tag = self.count.to_bytes(4, "big")
            self.session_of_link.transmit_payload(self, self._waiting.popleft(), tag)

    def gone(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Be found no more."""
        if self in self.wire.replies:
            self.wire.replies.remove(self)
