"""Print what a command says: results on stdout; progress, questions and errors on stderr."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from sas.operate.errors import UsageError
from sas.operate.why import spelled

Record = dict[str, Any]
"""One JSON object of the output: its members by name."""
INTERRUPTED = 130
TEXT_WIDTH_MIN = 24
"""A longer text begins beside the cells of its row only if it has this many columns there."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class OutputError(UsageError):
    """The output could not be written, because the disk is full for example."""


def say(text: str) -> None:
    """Print a result on stdout at once, because the reader of a pipe waits for it.

    Raises:
        OutputError: the result could not be written.
        BrokenPipeError: the reader of the pipe has ended.
    """
    with written():
        print(text, flush=True)  # noqa: T201  # a command prints


@contextmanager
def written() -> Iterator[None]:
    """Turn an error of writing to stdout into an OutputError with a sentence.

    A BrokenPipeError is raised as it is.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


def complain(text: str) -> None:
    """Print an error or a remark on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def one_line(text: str) -> str:
    """Return text with its control characters escaped, so that it stays on one line."""
    return _CONTROL.sub(lambda match: repr(match.group())[1:-1], text)


def columns(stream: TextIO) -> int | None:
    """Return how wide the terminal of a stream is; None if the stream is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def row(parts: Sequence[str]) -> str:
    """Return a row: its cells, and a text as the last part.

    If the terminal is too narrow for one line, the text is on several lines.
    """
    escaped = [one_line(part) for part in parts]
    line, width = "  ".join(escaped), columns(sys.stdout)
    if width is None or len(line) <= width:
        return "  ".join(map(coloured, escaped))
    # The row is too long. If its cells alone are too long as well, leave out their padding.
    bare = [part.strip() for part in escaped]
    for cells in (escaped[:-1], bare[:-1]):
        cells_width = len("  ".join(cells))
        if cells and cells_width <= width:
            return "\n".join(_beside("  ".join(map(coloured, cells)), cells_width, bare[-1], width))
    return "\n".join(_wrapped("  ".join(bare), width, indent=""))


def _beside(cells: str, cells_width: int, text: str, width: int) -> list[str]:
    """Return the lines of a row with its text beside the cells, or below them in a narrow room."""
    room = width - cells_width - 2
    if room < min(TEXT_WIDTH_MIN, len(text)):
        return [cells.rstrip(), *_wrapped(text, width)]
    first_line, *others = _wrapped(text, width, indent=" " * (cells_width + 2))
    return [f"{cells}  {first_line.lstrip()}", *others]


def table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]] = ()
) -> Iterator[str]:
    """Yield the lines of a table. ``below`` has the lines to show below each row.

    On a terminal that is too narrow for the table, the first cell of a row has a line of its own.
    The other cells follow below it with their headings. Empty cells ("-") are left out.
    """
    escaped = [[one_line(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*escaped, strict=True)]
    screen = columns(sys.stdout)
    is_wide = screen is None or sum(widths) + 2 * (len(widths) - 1) <= screen
    if is_wide:
        yield _aligned(escaped[0], widths)
    for number, cells in enumerate(escaped[1:]):
        if is_wide:
            yield _aligned(cells, widths)
        else:
            yield cells[0]
            pairs = zip(heading[1:], cells[1:], strict=True)
            text = "; ".join(f"{name}: {cell}" for name, cell in pairs if cell != "-")
            yield from _wrapped(text, screen or 0)
        for text in below[number] if below else ():
            line = one_line(text)
            yield from [f"    {line}"] if screen is None else _wrapped(line, screen)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    padded[-1] = padded[-1].rstrip()
    return "  ".join(map(coloured, padded)).rstrip()


def _wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _to_terminal(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def confirmed(action: str) -> bool:
    """Ask at the terminal, and return whether the answer is yes.

    Raises:
        UsageError: there is no terminal.
        KeyboardInterrupt: the answer was Ctrl-C.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{action}: there is no terminal to ask at; give --yes. Nothing was sent.")
    _to_terminal(f"{action}? [y/N] ")
    try:
        if _answer().strip().lower() in {"y", "yes"}:
            return True
    except KeyboardInterrupt:
        complain("\nnothing was sent")
        raise
    complain("nothing was sent")
    return False


def _answer() -> str:
    """Return the line that the operator types at the terminal.

    The event loop has its own handler for Ctrl-C, which would end the command only after the line
    was read. Here Ctrl-C must end the command at once. So Python's own handler is set for the time
    of the question.
    """
    if threading.current_thread() is not threading.main_thread():
        return sys.stdin.readline()
    handler_before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, handler_before)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def time_of(moment: datetime | None) -> str:
    """Return a moment for people: on a terminal as ``5 s ago`` or ``in 5 s``, otherwise in UTC."""
    if moment is None:
        return "-"
    if columns(sys.stdout) is None:
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    span = now() - moment
    return f"in {spelled(-span)}" if span < timedelta(0) else f"{spelled(span)} ago"


_PHRASES = {"by": ("within {}", "due {} ago"), "until": ("for {} more", "until {} ago")}


def phrase(word: str, moment: datetime | None) -> str:
    """Return "by" or "until" with a moment: on a terminal as a span, otherwise in UTC."""
    if moment is None or columns(sys.stdout) is None:
        return f"{word} {time_of(moment)}"
    ahead, past = _PHRASES[word]
    span = moment - now()
    return ahead.format(spelled(span)) if span > timedelta(0) else past.format(spelled(-span))


def facts(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of named facts. A fact without text is left out."""
    present = [(name, one_line(text)) for name, text in pairs if text]
    name_width = max((len(name) for name, _ in present), default=0)
    screen = columns(sys.stdout)
    for name, text in present:
        line = f"{name.ljust(name_width)}  {text}"
        if screen is None or len(line) <= screen:
            yield line
        else:
            indent = " " * (name_width + 2 if screen >= 60 else 4)
            yield from textwrap.wrap(line, screen, subsequent_indent=indent, break_on_hyphens=False)


_CODES = {"bad": "31", "good": "32", "warn": "33", "bold": "1"}
_KINDS = {
    **dict.fromkeys(("Error", "open", "active", "failed", "missing", "wrong"), "bad"),
    **dict.fromkeys(("Processed", "closed", "ok"), "good"),
    **dict.fromkeys(("Compensating", "Compensated", "Rejected", "half-open", "unknown"), "warn"),
}


def coloured(text: str, kind: str | None = None) -> str:
    """Return text in the colour of its kind; unchanged if stdout shows no colours.

    If ``kind`` is None and the text is the name of a state, the text gets the colour of the state.
    """
    code = _CODES.get(kind or _KINDS.get(text.strip(), ""))
    if code is None or not has_colour():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def has_colour() -> bool:
    """Return whether stdout is a terminal that shows colours, and NO_COLOR is not set."""
    is_allowed = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_allowed and columns(sys.stdout) is not None


def orders(count: int) -> str:
    """Return how many orders, in words."""
    return {0: "no order", 1: "1 order"}.get(count, f"{count:,} orders")
