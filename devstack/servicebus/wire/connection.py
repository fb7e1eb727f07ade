"""One TCP connection: headers, SASL, open, and frames to their sessions."""

import logging
from collections.abc import Callable

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.shapes import DISPOSITION_HEAD, TRANSFER_HEAD
from devstack.servicebus.tokens import Claim
from devstack.servicebus.wire.handshake import begin_answer, open_answer, sasl_offer, sasl_outcome
from devstack.servicebus.wire.hub import Hub, ReplyLink
from devstack.servicebus.wire.session import AmqpSession
from devstack.servicebus.wire.strangers import stranger
from devstack.servicebus.wire.stream import Stream
from devstack.servicebus.wire.timers import Timer

_log = logging.getLogger("devstack.servicebus")
_SMALLEST_FRAME = 512
_PEER_FRAME_MAX = 1 << 20


class AmqpConnection:
    """The broker's side of one connection.

    States: header, sasl, header again, open, then frames until a close. Anything else closes
    the connection with the error, and touches no other.
    """

    def __init__(
        self, hub: Hub, stream: Stream, *, refused: str = "", ended: Callable[[], None]
    ) -> None:
        self.hub = hub
        self.paused = False
        self.claims: list[Claim] = []
        self.replies: list[ReplyLink] = []
        self.max_frame_bytes = _SMALLEST_FRAME
        self.opened = False
        self.last_heard = self.began = hub.clock()
        self.paused_at: float | None = None
        self.closing_at: float | None = None
        self.sessions: dict[int, AmqpSession] = {}
        self._refused = refused
        self._ended = ended
        self._reader = frames.FrameReader(expects_header=True)
        self._out: list[bytes] = []
        self._limit = self._room = hub.limits.write_buffer_bytes
        self._stream: Stream | None = stream
        self._cut = self._closing = False
        self._beat: Timer | None = None

    # -- the stream calls these -----------------------------------------------------------

    def lost(self) -> None:
        """Free what the peer held: sessions at once; message locks end by themselves."""
        self._stream = None
        if self._beat is not None:
            self._beat.cancel()
        now = self.hub.clock()
        for session in self.sessions.values():
            session.starve()  # what one gives back is not for another of them
        for session in self.sessions.values():
            session.close(now)
        self.sessions.clear()
        self._ended()
        self.hub.touch()

    def stalled(self) -> None:
        """The peer reads too slowly: send it nothing more, and read no more from it."""
        self.paused = True
        self.paused_at = self.hub.clock()
        if self._stream is not None:
            self._stream.pause_reading()

    def drained(self) -> None:
        """The peer has caught up."""
        self.paused_at = None
        if self._stream is not None and not self._closing:
            self._stream.resume_reading()
        self._go_on()

    def received(self, data: bytes) -> None:
        """Work on what the peer sent. Its mistakes close this connection and nothing else."""
        hub = self.hub
        hub.in_read = True
        now = self.last_heard = hub.clock()
        try:
            for frame_type, channel, body in self._reader.take(data):
                if self._closing:
                    break
                if frame_type:
                    self._on_opening(frame_type, body)
                elif body:
                    self._on_frame(channel, body, now)
        except AmqpError as error:
            self.fail(error.condition, error.description)
        except Exception:  # noqa: BLE001 (one peer must not take the broker down)
            _log.exception("a frame could not be worked on; its connection is closed")
            self.fail("amqp:internal-error", "the broker failed on this frame; see its log")
        hub.flush()

    # -- bytes to frames ------------------------------------------------------------------

    def _on_opening(self, frame_type: int, body: bytes) -> None:
        if frame_type == frames.SASL_FRAME:
            self._on_sasl(body)
        else:
            self._on_header(body)

    def _on_header(self, header: bytes) -> None:
        if header == frames.SASL_HEADER:
            self.send_frame(header + sasl_offer())
        elif header == frames.AMQP_HEADER:
            self.send_frame(header)
        else:
            _log.warning("a peer was turned away: %s", stranger(header))
            self.send_frame(frames.AMQP_HEADER)
            self._finish()

    def _on_sasl(self, body: bytes) -> None:
        code, _ = frames.performative(body)
        if code != frames.SASL_INIT or self.opened:
            raise AmqpError("amqp:not-allowed", "a SASL frame that is not expected here")
        self.send_frame(sasl_outcome())
        self._reader.expects_header = True

    def _on_frame(self, channel: int, body: bytes, now: float) -> None:
        session, head = self.sessions.get(channel), body[:3]
        if session is not None and head == TRANSFER_HEAD:
            session.on_transfer(body, 3, now)
        elif session is not None and head == DISPOSITION_HEAD:
            session.on_disposition(body, 3, now)
        else:
            self._on_other(channel, body, now)

    def _on_other(self, channel: int, body: bytes, now: float) -> None:
        code, position = frames.performative(body)
        if not self.opened and code != frames.OPEN:
            raise AmqpError("amqp:not-allowed", "the first frame must be an open")
        session = self.sessions.get(channel)
        if frames.ATTACH <= code <= frames.DETACH:
            if session is not None:
                session.on_frame(code, body, position, now)
            return  # on a channel that is not open it is ignored: pyamqp detaches after an end
        fields, _ = decode.fields(body, position)
        match code:
            case frames.OPEN:
                self._on_open(frames.padded(fields, 10))
            case frames.BEGIN:
                self._on_begin(channel, frames.padded(fields, 8))
            case frames.END:
                self._on_end(channel, now)
            case frames.CLOSE:
                self.send(0, encode.composite(frames.CLOSE, []))
                self._finish()
            case _:
                raise AmqpError("amqp:not-implemented", f"performative 0x{code:02x} is unknown")

    def _on_open(self, fields: list[object]) -> None:
        if self.opened:
            raise AmqpError("amqp:illegal-state", "this connection is open already")
        self.opened = True
        asked, idle_ms = fields[2], fields[4]
        biggest = asked if isinstance(asked, int) else _PEER_FRAME_MAX
        self.max_frame_bytes = max(_SMALLEST_FRAME, min(biggest, _PEER_FRAME_MAX))
        self.send(0, open_answer(self.hub.limits))
        if self._refused:
            self.fail("amqp:resource-limit-exceeded", self._refused)
        elif isinstance(idle_ms, int) and idle_ms > 0:
            self._keep_beating(max(idle_ms / 2000, 0.05))

    def _on_begin(self, channel: int, fields: list[object]) -> None:
        limit = self.hub.limits.sessions_per_connection
        if channel in self.sessions:
            raise AmqpError("amqp:illegal-state", f"channel {channel} has a session already")
        if len(self.sessions) >= limit:
            raise AmqpError("amqp:resource-limit-exceeded", f"more than {limit} sessions")
        session = self.sessions[channel] = AmqpSession(self, channel, fields)
        self.send(channel, begin_answer(channel, session.next_outgoing, self.hub.limits))

    def _on_end(self, channel: int, now: float) -> None:
        session = self.sessions.pop(channel, None)
        if session is not None:
            session.close(now)
            self.send(channel, encode.composite(frames.END, []))

    # -- frames to bytes ------------------------------------------------------------------

    def send(self, channel: int, performative: bytes, payload: bytes = b"") -> None:
        """Send one frame, after the next commit."""
        self.send_frame(frames.frame(channel, performative, payload))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that is built already, after the next commit."""
        if not self._out:
            self.hub.mark(self)
        self._out.append(frame)
        self._room -= len(frame)
        if self._room < 0:
            self.paused = True

    def write_out(self) -> None:
        """Write what has gathered since the last commit, or cut the connection."""
        out, self._out = self._out, []
        self._room = self._limit
        if self._stream is None:
            return
        if self._cut:
            self._stream.abort()
            return
        if out:
            self._stream.write(out[0] if len(out) == 1 else b"".join(out))
        if self._closing:
            self._stream.close()
        elif self.paused and self.paused_at is None:
            self._go_on()

    def _go_on(self) -> None:
        self.paused = False
        for session in self.sessions.values():
            session.send_unsent()

    def _keep_beating(self, seconds: float) -> None:
        if self._stream is not None:
            self.send_frame(frames.EMPTY_FRAME)
            self._beat = self.hub.later(seconds, lambda: self._keep_beating(seconds))

    def fail(self, condition: str, description: str) -> None:
        """Close the connection with an error."""
        if not self._closing:
            error = frames.error(condition, description)
            self.send(0, encode.composite(frames.CLOSE, [error]))
            self._finish()

    def _finish(self) -> None:
        for session in self.sessions.values():
            session.starve()
        self.closing_at = self.hub.clock()
        self._closing = True
        self.hub.mark(self)

    def abort(self) -> None:
        """Drop the connection now, with all that was to be written."""
        self._cut = self._closing = True
        self._out.clear()
        if self._stream is not None:
            self._stream.abort()

    def cut(self) -> None:
        """Drop the connection without another byte, after the next commit."""
        self._cut = self._closing = True
        self.hub.mark(self)
