"""``sas circuits``: the state of each agent's circuit, over a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError

from sas.adapters.table import advice
from sas.cli import arguments as args
from sas.cli.main import main
from sas.domain.ids import key_time
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, closed, opened, probe
from sas.operate.errors import UNAVAILABLE
from sas.ports import ConflictError, StoreUnavailableError
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import breaker_of, keep_breaker
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
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = {one["Agent"]: one["State"] for one in shown}
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
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 3
    assert not set(said) & set("\x1b\u202e")


def test_the_error_for_an_unknown_name_lists_the_known_ones(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, BREAKERS)
    assert main(["circuits", "paymnet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sas: there is no circuit of an agent 'paymnet': known are ")
    assert "inventory, " in error


def test_a_probe_ends_the_pause_of_an_open_circuit_and_of_no_other(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    later = replace(OPEN, until=datetime.now(UTC) + timedelta(minutes=5))
    keep(store, BREAKERS | {"payment": later})
    assert main(["circuits", "payment", "--probe", "--json"]) == 0
    (record,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert record["State"] == "open"
    assert record["Until"] <= key_time(datetime.now(UTC))
    kept = asyncio.run(breaker_of(store, "payment"))
    assert replace(kept, until=None) == replace(later, until=None)
    assert main(["circuits", "--probe"]) == 2
    capsys.readouterr()
    assert main(["circuits", "nosuch", "--probe"]) == 2
    assert "there is no circuit of an agent 'nosuch': known are" in capsys.readouterr().err
    for agent, state in (("inventory", "closed"), ("shipping", "half-open")):
        assert main(["circuits", "payment", agent, "--probe"]) == 1
        said = capsys.readouterr().err
        assert f"the circuit of '{agent}' is {state}: only an open one can be probed" in said
    assert asyncio.run(breaker_of(store, "payment")) == kept


def test_a_circuit_that_changed_meanwhile_is_not_probed(
    store: MemoryStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, BREAKERS)

    async def lost(*_: object) -> None:
        raise ConflictError("a rival was faster")

    monkeypatch.setattr(store, "write_shared", lost)
    assert main(["circuits", "payment", "--probe"]) == 1
    assert "the circuit of 'payment' changed meanwhile: look" in capsys.readouterr().err


def test_without_the_right_to_write_no_circuit_is_probed(
    store: MemoryStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, BREAKERS)
    forbidden = HttpResponseError("no")
    forbidden.status_code = 403
    right = f"the table. {advice(forbidden)}"
    assert "for circuits --probe Storage Table Data Contributor" in right

    async def refused(*_: object) -> None:
        raise StoreUnavailableError(right)

    async def connected(*_: object) -> MemoryStore:
        return store

    with monkeypatch.context() as patch:
        patch.setattr(args, "open_store", OPEN_STORE)
        patch.setattr("sas.adapters.table_store.connect_existing", connected)
        patch.setattr(store, "write_shared", refused)
        assert main(["circuits", "payment", "--probe"]) == UNAVAILABLE
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"sas: {right}\n")
    assert asyncio.run(breaker_of(store, "payment")) == OPEN
