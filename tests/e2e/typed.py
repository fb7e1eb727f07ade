"""A command at a terminal of its own, as a person starts it: Ctrl-C reaches its whole group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.forked import Said, sas_said
from tests.functions_rig import ROOT
from tests.terminal import Terminal

# `setup` must not run here: it would replace the .venv that runs the tests.
MAKE_UP = [
    *("make", "-o", ".venv/.ready", "-o", "devstack/azurite/node_modules/.ready"),
    *("-o", "tools/pyright/node_modules/.ready", "up"),
]
_ON_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True)
class Typed:
    """The command and its terminal."""

    screen: Terminal
    process: subprocess.Popen[bytes]

    @property
    def text(self) -> str:
        return "\n".join(self.screen.lines)

    def wait_for(self, text: str, seconds: float = 180.0) -> None:
        """Wait until a text is shown; fail at once if the command ends before."""
        end = time.monotonic() + seconds
        while text not in self.screen.raw:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.05)

    def ctrl_c(self) -> int:
        """Type one Ctrl-C; return the exit code."""
        self.screen.type("\x03")
        return self.process.wait(120)


@contextmanager
def typed(
    words: Sequence[str], *, cwd: Path, columns: int = 200, env: Mapping[str, str] | None = None
) -> Iterator[Typed]:
    """Run a command at a terminal; in the end it is killed if it still runs."""
    screen = Terminal(columns)
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, *words],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        stdin=screen.fd,
        stdout=screen.fd,
        stderr=screen.fd,
    )
    try:
        yield Typed(screen, process)
    finally:
        if process.poll() is None:
            screen.type("\x03")
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        screen.close()


def project_in(tmp_path: Path) -> Path:
    """This project in a directory of its own: other tests must not find the stack."""
    project_copy = tmp_path / "project"
    project_copy.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in {".devstack", "build"}:
            (project_copy / entry.name).symlink_to(entry)
    return project_copy


@contextmanager
def made_up(project: Path, *arguments: str) -> Iterator[Typed]:
    """`make up` at a terminal, on free ports, ready to take orders."""
    with typed([*MAKE_UP, "UP=--ports free", *arguments], cwd=project) as up:
        up.wait_for("Ctrl-C stops everything")
        up.wait_for("The desk is at ")
        up.wait_for('[beside-1] {"stock"')
        yield up


def sas(cwd: Path, *words: str, **env: str) -> Said:
    """Run ``sas`` in a directory of a project."""
    return sas_said(words, {**os.environ, **env}, cwd=cwd)
