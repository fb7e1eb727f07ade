"""``sas alerts``, ``sas rejected``, ``sas dlq``: over the actors in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from sas.cli import inboxes
from sas.codec import internal
from sas.codec.external import Rejection, encode, rejected_parts
from sas.codec.internal import CommandMessage, WakeMessage
from sas.codec.orders import salvage
from sas.engine.delivery import FIRST_ID
from sas.features.callbacks.codec import Claims
from sas.ports import (
    BusUnavailableError,
    Message,
    MessageMove,
    Peeked,
    RefusedError,
    UndeliverableError,
)
from sas.testing.clock import START
from sas.testing.world import CrashError
from tests.unit.actors_kit import KEYS, QUEUES, SHOP, Kit, called_back, command, done, order
from tests.unit.cli_kit import Night, store_away
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

DECLINED = RefusedError("card-declined", "the card was declined")
REJECTED, DEAD = "orders-rejected", "/$DeadLetterQueue"
GIVEN_UP = {"DeadLetterReason": "MaxDeliveryCountExceeded"}


# -- alerts -----------------------------------------------------------------------------------


def test_alerts_are_shown_the_newest_first_with_what_to_do(night: Night) -> None:
    night.fail("A", DECLINED)
    night.fail("B", DECLINED)
    result = night.sas("alerts")
    assert result.code == 0
    assert [line.split()[2:4] for line in result.lines[:2]] == [
        ["step-failed", "B"],
        ["step-failed", "A"],
    ]
    assert "agent payment, 1 attempt  step pay failed: the card was declined" in result.lines[0]
    assert result.lines[-1] == "2 alerts"
    records = night.sas("alerts", "--json", "--limit", "1").json
    assert [(record["Kind"], record["OrderID"], record["Step"]) for record in records] == [
        ("step-failed", "B", "pay")
    ]
    assert (records[0]["Agent"], records[0]["Attempts"]) == ("payment", 1)
    assert records[0]["Error"] == {"Code": "card-declined", "Message": "the card was declined"}
    assert (records[0]["Command"], result.lines[0].rsplit("  ", 1)[1]) == (
        "sas show B",
        "`sas show B`",
    )
    night.later(7200)
    assert night.sas("alerts", "--since", "1h").lines == ["no alert"]


def test_an_alert_of_an_order_that_was_repaired_since_then_says_so(night: Night) -> None:
    for order_id in "ABC":
        night.fail(order_id, DECLINED)
    night.later(1)
    for order_id, verb in (("A", "resubmit"), ("B", "undo")):
        assert night.sas(verb, order_id, "--reason", "repaired", "--yes").code == 0
    lines = night.sas("alerts").lines
    assert ["repaired: now Processed  `sas show A`" in line for line in lines[:3]] == [0, 0, 1]
    assert ["repaired: now Compensated" in line for line in lines[:3]] == [0, 1, 0]
    assert "now " not in lines[0]
    records = night.sas("alerts", "--json").json
    assert [record["Now"] for record in records] == [None, "Compensated", "Processed"]


def test_an_alert_of_an_order_that_goes_on_says_its_state(night: Night) -> None:
    night.fail("A", DECLINED)
    night.runs = False
    night.play(night.system.hand(command("resubmit", night.system.order("A").seq, "now", "A")))
    assert "  now Processing  `sas show A`" in night.sas("alerts").lines[0]


def test_an_alert_of_a_rejected_order_is_repaired_by_a_new_submission_alone(night: Night) -> None:
    night.play(night.system.submit(order("new", workflow="nosuch"), "m-1"))
    night.submit("taken")
    night.play(night.system.submit(order("taken", workflow="care"), "m-2"))
    night.later(1)
    night.submit("new")
    id_alert, new_alert = night.sas("alerts").lines[:2]
    assert "rejected  taken" in id_alert
    assert "now " not in id_alert
    assert "  repaired: now Processed  " in new_alert


def test_alerts_are_shown_where_the_table_cannot_be_read(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.fail("A", DECLINED)
    store_away(monkeypatch)
    result = night.sas("alerts")
    assert result.code == 0
    assert result.lines[-1] == "1 alert"
    assert "the state of the orders is not known: " in result.err
    monkeypatch.delenv("SAS_TABLES")
    assert (night.sas("alerts").code, night.sas("alerts").err) == (0, "")


def test_alerts_are_followed_the_oldest_first_each_once(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.fail("A", DECLINED)
    rounds = 0
    sleep = asyncio.sleep

    async def meanwhile(seconds: float) -> None:
        nonlocal rounds
        if seconds != inboxes.FOLLOW_S:
            await sleep(seconds)
            return
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        body = order(f"B-{rounds}", workflow="nosuch")
        await night.system.submit(body, f"m-{rounds}")

    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    result = night.sas("alerts", "--follow")
    assert result.code == 130
    assert [line.split()[2:4] for line in result.lines] == [
        ["step-failed", "A"],
        ["rejected", "B-1"],
        ["rejected", "B-2"],
    ]


def test_without_the_right_or_the_namespace_it_is_one_sentence(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"*"}
    for verb in (["alerts"], ["rejected"], ["rejected", "resend", "--all"], ["dlq"]):
        night.sas(*verb).refused(3, "you need the role Azure Service Bus Data Receiver")
    monkeypatch.delenv("ServiceBus")
    for verb in (["alerts"], ["rejected"], ["dlq"]):
        night.sas(*verb).refused(2, "no connection: set ServiceBus to")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rejected", "list", "x"], "list takes no ID"),
        (["rejected", "show"], "give one ID"),
        (["rejected", "resend"], "give one ID or more, or --all"),
        (["rejected", "remove"], "give one ID or more"),
        (["rejected", "remove", "--all"], "give one ID or more"),
        (["rejected", "resend", "x", "--all"], "give one ID or more, or --all"),
        (["dlq", "list", "x"], "list takes no ID"),
        (["dlq", "explain", "x", "y"], "give one ID"),
        (["dlq", "redrive"], "give one ID or more, or --all"),
        (["alerts", "--since", "yesterday"], "is not a time"),
    ],
)
def test_a_wrong_use_is_one_sentence(night: Night, arguments: list[str], sentence: str) -> None:
    night.sas(*arguments).refused(2, sentence)


# -- rejected ---------------------------------------------------------------------------------


def reject(night: Night, order_id: str, queue: str = "orders") -> None:
    """Put a rejected order where ``move`` of these tests can take it."""
    night.play(night.system.submit(order(order_id, workflow="nosuch"), f"m-{order_id}"))
    night.later(1)
    message = night.system.bus.take(REJECTED)
    assert message is not None
    body = {**json.loads(message.body), "source_queue": queue}
    night.put(REJECTED, json.dumps(body).encode(), message_id=message.message_id)


def test_rejected_messages_are_listed_shown_and_sent_again(night: Night) -> None:
    reject(night, "bad-1")
    reject(night, "bad-2")
    result = night.sas("rejected", "list")
    assert [line.split()[2] for line in result.lines if "Z  " in line] == ["bad-2", "bad-1"]
    assert result.lines[-1] == "2 rejected messages"
    lines = night.sas("rejected", "show", "bad-1").lines
    assert any(line.startswith("reason       unknown-workflow: ") for line in lines)
    assert not any("nosuch" in line for line in lines if line.startswith("body"))
    (record,) = night.sas("rejected", "show", "bad-1", "--json", "--content").json
    assert salvage(record["Body"].encode()).order_id == "bad-1"

    dry_run = night.sas("rejected", "resend", "bad-1", "--dry-run")
    assert dry_run.lines == [
        "resend of 1 message",
        "  bad-1                 orders-rejected -> orders",
    ]
    assert len(night.lying[REJECTED]) == 2
    night.runs = False
    resend = night.sas("rejected", "resend", "bad-1")
    assert (resend.code, resend.lines[-1]) == (0, "sent 1 of 1, removed 1")
    assert [message.queue for message in night.sent_messages] == ["orders"]
    assert night.sas("rejected", "list").lines[-1] == "1 rejected message"


@pytest.mark.parametrize(
    ("queue", "todo"),
    [
        ("orders", "correct it and submit it again"),
        ("orders-shop", "correct it and submit it again"),
        ("agent-payment-urgent", "undo or resubmit the order"),
        ("agent-replies", "undo or resubmit the order"),
        ("scheduler", "undo or resubmit the order"),
        ("responses-shop", "its order goes on: let responses-shop be read"),
    ],
)
def test_what_to_do_about_a_rejected_message_follows_from_its_queue(
    night: Night, queue: str, todo: str
) -> None:
    reject(night, "bad-1", queue)
    lines = night.sas("rejected", "show", "bad-1").lines
    (advice,) = [line for line in lines if line.startswith("next")]
    assert todo in advice


def test_one_rejected_message_is_removed_by_the_id_of_its_order(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject(night, "bad-1")
    reject(night, "bad-2")
    monkeypatch.setattr("sys.stdin", None)
    assert "give --yes. Nothing was sent." in night.sas("rejected", "remove", "bad-1").err
    dry_run = night.sas("rejected", "remove", "bad-1", "--dry-run")
    assert dry_run.lines == [
        "removal of 1 message from orders-rejected",
        "  bad-1                 orders-rejected: removed",
    ]
    result = night.sas("rejected", "remove", "bad-1", "--yes")
    assert (result.code, result.lines[-1]) == (0, "removed 1 of 1")
    assert night.sent_messages == []
    assert night.sas("rejected", "list").lines[-1] == "1 rejected message"
    night.sas("rejected", "remove", "bad-1", "--yes").refused(1, "there is no bad-1")


def test_of_several_the_one_that_is_gone_stops_all(night: Night) -> None:
    reject(night, "bad-1")
    result = night.sas("rejected", "resend", "bad-1", "gone")
    result.refused(1, "there is no gone among the first 1,000 messages: nothing was changed")
    assert night.sent_messages == []
    night.sas("rejected", "show", "gone").refused(1, "there is no gone")


def test_messages_that_another_reader_took_meanwhile_are_reported(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject(night, "bad-1")

    async def nothing(path: str, moves: object) -> object:
        return
        yield

    monkeypatch.setattr(night, "move", nothing)
    result = night.sas("rejected", "resend", "--all")
    assert result.code == 1
    assert result.lines[-1] == "sent 0 of 1, removed 0"
    assert "the others were gone, or another reader has them" in result.err


# -- dlq --------------------------------------------------------------------------------------


def dead(night: Night, queue: str, body: bytes, message_id: str) -> None:
    night.put(queue + DEAD, body, message_id=message_id, properties=GIVEN_UP)


def fates(night: Night) -> dict[str, str]:
    records = night.sas("dlq", "list", "--json", "--app", "tests.unit.cli_kit:workflows").json
    return {record["MessageId"]: record["Fate"] for record in records}


def lake(night: Night) -> Kit:
    """Make dead letters of every fate."""
    system = night.system
    night.submit("done")
    night.play(system.submit(order("open"), "m-open"))
    night.play(system.step("scheduler"))
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None
    dead(night, "agent-stock", request.body, "open-request")
    dead(night, "agent-replies", done("done", 0, id="another").body, "old-reply")
    dead(night, "agent-replies", done("done", 0).body, "recorded-reply")
    dead(night, "agent-replies", done("open", 0).body, "new-reply")
    dead(night, "agent-replies", done("gone", 0).body, "gone-reply")
    wake = internal.encode(WakeMessage(id="w-9", order_id="open", seq=1))
    dead(night, "scheduler", wake, "wake")
    dead(night, "scheduler", b"\x00poison", "poison")
    dead(night, "orders", order("done"), "repeat")
    dead(night, "orders", order("fresh"), "fresh")
    dead(night, "operator-alerts", b'{"order_id": "done"}', "alert")
    return system


def test_every_dead_letter_is_joined_with_its_order(night: Night) -> None:
    lake(night)
    assert fates(night) == {
        "open-request": "safe to redrive",
        "old-reply": "already done",
        "recorded-reply": "safe to redrive",
        "new-reply": "safe to redrive",
        "gone-reply": "order gone",
        "wake": "safe to redrive",
        "poison": "not known",
        "repeat": "already done",
        "fresh": "safe to redrive",
        "alert": "safe to redrive",
    }
    result = night.sas("dlq", "--app", "tests.unit.cli_kit:workflows")
    assert result.lines[0].split() == ["Since", "Queue", "Order", "State", "Fate", "MessageId"]
    assert result.lines[-1].startswith("10 dead letters: 6 safe to redrive, 2 already done")


def test_a_dead_callback_that_did_not_count_yet_is_safe_to_redrive(night: Night) -> None:
    system = night.system
    night.play(system.submit(order("open"), "m-open"))
    claims = Claims(
        order_id="open",
        step=0,
        direction="do",
        generation=0,
        expires=int(START.timestamp()) + 3600,
        submission=system.order("open").details.submission,
    )
    dead(night, "callbacks", called_back(KEYS.issue(claims)).body, "callback")
    assert fates(night) == {"callback": "safe to redrive"}


def test_a_command_that_was_carried_out_or_fenced_is_done(night: Night) -> None:
    night.fail("A", DECLINED)
    command = CommandMessage(id="w-1", order_id="A", verb="acknowledge", by="ann", seq=4)
    body = internal.encode(command)
    dead(night, "scheduler", body, "command")
    assert fates(night) == {"command": "safe to redrive"}
    night.play(night.system.hand(Message(QUEUES.scheduler, "w-1", body)))
    assert fates(night) == {"command": "already done"}
    (record,) = night.sas("dlq", "--json").json
    assert record["Why"] == "it led to acknowledged (seq 5); the order is Error"


@pytest.mark.parametrize("queue", ["orders", "agent-replies"])
def test_a_dead_letter_whose_recorded_messages_may_not_be_sent_is_sent_again(
    night: Night, queue: str
) -> None:
    """Its function died between its commit and its sends, in the last delivery."""
    system, message = night.system, Message("orders", "m-A", order("A"))
    if queue == "agent-replies":
        night.play(system.hand(message))
        night.play(system.step("scheduler"))
        message = done("A", 0)
    before = {message.message_id for message in system.bus.messages(SHOP)}

    def dies(_message: Message) -> None:
        raise CrashError

    system.bus.plan = dies
    with pytest.raises(CrashError):
        night.play(system.hand(message))
    system.bus.plan = lambda _message: None
    assert {message.message_id for message in system.bus.messages(SHOP)} == before
    dead(night, queue, message.body, message.message_id)

    assert fates(night) == {message.message_id: "safe to redrive"}
    assert night.sas("dlq", "redrive", "--all").lines[-1] == "sent 1 of 1, removed 1"
    (copy,) = night.sent_messages
    night.play(system.hand(replace(copy, message_id=copy.properties[FIRST_ID])))
    after = {message.message_id for message in system.bus.messages(SHOP)}
    assert len(after - before) == 1, "the application gets its notification"


def test_another_submission_of_an_order_that_goes_on_is_done(night: Night) -> None:
    night.submit("A")
    dead(night, "orders", order("A", workflow="care", order={"amount": 12.50}), "m-other")
    assert fates(night) == {"m-other": "already done"}


def test_one_is_explained_with_what_to_do(night: Night) -> None:
    lake(night)
    app = ("--app", "tests.unit.cli_kit:workflows")
    result = night.sas("dlq", "explain", "open-request", *app)
    assert "fate      safe to redrive: reserve still waits for it (epoch 1)" in result.lines
    assert result.lines[-1].endswith("repair the cause, then `sas dlq redrive open-request`")
    result = night.sas("dlq", "explain", "old-reply", *app)
    assert "`sas queues remove agent-replies --dead-letter --id old-reply`" in result.lines[-1]
    (record,) = night.sas("dlq", "explain", "poison", "--json", *app).json
    assert (record["Fate"], record["GivenUp"]) == ("not known", "MaxDeliveryCountExceeded")
    night.sas("dlq", "explain", "nosuch").refused(1, "there is no dead letter nosuch")


def test_only_what_is_safe_is_sent_again(night: Night) -> None:
    lake(night)
    app = ("--app", "tests.unit.cli_kit:workflows")
    before = {path: len(messages) for path, messages in night.lying.items()}
    dry_run = night.sas("dlq", "redrive", "--all", "--dry-run", *app)
    assert dry_run.lines[0] == "resend of 6 messages"
    assert "  open                  agent-stock/$DeadLetterQueue -> agent-stock" in dry_run.lines
    assert {path: len(messages) for path, messages in night.lying.items()} == before
    result = night.sas("dlq", "redrive", "--all", *app)
    assert result.code == 1  # some stay, and stderr says why
    assert "old-reply stays: already done: " in result.err
    assert "gone-reply stays: order gone: there is no such order" in result.err
    assert result.lines[-1] == "sent 6 of 6, removed 6"
    assert sorted(message.queue for message in night.sent_messages) == [
        *(
            "agent-replies",
            "agent-replies",
            "agent-stock",
            "operator-alerts",
            "orders",
            "scheduler",
        ),
    ]
    night.sas("dlq", "redrive", "nosuch", *app).refused(1, "there is no dead letter nosuch")


def test_what_waits_for_the_function_of_dead_letters_is_left_to_it(night: Night) -> None:
    night.put("dead-letters", order("x"), message_id="m-x", source="orders")
    result = night.sas("dlq", "redrive", "m-x")
    assert result.code == 1
    assert "m-x stays: the function of dead-letters takes it" in result.err
    assert night.sent_messages == []
    assert "the function of this queue takes it" in night.sas("dlq", "explain", "m-x").lines[-1]


def test_a_queue_that_may_not_be_read_is_named_and_the_others_are_shown(night: Night) -> None:
    lake(night)
    night.forbidden = {"scheduler" + DEAD}
    result = night.sas("dlq", "--json")
    assert result.code == 1
    assert "queue scheduler/$DeadLetterQueue: to read it you need" in result.err
    assert "repeat" in result.out


def test_without_the_right_to_the_table_it_is_one_sentence(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_away(monkeypatch)
    night.sas("dlq").refused(3, "you have no right")


# -- wrong state, gone, no right, lost race: one sentence, and nothing changed ------------------

NO_SENDING = "queue orders: to send you need the role Azure Service Bus Data Sender on it."
NO_RECEIVING = "to take a message you need the role Azure Service Bus Data Receiver on it."
VERBS = [
    ("rejected", "resend", "bad-1"),
    ("rejected", "remove", "bad-1", "--yes"),
    ("dlq", "redrive", "fresh"),
]


def one_of_each(night: Night) -> dict[str, list[Peeked]]:
    reject(night, "bad-1")
    dead(night, "orders", order("fresh"), "fresh")
    return {path: list(messages) for path, messages in night.lying.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_without_the_right_to_receive_a_message_stays(
    night: Night, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    before = one_of_each(night)

    async def refused(path: str, moves: object) -> AsyncGenerator[bool]:
        raise BusUnavailableError(f"queue {path}: {NO_RECEIVING}")
        yield True  # type: ignore[unreachable]

    monkeypatch.setattr(night, "move", refused)
    result = night.sas(*verb)
    assert (result.code, result.err.splitlines()[-1]) == (
        3,
        f"sas: queue {path_of(verb)}: {NO_RECEIVING}",
    )
    assert (night.lying, night.sent_messages) == (before, [])


def path_of(verb: tuple[str, ...]) -> str:
    return REJECTED if verb[0] == "rejected" else "orders" + DEAD


@pytest.mark.parametrize("verb", [VERBS[0], VERBS[2]])
def test_without_the_right_to_send_a_message_stays(
    night: Night, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    before = one_of_each(night)

    async def refused(path: str, moves: Sequence[MessageMove]) -> AsyncGenerator[bool]:
        assert moves[0].message is not None
        raise UndeliverableError(NO_SENDING, moves[0].message)
        yield True  # type: ignore[unreachable]

    monkeypatch.setattr(night, "move", refused)
    night.sas(*verb).refused(3, NO_SENDING)
    assert (night.lying, night.sent_messages) == (before, [])


@pytest.mark.parametrize("verb", VERBS)
def test_a_message_that_another_operator_took_first_is_reported_as_gone(
    night: Night, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    one_of_each(night)

    async def nothing(path: str, moves: object) -> AsyncGenerator[bool]:
        return
        yield True  # type: ignore[unreachable]

    monkeypatch.setattr(night, "move", nothing)
    night.sas(*verb).refused(1, "the others were gone, or another reader has them: look again")
    assert night.sent_messages == []


@pytest.mark.parametrize("verb", [*VERBS, ("rejected", "show", "bad-1"), ("dlq", "explain", "x")])
def test_a_message_that_is_gone_is_one_sentence(night: Night, verb: tuple[str, ...]) -> None:
    night.sas(*verb).refused(
        1, f"there is no {'dead letter ' if verb[0] == 'dlq' else ''}{verb[2]}"
    )
    assert night.sent_messages == []


@pytest.mark.parametrize(
    ("verb", "why"),
    [
        (("rejected", "resend", "bad"), "stays: it is not a rejected message: send it by hand"),
        (("rejected", "resend", "forged"), "stays: a sender can forge its source 'scheduler'"),
        (("dlq", "redrive", "repeat"), "stays: already done"),
        (("dlq", "redrive", "poison"), "stays: not known"),
        (("dlq", "redrive", "old"), "stays: the function of dead-letters takes it"),
    ],
)
def test_the_reason_why_a_message_must_stay_is_printed(
    night: Night, verb: tuple[str, ...], why: str
) -> None:
    night.submit("done")
    night.put(REJECTED, b"{}", message_id="bad")
    rejection = Rejection(
        body=b"{}",
        reason="not-json",
        description="say it in JSON",
        source_queue="scheduler",
        message_id="m",
    )
    (part,) = rejected_parts(rejection, at=night.system.clock.now(), id_base="rejected/2")
    night.put(REJECTED, encode(part), message_id="forged")
    dead(night, "orders", order("done"), "repeat")
    dead(night, "scheduler", b"\x00poison", "poison")
    night.put("dead-letters", order("old"), message_id="old")
    before = {path: list(messages) for path, messages in night.lying.items()}
    night.sas(*verb).refused(1, why)
    assert (night.lying, night.sent_messages) == (before, [])
