"""One AMQP session: its links, its transfer window, and its unsettled deliveries.

An AMQP session is a channel of a connection. It has nothing to do with the sessions of Service Bus,
which are groups of messages (core/dispatch.py).

Theory of operation. A message on its way to a receiver passes four places. The numbers stand again
at the steps in the code, and step 4 also in links.py.

1. *Handed over.* The queue has locked the message (or removed it, for a presettled link) and calls
   the link, which calls `transmit`. If the peer's window is closed or the socket is blocked, the
   message waits in ``_unsent``. It also waits if others wait already, so that the order stays.
2. *Sent.* A waiting message may have lost its lock meanwhile. Then it is not sent, because the
   queue offers it again by itself, and the link gets its credit back. Otherwise the delivery gets
   its id, and enters ``_unsettled`` unless the link is presettled. A large message is cut into
   several frames. Frames beyond the window wait in ``_pieces``.
3. *Unsettled.* ``_unsettled`` leads from a delivery id to the link and the lock token. The message
   itself stays in the queue. A disposition of the peer takes the entry out and settles the message
   by its token. The ids of deliveries that are settled already are ignored.
4. *Over.* The link, the session or the connection ends. The link gives back each message that was
   not sent whole, at once and without counting a delivery (`take_unsent`, `take_partly_sent`). A
   message that was sent whole keeps its lock, because the receiver may have processed it, and may
   still settle it by a request on ``$management``. If it does not, the queue offers the message
   again when the lock ends. In a Service Bus session the locks end with the link, so those messages
   are ready again at once. So nothing is lost at any of the four places: a session only has
   references to messages, and the queue has the messages. The exception is a presettled link. Its
   unsent messages are in memory only, and a crash of the broker loses them, as receive-and-delete
   allows.

The window counts frames, and a delivery id counts messages. Each delivery has at least one frame.
So the number of the next frame is the number of the next delivery plus ``_extra_frames``: the
frames that were sent, less one for each delivery. Both numbers wrap at 2**32.

Who writes and who reads (all on one event loop, see connection.py):

- ``links``: the connection adds a link when it is attached. `on_detach` and `close` remove it. A
  link that the broker ended stays, with ``ended`` set, until the peer's detach.
- a link's ``credit`` and ``delivery_count``: the link writes them, for flows and messages. The
  session sets the credit to 0 before it closes, and changes both back for a message that it does
  not send (2). The dispatch of the queue reads the credit.
- ``_window``: the peer's begin and each of its flows set it; each frame that is sent lowers it.
- ``_unsettled``: `_transmit` adds; `on_disposition`, `on_detach` and `close` remove.
- ``_unsent`` and ``_pieces``: `transmit` and `_transmit` add. `send_unsent` takes from them when
  the window or the socket opens. A link takes its messages back when it ends, or when the peer
  drains it (the unsent ones).
"""

from collections import deque
from typing import Any, NamedTuple

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.frames import Outcome
from devstack.servicebus.core.message import Message, encode_message
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.context import Output
from devstack.servicebus.wire.performatives import WINDOW, Attach

U32 = 0xFFFFFFFF
_TRANSFER_HEAD_ROOM = 64


class Transfer(NamedTuple):
    """The fields of a transfer as AMQP 1.0, part 2.7.5, names them."""

    handle: Any
    delivery_id: Any
    delivery_tag: Any
    message_format: Any
    settled: Any
    more: Any
    receiver_settle_mode: Any
    state: Any
    resume: Any
    aborted: Any
    batchable: Any


class _Piece(NamedTuple):
    """One frame of a message that waits for the peer's window."""

    link: "Link"
    message: Message
    token: bytes
    performative: bytes
    payload: bytes


