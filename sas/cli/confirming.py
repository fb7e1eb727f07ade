"""Asking at the terminal before anything is sent."""

from __future__ import annotations

import signal
import sys
import threading

from sas.cli import output
from sas.cli.errors import UsageError


def confirmed(what: str) -> bool:
    """Ask; return whether the answer is yes.

    Raises:
        UsageError: nobody can be asked.
        KeyboardInterrupt: that was the answer.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{what}: say --yes where nobody can be asked. Nothing was sent.")
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201  # a command asks
    try:
        if _answer().strip().lower() in {"y", "yes"}:
            return True
    except KeyboardInterrupt:
        output.complain("\nnothing was sent")
        raise
    output.complain("nothing was sent")
    return False


def _answer() -> str:
    """Return a line of the terminal. The event loop takes Ctrl-C to itself, and would let us know
    once the line was read: here it must end us.
    """
    if threading.current_thread() is not threading.main_thread():
        return sys.stdin.readline()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
