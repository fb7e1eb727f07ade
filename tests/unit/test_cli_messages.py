"""``sas messages``: what it prints, what it asks, and what it says when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from sas.cli import messages
from sas.operate.errors import UNAVAILABLE
from sas.ports import BusUnavailableError, Message, MessageMove, UndeliverableError
from tests.unit.actors_kit import order
from tests.unit.cli_kit import Night, store_away
from tests.unit.messages_kit import DECLINED, ORDER, REJECTED, alert, dead, reject

DEAD = "responses-web-shop/$DeadLetterQueue"
SHOP_DEAD = ("--in", "responses-web-shop/dlq")


def test_alerts_that_are_over_are_counted_and_the_others_listed(night: Night) -> None:
    night.fail("A", DECLINED)
    night.fail("B", DECLINED)
    alert(night, "end", scope="payment", kind="cleared", cleared="breaker-open")
    assert night.sas("messages").lines[-2:] == [
        "2 alerts",
        "1 more repaired or over: `sas messages remove --repaired`",
    ]
    records = night.sas("messages", "list", "alerts", "--json", "--limit", "2").json
    assert [(record["Kind"], bool(record["Over"])) for record in records] == [
        ("cleared", True),
        ("step-failed", False),
    ]
    night.later(7200)
    assert night.sas("messages", "list", "alerts", "--since", "1h", "--json").json == []


def test_messages_are_followed_the_oldest_first_each_once(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.fail("older", DECLINED)
    night.fail("A", DECLINED)
    rounds = 0
    sleep = asyncio.sleep

    async def meanwhile(seconds: float) -> None:
        nonlocal rounds
        if seconds != messages.FOLLOW_S:
            await sleep(seconds)
            return
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        name = f"B-{rounds}"
        alert(night, name, order_id=name, kind="overdue")

    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    result = night.sas("messages", "list", "alerts", "--follow", "--limit", "1")
    assert result.code == 130
    assert [line.split()[2:4] for line in result.lines] == [
        ["step-failed", "A"],
        ["overdue", "B-1"],
        ["overdue", "B-2"],
    ]


def test_a_message_is_shown_with_its_body_if_that_is_asked_for(night: Night) -> None:
    reject(night)
    assert "reply_queue" not in night.sas("messages", "show", "A-1").out
    assert ORDER.decode() in night.sas("messages", "show", "A-1", "--content").out
    night.put("orders", b'{"a": 1,\r\n\t"b": "\x1b[2J"}', message_id="lines")
    body = night.sas("messages", "show", "lines", "--in", "orders", "--content").lines[-2:]
    assert body == ['body     {"a": 1,', '             "b": "\\x1b[2J"}']
    night.forbidden = {"scheduler/$DeadLetterQueue"}
    for verb in ("show", "resend", "remove"):
        result = night.sas("messages", verb, "gone")
        result.refused(1, "there is no gone among the first 1,000")
        assert "queue scheduler/$DeadLetterQueue: to read it you need" in result.err


def test_what_is_repaired_is_no_problem_and_goes_with_one_command(night: Night) -> None:
    reject(night, b"{}", "scheduler", "dead-lettered")
    for problems in (["rejected"], []):
        (record,) = night.sas("status", "--json").json
        assert [problem["Kind"] for problem in record["Problems"]] == problems
        night.later(1)
        night.submit("A-1")
    result = night.sas("messages", "remove", "--repaired", "--yes")
    assert (result.lines[-1], night.lying[REJECTED]) == ("removed 1 of 1", [])


def test_a_message_is_sent_again_and_a_dry_run_sends_nothing(night: Night) -> None:
    night.runs = False
    reject(night)
    dead(night, "scheduler", b"\x00poison", "poison")
    dry_run = night.sas("messages", "resend", "--all", "--dry-run", "--json")
    moves = {record["MessageID"]: record["To"] for record in dry_run.json}
    assert moves == {"rejected/0/1": "orders", "poison": None}
    assert (dry_run.code, night.sent_messages) == (1, [])
    result = night.sas("messages", "resend", "A-1")
    assert (result.code, result.lines[-1]) == (0, "sent 1, removed 1 of 1")
    assert [message.queue for message in night.sent_messages] == ["orders"]
    assert night.lying[REJECTED] == []
    (forced,) = night.sas("messages", "resend", "poison", "--force", "--json").json
    assert (forced["To"], night.lying["scheduler/$DeadLetterQueue"]) == ("scheduler", [])


def test_a_removal_asks_and_many_messages_are_not_sent_without_a_yes(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    reject(night)
    assert "remove 1 message for good: there is no terminal" in (
        night.sas("messages", "remove", "A-1").err
    )
    for number in range(11):
        night.put(DEAD, b"{}", message_id=f"m-{number}")
        alert(night, f"late-{number}", f"it is {number} late", kind="overdue")
    resend = ("messages", "resend", "--all", *SHOP_DEAD)
    assert "give --yes. Nothing was sent." in night.sas(*resend).err
    assert (night.sent_messages, len(night.lying[REJECTED])) == ([], 1)
    assert night.sas("messages", "remove", "A-1", "--yes").lines[-1] == "removed 1 of 1"
    night.sas("messages", "remove", "A-1", "--yes").refused(1, "there is no A-1")
    removal = night.sas("messages", "remove", "late-10", "--yes")
    assert removal.lines[-1] == "removed 11 of 11"


def test_without_a_right_or_a_namespace_it_is_one_sentence(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"*"}
    for verb in (["list"], ["list", "rejected"], ["resend", "--all"]):
        night.sas("messages", *verb).refused(3, "you need the role Azure Service Bus Data Receiver")
    night.forbidden = set()
    night.fail("A", DECLINED)
    store_away(monkeypatch)
    result = night.sas("messages", "list", "alerts")
    assert (result.code, result.lines[-1]) == (0, "1 alert")
    assert "the state of the orders is not known: " in result.err
    night.runs = False
    reject(night)
    dead(night, "orders", order("fresh"), "fresh")
    result = night.sas("messages", "resend", "--all")
    assert (result.code, result.lines[-1]) == (1, "sent 1, removed 1 of 1")
    assert "fresh stays: not known: the state of its order cannot be read" in result.err
    monkeypatch.delenv("SAS_TABLES")
    assert night.sas("messages", "list", "alerts").err == ""
    monkeypatch.delenv("ServiceBus")
    night.sas("messages").refused(2, "or set ServiceBus to a Service Bus connection string")


NO_SENDING = "queue orders: to send you need the role Azure Service Bus Data Sender on it."


def test_what_was_not_moved_stays_and_the_command_says_so(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = BusUnavailableError("it is away.")
    no_right = UndeliverableError(NO_SENDING, Message("orders", "", b""))
    for removed, error, code, sentence in (
        ([], outage, UNAVAILABLE, "at least 0 of 2 were sent"),
        ([True], outage, UNAVAILABLE, "at least 1 of 2 were sent"),
        ([], no_right, UNAVAILABLE, NO_SENDING),
        ([], None, 1, "the others were gone, or another reader has them: look again"),
        ([True, False], None, 1, "some were sent and not removed: the next resend sends them"),
    ):
        night.lying.clear()
        for number in range(2):
            night.put(DEAD, b"{}", message_id=f"m-{number}")

        async def moves(
            path: str,
            moves: Sequence[MessageMove],
            removed: Sequence[bool] = removed,
            error: Exception | None = error,
        ) -> AsyncGenerator[bool]:
            for is_removed in removed:
                yield is_removed
            if error is not None:
                raise error

        monkeypatch.setattr(night, "move", moves)
        result = night.sas("messages", "resend", "--all", *SHOP_DEAD)
        assert result.code == code
        assert sentence in result.err
        assert ("at least" in result.err) is (error is outage)
