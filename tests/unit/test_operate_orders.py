"""Orders as records: what each waits for and where its message is, what may be done, and lists."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.codec.external import Rejection, encode, rejected_message
from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import key_time
from sas.domain.order import Resting
from sas.domain.workflow import Workflows
from sas.engine.delivery import DEPLOY_WAIT, LEFT_SINCE
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.features.version_check import value_name
from sas.operate import letters, lists, orders
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.finding import OrderQuery
from sas.operate.lists import OrderList
from sas.operate.orders import OrderStory, QueuedOrder, acts_of
from sas.operate.rows import row_of
from sas.operate.why import Awaited, AwaitedMessage, Waits, Whereabouts
from sas.ports import QUEUE_DISABLED, QUEUE_MISSING, Message, RefusedError
from tests.command_line import check_command
from tests.contract.cases import NOW
from tests.unit.actors_kit import (
    CARE,
    CHAIN,
    KEYS,
    QUEUES,
    Kit,
    break_row,
    command,
    keep_breaker,
    kit,
    order,
)
from tests.unit.cli_kit import Night
from tests.unit.domain_cases import story
from tests.unit.orders_in_states import ORDERS

DECLINED = RefusedError("card-declined", "the card was declined")
WORKFLOWS = Workflows((CHAIN, CARE))


def answer(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def told(night: Night, order_id: str = "A", *, app: bool = True, bus: bool = True) -> OrderStory:
    """Return what is told of an order; ``app``: with its workflows."""
    system = night.system
    story: OrderStory = answer(
        orders.explain(
            system.store,
            night if bus else None,
            system.order(order_id),
            system.journal(order_id),
            queues=QUEUES,
            now=system.clock.now(),
            workflows=WORKFLOWS if app else None,
        )
    )
    return story


def message_of(waits: Waits) -> AwaitedMessage:
    assert waits.message is not None
    return waits.message


def queued(night: Night, order_id: str) -> QueuedOrder:
    queued_order: QueuedOrder = answer(orders.queued(night, QUEUES, order_id))
    return queued_order


def listed(night: Night, state: str = "error", *, bus: bool = True, **members: Any) -> OrderList:
    query = OrderQuery(state=state, **members)
    now = night.system.clock.now()
    order_list: OrderList = answer(
        lists.list_of(night.system.store, night if bus else None, query, queues=QUEUES, now=now)
    )
    return order_list


def submitted(night: Night, order_id: str = "A", workflow: str = "chain") -> None:
    """An order whose wake waits for a scheduler."""
    night.play(night.system.submit(order(order_id, workflow=workflow), f"m-{order_id}"))


def requested(night: Night, order_id: str = "A") -> None:
    """An order whose request waits for its agent."""
    submitted(night, order_id)
    night.play(night.system.step("scheduler"))


# -- The message that an order waits for ------------------------------------------------------


def test_a_ready_step_waits_for_a_scheduler_and_its_wake_is_found(night: Night) -> None:
    submitted(night)
    story = told(night)
    message = message_of(story.waits)
    assert story.story == "It is under way: 0 of 2 steps done."
    assert story.waits.kind is Awaited.SCHEDULER
    assert (message.place, message.queue) == (Whereabouts.IN_QUEUE, "scheduler")
    assert (message.text, message.before) == ("in scheduler", 0)
    assert story.waits.at == night.system.order("A").complete_by


def test_a_request_that_lies_behind_others_names_its_queue_and_its_agent(night: Night) -> None:
    for order_id in ("A", "B", "C"):
        requested(night, order_id)
    waits = told(night, "C").waits
    assert (waits.step, waits.attempt, waits.failure_count) == ("reserve", 1, 0)
    assert (waits.agent, waits.circuit) == ("stock", None)
    assert (message_of(waits).queue, message_of(waits).before) == ("agent-stock", 2)


def test_without_an_app_the_agent_is_found_by_the_queues_of_the_circuits(night: Night) -> None:
    requested(night)
    assert told(night, app=False).waits.agent is None
    since = night.system.clock.now()
    broken = opened(Breaker(), BreakerPolicy(), since, "stock: 503")
    night.play(keep_breaker(night.system.store, broken, "stock"))
    waits = told(night, app=False).waits
    assert waits.agent == "stock"
    assert waits.circuit is not None
    assert (waits.circuit.state, waits.circuit.since) == ("open", since)
    assert waits.circuit.why == "stock: 503"
    night.play(keep_breaker(night.system.store, broken, "care"))
    night.put("agent-care", b"{}")
    message = message_of(told(night, app=False).waits)
    assert (message.queue, message.before) == ("agent-stock", 0), "it lies in another queue"


def test_a_request_that_its_agent_took_is_in_no_queue(night: Night) -> None:
    requested(night)
    (request,) = night.system.taken("agent-stock")
    night.put("agent-stock", b"{}", is_scheduled=True)
    night.put("agent-stock", request.body)
    assert message_of(told(night).waits).before == 0, "what is scheduled is not in front of it"
    night.lying.clear()
    night.put("agent-stock", request.body.replace(b'"epoch":1', b'"epoch":0'))  # an older one
    message = message_of(told(night).waits)
    assert message.place is Whereabouts.IN_HAND
    assert message.text == (
        "in no queue: its agent is handling it. If its process died, the message comes again when "
        "its lock ends, within half a minute."
    )
    night.later(3600)
    waits = told(night).waits
    assert (waits.kind, waits.needs_you) == (Awaited.SUPERVISOR, True)


def test_queues_that_may_not_be_read_or_are_not_configured_leave_the_message_unknown(
    night: Night,
) -> None:
    requested(night)
    assert message_of(told(night, bus=False).waits).place is Whereabouts.UNKNOWN
    night.forbidden = {"*"}
    message = message_of(told(night).waits)
    assert message.place is Whereabouts.UNKNOWN
    assert "you need the role Azure Service Bus Data Receiver" in message.text


def test_a_step_whose_queue_cannot_be_used_waits_for_that_queue(night: Night) -> None:
    requested(night)
    night.system.agents_die()
    for queue in ("agent-stock", "scheduler"):
        for reason, todo in (
            (QUEUE_DISABLED, "Enable it: set its status to Active."),
            (QUEUE_MISSING, "Create it, or correct the name."),
        ):
            night.unusable = {queue: reason}
            waits = told(night).waits
            assert (waits.kind, waits.todo) == (Awaited.QUEUE, todo)
            assert waits.awaited == f"Queue {queue}, which cannot be used."
            assert message_of(waits).place is Whereabouts.UNKNOWN


def test_a_step_that_rests_waits_for_no_message(night: Night) -> None:
    submitted(night)
    before = night.system.order("A")
    rest = Resting(night.system.clock.now() + timedelta(seconds=5))
    step = replace(before.steps[0], turn=rest)
    night.system.store.orders["A"].order = replace(before, steps=(step, *before.steps[1:]))
    waits = told(night).waits
    assert (waits.kind, message_of(waits).place) == (Awaited.REST, Whereabouts.NONE)


def test_a_callback_that_came_is_found_in_its_queue(night: Night) -> None:
    night.awaits("A")
    waits = told(night).waits
    assert waits.awaited == "The callback of reserve: “the manager approves”."
    assert (waits.kind, message_of(waits).place) == (Awaited.CALLBACK, Whereabouts.NONE)
    stored = night.system.order("A")
    token = KEYS.callback_of(stored, stored.steps[0]).token
    night.play(night.system.callbacks.answer(token, None, b'{"outcome": "done"}'))
    assert message_of(told(night).waits).queue == "scheduler"


def test_an_order_in_error_waits_for_the_command_that_lies_in_the_queue(night: Night) -> None:
    night.fail("A", DECLINED)
    seq = night.system.order("A").seq
    night.play(night.system.bus.send([command("resubmit", seq - 1, "late", "A")]))
    waits = told(night).waits
    assert (waits.kind, waits.message) == (Awaited.YOU, None)
    assert waits.last_error is not None
    assert waits.last_error.code == "card-declined"
    now = command("resubmit", seq, "now", "A")
    for queue in ("scheduler-urgent", "scheduler"):
        night.play(night.system.bus.send([replace(now, queue=queue)]))
        waits = told(night).waits
        assert (waits.kind, waits.needs_you) == (Awaited.COMMAND, False)
        assert message_of(waits).text == f"resubmit by ann in {queue}"


def test_a_cancel_for_an_order_in_error_is_found_although_it_names_no_seq(night: Night) -> None:
    night.fail("A", DECLINED)
    cancel = command("cancel", 4, "stop", "A")
    body = cancel.body.replace(b'"seq":4', b'"seq":null')
    night.play(night.system.bus.send([replace(cancel, body=body)]))
    assert told(night).waits.kind is Awaited.COMMAND


def test_the_queues_that_may_hold_the_message_of_an_urgent_order_are_urgent() -> None:
    claimed = ORDERS["processing"]
    urgent = replace(claimed, details=replace(claimed.details, urgent=True))
    paths = letters.waiting_paths(urgent, urgent.steps[0], QUEUES, {"stock"})
    assert paths[:2] == ["agent-stock-urgent", "scheduler-urgent"]


# -- Orders that wait for a deploy ------------------------------------------------------------


def lacking_chain(night: Night) -> Kit:
    """A second instance, which lacks the workflow ``chain``."""
    return kit(CARE, instance="older", beside=night.system, deploy_wait=DEPLOY_WAIT)


def test_a_stored_order_whose_message_no_instance_takes_waits_for_a_deploy(night: Night) -> None:
    submitted(night)
    wake = night.system.bus.take("scheduler")
    assert wake is not None
    night.play(lacking_chain(night).receive(wake))
    waits = told(night).waits
    assert (waits.kind, message_of(waits).text) == (Awaited.DEPLOY, "scheduled in scheduler")
    assert waits.awaited == "A deploy that has chain version 1."
    assert waits.todo == "Deploy chain version 1 again as it was, beside the other versions."
    submitted(night, "B")
    assert told(night, "B").waits.kind is Awaited.SCHEDULER, "no message of it is left"


def test_a_dead_letter_of_an_application_says_nothing_of_an_order_that_it_names(
    night: Night,
) -> None:
    """It said that no instance has the workflow of another application's order."""
    submitted(night)
    wake = night.system.bus.take("scheduler")
    assert wake is not None
    properties = {LEFT_SINCE: key_time(night.system.clock.now())}
    night.put("dead-letters", wake.body, source="orders", properties=properties)
    waits = told(night).waits
    assert (waits.kind, message_of(waits).queue) == (Awaited.SCHEDULER, None)


