"""Temporary directories go with their process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from devstack.children import Scratch, escaped, readable
from devstack.tests.stack_kit import ROOT

LEAVES = """
import os, sys
from devstack.children import Scratch
made = Scratch("left-")
if sys.argv[1] == "keep":
    made.keep()
print(made.path, flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def leaves(end: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LEAVES, end],
        cwd=ROOT,
        env=os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def printed_path(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def aged(path: Path) -> Path:
    """Make a directory so old that no process can be about to lock it."""
    old = time.time() - 120
    for lock in path.glob(".held"):
        os.utime(lock, (old, old))
    return path


@pytest.mark.parametrize(("how", "stays"), [("die", False), ("keep", True)])
def test_what_a_killed_process_left_goes_with_the_next_one_unless_it_is_kept(
    how: str, stays: bool
) -> None:
    with leaves(how) as process:
        directory = aged(printed_path(process))
    assert directory.exists()
    Scratch("left-").close()
    assert directory.exists() == stays


def test_what_a_process_uses_and_what_is_young_stays() -> None:
    with leaves("wait") as process:
        directory = aged(printed_path(process))
        Scratch("left-").close()
        assert directory.exists()
        os.utime(directory / ".held")
        process.kill()
        process.wait()
        Scratch("left-").close()
        assert directory.exists()
        aged(directory)
        Scratch("left-").close()
        assert not directory.exists()


def test_what_another_user_made_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users write to the directory, and to open a pipe waits for somebody who writes."""
    (tmp_path / "left-theirs").mkdir()
    os.mkfifo(tmp_path / "left-theirs" / ".held")
    monkeypatch.setattr(os, "getuid", lambda: 1 + os.geteuid())
    Scratch("left-").close()
    assert (tmp_path / "left-theirs").exists()


def test_a_directory_goes_when_it_is_closed_unless_it_is_kept() -> None:
    first, second = Scratch("own-"), Scratch("own-")
    second.keep()
    first.close()
    second.close()
    assert (first.path.exists(), second.path.exists()) == (False, True)


def test_a_log_line_of_json_is_shown_as_people_read_it() -> None:
    for line, shown in (
        (
            '{"time": "2026-11-21T15:55:38.330+00:00", "level": "INFO", "message": "it runs"}',
            "15:55:38 INFO it runs",
        ),
        ('{"ready": true}', '{"ready": true}'),
        ("[1]", "[1]"),
        ("plain", "plain"),
    ):
        assert readable(line) == shown


def test_a_terminal_does_not_obey_what_a_log_line_has_of_others() -> None:
    text = 'agent: \x1b]0;pwned\x07\x9b2J\u202e\u200b "refusé, 注文"\n[broker] all is well'
    assert escaped(text) == (
        'agent: \\x1b]0;pwned\\x07\\x9b2J\\u202e\\u200b "refusé, 注文"\n    [broker] all is well'
    )
