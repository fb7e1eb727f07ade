"""What an adopter writes: agents over remote services. Their business is in ``business.py``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sas.domain.workflow import TIME_ALLOWED_MAX


class RefusedError(Exception):
    """A remote service refused for good, and certainly without effect.

    ``code`` is for programs, the message for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TransientError(Exception):
    """A remote service failed in a way that may pass; whether it had an effect is unknown.

    ``retry_after`` is what the service asked for, if it did; ``kind`` a short code, such as
    http-503, for metrics and logs: they never carry the message, which may quote the order.
    ``answered`` says that the service is well and it is this one call that has to wait (another
    with its key is being worked on, for instance): its circuit breaker takes that as an answer.
    """

    def __init__(
        self,
        message: str,
        retry_after: timedelta | None = None,
        kind: str = "transient",
        *,
        answered: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.kind = kind
        self.answered = answered


@dataclass(frozen=True, slots=True)
class StillRunning:
    """Instead of a result: the remote work goes on; call again with the same key in a while.

    In between nothing is held, no message and no function: a step may take hours. ``note`` says
    how far it is, for people (200 characters are kept).

    Raises:
        ValueError: ``check_after`` is none, or more than ``TIME_ALLOWED_MAX``.
    """

    check_after: timedelta
    note: str = ""

    def __post_init__(self) -> None:
        _check_span("check_after", self.check_after)


@dataclass(frozen=True, slots=True)
class AwaitCallback:
    """Instead of a result: an event outside ends the step, by a callback ``within`` this time.

    Past it the step has timed out like any other, and is called again with the same key.

    Raises:
        ValueError: ``within`` is none, or more than ``TIME_ALLOWED_MAX``.
    """

    within: timedelta
    note: str = ""

    def __post_init__(self) -> None:
        _check_span("within", self.within)


Later = StillRunning | AwaitCallback
"""What an agent returns of a step that has not ended yet."""


def _check_span(name: str, span: timedelta) -> None:
    if not timedelta(0) < span <= TIME_ALLOWED_MAX:
        raise ValueError(f"{name}={span}: give more than no time, and at most {TIME_ALLOWED_MAX}")


@dataclass(frozen=True, slots=True)
class Callback:
    """What an event outside needs to end a step: hand it to whoever will know.

    ``token`` allows just that until ``expires``; ``url`` is where it can be POSTed to, the token
    in it, for those who take nothing but an address (None where SAS_CALLBACK_URL is not set).
    """

    token: str = field(repr=False)
    url: str | None = field(repr=False)
    expires: datetime


class CallbacksOffError(RuntimeError):
    """A callback was asked for, and no key is set to make its token with."""

    def __init__(self) -> None:
        super().__init__(
            "the setting SAS_CALLBACK_KEY is missing: give a secret of 32 characters or more, "
            "for no callback can be given out or believed without it"
        )


def _no_callbacks(_within: timedelta) -> Callback:
    raise CallbacksOffError


async def _no_beats(_note: str) -> None:
    """Nobody listens: a call made by a test."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent is given: one remote action to do or to undo.

    ``order`` is the order's payload, ``results`` the results of the steps before it by
    name, ``key`` the idempotency key (the same for do, undo and every retry), ``own_result``
    what the step's do returned, for its undo. ``secrets`` are the texts of the order's secret
    fields: refusals are kept free of them, and so should your log lines be. ``callbacks``
    and ``beats`` are behind ``callback`` and ``heartbeat``.
    """

    order_id: str
    step: str
    key: str
    complete_by: datetime
    order: Any = field(repr=False)
    results: Mapping[str, Any] = field(repr=False)
    own_result: Any = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    callbacks: Callable[[timedelta], Callback] = field(
        default=_no_callbacks, repr=False, compare=False
    )

    beats: Callable[[str], Awaitable[None]] = field(default=_no_beats, repr=False, compare=False)

    async def heartbeat(self, note: str = "") -> None:
        """Say that this call goes on, so that it is given its time allowed once more.

        For calls of minutes: what takes longer returns ``StillRunning`` instead. Call it as
        often as you like (in a loop over parts, say): few are passed on. It raises nothing.
        ``note`` says how far it is, for people.
        """
        await self.beats(note)

    def callback(self, within: timedelta) -> Callback:
        """Return what an event outside needs to end this step ``within`` a time from now.

        To be handed on, and ``AwaitCallback(within)`` returned.

        Raises:
            CallbacksOffError: SAS_CALLBACK_KEY is not set.
            ValueError: ``within`` is none, or more than ``TIME_ALLOWED_MAX``.
        """
        _check_span("within", within)
        return self.callbacks(within)


class Agent(Protocol):
    """One remote service, wrapped. Written by the adopter; retries are the pattern's."""

    async def do(self, call: Call) -> Any:
        """Make one attempt and return a JSON-able result, or a ``Later``.

        Raises:
            RefusedError: the service refused for good.
            TransientError: try again.
        """
        ...

    async def undo(self, call: Call) -> Any:
        """Make one attempt to undo what ``do`` with the same key did or may yet do.

        Returns and raises as ``do`` does; its result is not kept.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
