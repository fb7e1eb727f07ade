"""Golden screens: what a verb prints on a terminal, in ``tests/unit/screens/NAME-COLUMNS.txt``.

A test plays something and gives the command to ``check_screen``. ``make screens`` draws the files
again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from sas.cli import screen
from sas.cli.main import main

REDRAW = "SAS_SCREENS"
FOLDER = Path(__file__).with_name("screens")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stdout that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(columns: int, *arguments: str) -> str:
    """Return what a command prints on a terminal of so many columns, without colours."""
    terminal = Terminal()
    terminal_settings = {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    with (
        patch.dict(os.environ, terminal_settings),
        patch.object(screen, "is_terminal", lambda stream=None: stream in {None, terminal}),
        contextlib.redirect_stdout(terminal),
    ):
        main(arguments)
    lines = _STYLE.sub("", terminal.getvalue()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def check_screen(name: str, columns: int, *arguments: str) -> None:
    """Compare what a command prints with its golden screen, or draw the golden screen again."""
    output = drawn(columns, *arguments)
    assert output.strip(), "it printed nothing on stdout"
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= columns
    text = f"$ sas {' '.join(arguments)}\n{output}"
    path = FOLDER / f"{name}-{columns}.txt"
    if os.environ.get(REDRAW):
        path.write_text(text, encoding="utf-8")
    if not path.exists():
        pytest.fail(f"{path.name} is not there: run make screens")
    assert text == path.read_text(encoding="utf-8"), "if this is better: make screens"
