"""An event loop for the agents of an adopter: its time is virtual, its connections end in memory.

What agents do with asyncio (sleeps, time limits, HTTP by aiohttp or by any client that connects
through the event loop) takes virtual time and reaches a model service. Nothing leaves the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NoReturn

from sas.testing.clock import START, VirtualClock

_NOWHERE = "192.0.2.1"
"""The address of every host: it is reserved for documentation (RFC 5737)."""


class NotSimulatedError(RuntimeError):
    """An agent did what a simulation cannot play. The text says what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a simulation plays async agents whose HTTP calls go through HttpService or "
            "aiohttp; leave --agents own out for others"
        )


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request. The names of its headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status and a JSON text, and how many seconds the client should wait."""

    status: int
    body: bytes
    retry_after: int | None = None

    def encoded(self) -> bytes:
        """Return the bytes on the wire."""
        kind = "application/json" if self.status < 400 else "application/problem+json"
        again = "" if self.retry_after is None else f"Retry-After: {self.retry_after}\r\n"
        head = (
            f"HTTP/1.1 {self.status} Simulated\r\nContent-Type: {kind}\r\n{again}"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + self.body


Serve = Callable[[HttpRequest], Awaitable[HttpAnswer | None]]
"""Answers a request; None cuts the connection."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time once it is told to ``follow`` a clock."""

    _clock: VirtualClock | None = None
    _serve: Serve | None = None

    def follow(self, clock: VirtualClock, serve: Serve) -> None:
        """Take the time from this clock, and connect every client to this service."""
        self._clock, self._serve = clock, serve

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return (self._clock.now() - START).total_seconds() if self._clock else 0.0

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a virtual time."""
        timer = _Timer(when, callback, args, self, context)
        assert self._clock is not None  # noqa: S101  the simulation begins with it
        timer.wake = self._clock.call_later(
            max(when - self.time(), 0.0), lambda: None if timer.cancelled() else timer.run()
        )
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, _Timer):
            handle.wake.cancel()

    async def getaddrinfo(  # type: ignore[override]
        self, _host: Any, port: Any, **_how: Any
    ) -> list[Any]:
        """Find every host."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (_NOWHERE, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect to nothing: ``create_connection`` takes the socket's place."""

    async def create_connection(
        self, protocol_factory: Callable[[], Any], *_where: Any, sock: Any = None, **_how: Any
    ) -> tuple[Any, Any]:
        """Connect a client to the model service. TLS is left out."""
        assert self._serve is not None  # noqa: S101  the simulation begins with it
        if sock is not None:
            sock.close()
        protocol = protocol_factory()
        wire = _Wire(self, protocol, self._serve)
        protocol.connection_made(wire)
        return wire, protocol

    def add_reader(self, *_given: Any) -> NoReturn:  # type: ignore[override]
        """Refuse."""
        raise NotSimulatedError("it reads a socket or a file of its own")

    def add_writer(self, *_given: Any) -> NoReturn:  # type: ignore[override]
        """Refuse."""
        raise NotSimulatedError("it writes to a socket or a file of its own")

    def run_in_executor(self, *_given: Any) -> NoReturn:  # type: ignore[override]
        """Refuse."""
        raise NotSimulatedError("it runs in a thread")


class _Timer(asyncio.TimerHandle):
    """A call at a virtual time."""

    __slots__ = ("wake",)
    wake: asyncio.Future[None]

    def run(self) -> None:
        """Make the call."""
        self._run()


class _Wire(asyncio.Transport):
    """The client's end of a connection. It carries one request and its answer."""

    def __init__(self, loop: SimulatedLoop, protocol: Any, serve: Serve) -> None:
        super().__init__()
        self._loop, self._protocol, self._serve = loop, protocol, serve
        self._sent = bytearray()
        self._call: asyncio.Task[None] | None = None
        self._closed = False

    def write(self, data: Any) -> None:
        """Send a part of a request. The context of the last part goes with it."""
        self._sent += data
        if self._call is None and (request := _request(bytes(self._sent))) is not None:
            self._call = self._loop.create_task(self._answered(request))

    async def _answered(self, request: HttpRequest) -> None:
        answer = await self._serve(request)
        if self._closed:
            return
        if answer is None:
            self._end(ConnectionResetError("the connection was cut"))
        else:
            self._protocol.data_received(answer.encoded())
            self._end(None)

    def _end(self, why: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, why)

    def close(self) -> None:
        """Close. What was asked for goes on."""
        self._end(None)

    def abort(self) -> None:
        """Close."""
        self._end(None)

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self._closed

    def get_protocol(self) -> Any:
        """Return what receives the answer."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Set what receives the answer."""
        self._protocol = protocol

    def pause_reading(self) -> None:
        """Do nothing: an answer comes whole."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        """Return that all is sent."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""


def _request(sent: bytes) -> HttpRequest | None:
    """Return the request once it is whole. A body in chunks stays in chunks."""
    head, found, body = sent.partition(b"\r\n\r\n")
    if not found:
        if sent.startswith(b"\x16"):
            raise NotSimulatedError("its client does TLS by itself")
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _version = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    whole = (
        body.endswith(b"0\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "")
        else len(body) >= int(headers.get("content-length", "0"))
    )
    return HttpRequest(method, target, headers, body) if whole else None
