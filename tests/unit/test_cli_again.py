"""What a resubmit brought about, and rejected orders: over the actors in memory."""

from __future__ import annotations

import pytest

from sas.cli.main import main
from sas.ports import RefusedError
from tests.unit.actors_kit import command, order
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

DECLINED = RefusedError("card-declined", "the card was declined")
LIMIT = RefusedError("over-limit", "the card is over its limit")


def test_a_step_that_fails_again_ends_with_1_and_says_how(night: Night) -> None:
    night.fail("A", DECLINED)
    night.system.agents["payment"].then(LIMIT)
    result = night.sas("resubmit", "A", "--yes")
    assert result.code == 1
    assert result.lines[-1] == "done: seq 5, resubmitted; the order is Error"
    assert result.err == "sas: it failed again: pay (over-limit: the card is over its limit)\n"


def test_a_step_that_succeeds_ends_with_0(night: Night) -> None:
    night.fail("A", DECLINED)
    result = night.sas("resubmit", "A", "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.lines[-1] == "done: seq 5, resubmitted; the order is Processed"


def test_of_many_those_that_failed_again_are_named(night: Night) -> None:
    for order_id in ("A", "B", "C"):
        night.fail(order_id, DECLINED)
    night.system.agents["payment"].then({"ok": 1}, LIMIT, {"ok": 1})
    result = night.sas("resubmit", "--state", "error", "--yes")
    assert result.code == 1
    assert result.lines[1:4] == [
        f"  {name}                     pay/card-declined" for name in "ABC"
    ]
    assert result.lines[-1] == "sent 3, carried out 3, failed again 1"
    assert result.err.startswith("sas: order B: failed again: pay (over-limit: ")
    assert result.err.count("\n") == 1


def test_a_command_that_lost_a_race_says_what_changed_and_does_nothing(night: Night) -> None:
    night.fail("A", DECLINED)
    seq = night.system.order("A").seq

    async def bob() -> None:
        await night.system.hand(command("acknowledge", seq, "w-bob", "A"))

    night.before_send = bob
    result = night.sas("undo", "A", "--yes", "--wait", "5")
    result.refused(1, f"you saw seq {seq}, but the order is at seq {seq + 1}", "acknowledged")
    assert night.system.state("A") == "Error"


def test_as_json_each_order_is_one_object(night: Night) -> None:
    for order_id in ("A", "B"):
        night.fail(order_id, DECLINED)
    records = night.sas("resubmit", "--state", "error", "--dry-run", "--json").json
    assert [(record["OrderID"], record["Seq"]) for record in records] == [("A", 4), ("B", 4)]
    assert records[0]["Would"] == "run again: pay (card-declined: the card was declined)"
    assert night.sent_messages == []
    night.system.agents["payment"].then({"ok": 1}, LIMIT)
    result = night.sas("resubmit", "--state", "error", "--yes", "--json")
    assert result.code == 1
    assert [
        (record["OrderID"], record["CarriedOut"], record["FailedAgain"]) for record in result.json
    ] == [
        ("A", True, False),
        ("B", True, True),
    ]
    assert result.json[0]["ProcessState"] == "Processed"
    assert result.json[1]["Problem"] == "pay (over-limit: the card is over its limit)"
    (acknowledged,) = night.sas("acknowledge", "B", "--json").json
    assert (acknowledged["Verb"], acknowledged["Problem"]) == ("acknowledge", None)
    (record,) = night.sas("undo", "B", "--yes", "--no-wait", "--json").json
    assert record["CarriedOut"] is None
    night.fail("C", DECLINED)
    night.runs = False
    timeout = night.sas("undo", "C", "--yes", "--wait", "0.1", "--json")
    assert timeout.code == 1
    assert "check that the function app runs" in timeout.json[0]["Problem"]
    night.sas("undo", "gone", "--json").refused(1, "there is no order 'gone' here")


def test_many_and_one_order_contradict_each_other(night: Night) -> None:
    night.sas("undo", "X", "--state", "processed").refused(
        2, "ORDER_ID 'X' names one order, and --state processed chooses many: give one of the two"
    )


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: sas" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["incidents", "nosuch"], ["shwo", "A"], ["list", "error"]])
def test_a_word_too_many_is_an_error(night: Night, arguments: list[str]) -> None:
    result = night.sas(*arguments)
    assert result.code == 2
    assert "usage: sas" in result.err


def test_a_second_order_with_an_id_that_is_taken_does_not_reject_the_first(night: Night) -> None:
    night.submit("A")
    night.play(night.system.submit(order("A", workflow="care"), "m-2"))
    assert [rejection.reason for rejection in night.system.rejected()] == ["order-id-taken"]
    assert "the first order goes on: submit this one with an id of its own" in (
        night.sas("rejected", "show", "A").out
    )
