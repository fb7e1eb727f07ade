"""A pseudo-terminal of a given width, in which a command runs as in a real one."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_END = "\x1b[999n"
"""Written after the command: once it is read, everything before it was."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What was shown on the terminal, and its keyboard."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.raw = ""
        self._more = threading.Condition()
        self._main, self.fd = os.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    async def answer(self, question: str, text: str) -> None:
        """Type an answer once a question is shown."""
        await asyncio.to_thread(self.wait_for, question)
        self.type(text)

    def wait_for(self, text: str, seconds: float = 120.0) -> None:
        """Wait until a text was shown."""
        with self._more:
            assert self._more.wait_for(lambda: text in self.raw, seconds), self.raw

    def drain(self) -> None:
        """Wait until everything that was written is shown."""
        os.write(self.fd, _END.encode())
        self.wait_for(_END)
        self.raw = self.raw.replace(_END, "")

    @property
    def lines(self) -> list[str]:
        """Every line that was shown, each state of a live line too."""
        return [line for line in re.split(r"[\r\n]+", _ESCAPE.sub("", self.raw)) if line]

    @property
    def last(self) -> list[str]:
        """What stands there in the end: a live line was overwritten, and cleared."""
        shown = []
        for line in self.raw.split("\r\n"):
            text = re.split(r"\r\x1b\[2?K", line)[-1]
            shown.append(_ESCAPE.sub("", text))
        return shown[:-1] if shown and not shown[-1] else shown

    def close(self) -> None:
        os.close(self.fd)
        self._reader.join(60)
        os.close(self._main)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()  # a piece may end inside a character
        try:
            while piece := os.read(self._main, 65_536):
                with self._more:
                    self.raw += decoder.decode(piece)
                    self._more.notify_all()
        except OSError:  # the other end is closed
            pass


@contextmanager
def terminal(columns: int) -> Iterator[Terminal]:
    """Give a terminal to this process, in place of its standard input and output."""
    screen = Terminal(columns)
    before = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as files:
        files.callback(screen.close)
        modes = ("r", "w", "w")
        streams = [files.enter_context(open(screen.fd, mode, closefd=False)) for mode in modes]
        sys.stdin, sys.stdout, sys.stderr = streams
        try:
            yield screen
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
