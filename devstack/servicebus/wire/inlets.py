"""Links on which the peer sends: messages for a queue, or requests for ``$cbs`` and management."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.sections import BATCH_FORMAT, unbatch
from devstack.servicebus.amqp.shapes import Transfer
from devstack.servicebus.core.admission import check_sendable
from devstack.servicebus.core.errors import (
    BrokerError,
    MessageSizeExceededError,
    ServerBusyError,
)
from devstack.servicebus.core.message import parse_message
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.wire.attach import Attach
from devstack.servicebus.wire.link import Link
from devstack.servicebus.wire.requests import Request, answer_request

if TYPE_CHECKING:
    from devstack.servicebus.wire.session import AmqpSession

CREDIT = 1000
_BATCH_LIMIT = 1 << 20
_REQUEST_LIMIT = 2 << 20


class Inlet(Link):
    """Grants credit and puts the pieces of a message together, within ``limit_bytes``."""

    limit_bytes = _REQUEST_LIMIT

    def __init__(
        self, session: "AmqpSession", attach: Attach, handle: int, queue: QueueCore | None
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self._count = attach.initial_delivery_count
        self._credit = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._first: tuple[Transfer, object] | None = None

    def grant(self) -> None:
        """Let the peer send `CREDIT` more messages."""
        self._credit = CREDIT
        self.send_flow(self._count, CREDIT)

    def on_transfer(
        self, transfer: Transfer, delivery_id: object, payload: bytes, now: float
    ) -> None:
        """Take a piece; hand the message on once it is whole.

        A message above the limit is counted but not kept, and refused at its end.
        """
        if self._first is None:
            if self._credit <= 0:
                self.detach("amqp:link:transfer-limit-exceeded", "more messages than credit")
                return
            if not transfer.more and not transfer.aborted:
                self._whole(transfer, delivery_id, transfer.settled, payload, len(payload), now)
                return
            self._first = transfer, delivery_id
        if transfer.aborted:
            self._clear()
            return
        self._size += len(payload)
        if payload and self._size <= self.limit_bytes:
            self._pieces.append(payload)
        if transfer.more:
            return
        (first, delivery_id), whole, size = self._first, b"".join(self._pieces), self._size
        self._clear()
        self._whole(first, delivery_id, first.settled or transfer.settled, whole, size, now)

    def _whole(
        self,
        first: Transfer,
        delivery_id: object,
        settled: object,
        payload: bytes,
        size: int,
        now: float,
    ) -> None:
        self._count = (self._count + 1) & 0xFFFFFFFF
        self._credit -= 1
        if not isinstance(delivery_id, int):
            raise AmqpError("amqp:invalid-field", "the first transfer of a message needs its id")
        batch = first.message_format == BATCH_FORMAT
        self.take(payload, size, batch, None if settled else delivery_id, now)
        if self._credit < CREDIT // 2 and not self.ended:
            self.grant()

    def _clear(self) -> None:
        self._pieces, self._size, self._first = [], 0, None

    def take(
        self, payload: bytes, size: int, batch: bool, delivery_id: int | None, now: float
    ) -> None:
        """Take a whole message of ``size`` bytes; ``delivery_id`` is None where it is settled."""
        raise NotImplementedError

    def acknowledge(self, delivery_id: int | None, state: bytes) -> None:
        """Tell the peer what became of its message."""
        if delivery_id is not None and not self.ended:
            channel = self.session_of_link.channel
            self.wire.send_frame(frames.disposition_frame(channel, encode.TRUE, delivery_id, state))


class QueueInlet(Inlet):
    """A sender of a queue."""

    def __init__(
        self, session: "AmqpSession", attach: Attach, handle: int, queue: QueueCore
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self._queue = queue
        self._one = queue.properties.max_message_kilobytes * 1024
        self.limit_bytes = max(self._one, min(4 * self._one, _BATCH_LIMIT))

    def opened(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer and grant credit, with the size up to which batches are taken."""
        check_sendable(self._queue)
        batch = encode.symbol("com.microsoft:max-message-batch-size")
        self.answer_attach(properties=encode.map_([(batch, encode.ulong(self._one))]))
        self.grant()

    def take(
        self, payload: bytes, size: int, batch: bool, delivery_id: int | None, now: float
    ) -> None:
        """Put the message, or every message of the batch, on the queue, or refuse it."""
        try:
            if self.hub.faults.armed and self._faulty(payload, batch, delivery_id, now):
                return
            self._enqueue(payload, size, batch, now)
            state = frames.ACCEPTED_STATE
        except BrokerError as error:
            state = frames.rejected(error.condition, error.description)
        except AmqpError as error:
            state = frames.rejected(error.condition, error.description)
        self.acknowledge(delivery_id, state)

    def _enqueue(self, payload: bytes, size: int, batch: bool, now: float) -> None:
        if size > self.limit_bytes or (size > self._one and not batch):
            raise MessageSizeExceededError(
                f"a {'batch' if batch else 'message'} of {size} bytes is larger than the "
                f"{self._one} bytes that queue '{self._queue.name}' takes; send less or raise "
                "MaxMessageSizeInKilobytes"
            )
        parts = unbatch(payload) if batch else [payload]
        self._queue.enqueue([parse_message(part) for part in parts], now)

    def _faulty(self, payload: bytes, batch: bool, delivery_id: int | None, now: float) -> bool:
        faults, name = self.hub.faults, self._queue.name
        if faults.take("server-busy", name, "send"):
            raise ServerBusyError(f"queue '{name}' is busy; wait a moment and send again")
        if faults.take("lose-acknowledgement", name, "send"):
            self._enqueue(payload, len(payload), batch, now)
            self.wire.cut()
            return True
        delay = faults.take("delay", name, "send")
        if delay is None:
            return False
        self._enqueue(payload, len(payload), batch, now)
        self.hub.later(delay.seconds, lambda: self.acknowledge(delivery_id, frames.ACCEPTED_STATE))
        return True


