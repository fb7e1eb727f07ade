"""The links of a session. Their names are from the broker's side.

A receiver link takes what the peer sends: messages for a queue, or requests for ``$cbs`` and
``$management``. A sender link sends to the peer: a queue's messages, or the answers to requests.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.frames import Outcome
from devstack.servicebus.amqp.sections import BATCH_FORMAT, unbatch
from devstack.servicebus.core import errors, operations
from devstack.servicebus.core.dispatch import Session
from devstack.servicebus.core.message import Message, parse_message
from devstack.servicebus.core.namespace import MANAGEMENT
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.context import Output, ReplyLink
from devstack.servicebus.wire.performatives import COORDINATOR, Attach, source_with_session
from devstack.servicebus.wire.requests import Request, answer_request
from devstack.servicebus.wire.session import U32, AmqpSession, Link, Transfer

CREDIT = 1000
_CBS = "$cbs"
#: A batch is limited to this even where the queue takes larger messages, as in Azure.
_BATCH_LIMIT = 1 << 20
_REQUEST_LIMIT = 2 << 20
#: .NET ticks (100 ns since the year 1) at 1970-01-01.
_TICKS_1970 = 621355968000000000
#: Positions of fields in a flow.
_DELIVERY_COUNT, _CREDIT, _DRAIN, _ECHO = 5, 6, 8, 9


def make_link(amqp_session: AmqpSession, attach: Attach, now: float) -> Link:
    """Build the link for an attach.

    Raises EntityNotFoundError, UnauthorizedError (if tokens are checked), ServerBusyError,
    NotImplementedByBrokerError (for transactions).
    """
    if attach.address is None:
        raise errors.EntityNotFoundError(
            "the link names no entity; give the queue's name as its address"
        )
    context = amqp_session.output.context
    path = path_of(attach.address)
    node = path.lower()
    if node == COORDINATOR:
        raise errors.NotImplementedByBrokerError(
            "this broker does not serve transactions: send and settle each message by itself"
        )
    queue = None
    if node != _CBS:
        if context.tokens.enabled and not _has_claim(amqp_session.output, path, now):
            raise errors.UnauthorizedError(
                f"Unauthorized access to '{path[:200]}': put a token for it on $cbs first, signed "
                "with the key that this broker requires"
            )
        queue = context.namespace.find(path)
        context.faults.check_busy(queue.name, "attach")
        if not node.endswith(MANAGEMENT):
            queue_link = QueueSenderLink if attach.receives else QueueReceiverLink
            return queue_link(amqp_session, attach, queue)
    request_link = ReplySenderLink if attach.receives else RequestReceiverLink
    return request_link(amqp_session, attach, queue)


def _has_claim(output: Output, path: str, now: float) -> bool:
    return any(claim.covers(path, now) for claim in output.claims)


def _answer(
    link: Link, operation: str, work: Callable[[], bytes], reply: Callable[[bytes], None]
) -> None:
    """Do the work and reply with its outcome or its error. An armed fault changes the answer."""
    faults, name = link.context.faults, link.queue.name if link.queue else ""
    try:
        faults.check_busy(name, operation)
        loss = faults.armed and faults.take("lose-acknowledgement", name, operation)
        delay = None if loss or not faults.armed else faults.take("delay", name, operation)
        state = work()
    except (errors.BrokerError, AmqpError) as error:
        reply(frames.rejected(error.condition, error.description))
        return
    if loss:
        link.output.drop()
    elif delay is not None:
        link.context.later(delay.seconds, lambda: reply(state))
    else:
        reply(state)


class InboundMessage(NamedTuple):
    """A message of the peer, its pieces joined. ``delivery_id`` is None if the sender settled it.

    ``size`` is that of all pieces. ``payload`` leaves out the pieces above the link's limit.
    """

    payload: bytes
    size: int
    batch: bool
    delivery_id: int | None


class ReceiverLink(Link):
    """Grants credit and joins the pieces of a message, up to ``limit_bytes``."""

    limit_bytes = _REQUEST_LIMIT

    def __init__(self, amqp_session: AmqpSession, attach: Attach, queue: Queue | None) -> None:
        super().__init__(amqp_session, attach, queue)
        self.delivery_count = attach.initial_delivery_count
        self._pieces: list[bytes] = []
        self._size = 0
        self._first_transfer: Transfer | None = None

    def grant(self) -> None:
        """Let the peer send `CREDIT` more messages."""
        self.credit = CREDIT
        self.send_flow()

    def on_transfer(self, transfer: Transfer, payload: bytes, now: float) -> None:
        """Take a piece; take the message once it is whole.

        Pieces above the limit are counted and dropped. The message is refused at its last piece.
        """
        if self._first_transfer is None:
            if self.credit <= 0:
                self.detach("amqp:link:transfer-limit-exceeded", "more messages than credit")
                return
            self._first_transfer = transfer
        if transfer.aborted:
            self._clear()
            return
        self._size += len(payload)
        if self._size <= self.limit_bytes:
            self._pieces.append(payload)
            if transfer.more:
                self.context.hold(self, payload)
        if transfer.more:
            return
        first, payload, size = self._first_transfer, b"".join(self._pieces), self._size
        self._clear()
        if not isinstance(first.delivery_id, int):
            raise AmqpError("amqp:invalid-field", "the first transfer of a message needs its id")
        self.delivery_count = (self.delivery_count + 1) & U32
        self.credit -= 1
        delivery_id = None if first.settled or transfer.settled else first.delivery_id
        batch = first.message_format == BATCH_FORMAT
        self.take(InboundMessage(payload, size, batch, delivery_id), now)
        if self.credit < CREDIT // 2 and not self.ended:
            self.grant()

    def _clear(self) -> None:
        self._pieces, self._size, self._first_transfer = [], 0, None
        self.context.release(self)

    def on_ended(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Forget a message that did not become whole."""
        self._clear()

    def take(self, message: InboundMessage, now: float) -> None:
        """Take a whole message."""
        raise NotImplementedError

    def acknowledge(self, delivery_id: int | None, state: bytes) -> None:
        """Send the outcome of a message."""
        if delivery_id is not None and not self.ended:
            self.output.send_settled(self.amqp_session.channel, delivery_id, state, receiver=True)