def test_an_order_that_the_supervisor_postponed_waits_for_a_deploy(night: Night) -> None:
    submitted(night)
    older = lacking_chain(night)
    night.system.bus.take("scheduler")
    for _ in range(2):
        night.later(DEPLOY_TIME.total_seconds() + 60)
        night.play(older.sweep())
    waits = told(night).waits
    assert waits.kind is Awaited.DEPLOY
    assert message_of(waits).since == night.system.journal("A")[-1].at
    assert waits.at is not None


def test_a_command_that_no_instance_takes_waits_for_a_deploy(night: Night) -> None:
    night.fail("A", DECLINED)
    older = kit(CHAIN, instance="older", beside=night.system, deploy_wait=DEPLOY_WAIT)
    night.play(older.receive(command("resubmit", night.system.order("A").seq, "now", "A")))
    waits = told(night).waits
    assert waits.kind is Awaited.DEPLOY
    assert message_of(waits).text == "resubmit by ann in scheduler"


# -- Orders that are only in a queue ----------------------------------------------------------


def test_an_order_that_no_function_has_taken_yet_is_found_in_the_queue_of_orders(
    night: Night,
) -> None:
    night.play(night.system.bus.send([Message("orders", "m-A", order("A"))]))
    waits = queued(night, "A").waits
    assert (message_of(waits).queue, waits.needs_you) == ("orders", False)
    night.forbidden = {"orders", "orders-urgent"}
    with pytest.raises(NotPossibleError, match="there is no order 'A' here"):
        queued(night, "A")


