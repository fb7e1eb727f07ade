from __future__ import annotations

import builtins
import json
import sys
from typing import Any

import pytest

from sas.cli import output
from sas.codec.outward import Error, decode_notification
from tests.unit.test_cli_tally import told


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
            "A-1                  failed         ship (held for an operator)",
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
    assert output.as_line(told("A-1", notice, **data)) == line


def test_foreign_text_neither_breaks_the_line_nor_drives_the_terminal() -> None:
    line = output.as_line(told("A\n1", "rejected", error=Error("x", "\x1b[2J\x9b1m\u202eevil\r")))
    assert line.isprintable()
    assert "A\\n1" in line
    assert "\\x1b[2J" in line


def test_a_rejection_without_an_order_id_says_so() -> None:
    assert output.as_line(told("", "rejected")).startswith("(no order id)")


def test_for_programs_it_is_the_cloudevent_on_one_line() -> None:
    event = told("A-1", "completed", correlation_id="c")
    text = output.as_json(event)
    assert "\n" not in text
    assert decode_notification(text.encode()) == event
    assert json.loads(text)["type"] == "sas.order.completed.v1"


def test_plain_progress_speaks_at_intervals_and_only_of_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = ["submitted 1"]
    progress = output.PlainProgress(lambda: said[0], every_s=0.0)
    with progress.shown():
        progress()
        progress()
        said[0] = "submitted 2"
        progress()
    assert capsys.readouterr() == ("", "submitted 1\nsubmitted 2\n")
    patient = output.PlainProgress(lambda: said[0], every_s=60.0)
    patient()
    assert capsys.readouterr().err == ""


def test_no_terminal_means_plain_progress() -> None:
    assert isinstance(output.progress(lambda: ""), output.PlainProgress)


def test_a_terminal_gets_a_live_line_where_rich_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = output.progress(lambda: "submitted 7")
    assert isinstance(shown, output.LiveProgress)
    with shown.shown():
        shown()
    assert "submitted 7" in capsys.readouterr().err


def test_a_terminal_without_rich_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rich(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert isinstance(output.progress(lambda: ""), output.PlainProgress)
