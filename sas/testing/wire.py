"""An event loop in virtual time, and the model of ``HttpService`` connections to a service.

What functions do with asyncio (sleeps, time limits, calls by ``HttpService``) takes virtual time.
Work for a thread is done at once, in the only thread there is. Nothing leaves the process: a
function that connects in another way gets ``NotSimulatedError``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from sas.testing.clock import START, VirtualClock


class NotSimulatedError(RuntimeError):
    """A function did what a simulation cannot play. The text says what to do."""

    def __init__(self, action: str) -> None:
        super().__init__(
            f"{action}: a simulation has no network: call services by HttpService, or replace that "
            "client in your test (monkeypatch)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request by ``HttpService``. The path is the part after the base address."""

    method: str
    path: str
    key: str
    body: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer. It has those members of aiohttp's answer that ``HttpService`` reads."""

    method: str
    status: int
    body: bytes
    reason: str = "Simulated"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Self:
        """Its own stream."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the whole body."""
        yield self.body


Serve = Callable[[HttpRequest], Awaitable[HttpAnswer | None]]
"""Answers a request; None cuts the connection."""


@dataclass(frozen=True, slots=True)
class Session:
    """The session with which ``HttpService`` sends its requests."""

    base_url: str
    attempt_seconds: float
    serve: Serve

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], json: Any, **_how: Any
    ) -> AsyncIterator[HttpAnswer]:
        """Send a request, and wait for its answer as long as an attempt may take."""
        path = url.removeprefix(self.base_url)
        request = HttpRequest(method=method, path=path, key=headers["Idempotency-Key"], body=json)
        served = asyncio.ensure_future(self.serve(request))  # it goes on without its client
        async with asyncio.timeout(self.attempt_seconds):
            answer = await asyncio.shield(served)
        if answer is None:
            raise ConnectionResetError("the connection was cut")
        yield answer


def problem(method: str, status: int, kind: str, detail: str = "") -> HttpAnswer:
    """Return an answer that is a problem (RFC 9457)."""
    return HttpAnswer(
        method=method, status=status, body=json.dumps({"type": kind, "detail": detail}).encode()
    )


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop. After ``follow`` its time is that of a virtual clock."""

    _clock: VirtualClock | None = None

    def follow(self, clock: VirtualClock) -> None:
        """Take the time from this clock."""
        self._clock = clock

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
        timer = _Timer(when, callback, args, loop=self, context=context)
        assert self._clock is not None  # noqa: S101  the simulation begins with it
        timer.wake = self._clock.call_later(
            max(when - self.time(), 0.0), lambda: None if timer.cancelled() else timer.run()
        )
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, _Timer):
            handle.wake.cancel()

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, work: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do the work at once."""
        ended = self.create_future()
        try:
            ended.set_result(work(*args))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  as a thread hands it over
            ended.set_exception(error)
        return ended

    def _refuse(self, *_given: Any, **_how: Any) -> NoReturn:
        raise NotSimulatedError("a function opens a connection of its own")

    add_reader = add_writer = _refuse  # type: ignore[assignment]
    getaddrinfo = sock_connect = create_connection = _refuse


class _Timer(asyncio.TimerHandle):
    """A call at a virtual time."""

    __slots__ = ("wake",)
    wake: asyncio.Future[None]

    def run(self) -> None:
        """Make the call."""
        self._run()
