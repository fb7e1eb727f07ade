"""``sas doctor``: each check, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from sas.operate import letters
from sas.ports import RefusedError
from tests.unit.cli_kit import Night, Said, store_away
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in a directory without a project."""
    monkeypatch.chdir(tmp_path)


def states(said: Said) -> dict[str, str]:
    return {one["Check"]: one["State"] for one in said.json}


def test_if_all_is_well_it_is_reported(night: Night) -> None:
    night.fail("A", RefusedError("no", "no"))
    said = night.sas("doctor")
    assert said.code == 0
    assert "ok       reading the table           it answers; 1 orders in Error" in said.lines
    assert any(line.startswith("ok       queues ") for line in said.lines)
    assert "ok       sending to scheduler        you may send" in said.lines
    assert said.lines[-1].endswith(" ok, 0 wrong, 0 unknown")


def test_what_is_missing_is_wrong_with_what_to_do(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ServiceBus")
    monkeypatch.delenv("SAS_TABLES")
    monkeypatch.delenv("AzureWebJobsStorage", raising=False)
    monkeypatch.setenv("SAS_QUEUE_ORDERS", "a b")
    monkeypatch.setenv("SAS_OPERATOR", "x" * 101)
    said = night.sas("doctor", "--json")
    assert said.code == 1
    found = states(said)
    for what in (
        *("setting of the table", "setting of Service Bus", "names of the queues"),
        *("your name in the journal", "reading the table"),
    ):
        assert found[what] == "wrong", what
    assert "nothing runs here (no .devstack/env" in said.out


def test_missing_rights_are_reported_apart_from_missing_reach(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"agent-replies", "send scheduler"}
    found = states(night.sas("doctor", "--json"))
    assert found["reading agent-replies"] == "unknown"
    assert found["sending to scheduler"] == "wrong"
    assert found["queues"] == "ok"
    night.outage = "the namespace does not answer."
    found = states(night.sas("doctor", "--json"))
    assert found["reading orders"] == "wrong"
    store_away(monkeypatch)
    assert states(night.sas("doctor", "--json"))["reading the table"] == "wrong"


def test_the_queues_of_the_project_here_are_looked_at(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    listed = letters.expected_queues(ROOT)
    queue = next(name for name in sorted(listed) if name.startswith("agent-"))
    night.forbidden = {queue}
    assert states(night.sas("doctor", "--json"))[f"reading {queue}"] == "unknown"
