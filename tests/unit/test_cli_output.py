from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sas.cli import output
from sas.cli.submission import as_json, as_line
from sas.codec.external import Error, decode_notification
from tests.terminal import terminal
from tests.unit.test_cli_tally import notification


@pytest.mark.parametrize(
    ("notice", "data", "line"),
    [
        ("received", {}, "A-1                  received"),
        ("step-completed", {"step": "ship"}, "A-1                  step-completed ship"),
        (
            "failed",
            {"step": "ship", "error": Error("lost", "the parcel is lost"), "awaits": "undo"},
            "A-1                  failed         ship lost: the parcel is lost (being undone)",
        ),
        (
            "failed",
            {"step": "ship", "awaits": "operator"},
            "A-1                  failed         ship (waiting for an operator)",
        ),
        (
            "received",
            {"duplicate": True, "state": "Processed"},
            "A-1                  received       again: it is Processed",
        ),
    ],
)
def test_a_notification_is_one_line_for_people(
    notice: str, data: dict[str, Any], line: str
) -> None:
    assert as_line(notification("A-1", notice, **data)) == line


def test_foreign_text_neither_breaks_the_line_nor_drives_the_terminal() -> None:
    line = as_line(notification("A\n1", "rejected", error=Error("x", "\x1b[2J\x9b1m\u202eevil\r")))
    assert line.isprintable()
    assert "A\\n1" in line
    assert "\\x1b[2J" in line


def test_a_rejection_without_an_order_id_is_shown_as_such() -> None:
    assert as_line(notification("", "rejected")).startswith("(no order id)")


def test_for_programs_it_is_the_cloudevent_on_one_line() -> None:
    event = notification("A-1", "completed", correlation_id="c")
    text = as_json(event)
    assert "\n" not in text
    assert decode_notification(text.encode()) == event
    assert json.loads(text)["type"] == "sas.order.completed.v1"


def test_without_a_terminal_progress_is_a_line_now_and_then_and_only_of_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output.ProgressLine, "PLAIN_S", 0.0)
    status = ["submitted 1"]
    progress = output.ProgressLine(lambda: status[0])
    with progress.shown():
        progress()
        progress()
        status[0] = "submitted 2"
        progress()
    assert capsys.readouterr() == ("", "submitted 1\nsubmitted 2\n")
    monkeypatch.setattr(output.ProgressLine, "PLAIN_S", 60.0)
    patient = output.ProgressLine(lambda: status[0])
    patient()
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_one_line_that_changes_below_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output.ProgressLine, "LIVE_S", 0.0)
    status = ["submitted 1 " + "x" * 50]
    with terminal(40) as screen:
        progress = output.ProgressLine(lambda: status[0])
        with progress.shown():
            output.say("A result")
            status[0] = "submitted 2"
            progress()
            screen.drain()
            assert screen.last == ["A result", "submitted 2"]
        screen.drain()
    assert screen.last == ["A result"]
    assert max(len(line) for line in screen.lines) == 39


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal(80) as screen:
        with output.ProgressLine(lambda: "submitted 1").shown():
            output.say("A result")
        screen.drain()
    assert screen.raw == "A result\r\n"


def test_a_row_that_is_too_long_keeps_its_columns_and_its_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    cells = [f"{'3 min ago':<12}", f"{'A-1':<8}", "Error"]
    with terminal(80) as screen:
        output.say(output.row([*cells, "word " * 20]))
        screen.drain()
        lines = screen.lines
        assert lines[0].startswith("3 min ago     A-1       Error  word word")
        assert lines[1].startswith("    word")
        assert all(len(line) <= 80 for line in lines)
        assert "\x1b[31mError" in screen.raw
    with terminal(40) as screen:
        output.say(output.row([*cells, "word " * 20]))
        screen.drain()
        assert screen.lines[0] == "3 min ago     A-1       Error"
        assert screen.lines[1].startswith("    word word")


@pytest.mark.parametrize(
    ("word", "seconds", "phrase"),
    [
        ("by", 77, "within 1 min 17 s"),
        ("by", -77, "due 1 min 17 s ago"),
        ("until", 77, "for 1 min 17 s more"),
        ("until", -77, "until 1 min 17 s ago"),
    ],
)
def test_at_a_terminal_a_moment_reads_as_a_sentence(
    monkeypatch: pytest.MonkeyPatch, word: str, seconds: int, phrase: str
) -> None:
    now = datetime(2026, 11, 21, 3, tzinfo=UTC)
    monkeypatch.setattr(output, "now", lambda: now)
    moment = now + timedelta(seconds=seconds)
    with terminal(80):
        assert output.phrase(word, moment) == phrase
    assert output.phrase("by", now) == "by 2026-11-21 03:00:00Z"