class RequestInlet(Inlet):
    """A sender of requests: ``$cbs`` (no queue) or an entity's ``$management``."""

    def __init__(
        self,
        session: "AmqpSession",
        attach: Attach,
        handle: int,
        queue: QueueCore | None,
        node: str,
    ) -> None:
        super().__init__(session, attach, handle, queue)
        self._node = node
        if queue is not None:
            self.limit_bytes = max(
                _REQUEST_LIMIT, 2 * queue.properties.max_message_kilobytes * 1024
            )

    def opened(self, now: float) -> None:  # noqa: ARG002 (one signature)
        """Answer and grant credit."""
        self.answer_attach()
        self.grant()

    def take(
        self,
        payload: bytes,
        size: int,
        batch: bool,  # noqa: ARG002 (one signature)
        delivery_id: int | None,
        now: float,
    ) -> None:
        """Send the answer on the link that the request names, then accept the request.

        In this order, because azure-servicebus reads one frame at a time with its socket locked:
        with the answer last, a renewal on one thread finds the socket held by another that waits
        0.2 s for a frame that does not come, and 300 renewals a lock's time are not to be had.
        """
        if size > self.limit_bytes:
            error = MessageSizeExceededError(f"a request of {size} bytes is too large")
            self.acknowledge(delivery_id, frames.rejected(error.condition, error.description))
            return
        try:
            request = Request.read(payload)
        except AmqpError as error:
            self.acknowledge(delivery_id, frames.rejected(error.condition, error.description))
            return
        link = self._reply_link(request.reply_to)
        answer = answer_request(request, self.queue, self.wire, now)
        if link is not None:
            link(answer)
        self.acknowledge(delivery_id, frames.ACCEPTED_STATE)

    def _reply_link(self, reply_to: object) -> Callable[[bytes], None] | None:
        """Find where the answer goes: by target address (Python), by name (JS), or the only one."""
        here = [link for link in self.wire.replies if link.node == self._node]
        for link in reversed(here):
            if reply_to is not None and reply_to in {link.target_address, link.name}:
                return link.reply
        return here[-1].reply if here else None
