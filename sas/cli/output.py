"""What a command prints: results on stdout, progress and complaints on stderr."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sas.cli.errors import OutputError
from sas.codec import outward
from sas.codec.outward import Notification, notice_of

PLAIN_EVERY_S = 5.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def say(text: str) -> None:
    """Print a result, one line, at once: whoever reads a pipe is waiting for it.

    Raises:
        OutputError: it could not be.
        BrokenPipeError: nobody reads it any more.
    """
    with written():
        print(text, flush=True)  # noqa: T201  # a command prints


@contextmanager
def written() -> Iterator[None]:
    """Say of what cannot be written to stdout why not; raises as ``say`` does."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as wrong:
        raise OutputError(f"the output cannot be written: {wrong.strerror}") from None


def complain(text: str) -> None:
    """Print what went wrong, one line on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def one_line(text: str) -> str:
    """Return foreign text that can neither break the line nor drive a terminal."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


def as_line(told: Notification) -> str:
    """Return a notification for people."""
    data = told.data
    parts = [f"{data.order_id or '(no order id)':<20} {notice_of(told.type):<14}"]
    if data.step:
        parts.append(data.step)
    if data.duplicate:
        parts.append(f"again: it is {data.state}")
    if data.error:
        parts.append(f"{data.error.code}: {data.error.message}")
    if data.awaits:
        parts.append({"undo": "(being undone)", "operator": "(held for an operator)"}[data.awaits])
    return one_line(" ".join(parts).rstrip())


def as_json(told: Notification) -> str:
    """Return a notification for programs: the CloudEvent on one line."""
    return outward.encode(told).decode()


class PlainProgress:
    """A line on stderr every few seconds, for logs and where rich is not installed."""

    def __init__(self, describe: Callable[[], str], every_s: float = PLAIN_EVERY_S) -> None:
        self._describe = describe
        self._every_s = every_s
        self._said_at = time.monotonic()
        self._said = ""

    def __call__(self) -> None:
        """Say where things stand, if it is time and they have changed."""
        now = time.monotonic()
        if now - self._said_at >= self._every_s and (text := self._describe()) != self._said:
            self._said_at, self._said = now, text
            complain(text)

    def shown(self) -> AbstractContextManager[object]:
        """Nothing stays on the screen."""
        return nullcontext()


class LiveProgress:
    """One line on the terminal that changes in place."""

    def __init__(self, describe: Callable[[], str], rich_live: Any, rich_console: Any) -> None:
        self._describe = describe
        self._shown_at = 0.0
        self._live = rich_live(
            describe(),
            console=rich_console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # the lines of results go above it
            redirect_stderr=False,
        )

    def __call__(self) -> None:
        """Show where things stand, ten times a second at most."""
        now = time.monotonic()
        if now - self._shown_at >= 0.1:
            self._shown_at = now
            self._live.update(self._describe(), refresh=True)

    def shown(self) -> AbstractContextManager[object]:
        """Keep the line on the screen as long as this lasts."""
        shown: AbstractContextManager[object] = self._live
        return shown


def progress(describe: Callable[[], str]) -> PlainProgress | LiveProgress:
    """Return what shows progress here: a live line on a terminal, where rich is installed."""
    if not sys.stderr.isatty():
        return PlainProgress(describe)
    try:
        from rich.console import Console  # noqa: PLC0415  # rich is in the extra ``cli``
        from rich.live import Live  # noqa: PLC0415
    except ImportError:
        return PlainProgress(describe)
    return LiveProgress(describe, Live, Console(stderr=True, highlight=False, markup=False))
