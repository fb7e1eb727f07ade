"""One TCP connection: protocol headers, SASL, open, and frames to their sessions."""

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

    Its states: header, SASL, header again, open, then frames until a close. Anything else closes
    the connection with an error, and affects no other connection. ``refused`` is the reason to
    close it once it is open. ``ended`` is called when the connection is lost.
    """

    def __init__(
        self, context: Context, *, refused: str, ended: Callable[["AmqpConnection"], None]
    ) -> None:
        self.context = context
        self.output = Output(context)
        self.output.on_unblocked = self._send_unsent
        self.opened = False
        self.sessions: dict[int, AmqpSession] = {}
        self._refused = refused
        self._ended = ended
        self._reader = frames.FrameReader(expects_header=True)
        self._last_heard = self._began = context.clock()
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
        self.output.transport = None
        self.output.on_unblocked = lambda: None  # without it, output and connection form a cycle
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        now = self.context.clock()
        self._revoke_credit()
        for session in self.sessions.values():
            session.close(now)
        self.sessions.clear()
        self._ended(self)
        self.context.touch()

    def eof_received(self) -> None:
        """Drop the connection: AMQP has no half-closed connections."""
        self.output.abort()

    def pause_writing(self) -> None:
        """Stop sending to a peer that reads too slowly, and stop reading from it."""
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
        """Process what the peer sent. Its errors close only this connection."""
        now = self._last_heard = self.context.clock()
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
        except AmqpError as error:
            self.fail(error.condition, error.description)
        except Exception:  # noqa: BLE001 (one peer must not stop the broker)
            _log.exception("a frame could not be processed; its connection is closed")
            self.fail("amqp:internal-error", "the broker failed on this frame; see its log")
        self.context.flush()

    def _on_header(self, header: bytes) -> None:
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
            if session is not None:  # pyamqp detaches after an end
                self._on_session_frame(session, code, body=body, position=position, now=now)
            return
        fields, _ = decode.fields(body, position)
        match code:
            case frames.OPEN:
                self._on_open(frames.padded(fields, 10))
            case frames.BEGIN:
                self._on_begin(channel, frames.padded(fields, 8))
            case frames.END:
                ended = self.sessions.pop(channel, None)
                if ended is not None:
                    ended.close(now)
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
        asked, idle_ms = fields[2], fields[4]
        biggest = asked if isinstance(asked, int) else _PEER_FRAME_MAX
        self.output.max_frame_bytes = max(_SMALLEST_FRAME, min(biggest, _PEER_FRAME_MAX))
        self.output.send(0, performatives.open_answer(self.context.limits))
        if self._refused:
            self.fail("amqp:resource-limit-exceeded", self._refused)
        elif isinstance(idle_ms, int) and idle_ms > 0:
            self._send_heartbeats(max(idle_ms / 2000, 0.05))

    def _send_heartbeats(self, every_s: float) -> None:
        if self.output.transport is not None:
            self.output.send_raw(frames.EMPTY_FRAME)
            self._heartbeat = self.context.later(every_s, lambda: self._send_heartbeats(every_s))

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
        # All first: a message that one session releases must not go to another one.
        for session in self.sessions.values():
            session.revoke_credit()

    def _send_unsent(self) -> None:
        for session in self.sessions.values():
            session.send_unsent()

    def links(self) -> list[Link]:
        """Give the links of every session."""
        return [link for session in self.sessions.values() for link in session.links.values()]

    def check_deadlines(self, now: float) -> None:
        """End a connection that is idle, stalled or not opened in time."""
        limits, blocked_at = self.context.limits, self.output.blocked_at
        if self._closing_at is not None:
            if now - self._closing_at > limits.stalled_s:
                self.output.abort()  # the peer reads nothing, not even the close
        elif blocked_at is not None and now - blocked_at > limits.stalled_s:
            _log.warning("a peer has read nothing for %g s; it is dropped", limits.stalled_s)
            self.output.drop()
        elif not self.opened and now - self._began > limits.handshake_s:
            self.output.drop()
        elif self.opened and now - self._last_heard > limits.idle_s:
            self.fail(
                "amqp:connection:forced",
                f"The connection was inactive for more than the allowed {limits.idle_s:g} seconds",
            )
