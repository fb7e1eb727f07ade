"""What a command shows of its progress."""

from __future__ import annotations

import io

import pytest

from sas.cli import screen
from tests.terminal import terminal


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with screen.progress("undo of orders", 2000) as tell:
        tell(1)  # too soon for a line
        monkeypatch.setattr(screen, "PLAIN_PROGRESS_S", 0.0)
        tell(1500)
    with screen.progress("reading orders") as tell:
        tell(200)
    assert capsys.readouterr() == ("", "undo of orders: 1,500 of 2,000\nreading orders: 200\n")


def test_a_terminal_gets_a_bar_that_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal(80) as shown:
        with screen.progress("undo of orders", 2000) as tell:
            tell(1500)
            screen.complain("sas: waiting for the scheduler")  # above the bar
        screen.say("done")
        shown.drain()
    assert any("1500/2000" in line for line in shown.lines)
    assert shown.last[0] == "sas: waiting for the scheduler"
    assert shown.raw.endswith("\x1b[1A\x1b[2Kdone\r\n")  # the bar is removed


def test_a_visible_stream_escapes_whatever_way_its_lines_are_written() -> None:
    stream = io.StringIO()
    visible = screen.VisibleStream(stream)
    visible.write("\x1b[31mred\n")
    visible.writelines(["one\n", "\x9b2J\u202etwo\n"])
    assert stream.getvalue() == "\\x1b[31mred\none\n\\x9b2J\\u202etwo\n"