class Link:
    """The broker's end of a link. ``queue`` is its entity, None for ``$cbs``.

    ``credit`` and ``delivery_count`` are those of AMQP, for either role. A ``presettled`` link
    sends its messages settled.
    """

    presettled = False

    def __init__(self, amqp_session: "AmqpSession", attach: Attach, queue: Queue | None) -> None:
        self.amqp_session = amqp_session
        self.output = amqp_session.output
        self.context = amqp_session.output.context
        self.attach = attach
        self.name = attach.name
        self.node = path_of(attach.address or "").lower()
        self.handle = amqp_session.new_handle(attach.handle)
        self.queue = queue
        self.credit = 0
        self.delivery_count = 0
        self.answered = self.ended = False

    def open(self, now: float) -> None:
        """Answer the attach. Raises BrokerError to refuse it."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise BrokerError if the queue no longer allows this link."""

    def on_flow(self, fields: list[object], now: float) -> None:
        """Take the link's part of a flow."""

    def on_transfer(self, transfer: Transfer, payload: bytes, now: float) -> None:
        """Take one frame of a message."""

    def on_settled(
        self, delivery_id: int, token: bytes, outcome: Outcome, settled: bool, now: float
    ) -> None:
        """Take the peer's outcome of one delivery."""

    def on_ended(self, now: float) -> None:
        """Release what the link holds: it has ended."""

    def credit_added(self, now: float) -> None:
        """Send what waits for credit."""

    def answer_attach(
        self,
        *,
        source: bytes | None = None,
        refused: bool = False,
        limit: bytes = encode.NULL,
        properties: bytes = encode.NULL,
    ) -> None:
        """Answer the peer's attach by echoing it.

        If the link is ``refused``, the broker's own terminus is null, because with an echoed
        terminus the SDKs believe that the link has opened. ``limit`` is the largest message that
        the broker takes. A link on which the broker sends announces no limit. With a limit, .NET
        would refuse a message of the full size, because the broker's annotations make it larger.
        """
        self.answered = True
        peer = self.attach
        fields = [
            encode.string(self.name),
            encode.uint(self.handle),
            encode.boolean(not peer.receives),
            encode.ubyte(peer.sender_settle_mode & 0xFF),
            encode.ubyte(peer.receiver_settle_mode & 0xFF),
            encode.NULL if refused and peer.receives else source or peer.source,
            encode.NULL if refused and not peer.receives else peer.target,
            encode.NULL,  # unsettled
            encode.NULL,  # incomplete unsettled
            encode.uint(0) if peer.receives else encode.NULL,
            limit,
            encode.NULL,  # offered capabilities
            encode.NULL,  # desired capabilities
            properties,
        ]
        self.amqp_session.send(encode.composite(frames.ATTACH, fields))

    def detach(self, condition: str, description: str) -> None:
        """End the link with an error, or refuse it if its attach is not answered yet."""
        if self.ended:
            return
        if not self.answered:
            self.answer_attach(refused=True)
        self.ended = True
        self.on_ended(self.context.clock())
        error = frames.error(condition, description)
        fields = [encode.uint(self.handle), encode.TRUE, error]
        self.amqp_session.send(encode.composite(frames.DETACH, fields))

    def give_up(self) -> None:
        """End the link, because what links hold for their peers takes too much room."""
        limit = self.context.limits.held_bytes
        self.detach(
            "amqp:resource-limit-exceeded",
            f"messages that are not whole, and answers without credit, have over {limit} bytes in "
            "all connections, and those of this link began first; open it again",
        )

    def send_flow(self, *, drain: bool = False) -> None:
        """Send the state of this link and its session."""
        available = 0
        numbers = (self.handle, self.delivery_count, self.credit, available)
        self.amqp_session.send_flow(*map(encode.uint, numbers), encode.boolean(drain))


