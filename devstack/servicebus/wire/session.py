"""One AMQP session: its links, its window, and what its receivers have not settled yet."""

from collections import deque

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.shapes import read_disposition, read_transfer
from devstack.servicebus.core import settlement
from devstack.servicebus.core.delivery import encode_message
from devstack.servicebus.core.errors import BrokerError, ServerBusyError
from devstack.servicebus.core.message import Message
from devstack.servicebus.wire import outcomes
from devstack.servicebus.wire.attach import read_attach
from devstack.servicebus.wire.hub import Wire
from devstack.servicebus.wire.inlets import Inlet
from devstack.servicebus.wire.link import Link
from devstack.servicebus.wire.outlets import QueueOutlet, ReplyOutlet
from devstack.servicebus.wire.routing import make_link

_U32 = 0xFFFFFFFF
_TRANSFER_HEAD_ROOM = 64


class AmqpSession:
    """A session on one channel. Windows count frames; ids wrap at 2**32."""

    def __init__(self, wire: Wire, channel: int, begin: list[object]) -> None:
        self.wire = wire
        self.hub = wire.hub
        self.channel = channel
        self.links: dict[int, Link] = {}
        self._next_delivery = 1
        self._more_frames = 0
        self.next_incoming = begin[1] if isinstance(begin[1], int) else 0
        self._window = begin[2] if isinstance(begin[2], int) else 2048
        self._room = wire.max_frame_bytes - 8 - _TRANSFER_HEAD_ROOM
        self._next_handle = 0
        self._unsettled: dict[int, tuple[QueueOutlet, bytes]] = {}
        self._unsent: deque[tuple[QueueOutlet, Message, bytes]] = deque()
        self._rest: deque[tuple[QueueOutlet, bytes, bytes, bytes]] = deque()

    @property
    def next_outgoing(self) -> int:
        """The number of the next transfer frame; deliveries have numbers of their own."""
        return (self._next_delivery + self._more_frames) & _U32

    def send(self, performative: bytes) -> None:
        """Send a frame on this session's channel."""
        self.wire.send(self.channel, performative)

    def starve(self) -> None:
        """Take the credit of every receiver: nothing more is to be given to them."""
        for link in self.links.values():
            if isinstance(link, QueueOutlet):
                link.credit = 0

    def close(self, now: float) -> None:
        """End every link: the session is over."""
        self.starve()
        for link in list(self.links.values()):
            if not link.ended:
                link.ended = True
                link.gone(now)
        self.links.clear()
        self._unsettled.clear()

    def on_frame(self, code: int, body: bytes, position: int, now: float) -> None:
        """Work on a frame for this session or a link of it; its list is at ``position``."""
        match code:
            case frames.TRANSFER:
                self.on_transfer(body, position, now)
            case frames.DISPOSITION:
                self.on_disposition(body, position, now)
            case frames.FLOW:
                self._on_flow(decode.fields(body, position)[0], now)
            case frames.ATTACH:
                self._on_attach(body, position, now)
            case _:
                self._on_detach(decode.fields(body, position)[0])

    # -- links --------------------------------------------------------------------------

    def _on_attach(self, body: bytes, position: int, now: float) -> None:
        """Open a link, or refuse it: attach with a null terminus, then detach with the error."""
        attach = read_attach(body, position)
        known = self.links.get(attach.handle)
        if known is not None and not known.ended:
            raise AmqpError("amqp:session:handle-in-use", f"handle {attach.handle} is in use")
        if len(self.links) >= self.hub.limits.links_per_session:
            raise AmqpError("amqp:resource-limit-exceeded", "too many links on one session")
        handle = self._next_handle
        self._next_handle += 1
        link = Link(self, attach, handle, None)
        try:
            link = make_link(self, attach, handle, now)
            self.links[attach.handle] = link
            link.opened(now)
        except BrokerError as error:
            self.links[attach.handle] = link
            link.detach(error.condition, error.description)

    def _on_detach(self, fields: list[object]) -> None:
        """Close a link at the peer's wish."""
        fields = frames.padded(fields, 3)
        handle = fields[0]
        link = self.links.pop(handle, None) if isinstance(handle, int) else None
        if link is None or link.ended:
            return
        link.ended = True
        link.gone(self.hub.clock())
        self._forget_deliveries(link)
        closed = encode.boolean(bool(fields[1]))
        self.send(encode.composite(frames.DETACH, [encode.uint(link.handle), closed]))

    def _forget_deliveries(self, link: Link) -> None:
        for delivery_id in [n for n, (outlet, _) in self._unsettled.items() if outlet is link]:
            del self._unsettled[delivery_id]

    # -- what the peer sends ------------------------------------------------------------

    def on_transfer(self, body: bytes, position: int, now: float) -> None:
        """Take one frame of a message."""
        transfer, delivery_id, payload_at = read_transfer(body, position)
        self.next_incoming = (self.next_incoming + 1) & _U32
        link = None if transfer.handle is None else self.links.get(transfer.handle)
        if isinstance(link, Inlet) and not link.ended:
            link.on_transfer(transfer, delivery_id, body[payload_at:], now)

    def _on_flow(self, fields: list[object], now: float) -> None:
        """Take the peer's window and a link's credit."""
        fields = frames.padded(fields, 11)
        window = fields[1]
        if not isinstance(window, int):
            raise AmqpError("amqp:invalid-field", "a flow needs an incoming window")
        seen = fields[0] if isinstance(fields[0], int) else 1
        self._window = window - ((self.next_outgoing - seen) & _U32)
        self.send_unsent()
        handle = fields[4]
        link = self.links.get(handle) if isinstance(handle, int) else None
        if link is not None and not link.ended:
            link.on_flow(fields, now)
        elif handle is None and fields[9]:
            self._echo_window()

    def _echo_window(self) -> None:
        wide = encode.uint(0x7FFFFFFF)
        ids = encode.uint(self.next_incoming), encode.uint(self._next_delivery)
        self.send(encode.composite(frames.FLOW, [ids[0], wide, ids[1], wide]))

    def on_disposition(self, body: bytes, position: int, now: float) -> None:
        """Settle what a receiver has decided; ids that are not open are ignored.

        A range is walked by what is open, so that no range can keep the broker busy.
        """
        (role, last, settled, state), first = read_disposition(body, position)
        if not role:
            return
        if not isinstance(first, int):
            raise AmqpError("amqp:invalid-field", "a disposition needs its first delivery")
        if not isinstance(last, int) or last == first:
            self._settle(first, state, bool(settled), now)
            return
        span = (last - first) & _U32
        for delivery_id in [n for n in self._unsettled if (n - first) & _U32 <= span]:
            self._settle(delivery_id, state, bool(settled), now)

    def _settle(self, delivery_id: int, state: object, settled: bool, now: float) -> None:
        found = self._unsettled.pop(delivery_id, None)
        if found is None:
            return
        outlet, token = found
        try:
            if self.hub.faults.armed and self._faulty(delivery_id, outlet, token, state, now):
                return
            echo = outcomes.settle(outlet.queue_core, token, state, now)
        except BrokerError as error:
            echo = frames.rejected(error.condition, error.description)
        if not settled:
            self._echo(delivery_id, echo)

    def _echo(self, delivery_id: int, state: bytes) -> None:
        self.wire.send_frame(
            frames.disposition_frame(self.channel, encode.FALSE, delivery_id, state)
        )

    def _faulty(
        self, delivery_id: int, outlet: QueueOutlet, token: bytes, state: object, now: float
    ) -> bool:
        queue, faults = outlet.queue_core, self.hub.faults
        completes = frames.outcome_code(state) == frames.ACCEPTED
        if faults.take("server-busy", queue.name, "settle"):
            raise ServerBusyError(f"queue '{queue.name}' is busy; wait a moment and settle again")
        if faults.take("lose-acknowledgement", queue.name, "settle"):
            outcomes.settle(queue, token, state, now)
            self.wire.cut()
            return True
        if completes and faults.take("duplicate-delivery", queue.name, "settle"):
            settlement.abandon(queue, token, now)
            self._echo(delivery_id, frames.ACCEPTED_STATE)
            return True
        delay = faults.take("delay", queue.name, "settle")
        if delay is None:
            return False
        echo = outcomes.settle(queue, token, state, now)
        self.hub.later(delay.seconds, lambda: self._echo(delivery_id, echo))
        return True

    # -- what the broker sends ----------------------------------------------------------

    def transmit(self, outlet: QueueOutlet, message: Message, token: bytes) -> None:
        """Send a message, now or when the peer's window allows."""
        if self._window <= 0 or self.wire.paused or self._unsent:
            self._unsent.append((outlet, message, token))
        else:
            self._transmit(outlet, message, token)

    def _transmit(self, outlet: QueueOutlet, message: Message, token: bytes) -> None:
        if not outlet.settles_first:
            if message.token != token:
                outlet.credit += 1
                outlet.count = (outlet.count - 1) & _U32
                return
            if len(self._unsettled) >= self.hub.limits.unsettled_per_session:
                del self._unsettled[next(iter(self._unsettled))]
            self._unsettled[self._next_delivery] = (outlet, token)
        self._send_transfer(outlet, encode_message(message), token, outlet.settles_first)

    def transmit_payload(self, outlet: ReplyOutlet, payload: bytes, tag: bytes) -> None:
        """Send an answer, settled. Answers are few and do not wait for the session's window."""
        self._send_transfer(outlet, payload, tag, settled=True)

    def _send_transfer(self, link: Link, payload: bytes, tag: bytes, settled: bool) -> None:
        if len(payload) > self._room or len(tag) != 16:
            self._send_pieces(link, payload, tag, settled, self._room)
            return
        number, state = self._next_delivery, encode.TRUE if settled else encode.FALSE
        self._next_delivery = (number + 1) & _U32
        self._window -= 1
        self.wire.send_frame(
            frames.transfer_frame(self.channel, link.handle, number, tag, state, payload)
        )

    def _send_pieces(
        self, link: Link, payload: bytes, tag: bytes, settled: bool, room: int
    ) -> None:
        head = [
            encode.uint(link.handle),
            encode.uint(self._next_delivery),
            encode.binary(tag),
            b"\x43",
            encode.boolean(settled),
        ]
        self._next_delivery = (self._next_delivery + 1) & _U32
        self._more_frames -= 1  # each piece counts when it goes out
        for piece, more in frames.split_payload(payload, room):
            performative = encode.composite(frames.TRANSFER, [*head, encode.boolean(more)])
            if isinstance(link, QueueOutlet):
                self._rest.append((link, tag, performative, piece))
            else:
                self._send_piece(performative, piece)
        self._send_rest()

    def _send_piece(self, performative: bytes, piece: bytes) -> None:
        self._window -= 1
        self._more_frames += 1
        self.wire.send(self.channel, performative, piece)

    def _send_rest(self) -> None:
        """Send the pieces of messages of many frames, as far as the window allows."""
        while self._rest and self._window > 0:
            _, _, performative, piece = self._rest.popleft()
            self._send_piece(performative, piece)

    def send_unsent(self) -> None:
        """Send what waited for the window or for the socket."""
        self._send_rest()
        while self._unsent and self._window > 0 and not self.wire.paused:
            self._transmit(*self._unsent.popleft())

    def waiting(self, outlet: QueueOutlet) -> list[tuple[Message, bytes]]:
        """Take back a receiver's messages of which nothing went out, with their lock tokens."""
        mine = [(message, token) for link, message, token in self._unsent if link is outlet]
        if mine:
            self._unsent = deque(entry for entry in self._unsent if entry[0] is not outlet)
        return mine

    def begun(self, outlet: QueueOutlet) -> list[bytes]:
        """Take back the tokens of a receiver's messages that went out in part."""
        mine = dict.fromkeys(token for link, token, _, _ in self._rest if link is outlet)
        if mine:
            self._rest = deque(entry for entry in self._rest if entry[0] is not outlet)
        return list(mine)
