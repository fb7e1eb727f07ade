"""What connections, sessions and links share: the queues, the clock, the rules of the house."""

from collections.abc import Callable
from typing import Protocol

from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.faults import Faults
from devstack.servicebus.limits import Limits
from devstack.servicebus.tokens import Claim, Gate
from devstack.servicebus.wire.timers import Timer


class Outgoing(Protocol):
    """Something with bytes to write once what they acknowledge is safe."""

    def write_out(self) -> None:
        """Write what has gathered."""


class Hub(Protocol):
    """The server, as its connections see it."""

    namespace: Namespace
    faults: Faults
    gate: Gate
    limits: Limits
    clock: Callable[[], float]
    in_read: bool

    def mark(self, connection: Outgoing) -> None:
        """Write this connection's bytes after the next commit, in this turn of the loop."""

    def touch(self) -> None:
        """Commit and look at the timers in this turn of the loop, whether or not bytes go out."""

    def flush(self) -> None:
        """Commit and write: a connection has worked on what it read."""

    def later(self, seconds: float, work: Callable[[], None]) -> Timer:
        """Do ``work`` after some seconds."""


class Wire(Protocol):
    """A connection, as its sessions and links see it."""

    hub: Hub
    paused: bool
    claims: list[Claim]
    max_frame_bytes: int
    replies: list["ReplyLink"]

    def send(self, channel: int, performative: bytes, payload: bytes = b"") -> None:
        """Send one frame."""

    def send_frame(self, frame: bytes) -> None:
        """Send one frame that is built already."""

    def cut(self) -> None:
        """Drop the connection without another byte, after the next commit."""


class ReplyLink(Protocol):
    """A link on which answers to requests go out."""

    name: str
    node: str
    target_address: str | None

    def reply(self, payload: bytes) -> None:
        """Send one answer, when the peer has given credit."""
