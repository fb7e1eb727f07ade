"""One TCP connection: protocol headers, SASL, open, and frames to their sessions.

Theory of operation. The numbers stand again at the steps in the code.

1. *Open.* A client sends the SASL header, negotiates, sends the AMQP header and opens. It may also
   begin with the AMQP header. The broker accepts any SASL mechanism; rights come later, with
   tokens. A client of another protocol is answered and closed. A connection above the limit is
   refused only after its open, because before that there is no frame that could carry the reason.
2. *Read.* asyncio calls `data_received` with the bytes of one read. Each whole frame is carried out
   at once and to its end, without an await. The answers collect in the `Output` of the connection.
   Messages that other connections get because of this read collect in theirs. At the end of the
   read `Context.flush` commits the changes, and then writes every output. So no client learns of a
   change that a crash could undo (storage.py).
3. *Error.* A frame that is not correct AMQP closes this connection with an error, and no other.
   What the earlier frames of the read did is complete. It is committed, and acknowledged before the
   close.
4. *Slow peer.* A peer that does not read would make the broker collect bytes without end. When the
   write buffer is full, the output is ``blocked``: the sessions keep messages back, and the broker
   reads nothing more from this peer. When the peer has read, both continue.
5. *Silent peer.* The broker sends an empty frame twice in the peer's idle timeout. It ends a
   connection that was idle too long, that stalled, or that did not open in time.
6. *End.* However a connection ends, first all of its links lose their credit, and then they end. In
   another order a message that one link gives back could go to the next link, which is about to end
   too. Messages that were not sent whole are ready again at once (session.py, step 4). So are the
   Service Bus sessions that the peer owned. The lock of a delivered message goes on until its end,
   except in a Service Bus session: its locks end with the session.

What a client knows if the connection breaks: a sender without an acknowledgement does not know
whether its message arrived. It sends again, and may send twice. A receiver without the echo does
not know whether its message was completed. If the completion was carried out, the message does not
come again. If not, it comes again when its lock ends (in a session, at once).

Who writes and who reads: asyncio calls everything here on one event loop (bytes, timers, lost
connections), so no two functions run at the same time. The fields of `Output`, which the whole
connection shares:

- ``transport``: set when the connection is made, None when it is lost. `Output` writes to it.
- ``max_frame_bytes``: set by the open, read by each new session.
- ``blocked``: set by `Output.send_raw` and `pause_writing`, cleared by `Output.unblock`. Sessions
  read it.
- ``blocked_at``: set by `pause_writing`, cleared by `Output.unblock`. `check_deadlines` reads it.
- ``closing``: set when the broker ends the connection. It carries out no frame after that.
- ``on_unblocked``: set by the connection, called by `Output.unblock`.
- ``claims``: written by the requests on ``$cbs``, read when a link is attached.
- ``reply_links``: reply links add and remove themselves, request links read it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.core.errors import BrokerError
from devstack.servicebus.wire import performatives
from devstack.servicebus.wire.context import Context, Output
from devstack.servicebus.wire.links import make_link
from devstack.servicebus.wire.session import AmqpSession, Link

_log = logging.getLogger("devstack.servicebus")
_SMALLEST_FRAME = 512
_PEER_FRAME_MAX = 1 << 20


class AmqpConnection(asyncio.Protocol):
    """The broker's side of one connection.

    ``refusal`` is the reason to close it once it is open, or empty. ``on_lost`` is called when the
    connection is lost.
    """

    def __init__(
        self, context: Context, *, refusal: str, on_lost: Callable[["AmqpConnection"], None]
    ) -> None:
        self.context = context
        self.output = Output(context)
        self.output.on_unblocked = self._send_unsent
        self.opened = False
        self.sessions: dict[int, AmqpSession] = {}
        self._refusal = refusal
        self._on_lost = on_lost
        self._reader = frames.FrameReader(expects_header=True)
        self._heard_at = self._began_at = context.clock()
        self._closing_at: float | None = None
        self._heartbeat: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and set its limits."""
        self.output.transport = cast("asyncio.Transport", transport)
        self.output.transport.set_write_buffer_limits(self.context.limits.write_buffer_bytes)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Release what the peer held: sessions at once; message locks end by themselves."""
        # 6.
        self.output.transport = None
        self.output.on_unblocked = lambda: None  # the callback referred to this connection: a cycle
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        now = self.context.clock()
        self._revoke_credit()
        for session in self.sessions.values():
            session.close(now)
        self.sessions.clear()
        self._on_lost(self)
        self.context.touch()

    def eof_received(self) -> None:
        """Drop the connection: AMQP has no half-closed connections."""
        self.output.abort()

    def pause_writing(self) -> None:
        """Stop sending to a peer that reads too slowly, and stop reading from it."""
        # 4.
        self.output.blocked = True
        self.output.blocked_at = self.context.clock()
        if self.output.transport is not None:
            self.output.transport.pause_reading()

    def resume_writing(self) -> None:
        """Send again: the peer has read."""
        if self.output.transport is not None and not self.output.closing:
            self.output.transport.resume_reading()
        self.output.unblock()

    def data_received(self, data: bytes) -> None:
        """Carry out what the peer sent. Its errors close only this connection."""
        # 2. Each output collects from here to the flush, which commits first.
        now = self._heard_at = self.context.clock()
        self.context.begin_read()
        self._reader.feed(data)
        try:
            for frame_type, channel, body in self._reader.frames():
                if self.output.closing:
                    break
                if frame_type == frames.PROTOCOL_HEADER:
                    self._on_header(body)
                elif frame_type == frames.SASL_FRAME:
                    self._on_sasl(body)
                elif body:
                    self._on_frame(channel, body, now)
        except AmqpError as error:  # 3.
            self.fail(error.condition, error.description)
        except Exception:  # noqa: BLE001 (one peer must not stop the broker)
            _log.exception("a frame could not be processed; its connection is closed")
            self.fail("amqp:internal-error", "the broker failed on this frame; see its log")
        self.context.flush()

    def _on_header(self, header: bytes) -> None:
        # 1.
        if header == frames.SASL_HEADER:
            self.output.send_raw(header + performatives.SASL_OFFER)
        elif header == frames.AMQP_HEADER:
            self.output.send_raw(header)
        else:
            _log.warning("a connection was refused: %s", performatives.unknown_protocol(header))
            self.output.send_raw(frames.AMQP_HEADER)
            self._close()

    def _on_sasl(self, body: bytes) -> None:
        code, position = frames.performative(body)
        if code != frames.SASL_INIT or self.opened:
            raise AmqpError("amqp:not-allowed", "a SASL frame is not expected here")
        decode.fields(body, position)
        self.output.send_raw(performatives.SASL_ACCEPTED)
        self._reader.expects_header = True

    def _on_frame(self, channel: int, body: bytes, now: float) -> None:
        code, position = frames.performative(body)
        if not self.opened and code != frames.OPEN:
            raise AmqpError("amqp:not-allowed", "the first frame must be an open")
        if frames.ATTACH <= code <= frames.DETACH:
            session = self.sessions.get(channel)
            if session is not None:  # pyamqp sends a detach after its end: ignore it
                self._on_session_frame(session, code, body=body, position=position, now=now)
            return
        fields, _ = decode.fields(body, position)
        match code:
            case frames.OPEN:
                self._on_open(frames.padded(fields, 10))
            case frames.BEGIN:
                self._on_begin(channel, frames.padded(fields, 8))
            case frames.END:
                session = self.sessions.pop(channel, None)
                if session is not None:
                    session.close(now)
                    self.output.send(channel, encode.composite(frames.END, []))
            case frames.CLOSE:
                self.output.send(0, encode.composite(frames.CLOSE, []))
                self._close()
            case _:
                raise AmqpError("amqp:not-implemented", f"performative 0x{code:02x} is unknown")

    def _on_session_frame(
        self, session: AmqpSession, code: int, body: bytes, position: int, now: float
    ) -> None:
        match code:
            case frames.TRANSFER:
                session.on_transfer(body, position, now)
            case frames.DISPOSITION:
                session.on_disposition(body, position, now)
            case frames.FLOW:
                session.on_flow(decode.fields(body, position)[0], now)
            case frames.ATTACH:
                self._on_attach(session, body, position, now)
            case _:
                session.on_detach(decode.fields(body, position)[0], now)

    def _on_open(self, fields: list[object]) -> None:
        if self.opened:
            raise AmqpError("amqp:illegal-state", "this connection is open already")
        self.opened = True
        frame_max, idle_ms = fields[2], fields[4]
        if not isinstance(frame_max, int):
            frame_max = _PEER_FRAME_MAX
        self.output.max_frame_bytes = max(_SMALLEST_FRAME, min(frame_max, _PEER_FRAME_MAX))
        self.output.send(0, performatives.open_answer(self.context.limits))
        if self._refusal:  # 1.
            self.fail("amqp:resource-limit-exceeded", self._refusal)
        elif isinstance(idle_ms, int) and idle_ms > 0:
            self._send_heartbeats(max(idle_ms / 2000, 0.05))

    def _send_heartbeats(self, interval_s: float) -> None:
        if self.output.transport is not None:  # 5.
            self.output.send_raw(frames.EMPTY_FRAME)
            self._heartbeat = self.context.later(
                interval_s, lambda: self._send_heartbeats(interval_s)
            )

    def _on_begin(self, channel: int, fields: list[object]) -> None:
        limits = self.context.limits
        limit = limits.sessions_per_connection
        if channel in self.sessions:
            raise AmqpError("amqp:illegal-state", f"channel {channel} has a session already")
        if len(self.sessions) >= limit:
            raise AmqpError("amqp:resource-limit-exceeded", f"more than {limit} sessions")
        session = self.sessions[channel] = AmqpSession(self.output, channel, fields)
        self.output.send(
            channel, performatives.begin_answer(channel, session.next_outgoing, limits)
        )

    def _on_attach(self, session: AmqpSession, body: bytes, position: int, now: float) -> None:
        """Open a link, or refuse it: attach with a null terminus, then detach with the error."""
        attach = performatives.read_attach(body, position)
        link = None
        try:
            link = session.links[attach.handle] = make_link(session, attach, now)
            link.open(now)
        except BrokerError as error:
            if link is None:
                link = session.links[attach.handle] = Link(session, attach, None)
            link.detach(error.condition, error.description)

    def fail(self, condition: str, description: str) -> None:
        """Close the connection with an error."""
        if not self.output.closing:
            error = frames.error(condition, description)
            self.output.send(0, encode.composite(frames.CLOSE, [error]))
            self._close()

    def _close(self) -> None:
        self._revoke_credit()
        self._closing_at = self.context.clock()
        self.output.close()

    def _revoke_credit(self) -> None:
        # 6. All sessions first: a message that one session gives back must not go to another.
        for session in self.sessions.values():
            session.revoke_credit()

    def _send_unsent(self) -> None:
        for session in self.sessions.values():
            session.send_unsent()

    def links(self) -> list[Link]:
        """Return the links of every session."""
        return [link for session in self.sessions.values() for link in session.links.values()]

    def check_deadlines(self, now: float) -> None:
        """End a connection that is idle, stalled or not opened in time."""
        # 5.
        limits, blocked_at = self.context.limits, self.output.blocked_at
        if self._closing_at is not None:
            if now - self._closing_at > limits.stalled_s:
                self.output.abort()  # the peer reads nothing, not even the close
        elif blocked_at is not None and now - blocked_at > limits.stalled_s:
            _log.warning("a peer has read nothing for %g s; it is dropped", limits.stalled_s)
            self.output.drop()
        elif not self.opened and now - self._began_at > limits.handshake_s:
            self.output.drop()
        elif self.opened and now - self._heard_at > limits.idle_s:
            self.fail(
                "amqp:connection:forced",
                f"The connection was inactive for more than the allowed {limits.idle_s:g} seconds",
            )
