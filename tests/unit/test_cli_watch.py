"""``sas watch``: what each look shows."""

from __future__ import annotations

import pytest

from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.ports import RefusedError, StoreUnavailableError
from tests.unit.actors_kit import keep_breaker, order
from tests.unit.cli_kit import Night, store_away
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

DECLINED = RefusedError("card-declined", "the card was declined")


def test_each_look_is_one_line_where_there_is_no_terminal(night: Night) -> None:
    night.fail("A", DECLINED)
    night.submit("B")
    night.play(night.system.submit(order("C"), "m-C"))
    broken = opened(Breaker(), BreakerPolicy(), night.system.clock.now(), "503")
    night.play(keep_breaker(night.system.store, broken, "payment"))
    result = night.sas("watch", "--count", "2", "--every", "0.1")
    assert result.code == 0
    assert len(result.lines) == 2
    for part in (
        *("1 in Error; 1 under way; oldest due ", "in the last hour 1 Processed"),
        *("circuit of payment open", "operator-alerts 1; orders-rejected 0; dead-letters 0"),
    ):
        assert part in result.lines[0]
    (record,) = night.sas("watch", "--count", "1", "--json").json
    assert (record["InError"], record["UnderWay"]) == (1, 1)
    assert record["EndedInTheLastHour"] == {"Processed": 1}
    assert record["OpenCircuits"] == ["payment"]
    assert record["Queues"] == {"operator-alerts": 1, "orders-rejected": 0, "dead-letters": 0}


def test_a_queue_without_right_and_no_namespace_leave_the_rest(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"dead-letters"}
    assert "dead-letters cannot be read" in night.sas("watch", "--count", "1").out
    monkeypatch.delenv("ServiceBus")
    (record,) = night.sas("watch", "--count", "1", "--json").json
    assert record["Queues"] == {}


def test_a_store_that_is_away_for_a_while_is_looked_at_again(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, calls = night.system.store.attention, 0

    async def once_away(limit: int, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailableError("the table does not answer.")
        return await attention(limit, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(night.system.store, "attention", once_away)
    result = night.sas("watch", "--count", "2", "--every", "0.1")
    assert result.err == "sas: the table does not answer. Looking again\n"
    assert len(result.lines) == 1
    store_away(monkeypatch)
    night.sas("watch", "--count", "1").refused(3, "you have no right")
