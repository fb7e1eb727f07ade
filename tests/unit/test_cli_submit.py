"""``sas submit``: its options, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from sas.cli import submission
from sas.cli.main import main
from sas.cli.submission import SubmitRun, line_of
from sas.cli.submit import one_order
from sas.cli.system import LiveSystem
from sas.client import FollowError, NewOrder
from sas.codec.external import Error, decode_notification
from sas.operate.errors import UNAVAILABLE, UsageError
from sas.operate.submissions import Defaults, InputError, read_items
from tests.client_link_kit import notification
from tests.unit.cli_kit import SAGAS, Night, SubmitsAtOnce

# -- What it prints ---------------------------------------------------------------------------


def test_a_notification_is_one_line_for_people() -> None:
    lost = Error("lost", "the parcel is lost")
    again: dict[str, Any] = {"duplicate": True, "state": "Processed"}
    lines: list[tuple[str, dict[str, Any], str]] = [
        ("received", {}, "received"),
        ("step-completed", {"step": "ship"}, "step-completed ship"),
        (
            "failed",
            {"step": "ship", "error": lost, "awaits": "undo"},
            "failed         ship lost: the parcel is lost (being undone)",
        ),
        (
            "failed",
            {"step": "ship", "awaits": "operator"},
            "failed         ship (waiting for an operator)",
        ),
        ("received", again, "received       again: it is Processed"),
    ]
    for notice, data, line in lines:
        text = line_of(notification("A-1", notice, **data), as_json=False)
        assert text == f"A-1                  {line}"


def test_foreign_text_neither_breaks_the_line_nor_drives_the_terminal() -> None:
    line = line_of(
        notification("A\n1", "rejected", error=Error("x", "\x1b[2J\x9b1m\u202eevil\r")),
        as_json=False,
    )
    assert line.isprintable()
    assert "A\\n1" in line
    assert "\\x1b[2J" in line


def test_for_programs_it_is_the_cloudevent_on_one_line() -> None:
    event = notification("A-1", "completed", correlation_id="c")
    text = line_of(event, as_json=True)
    assert "\n" not in text
    assert decode_notification(text.encode()) == event
    assert json.loads(text)["type"] == "sas.order.completed.v1"


def test_a_bus_that_goes_away_while_orders_are_followed_is_what_the_advice_is_about(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = FollowError("queue 'responses-me' cannot be read: check that the broker is up.")
    monkeypatch.setattr(submission, "OrdersClient", SubmitsAtOnce)
    monkeypatch.setattr(SubmitsAtOnce, "notices", ("received",))
    monkeypatch.setattr(SubmitsAtOnce, "lost", lost)
    order = ("--id", "A-1", "--content", "{}", "--workflow", "care")
    result = night.sas("submit", *order, "--reply-queue", "responses-me", "--follow")
    result.refused(UNAVAILABLE, "are still processed: sas list shows them")
    assert "unfinished 1" in result.out


# -- The workflow of a bare order ------------------------------------------------------------

BARE = '{"order_id": "A-1"}'
FULL = '{"order_id": "A-2", "workflow": "order", "order": {}}'


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workflows of the orders that ``sas submit`` would send."""
    workflows: list[str] = []

    async def work(run: SubmitRun, _system: LiveSystem) -> int:
        try:
            workflows.extend(item.order.workflow for item in run.items)
        except InputError as error:
            raise UsageError(str(error)) from None
        return 0

    monkeypatch.setattr(SubmitRun, "work", work)
    monkeypatch.setenv("ServiceBus", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;x=y")
    monkeypatch.setenv("SAS_REPLY_QUEUE", "responses-web")
    return workflows


def submit(sagas: Path, lines: str, *arguments: str) -> int:
    file = sagas.parent / "orders.jsonl"
    file.write_text(lines)
    return main(["submit", str(file), *arguments])


def test_a_bare_order_is_of_the_only_workflow(sagas: Path, submitted: list[str]) -> None:
    sagas.write_text(SAGAS + 'newer = Saga("trip", dict, version=2)\nnewer.step()(book)\n')
    assert submit(sagas, f"{BARE}\n{FULL}") == 0
    assert submitted == ["trip", "order"]


def test_of_several_workflows_or_of_none_none_is_guessed(
    sagas: Path, submitted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(sagas, BARE, "--app", "tests.business:workflows") == 2
    error = capsys.readouterr().err
    assert "line 1: the order names no workflow: give --workflow NAME. There are " in error
    assert "order, order-" in error
    (sagas.parent / "pyproject.toml").write_text("")
    assert submit(sagas, BARE) == 2
    assert "give --workflow NAME (no application is named: write app = " in capsys.readouterr().err
    assert submitted == []


def test_the_application_is_not_loaded_for_orders_whose_workflow_is_named(
    sagas: Path, submitted: list[str]
) -> None:
    sagas.write_text("raise RuntimeError")
    assert submit(sagas, FULL) == 0
    assert submit(sagas, BARE, "--workflow", "order") == 0
    assert submitted == ["order", "order"]
    assert sagas.stem not in sys.modules


def test_one_order_is_submitted_by_options(sagas: Path, submitted: list[str]) -> None:
    assert main(["submit", "--id", "A-1", "--content", '{"amount": 3}']) == 0
    assert submitted == ["trip"]
    source = one_order('A "1"', '{\n  "amount": 3\n}', lambda: "trip")
    [item] = read_items(source, Defaults("responses-web", str))
    assert item.order == NewOrder(
        order_id='A "1"', order=Raw(b'{\n  "amount": 3\n}'), workflow="trip"
    )


def test_a_wrong_use_of_submit_is_one_sentence(
    sagas: Path, submitted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in {
        "": "give FILE, or - for stdin, or one order by --id ID --content JSON",
        "x.json --id A --content {}": "give FILE, or -",
        "--id A": "give FILE, or -",
        "--id A --content {": "--content: the body is not JSON",
        "nowhere.jsonl": "cannot read nowhere.jsonl",
        "- --reply-queue agent-x": "agent-x",
    }.items():
        assert main(["submit", *words.split()]) == 2
        error = capsys.readouterr().err
        assert error.startswith("sas: ")
        assert sentence in error
    assert submitted == []
