"""What all connections of a broker share: queues, limits, faults, and the group commit.

The group commit guarantees that a client never gets an acknowledgement of a change that is not
durable yet. During one read of a socket, or one turn of the event loop for other work, the bytes to
send collect in the `Output` of each connection. At its end the journal commits once for all of
them, and only then the bytes leave. The theory of operation is in storage.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.faults import Faults
from devstack.servicebus.tokens import Claim, TokenValidator

_OBJECT_BYTES = 64
"""What Python takes for a piece beside its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what peers may cost the broker. An error explains each refusal.

    Times are seconds. The idle timeout and the wait for the next free session are those of the
    service. ``held_bytes`` is for messages that are not whole yet, and for answers without credit.
    It is more than the largest message of a queue, 100 MB.
    """

    connections: int = 1000
    sessions_per_connection: int = 1024
    links_per_session: int = 1024
    handshake_s: float = 15.0
    idle_s: float = 240.0
    stalled_s: float = 60.0
    write_buffer_bytes: int = 1 << 20
    held_bytes: int = 256 << 20
    session_wait_s: float = 65.0
    session_wait_max_s: float = 600.0


@dataclass(eq=False, kw_only=True)
class Context:
    """The shared state of one broker. ``commit`` makes durable what the queues recorded."""

    namespace: Namespace
    clock: Callable[[], float]
    commit: Callable[[], None]
    tokens: TokenValidator
    limits: Limits

    def __post_init__(self) -> None:
        self.faults = Faults()
        self._outputs: list[Output] = []
        self._held: dict[Holder, int] = {}
        self._held_bytes = 0
        self._flush_planned = self._reading = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def start(self) -> None:
        """Begin to commit, and to sweep queues when they are due."""
        self._loop = asyncio.get_running_loop()
        self.touch()

    def stop(self) -> None:
        """Commit and write once more, and stop the timer."""
        self.flush()
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_at = None

    def discard(self) -> None:
        """Drop all output: it may acknowledge what could not be committed."""
        self._outputs.clear()

    def later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``work`` after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, work)

    def hold(self, link: "Holder", data: bytes) -> None:
        """Count bytes that a link holds because its peer goes no further.

        Above the limit of all connections, the link that began to hold first is given up. Honest
        peers go on within moments.
        """
        size = len(data) + _OBJECT_BYTES
        self._held[link] = self._held.get(link, 0) + size
        self._held_bytes += size
        while self._held_bytes > self.limits.held_bytes:
            next(iter(self._held)).give_up()

    def release(self, link: "Holder") -> None:
        """Count nothing for a link any more."""
        self._held_bytes -= self._held.pop(link, 0)

    def mark(self, output: "Output") -> None:
        """Write this connection's bytes after the next commit."""
        self._outputs.append(output)
        self.touch()

    def touch(self) -> None:
        """Commit and check the timer at the end of this read or turn of the loop."""
        if not self._reading and not self._flush_planned and self._loop is not None:
            self._flush_planned = True
            self._loop.call_soon(self.flush)

    def begin_read(self) -> None:
        """Collect the output of one read; the connection calls `flush` at its end."""
        self._reading = True

    def flush(self) -> None:
        """Commit, then write the output of every marked connection."""
        self._flush_planned = self._reading = False
        # Steps 3 and 4 of storage.py. If the commit fails, the broker discards the outputs.
        self.commit()
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            output.write()
        if self.namespace.due_changed:
            self._set_timer()

    def _set_timer(self) -> None:
        """Set a timer for the next sweep, unless the present timer is early enough."""
        self.namespace.due_changed = False
        due = self.namespace.next_due()
        if due is None or self._loop is None:
            return
        if self._timer_at is not None and self._timer_at <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.later(max(due - self.clock(), 0), self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self.namespace.tick(self.clock())
        self.flush()


class Holder(Protocol):
    """A link that holds pieces of a message, or answers that wait for credit."""

    def give_up(self) -> None:
        """End the link, and release what it holds."""


class ReplyLink(NamedTuple):
    """Sends the answers to requests on ``node``. A request names the link by one of ``names``."""

    node: str
    names: tuple[str | None, ...]
    reply: Callable[[bytes], None]


class Output:
    """The sending side of one connection, and what its sessions and links share.

    While ``blocked`` is set, the sessions keep messages back. ``on_unblocked`` is called when it
    is cleared. There are two reasons for it: asyncio's write buffer is full
    (``blocked_at`` says since when), or more bytes wait for the next commit than the buffer takes
    (``_room`` is negative). wire/connection.py says who writes and who reads the fields.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transport: asyncio.Transport | None = None
        self.claims: list[Claim] = []
        self.reply_links: list[ReplyLink] = []
        self.max_frame_bytes = 512
        self.blocked = False
        self.blocked_at: float | None = None
        self.closing = False
        self.on_unblocked: Callable[[], None] = lambda: None
        self._frames: list[bytes] = []
        self._dropped = False
        self._limit = self._room = context.limits.write_buffer_bytes

    def send(self, channel: int, performative: bytes, payload: bytes = b"") -> None:
        """Send one frame after the next commit."""
        self.send_raw(frames.frame(channel, performative, payload))

    def send_raw(self, data: bytes) -> None:
        """Send an encoded frame or a protocol header after the next commit."""
        if not self._frames:
            self.context.mark(self)
        self._frames.append(data)
        self._room -= len(data)
        if self._room < 0:
            self.blocked = True

    def send_settled(self, channel: int, delivery_id: int, state: bytes, *, receiver: bool) -> None:
        """Send a settled disposition for one delivery. ``receiver`` is the broker's role."""
        fields = [
            encode.boolean(receiver),
            encode.uint(delivery_id),
            encode.NULL,
            encode.TRUE,
            state,
        ]
        self.send(channel, encode.composite(frames.DISPOSITION, fields))

    def drop(self) -> None:
        """Drop the connection after the next commit, without another byte."""
        self._dropped = self.closing = True
        self.context.mark(self)

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self.closing = True
        self.context.mark(self)

    def abort(self) -> None:
        """Drop the connection and its output now."""
        self.closing = True
        self._frames.clear()
        if self.transport is not None:
            self.transport.abort()

    def write(self) -> None:
        """Write the collected frames, or drop the connection."""
        frames_out, self._frames = self._frames, []
        self._room = self._limit
        if self.transport is None:
            return
        if self._dropped:
            self.transport.abort()
            return
        if frames_out:
            self.transport.write(b"".join(frames_out))
        if self.closing:
            self.transport.close()
        elif (
            self.blocked and self.blocked_at is None
        ):  # the write buffer took all bytes of this commit
            self.unblock()

    def unblock(self) -> None:
        """Let the sessions send again."""
        self.blocked = False
        self.blocked_at = None
        self.on_unblocked()
