"""What a command prints: results on stdout; progress, questions and errors on stderr.

Rich draws. Text of orders and services may be hostile: it never goes through Rich's markup, and its
invisible characters are escaped. On a terminal, times are ages and lines fold. In a pipe, times are
in UTC and no line is cut.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO, cast

from sas.domain.texts import quoted, visible
from sas.operate.errors import UsageError
from sas.operate.why import spelled

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

INTERRUPTED = 130
PIPE_WIDTH = 100_000
"""Columns of a line that is not on a terminal: no line of a pipe is cut or folded."""
PLAIN_PROGRESS_S = 5.0
"""Without a terminal, progress is a new line so often at most."""

_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("Error", "open", "active", "failed", "missing", "wrong"), "red"),
    **dict.fromkeys(("Processed", "closed", "ok"), "green"),
    **dict.fromkeys(("Compensating", "Compensated", "Rejected", "half-open", "unknown"), "yellow"),
}
"""The colour of a word that names a state."""
_last_output_s = 0.0


class OutputError(UsageError):
    """The output could not be written, because the disk is full for example."""


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether a stream (stdout by default) is a terminal."""
    try:
        return os.isatty((stream or sys.stdout).fileno())
    except (OSError, ValueError, AttributeError):
        return False


def console(stream: TextIO | None = None) -> Console:
    """Return the console of a stream (stdout by default)."""
    from rich.console import Console  # noqa: PLC0415  # slow to import, and --json needs none

    file = stream or sys.stdout
    return Console(
        file=getattr(file, "stream", file),
        width=None if is_terminal(file) else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


class VisibleStream:
    """A stream of lines, in which the invisible characters of each line are escaped."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        self.stream.write("\n".join(map(visible, text.split("\n"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self.stream, name)


def escape_stderr() -> None:
    """Escape what anybody writes to stderr from now on.

    A text of a service may be in any error, in a log line of its SDK, or in the output of a program
    that is run. ``console`` draws on the stream itself. While Rich draws something live, it puts a
    stream of its own before stderr: then that one is escaped too.
    """
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", VisibleStream(sys.stderr))
        sys.excepthook = traceback.print_exception  # without colours


def styled(text: str) -> Text:
    """Return text for the console, escaped, in the colour of the state that it names."""
    from rich.text import Text  # noqa: PLC0415

    clean = visible(text)
    return Text(clean, style=_STYLES.get(clean.strip(), ""))


def say(text: str) -> None:
    """Print a line on stdout at once, as it is: JSON, an address, or what is drawn already.

    Raises:
        OutputError: the result could not be written.
        BrokenPipeError: the reader of the pipe has ended.
    """
    global _last_output_s  # noqa: PLW0603  # a process has one stdout
    _last_output_s = time.monotonic()
    with written():
        print(text, flush=True)  # noqa: T201  # a command prints


def show(renderable: RenderableType) -> None:
    """Print what Rich draws on stdout. Raises as ``say``."""
    screen = console()
    with screen.capture() as capture:
        screen.print(renderable)
    say("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def sentence(*texts: str) -> None:
    """Print texts on stdout, escaped, each on a line; it folds between words on a terminal."""
    from rich.console import Group  # noqa: PLC0415

    show(Group(*map(styled, texts)))


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
    """Print an error or a remark on stderr, escaped."""
    global _last_output_s  # noqa: PLW0603
    _last_output_s = time.monotonic()
    print(visible(text), file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def begin() -> None:
    """Begin to measure the silence."""
    global _last_output_s  # noqa: PLW0603
    _last_output_s = time.monotonic()


def silent_s() -> float:
    """Return for how many seconds this process has printed nothing."""
    return time.monotonic() - _last_output_s


# -- Tables and facts -------------------------------------------------------------------------


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    folds: str = "",
    below: Sequence[Sequence[str]] = (),
) -> None:
    """Print a table. Each cell stays on one line.

    If there is no room for those of the column ``folds``, they go below their rows. ``below`` has
    more lines to print below each row, indented.
    """
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    names = list(columns)
    cells = [[visible(cell) for cell in row] for row in rows]
    lines_below = [[*lines] for lines in below] or [[] for _ in cells]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if folds:
        place = names.index(folds)
        room = console().width - sum(widths) + widths[place] - 2 * (len(names) - 1)
        if widths[place] > room:
            del names[place], widths[place]
            lines_below = [
                [row.pop(place), *lines] for row, lines in zip(cells, lines_below, strict=True)
            ]

    def line(row: Sequence[str], style: str = "") -> Text:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        text = Text("  ", style=style, no_wrap=True, overflow="ignore")
        return text.join(map(styled, padded))

    parts: list[RenderableType] = [line(names, "bold")]
    for row, lines in zip(cells, lines_below, strict=True):
        parts.append(line(row))
        parts += [Padding(styled(text), (0, 0, 0, 4)) for text in lines if text not in {"", "-"}]
    show(Group(*parts))


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print named facts, one a line. A fact without text is left out."""
    grid = fact_grid(pairs)
    if grid.row_count:
        show(grid)


def fact_grid(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return named facts as ``facts`` prints them."""
    from rich.table import Table  # noqa: PLC0415

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, text in pairs:
        if text:
            grid.add_row(name, styled(text))
    return grid


def order_name(order_id: str) -> str:
    """Return an id for people, as a quotation if it is not one word: it may be a sentence."""
    return order_id if re.fullmatch(r"[\w.:@+=,~-]+", order_id) else quoted(order_id)


# -- Times and numbers in words ---------------------------------------------------------------


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def time_of(moment: datetime | None) -> str:
    """Return a moment for people: on a terminal as ``5 s ago`` or ``in 5 s``, otherwise in UTC."""
    if moment is None:
        return "-"
    if not is_terminal():
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    span = now() - moment
    return f"in {spelled(-span)}" if span < timedelta(0) else f"{spelled(span)} ago"


_PHRASES = {"by": ("within {}", "due {} ago"), "until": ("for {} more", "until {} ago")}


def phrase(word: str, moment: datetime | None) -> str:
    """Return "by" or "until" with a moment: on a terminal as a span, otherwise in UTC."""
    if moment is None or not is_terminal():
        return f"{word} {time_of(moment)}"
    ahead, past = _PHRASES[word]
    span = moment - now()
    return ahead.format(spelled(span)) if span > timedelta(0) else past.format(spelled(-span))


def count(number: int, singular: str, plural: str = "") -> str:
    """Return how many, in words: ``no order``, ``1 order``, ``12 orders``."""
    name = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,} {name}" if number else f"no {singular}"


# -- Progress and questions -------------------------------------------------------------------


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show on stderr how far a command is, while this context lasts.

    The function that it gives is called with how many are done, and with the total if it has
    changed. On a terminal this is a bar with the time that is left, otherwise a line every
    ``PLAIN_PROGRESS_S`` seconds.
    """
    if not is_terminal(sys.stderr):
        shown_at = time.monotonic()

        def tell(done: int, total: int | None = total) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= PLAIN_PROGRESS_S:
                shown_at = time.monotonic()
                complain(f"{text}: {done:,}{'' if total is None else f' of {total:,}'}")

        yield tell
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        redirect_stdout=False,  # results may go into a pipe
    ) as bar:
        escape_stderr()
        task = bar.add_task(text, total=total)

        def draw(done: int, total: int | None = total) -> None:
            begin()  # who sees the bar needs no word about what it waits for
            bar.update(task, completed=done, total=total)

        yield draw


def confirmed(action: str) -> bool:
    """Ask at the terminal, and return whether the answer is yes.

    Raises:
        UsageError: there is no terminal.
        KeyboardInterrupt: the answer was Ctrl-C.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{action}: there is no terminal to ask at; give --yes. Nothing was sent.")
    print(f"{visible(action)}? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
    try:
        if _answer().strip().lower() in {"y", "yes"}:
            return True
    except KeyboardInterrupt:
        print(file=sys.stderr)  # noqa: T201  # after the ^C of the terminal
        complain("nothing was sent")
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