class AmqpSession:
    """A session on one channel. ``links`` has the links by the peer's handles."""

    def __init__(self, output: Output, channel: int, begin: list[object]) -> None:
        self.output = output
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.next_incoming = begin[1] if isinstance(begin[1], int) else 0
        self._window = begin[2] if isinstance(begin[2], int) else 2048
        self._payload_max = output.max_frame_bytes - 8 - _TRANSFER_HEAD_ROOM
        self._next_delivery = 1
        self._extra_frames = 0
        self._next_handle = 0
        self._unsettled: dict[int, tuple[Link, bytes]] = {}
        self._unsent: deque[tuple[Link, Message, bytes]] = deque()
        self._pieces: deque[_Piece] = deque()

    @property
    def next_outgoing(self) -> int:
        """The number of the next transfer frame; deliveries have numbers of their own."""
        return (self._next_delivery + self._extra_frames) & U32

    def send(self, performative: bytes) -> None:
        """Send a frame on this session's channel."""
        self.output.send(self.channel, performative)

    def send_flow(self, *link_fields: bytes) -> None:
        """Send the state of this session, and of a link."""
        next_incoming, next_outgoing = map(encode.uint, (self.next_incoming, self.next_outgoing))
        fields = [next_incoming, WINDOW, next_outgoing, WINDOW, *link_fields]
        self.send(encode.composite(frames.FLOW, fields))

    def revoke_credit(self) -> None:
        """Give no more messages to the links of this session: it is about to end."""
        for link in self.links.values():
            link.credit = 0

    def close(self, now: float) -> None:
        """End every link: the session is over."""
        self.revoke_credit()  # 4. What one link gives back must not go to another link here.
        for link in list(self.links.values()):
            if not link.ended:
                link.ended = True
                link.on_ended(now)
        self.links.clear()
        self._unsettled.clear()

    def new_handle(self, peer_handle: int) -> int:
        """Return the broker's handle for a new link. Raises AmqpError if it cannot be opened."""
        link = self.links.get(peer_handle)
        if link is not None and not link.ended:
            raise AmqpError("amqp:session:handle-in-use", f"handle {peer_handle} is in use")
        if len(self.links) >= self.output.context.limits.links_per_session:
            raise AmqpError("amqp:resource-limit-exceeded", "too many links on one session")
        self._next_handle += 1
        return self._next_handle - 1

    def on_detach(self, fields: list[object], now: float) -> None:
        """End a link, as the peer asks."""
        fields = frames.padded(fields, 3)
        handle = fields[0]
        link = self.links.pop(handle, None) if isinstance(handle, int) else None
        if link is None or link.ended:
            return
        link.ended = True
        link.on_ended(now)
        for delivery_id in [n for n, (owner, _) in self._unsettled.items() if owner is link]:
            del self._unsettled[delivery_id]
        closed = encode.boolean(bool(fields[1]))
        self.send(encode.composite(frames.DETACH, [encode.uint(link.handle), closed]))

    def on_transfer(self, body: bytes, position: int, now: float) -> None:
        """Take one frame of a message."""
        fields, payload_at = decode.fields(body, position)
        transfer = Transfer(*frames.padded(fields, 11))
        self.next_incoming = (self.next_incoming + 1) & U32
        link = self.links.get(transfer.handle) if isinstance(transfer.handle, int) else None
        if link is not None and not link.ended:
            link.on_transfer(transfer, body[payload_at:], now)

    def on_flow(self, fields: list[object], now: float) -> None:
        """Take the peer's window and a link's credit."""
        fields = frames.padded(fields, 11)
        window = fields[1]
        if not isinstance(window, int):
            raise AmqpError("amqp:invalid-field", "a flow needs an incoming window")
        # The peer may have sent the flow before it saw our last frames: subtract those.
        next_frame = fields[0] if isinstance(fields[0], int) else 1
        self._window = window - ((self.next_outgoing - next_frame) & U32)
        self.send_unsent()
        handle = fields[4]
        link = self.links.get(handle) if isinstance(handle, int) else None
        if link is not None and not link.ended:
            link.on_flow(fields, now)
        elif handle is None and fields[9]:
            self.send_flow()

    def on_disposition(self, body: bytes, position: int, now: float) -> None:
        """Settle deliveries as a receiver says; ids that are not unsettled are ignored.

        For a range the session looks through its unsettled deliveries, and not through the range,
        so a huge range costs nothing.
        """
        fields = decode.fields(body, position)[0]
        role, first, last, settled, state, _ = frames.padded(fields, 6)
        if not role:
            return
        if not isinstance(first, int):
            raise AmqpError("amqp:invalid-field", "a disposition needs its first delivery")
        outcome = frames.read_outcome(state, body, position)
        if isinstance(last, int) and last != first:
            span = (last - first) & U32
            numbers = [n for n in self._unsettled if (n - first) & U32 <= span]
        else:
            numbers = [first]
        for delivery_id in numbers:
            delivery = self._unsettled.pop(delivery_id, None)  # 3.
            if delivery is not None:
                link, token = delivery
                link.on_settled(delivery_id, token, outcome=outcome, settled=bool(settled), now=now)

    def transmit(self, link: Link, message: Message, token: bytes) -> None:
        """Send a message, now or when the peer's window allows."""
        # 1. Messages in _pieces need no test: they wait only while the window is closed.
        if self._window <= 0 or self.output.blocked or self._unsent:
            self._unsent.append((link, message, token))
        else:
            self._transmit(link, message, token)

    def _transmit(self, link: Link, message: Message, token: bytes) -> None:
        # 2. The token of a message changes with each lock.
        if not link.presettled:
            if message.token != token:  # the lock ended before the message was sent
                link.credit += 1
                link.delivery_count = (link.delivery_count - 1) & U32
                link.credit_added(self.output.context.clock())
                return
            self._unsettled[self._next_delivery] = (link, token)
        head = self._transfer_head(link, token, settled=link.presettled)
        for piece, more in self._split(encode_message(message)):
            performative = encode.composite(frames.TRANSFER, [*head, encode.boolean(more)])
            self._pieces.append(
                _Piece(link, message, token, performative=performative, payload=piece)
            )
        self._send_pieces()

    def transmit_reply(self, link: Link, payload: bytes, tag: bytes) -> None:
        """Send an answer, settled. Answers are few and do not wait for the window."""
        head = self._transfer_head(link, tag, settled=True)
        for piece, more in self._split(payload):
            self._send_piece(
                encode.composite(frames.TRANSFER, [*head, encode.boolean(more)]), piece
            )

    def _transfer_head(self, link: Link, tag: bytes, *, settled: bool) -> list[bytes]:
        number = self._next_delivery
        self._next_delivery = (number + 1) & U32
        self._extra_frames -= 1  # each piece counts when it is sent
        message_format = encode.uint(0)
        handle, delivery_id = encode.uint(link.handle), encode.uint(number)
        return [handle, delivery_id, encode.binary(tag), message_format, encode.boolean(settled)]

    def _split(self, payload: bytes) -> list[tuple[bytes, bool]]:
        """Cut a payload into pieces, each with the flag whether more follow."""
        step = self._payload_max
        if len(payload) <= step:
            return [(payload, False)]
        starts = range(0, len(payload), step)
        return [(payload[start : start + step], start + step < len(payload)) for start in starts]

    def _send_piece(self, performative: bytes, piece: bytes) -> None:
        self._window -= 1
        self._extra_frames += 1
        self.output.send(self.channel, performative, piece)

    def _send_pieces(self) -> None:
        while self._pieces and self._window > 0:
            piece = self._pieces.popleft()
            self._send_piece(piece.performative, piece.payload)

    def send_unsent(self) -> None:
        """Send what waited for the window or for the socket."""
        self._send_pieces()
        while self._unsent and self._window > 0 and not self.output.blocked:
            self._transmit(*self._unsent.popleft())

    def take_unsent(self, link: Link) -> list[tuple[Message, bytes]]:
        """Take back a link's messages of which nothing was sent, with their lock tokens."""
        messages = [(message, token) for owner, message, token in self._unsent if owner is link]
        self._unsent = deque(entry for entry in self._unsent if entry[0] is not link)
        return messages

    def take_partly_sent(self, link: Link) -> list[tuple[Message, bytes]]:
        """Take back a link's messages that were sent in part, with their lock tokens."""
        messages = {piece.token: piece.message for piece in self._pieces if piece.link is link}
        self._pieces = deque(piece for piece in self._pieces if piece.link is not link)
        return [(message, token) for token, message in messages.items()]
