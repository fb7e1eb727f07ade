"""``sas incidents``: with their texts, over a store in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from sas.cli.main import main
from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import Sightings
from sas.testing.store import MemoryStore
from tests.unit.cli_kit import store

__all__ = ["store"]  # a fixture of the tests here

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAR_AWAY = datetime(2226, 1, 2, tzinfo=UTC)


def keep(
    store: MemoryStore, kind: AlertKind, scope: str, until: datetime, text: str = "Look."
) -> None:
    incident = Incident(kind=kind, scope=scope, text=text, since=LONG_AGO, until=until)
    seen_at = LONG_AGO + timedelta(minutes=1)
    state = rules.seen(None, Sightings(incident, 1, ("O-1",)), seen_at)
    active = rules.alert_sent(state, seen_at)
    asyncio.run(active_incidents(store).write(name_of(kind, scope), active, None))


def test_incidents_are_shown_with_their_text_and_whether_they_are_over(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(
        store, AlertKind.NOT_PICKED_UP, scope="urgent orders", until=FAR_AWAY, text="Nobody works."
    )
    keep(store, AlertKind.UNREADABLE, "payload codec", LONG_AGO)
    assert main(["incidents"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Kind           About          State   Since                 LastSeen              Alerts",
        "not-picked-up  urgent orders  active  2026-01-02 03:04:05Z  2026-01-02 03:05:05Z  1",
        "    Nobody works.",
        "unreadable     payload codec  over    2026-01-02 03:04:05Z  2026-01-02 03:05:05Z  1",
        "    Look.",
    ]


def test_each_incident_is_one_line_of_json_that_says_when_the_next_alert_comes(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.NOT_RUNNABLE, "order version 2", FAR_AWAY)
    assert main(["incidents", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "Kind": "not-runnable",
        "About": "order version 2",
        "State": "active",
        "Since": "2026-01-02T03:04:05.000000Z",
        "LastSeen": "2026-01-02T03:05:05.000000Z",
        "Alerts": 1,
        "AlertedAt": "2026-01-02T03:05:05.000000Z",
        "NextAlertAt": "2026-01-02T03:20:05.000000Z",
        "Orders": [],
        "Text": "Look.",
    }


def test_without_any_incident_the_command_says_so(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.WAITING, "order version 2, step ship", FAR_AWAY)
    shared = active_incidents(store)
    (name, entry), *_ = asyncio.run(shared.all()).items()
    asyncio.run(shared.write(name, None, entry))
    assert main(["incidents"]) == 0
    assert capsys.readouterr().out == "no incident is active\n"
    assert main(["incidents", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_text_can_neither_break_the_table_nor_drive_the_terminal(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, AlertKind.WAITING, scope="one\x1b[2J", until=FAR_AWAY, text="two\n\u202ethree")
    assert main(["incidents"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 3
    assert not set(text) & set("\x1b\u202e")