def test_an_order_that_waits_for_a_deploy_is_found_before_it_is_stored(night: Night) -> None:
    body = order("A", workflow="chain", workflow_version=7)
    night.play(lacking_chain(night).receive(Message("orders", "m-A", body)))
    queued_order = queued(night, "A")
    assert queued_order.waits.awaited == "A deploy that has “chain version 7”: no instance has it."
    assert queued_order.waits.kind is Awaited.DEPLOY
    assert queued_order.waits.at == night.system.clock.now() + DEPLOY_WAIT


def test_an_order_whose_check_has_a_bug_waits_for_the_deploy_that_mends_it(night: Night) -> None:
    def check(_content: bytes) -> None:
        raise KeyError("cake")

    failing = kit(CHAIN, instance="failing", beside=night.system, chain=check)
    night.play(failing.receive(Message("orders", "m-A", order("A"))))
    line = check.__code__.co_firstlineno + 1
    queued_order = queued(night, "A")
    assert queued_order.waits.awaited == (
        "A deploy that mends a bug: “the check of saga chain fails: KeyError: \"'cake'\" "
        f"(tests/unit/test_operate_orders.py:{line} in check)”."
    )
    assert (queued_order.waits.at, queued_order.waits.needs_you) == (None, True)


def test_an_order_that_was_rejected_at_the_door_is_found_on_its_queue(night: Night) -> None:
    submitted(night, "bad", workflow="nosuch")
    queued_order = queued(night, "bad")
    assert queued_order.process_state == "Rejected"
    assert queued_order.story.startswith("It was rejected and never began: unknown-workflow: “")
    assert message_of(queued_order.waits).since == night.system.clock.now()
    assert "sas messages resend rejected/" in queued_order.waits.todo
    night.forbidden = {"orders-rejected"}
    with pytest.raises(ServiceUnavailableError, match="whether it was rejected is not known"):
        queued(night, "bad")


