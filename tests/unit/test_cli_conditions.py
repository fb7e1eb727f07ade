"""``sas conditions``: what stands is shown with its text, over a store in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from sas.cli import main
from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import Sightings
from sas.simulation.store import MemoryStore
from tests.unit.cli_kit import store

__all__ = ["store"]  # a fixture of the tests here

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAR_AWAY = datetime(2226, 1, 2, tzinfo=UTC)


def keep(
    store: MemoryStore, kind: AlertKind, scope: str, until: datetime, text: str = "Look."
) -> None:
    condition = Incident(kind, scope, text, LONG_AGO, until)
    seen_at = LONG_AGO + timedelta(minutes=1)
    standing = rules.seen(None, Sightings(condition, 1, ("O-1",)), seen_at)
    active = rules.alert_sent(standing, seen_at)
    asyncio.run(active_incidents(store).write(name_of(kind, scope), active, None))


def test_what_stands_is_shown_with_its_text_and_what_is_over_as_over(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.NOT_PICKED_UP, "urgent orders", FAR_AWAY, "Nobody works.")
    keep(store, AlertKind.KEY_MISSING, "key 2026a", LONG_AGO)
    assert main(["conditions"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Kind           About          State   Since                 Met                   Told",
        "key-missing    key 2026a      over    2026-01-02 03:04:05Z  2026-01-02 03:05:05Z  1",
        "    Look.",
        "not-picked-up  urgent orders  stands  2026-01-02 03:04:05Z  2026-01-02 03:05:05Z  1",
        "    Nobody works.",
    ]


def test_each_condition_is_one_line_of_json_that_says_when_it_is_told_again(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.NOT_RUNNABLE, "order version 2", FAR_AWAY)
    assert main(["conditions", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "Kind": "not-runnable",
        "About": "order version 2",
        "Over": False,
        "Since": "2026-01-02T03:04:05.000000Z",
        "Met": "2026-01-02T03:05:05.000000Z",
        "Told": 1,
        "ToldAt": "2026-01-02T03:05:05.000000Z",
        "NextToldAt": "2026-01-02T03:20:05.000000Z",
        "Orders": [],
        "Text": "Look.",
    }


def test_without_any_condition_that_is_said(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.WAITING, "order version 2, step ship", FAR_AWAY)
    shared = active_incidents(store)
    (name, found), *_ = asyncio.run(shared.all()).items()
    asyncio.run(shared.write(name, None, found))
    assert main(["conditions"]) == 0
    assert capsys.readouterr().out == "no condition stands\n"
    assert main(["conditions", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_text_can_neither_break_the_table_nor_drive_the_terminal(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.WAITING, "one\x1b[2J", FAR_AWAY, "two\n\u202ethree")
    assert main(["conditions"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 3
    assert not set(said) & set("\x1b\u202e")


def test_the_list_of_orders_says_when_the_system_itself_is_what_is_wrong(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no order in Error\n"
    keep(store, AlertKind.NOT_PICKED_UP, "urgent orders", FAR_AWAY)
    keep(store, AlertKind.NOT_PICKED_UP, "ordinary orders", FAR_AWAY)
    keep(store, AlertKind.KEY_MISSING, "key 2026a", FAR_AWAY)
    assert main(["list"]) == 0
    said = "wrong with the system itself: key-missing, not-picked-up; `sas conditions` says more"
    assert capsys.readouterr().out.splitlines() == ["no order in Error", said]
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out == ""