class QueueReceiverLink(ReceiverLink):
    """Takes messages for a queue."""

    def __init__(self, amqp_session: AmqpSession, attach: Attach, queue: Queue) -> None:
        super().__init__(amqp_session, attach, queue)
        self._queue = queue
        self.limit_bytes = queue.properties.max_message_kilobytes * 1024
        self._batch_limit = min(self.limit_bytes, _BATCH_LIMIT)

    def open(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer with the size limit of batches, and grant credit."""
        self.check()
        batch = encode.symbol("com.microsoft:max-message-batch-size")
        properties = encode.map_([(batch, encode.int64(self._batch_limit))])  # .NET wants a long
        self.answer_attach(limit=encode.ulong(self.limit_bytes), properties=properties)
        self.grant()

    def check(self) -> None:
        """Raise BrokerError if nothing may be sent to the queue."""
        self._queue.check_sendable()

    def take(self, message: InboundMessage, now: float) -> None:
        """Put the message, or every message of the batch, on the queue, or refuse it."""
        limit = self._batch_limit if message.batch else self.limit_bytes
        if message.size > limit:
            noun = "batch" if message.batch else "message"
            error = errors.MessageSizeExceededError(
                f"a {noun} of {message.size} bytes is larger than the {limit} bytes "
                f"that queue '{self._queue.name}' takes; send less"
                + (" or raise MaxMessageSizeInKilobytes" if limit == self.limit_bytes else "")
            )
            if (
                message.delivery_id is None
            ):  # the sender waits for no outcome: only a detach tells it
                self.detach(error.condition, error.description)
            refusal = frames.rejected(error.condition, error.description)
            self.acknowledge(message.delivery_id, refusal)
            return
        reply = partial(self.acknowledge, message.delivery_id)
        _answer(self, "send", partial(self._enqueue, message, now), reply)

    def _enqueue(self, message: InboundMessage, now: float) -> bytes:
        payloads = unbatch(message.payload) if message.batch else [message.payload]
        self._queue.enqueue([parse_message(payload) for payload in payloads], now)
        return frames.ACCEPTED_STATE


class RequestReceiverLink(ReceiverLink):
    """Takes requests for ``$cbs`` (no queue) or an entity's ``$management``."""

    def __init__(self, amqp_session: AmqpSession, attach: Attach, queue: Queue | None) -> None:
        super().__init__(amqp_session, attach, queue)
        if queue is not None:
            self.limit_bytes = max(
                _REQUEST_LIMIT, 2 * queue.properties.max_message_kilobytes * 1024
            )

    def open(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer and grant credit."""
        self.answer_attach(limit=encode.ulong(self.limit_bytes))
        self.grant()

    def take(self, message: InboundMessage, now: float) -> None:
        """Send the answer on the link that the request names, then accept the request.

        The order matters, because azure-servicebus reads one frame at a time and locks its socket
        meanwhile. If the answer came last, the thread that renews a lock would find the socket
        locked by another thread, which waits 0.2 s for a frame. Then a client could not make 300
        renewals within the time of a lock.
        """
        try:
            if message.size > self.limit_bytes:
                raise errors.MessageSizeExceededError(
                    f"a request of {message.size} bytes is too large"
                )
            request = Request.read(message.payload)
        except (errors.BrokerError, AmqpError) as error:
            refusal = frames.rejected(error.condition, error.description)
            self.acknowledge(message.delivery_id, refusal)
            return
        answer = answer_request(request, self.queue, self.output, now)
        links = [link for link in self.output.reply_links if link.node == self.node]
        address = request.reply_to
        addressees = [link for link in links if address is not None and address in link.names]
        for link in (addressees or links)[-1:]:
            link.reply(answer)
        self.acknowledge(message.delivery_id, frames.ACCEPTED_STATE)


class SenderLink(Link):
    """Keeps the credit that the peer grants."""

    def on_flow(self, fields: list[object], now: float) -> None:
        """Take the peer's credit, send what it allows, answer a drain."""
        peer_credit, peer_count = fields[_CREDIT], fields[_DELIVERY_COUNT]
        if isinstance(peer_credit, int):
            # The peer may have sent the flow before it saw our last messages: subtract those.
            count = peer_count if isinstance(peer_count, int) else 0
            credit = (count + peer_credit - self.delivery_count) & U32
            self.credit = 0 if credit > U32 >> 1 else credit
            self.credit_added(now)
        if fields[_DRAIN]:
            self.delivery_count = (self.delivery_count + self.credit) & U32
            self.credit = 0
            self.drained(now)
            self.send_flow(drain=True)
        elif fields[_ECHO]:
            self.send_flow()

    def use_credit(self) -> None:
        """Count one message."""
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & U32

    def drained(self, now: float) -> None:
        """Take back what is not sent yet: the peer wants no more."""


class QueueSenderLink(SenderLink):
    """Sends the messages of a queue; the queue uses it as a `Consumer`."""

    def __init__(self, amqp_session: AmqpSession, attach: Attach, queue: Queue) -> None:
        super().__init__(amqp_session, attach, queue)
        self._queue = queue
        self.presettled = attach.sender_settle_mode == 1
        self.session: Session | None = None

    @property
    def holder(self) -> object:
        """The connection: session operations must come on it."""
        return self.output

    def open(self, now: float) -> None:
        """Answer at once, or when a session is granted."""
        self.check()
        asks_for_session, session_id = self.attach.session_filter()
        sessions = self._queue.sessions
        if sessions is None:
            if asks_for_session:
                raise errors.NotAllowedError(
                    f"queue '{self._queue.name}' does not require sessions"
                )
            self.answer_attach()
        elif not asks_for_session:
            raise errors.NotAllowedError(
                "It is not possible for an entity that requires sessions to create a "
                "non-sessionful message receiver. Ask for a session."
            )
        elif session_id is None:
            timeout = self.attach.properties.get("com.microsoft:timeout")
            limits = self.context.limits
            seconds = timeout / 1000 if isinstance(timeout, int) else limits.session_wait_s
            sessions.accept_next(self, now, min(seconds, limits.session_wait_max_s))
        elif isinstance(session_id, str):
            sessions.accept(self, session_id, now)
        else:
            raise errors.NotAllowedError(f"a session id is text, not {session_id!r:.100}")

    def check(self) -> None:
        """Raise BrokerError if nothing may be received from the queue."""
        self._queue.check_receivable()

    def session_granted(self, session: Session) -> None:
        """Answer the attach with the session that was chosen and the end of its lock."""
        ticks = int(session.locked_until * 10_000_000) + _TICKS_1970
        locked = encode.symbol("com.microsoft:locked-until-utc")
        self.answer_attach(
            source=source_with_session(self.attach.source, session.id),
            properties=encode.map_([(locked, encode.int64(ticks))]),
        )

    def session_refused(self) -> None:
        """Refuse the attach: no session was free in time."""
        self.detach(
            errors.OperationTimeoutError.condition,
            "The operation did not complete within the allotted timeout: no session of queue "
            f"'{self._queue.name}' has messages and is free.",
        )

    def session_lost(self) -> None:
        """End the link: its session's lock expired."""
        self.detach(errors.SessionLockLostError.condition, "The session lock has expired.")

    def credit_added(self, now: float) -> None:
        """Tell the queue."""
        self._queue.dispatch.add_credit(self, now)

    def deliver(self, message: Message, token: bytes) -> None:
        """Send a message as soon as the peer's window allows."""
        self.use_credit()
        self.amqp_session.transmit(self, message, token)

    def drained(self, now: float) -> None:
        """Take back what waits for the peer's window."""
        for message, token in self.amqp_session.take_unsent(self):
            self._give_back(message, token, now)

    def _give_back(self, message: Message, token: bytes, now: float) -> None:
        """Release a message that was not sent whole; put a presettled one back on the queue."""
        if self.presettled:
            self._queue.insert(message, now)
            return
        try:
            operations.release(self._queue, token, now)
        except errors.BrokerError:
            return

    def on_ended(self, now: float) -> None:
        """Leave the queue, and give back what was not sent whole."""
        # Step 4 of session.py. The link leaves the queue before it gives messages back, so that
        # none of them comes to this link again.
        partly_sent = self.amqp_session.take_partly_sent(self)
        unsent = self.amqp_session.take_unsent(self)
        self._queue.dispatch.detach(self, now)
        for message, token in partly_sent + unsent:
            self._give_back(message, token, now)

    def on_settled(
        self, delivery_id: int, token: bytes, outcome: Outcome, settled: bool, now: float
    ) -> None:
        """Settle one message and echo the outcome.

        azure-servicebus 7.15 sends unsettled dispositions and waits for an echo with the same
        outcome. A failure is echoed as *rejected* with its condition.
        """

        def echo(state: bytes) -> None:
            if not settled:
                channel = self.amqp_session.channel
                self.output.send_settled(channel, delivery_id, state, receiver=False)

        _answer(self, "settle", partial(self._settle, token, outcome, now), echo)

    def _settle(self, token: bytes, outcome: Outcome, now: float) -> bytes:
        """Settle one message; return the state to echo. Raises BrokerError.

        While receiving is disabled nothing is removed, as in the service: the message comes again
        after its lock.
        """
        queue, faults = self._queue, self.context.faults
        queue.check_status(receives=True)
        match outcome.code:
            case frames.ACCEPTED:
                is_first = (
                    faults.armed and not operations.locked_message(queue, token, now).delivery_count
                )
                if is_first and faults.take("duplicate-delivery", queue.name, "settle"):
                    operations.abandon(queue, token, now)
                else:
                    operations.complete(queue, token, now)
                return frames.ACCEPTED_STATE
            case frames.RELEASED | None:
                operations.release(queue, token, now)
                return frames.RELEASED_STATE
            case frames.MODIFIED:
                undeliverable_here = decode.decode(outcome.fields[1])[0]
                operation = operations.defer if undeliverable_here else operations.abandon
                operation(queue, token, now, outcome.changes)
                return encode.composite(frames.MODIFIED, outcome.fields[:2])
            case frames.REJECTED:
                changes = {name: raw for name, raw in outcome.changes.items() if raw != encode.NULL}
                operations.dead_letter(queue, token, now, changes=changes)
                return frames.REJECTED_STATE
            case other:
                raise errors.NotAllowedError(
                    f"0x{other:02x} is not an outcome that this broker serves"
                )


class ReplySenderLink(SenderLink):
    """Sends the answers to requests on its node, settled."""

    def __init__(self, amqp_session: AmqpSession, attach: Attach, queue: Queue | None) -> None:
        super().__init__(amqp_session, attach, queue)
        self._waiting: deque[bytes] = deque()

    def open(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer the attach, and join the links that requests can name."""
        self.answer_attach()
        # Requests in Python name this link by its target address, in JavaScript by its name.
        names = (self.attach.target_address, self.name)
        self.output.reply_links.append(ReplyLink(self.node, names, self.reply))

    def reply(self, payload: bytes) -> None:
        """Send one answer, or keep it until there is credit for it."""
        self._waiting.append(payload)
        self.credit_added(self.context.clock())
        if self._waiting:
            self.context.hold(self, payload)

    def credit_added(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Send the answers that the credit allows."""
        while self._waiting and self.credit > 0:
            self.use_credit()
            tag = self.delivery_count.to_bytes(4, "big")
            self.amqp_session.transmit_reply(self, self._waiting.popleft(), tag)
        if not self._waiting:
            self.context.release(self)

    def on_ended(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Leave the links that requests can name."""
        self._waiting.clear()
        self.context.release(self)
        reply_links = self.output.reply_links
        reply_links[:] = [link for link in reply_links if link.reply != self.reply]
