"""``sas doctor``: each check, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from sas.operate import letters
from sas.ports import RefusedError
from tests.unit.cli_kit import CommandResult, Night, store_away
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in a directory without a project."""
    monkeypatch.chdir(tmp_path)


def states(result: CommandResult) -> dict[str, str]:
    return {record["Check"]: record["State"] for record in result.json}


def test_if_all_is_well_it_is_reported(night: Night) -> None:
    night.fail("A", RefusedError("no", "no"))
    result = night.sas("doctor")
    assert result.code == 0
    assert "ok       reading the table           it answers; 1 orders in Error" in result.lines
    assert any(line.startswith("ok       queues ") for line in result.lines)
    assert "ok       sending to scheduler        you may send" in result.lines
    assert result.lines[-1].endswith(" ok, 0 wrong, 0 unknown")


def test_what_is_missing_is_wrong_with_what_to_do(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ServiceBus")
    monkeypatch.delenv("SAS_TABLES")
    monkeypatch.delenv("AzureWebJobsStorage", raising=False)
    monkeypatch.setenv("SAS_QUEUE_ORDERS", "a b")
    monkeypatch.setenv("SAS_OPERATOR", "x" * 101)
    result = night.sas("doctor", "--json")
    assert result.code == 1
    checks = states(result)
    for name in (
        *("setting of the table", "setting of Service Bus", "names of the queues"),
        *("your name in the journal", "reading the table"),
    ):
        assert checks[name] == "wrong", name
    assert "nothing runs here (no .devstack/env" in result.out


def test_missing_rights_are_reported_apart_from_missing_reach(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"agent-replies", "send scheduler"}
    checks = states(night.sas("doctor", "--json"))
    assert checks["reading agent-replies"] == "unknown"
    assert checks["sending to scheduler"] == "wrong"
    assert checks["queues"] == "ok"
    night.outage = "the namespace does not answer."
    checks = states(night.sas("doctor", "--json"))
    assert checks["reading orders"] == "wrong"
    store_away(monkeypatch)
    assert states(night.sas("doctor", "--json"))["reading the table"] == "wrong"


def test_the_queues_of_the_project_here_are_looked_at(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    queues = letters.expected_queues(ROOT)
    queue = next(name for name in sorted(queues) if name.startswith("agent-"))
    night.forbidden = {queue}
    assert states(night.sas("doctor", "--json"))[f"reading {queue}"] == "unknown"