# -- One order --------------------------------------------------------------------------------


def test_what_may_be_done_follows_from_the_state() -> None:
    for state, verbs in {
        "pending": ["undo o", "undo o --now"],
        "in error": ["resubmit o", "skip o --step step-1 --input RESULT", "undo o"],
        "undo failed": ["resubmit o", "skip o --step step-1"],
        "awaiting a callback": ["undo o", "undo o --now", "callback o --step step-0"],
        "processed": ["undo o"],
        "compensated": [],
        "rejected": [],
    }.items():
        commands = [act.command for act in acts_of(ORDERS[state])]
        others = [text for text in commands if "--acknowledge" not in text]
        assert others == [f"sas {verb}" for verb in verbs], state
        is_failed = "sas resubmit o" in commands
        assert ("sas show o --acknowledge" in commands) == is_failed, state
        seen_order = replace(ORDERS[state], acknowledged_by="bob")
        assert "acknowledge" not in {act.verb for act in acts_of(seen_order)}


def test_what_may_be_pasted_names_the_order_and_does_nothing_else() -> None:
    for order_id in ("a; id", "$(id)", "`id`", "-x", "a 'b'"):
        details = replace(ORDERS["in error"].details, order_id=order_id)
        for act in acts_of(replace(ORDERS["in error"], details=details)):
            words = shlex.split(act.command)
            assert words.count(order_id) == 1
            assert ("--" in words) == order_id.startswith("-")
            check_command(words[1:])


def test_an_id_that_nobody_can_see_is_in_no_command() -> None:
    order = replace(
        ORDERS["in error"], details=replace(ORDERS["in error"].details, order_id="a\u202eb")
    )
    assert {act.command for act in acts_of(order)} == {""}


def test_a_row_names_the_step_the_change_the_operator_the_reason_and_an_edited_input(
    night: Night,
) -> None:
    night.fail("A", DECLINED)
    reason = ("--reason", "the limit was raised")
    assert night.sas("resubmit", "A", "--yes", "--input", '{"amount": 1}', *reason).code == 0
    rows = {row.what: row for fold in told(night).folds for row in fold.rows}
    resubmitted = rows["resubmitted"]
    assert (resubmitted.by, resubmitted.reason) == ("operator ann", "the limit was raised")
    assert resubmitted.changes == ("pay: Error -> Pending with its input edited",)
    assert rows["step failed"].changes == ("pay: Processing -> Error",)
    assert rows["claimed"].messages == ("request: do pay, epoch 2",)


def test_a_journal_whose_beginning_was_removed_is_counted(night: Night) -> None:
    night.submit("A")
    journal = night.system.store.orders["A"].journal
    del journal[0]
    assert told(night).rows_removed == 1


# -- Lists ------------------------------------------------------------------------------------


