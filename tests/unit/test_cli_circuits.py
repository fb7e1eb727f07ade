"""``sas circuits``: the state of each agent's circuit, over a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from sas.cli import arguments as args
from sas.cli.main import main
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, closed, opened, probe
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import keep_breaker
from tests.unit.cli_kit import store

__all__ = ["store"]  # a fixture of the tests here

OPEN_STORE = args.open_store
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = BreakerPolicy(open_for=timedelta(seconds=15), probe_for=timedelta(seconds=60))
OPEN = opened(Breaker(), POLICY, NOW, "payment: 503")
BREAKERS = {
    "shipping": probe(
        opened(OPEN, POLICY, NOW + timedelta(seconds=15), "no answer"), "r-1", POLICY, NOW
    ),
    "payment": OPEN,
    "inventory": closed(NOW),
}


def keep(store: MemoryStore, breakers: Mapping[str, Breaker]) -> None:
    async def write() -> None:
        await store.write_shared("workflow|order|1", "not a breaker", None)
        for agent, breaker in breakers.items():
            await keep_breaker(store, breaker, agent)

    asyncio.run(write())


def test_every_breaker_is_shown_with_its_state_since_until_rounds_and_why(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, BREAKERS)
    assert main(["circuits"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Agent      State      Since                 Until                 Rounds  Why",
        "inventory  closed     2026-11-21 12:00:00Z  -                     0       -",
        "payment    open       2026-11-21 12:00:00Z  2026-11-21 12:00:15Z  1       payment: 503",
        "shipping   half-open  2026-11-21 12:00:00Z  2026-11-21 12:01:00Z  2       no answer",
        "1 closed, 1 open, 1 half-open",
    ]


def test_each_breaker_is_one_line_of_json_with_its_probe(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, BREAKERS)
    assert main(["circuits", "--json"]) == 0
    closed_one, open_one, probing = map(json.loads, capsys.readouterr().out.splitlines())
    assert open_one == {
        "Agent": "payment",
        "State": "open",
        "Since": "2026-11-21T12:00:00.000000Z",
        "Until": "2026-11-21T12:00:15.000000Z",
        "Rounds": 1,
        "Why": "payment: 503",
        "Prober": None,
    }
    assert (closed_one["State"], closed_one["Until"], closed_one["Rounds"]) == ("closed", None, 0)
    assert (probing["State"], probing["Prober"], probing["Rounds"]) == ("half-open", "r-1", 2)


def test_an_agent_whose_breaker_never_opened_is_shown_where_it_is_named(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, BREAKERS)
    app = ("--app", "tests.business:workflows")
    assert main(["circuits", "payment", "delivery", *app]) == 0
    _heading, delivery, payment, count = capsys.readouterr().out.splitlines()
    assert delivery.split() == ["delivery", "closed", "-", "-", "0", "never", "opened"]
    assert payment.split()[:2] == ["payment", "open"]
    assert count == "1 closed, 1 open"


def test_an_app_says_which_agents_there_are(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, {"gone": OPEN})
    assert main(["circuits", "--app", "tests.business:workflows", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = {record["Agent"]: record["State"] for record in records}
    agents = ("inventory", "payment", "shipping", "invoice", "delivery")
    assert states == {"gone": "open"} | dict.fromkeys(agents, "closed")


def test_an_empty_list_of_circuits_is_reported(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["circuits"]) == 0
    assert capsys.readouterr().out == "no circuit ever opened here\n"
    assert main(["circuits", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_the_text_of_a_service_can_neither_break_the_table_nor_drive_the_terminal(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, {"payment": opened(Breaker(), POLICY, NOW, "one\x1b[2J\ntwo\u202e")})
    assert main(["circuits"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 3
    assert not set(text) & set("\x1b\u202e")


def test_the_error_for_an_unknown_name_lists_the_known_ones(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, BREAKERS)
    assert main(["circuits", "paymnet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sas: there is no circuit of an agent 'paymnet': known are ")
    assert "inventory, " in error