def test_the_limit_of_a_list_of_every_state_counts_for_each_of_them(night: Night) -> None:
    for number in range(2):
        night.submit(f"done-{number}")
        night.fail(f"failed-{number}", DECLINED)
    for number in range(2):
        requested(night, f"out-{number}")
    order_list = listed(night, "all", limit=1)
    ids = [row.order_id.partition("-")[0] for row in order_list.rows]
    assert ids == ["failed", "out", "done"]
    assert order_list.is_cut


def test_a_list_of_orders_in_error_begins_at_a_moment_and_one_under_way_is_cut(
    night: Night,
) -> None:
    night.fail("A", DECLINED)
    night.later(60)
    moment = night.system.clock.now()
    night.fail("B", DECLINED)
    assert [row.order_id for row in listed(night, since=moment).rows] == ["B"]
    submitted(night, "C")
    assert listed(night, "running", limit=1).is_cut
    assert not listed(night, "running", limit=2).is_cut


def test_why_an_order_was_undone_stays_on_it_and_in_lists(night: Night) -> None:
    night.fail("A", DECLINED)
    assert night.sas("undo", "A", "--yes", "--reason", "the customer asked").code == 0
    night.system.agents["payment"].then(DECLINED)
    night.submit("C", workflow="chain")
    assert told(night).order.undone_because == "operator ann: the customer asked"
    rows = {row.order_id: row.undone_because for row in listed(night, "compensated").rows}
    assert rows == {
        "A": "operator ann: the customer asked",
        "C": "pay failed: “card-declined: the card was declined”",
    }


def test_a_workflow_that_never_ran_is_an_error_where_others_are_remembered(night: Night) -> None:
    assert listed(night, workflow="cahin").rows == ()
    night.play(night.system.store.write_shared(value_name("order-with-care", 1), "x", None))
    with pytest.raises(NotPossibleError, match="ever ran here: known are order-with-care"):
        listed(night, workflow="cahin")


def test_rejected_orders_are_listed_the_newest_first_with_the_reason(night: Night) -> None:
    for order_id in ("bad-1", "bad-2"):
        submitted(night, order_id, workflow="nosuch")
        night.later(1)
    rows = listed(night, "rejected", since=NOW - timedelta(days=3650)).rows
    assert [row.order_id for row in rows] == ["bad-2", "bad-1"]
    assert rows[0].why.startswith("unknown-workflow: ")
    assert rows[0].message_id is not None
    night.submit("good")
    submitted(night, "bad-3", workflow="nosuch")
    rows = listed(night, "all").rows  # of the table and of the queue
    assert [row.order_id for row in rows] == ["bad-3", "good", "bad-2", "bad-1"]
    night.forbidden = {"orders-rejected"}
    assert "you need the role Azure Service Bus" in listed(night, "rejected").problem
    assert "no Service Bus namespace" in listed(night, "rejected", bus=False).problem


def test_another_message_that_could_not_be_used_is_no_rejected_order(night: Night) -> None:
    for queue in ("responses-shop", "agent-payment", "scheduler-urgent", "scheduler"):
        rejection = Rejection(
            body=b"{}",
            reason="undeliverable",
            description="nobody takes it",
            source_queue=queue,
            message_id="m",
            order_id="purged",
        )
        at = night.system.clock.now()
        message = rejected_message(rejection, at=at, own_id=f"rejected/{queue}/1")
        night.put("orders-rejected", encode(message))
    assert listed(night, "rejected").rows == ()
    with pytest.raises(NotPossibleError, match="there is no order 'purged' here"):
        queued(night, "purged")


def test_the_row_of_an_order_in_error_names_the_step_that_failed_and_not_the_open_one() -> None:
    both = story("two beside each other")
    both.claim()
    row = row_of(both.refused("b").order, both.now)
    assert (row.step, row.until) == ("b", both.step("a").complete_by)


def test_an_order_that_is_stored_is_not_listed_as_rejected(night: Night) -> None:
    submitted(night, "A", workflow="nosuch")
    night.later(1)
    night.submit("A")
    night.play(night.system.submit(order("A", workflow="chain"), "m-taken"))
    assert night.system.state("A") == "Processed"
    assert listed(night, "rejected").rows == ()
    break_row(night.system, "A")
    assert listed(night, "rejected").rows == ()
