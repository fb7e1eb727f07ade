"""What follows from a submission, a reply, an expiry, a resubmission; undo has its own file."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

from sas.domain.expire import DEPLOY_TIME, REWAKE_MAX, postpone
from sas.domain.messages import Alert, AlertKind, Notice, Notify, Outcome, Progress, Wake
from sas.domain.order import Direction, Fault
from sas.domain.reply import progressed
from sas.domain.workflow import TIME_ALLOWED_MAX, OnFailure
from tests.each import each
from tests.unit.domain_cases import T0, Story, story

SOLD_OUT = Fault("sold-out", "there is none left.")


def claimed(shape: str = "one", **policy: object) -> Story:
    order = story(shape, **policy)
    order.claim()
    return order


# Submission and replies


def test_a_submitted_order_wakes_a_scheduler_and_notifies_the_application() -> None:
    order = story("two in a row")
    assert order.messages == (Wake(), Notify(Notice.RECEIVED))
    assert order.states == ["Pending", "Pending"]
    assert order.order.complete_by == T0 + order.rules.pickup
    assert [(s.name, s.epoch, s.failure_count) for s in order.order.steps] == [
        ("a", 0, 0),
        ("b", 0, 0),
    ]


def test_a_reply_records_the_result_and_unlocks_the_step() -> None:
    order = claimed().later(5)
    assert order.answer(order.reply("a", result='{"id": 7}'))
    step = order.step("a")
    assert (step.process_state.value, step.result) == ("Processed", '{"id": 7}')
    assert (step.locked_by, step.complete_by, step.since) == (None, None, order.now)


def test_the_last_reply_completes_the_order_and_notifies_of_it_after_the_step() -> None:
    order = claimed().done("a")
    assert order.messages == (
        Notify(Notice.STEP_COMPLETED, step=0),
        Notify(Notice.COMPLETED),
    )
    assert order.state == "Processed"


def test_an_application_may_do_without_a_notification_of_each_step() -> None:
    order = claimed("two in a row", notify_steps=False)
    assert order.done("a").notices == []
    assert order.done("b").notices == ["completed"]


@each(
    product(
        [{"epoch": 0}, {"epoch": 2}, {"direction": Direction.UNDO}, {"step": 1}, {"step": -1}],
        list(Outcome),
    )
)
def test_a_reply_that_is_not_to_what_is_out_changes_nothing(
    changes: dict[str, object], outcome: Outcome
) -> None:
    order = claimed("two in a row")
    assert not order.answer(order.reply("a", outcome=outcome, **changes))


def test_the_same_reply_twice_counts_once() -> None:
    order = claimed()
    reply = order.reply("a")
    assert order.answer(reply)
    assert not order.answer(reply)


def test_a_reply_that_comes_after_the_reset_is_too_late_even_with_its_epoch() -> None:
    order = claimed()
    reply = order.reply("a")
    order.expired("a")
    assert not order.answer(reply)
    order.claim()
    assert not order.answer(reply)
    assert order.answer(order.reply("a"))


def test_a_reply_that_comes_late_but_before_the_supervisor_looked_still_counts() -> None:
    order = claimed().later(3600)
    assert order.answer(order.reply("a"))


# Progress


def progress(order: Story, seconds: float, *, note: str = "", awaits: bool = False) -> bool:
    """Let the agent of the step ask for so many seconds from now."""
    word = Progress(
        order_id="order-1",
        step=0,
        direction=Direction.DO,
        epoch=order.step("a").epoch,
        complete_by=order.now + timedelta(seconds=seconds),
        note=note,
        awaits=awaits,
    )
    return order.apply(progressed(order.order, word, order.rules, now=order.now, instance="s"))


def test_progress_after_progress_never_takes_time_back_and_keeps_the_last_note() -> None:
    order = claimed()
    assert progress(order, 600, note="at stop 3")
    granted_until = T0 + timedelta(seconds=600)
    assert progress(order.later(1), 5, note="at stop 4")
    step = order.step("a")
    assert (step.complete_by, step.call.called_until) == (granted_until, granted_until)
    assert progress(order, 700)
    assert (order.step("a").note, order.messages) == ("at stop 4", ())
    assert order.step("a").complete_by == order.now + timedelta(seconds=700)
    assert not progress(order, 5), "there is nothing new in it"
    assert progress(order, 10**7)
    assert order.step("a").complete_by == order.now + TIME_ALLOWED_MAX


def test_older_progress_that_comes_late_does_not_end_the_wait_for_a_callback() -> None:
    order = claimed()
    assert progress(order, 600, note="the manager approves", awaits=True)
    assert not progress(order.later(1), 30, note="it is asked")
    assert (order.step("a").awaits_callback, order.step("a").note) == (True, "the manager approves")
    assert progress(order, 700, note="it goes on")
    assert not order.step("a").awaits_callback


# Failure


def test_a_refusal_puts_the_order_in_error_and_notifies_application_and_operator() -> None:
    order = claimed("two in a row").refused("a", SOLD_OUT)
    text = "step a failed: “there is none left”. Resubmit it, skip it or undo the order."
    assert order.messages == (
        Notify(Notice.FAILED, step=0, fault=SOLD_OUT),
        Alert(AlertKind.STEP_FAILED, 0, text),
    )
    assert (order.state, order.step("a").error) == ("Error", SOLD_OUT)


def test_a_refusal_without_a_reason_gets_a_default_reason() -> None:
    fault = claimed().refused("a").step("a").error
    assert fault == Fault("refused", "the agent gave no reason")


def test_a_failed_order_is_undone_at_once_where_the_workflow_wants_it() -> None:
    order = claimed("two in a row", on_failure=OnFailure.UNDO).done("a").refused("b", SOLD_OUT)
    assert order.states == ["Compensating", "Compensating"]
    assert order.requests == [("b", "undo", 2)]
    assert order.notices == ["failed"]
    assert order.alerts == []
    notification = next(m for m in order.messages if isinstance(m, Notify))
    assert (notification.fault, notification.undoing) == (SOLD_OUT, True)


def test_a_fault_is_cut_to_what_a_row_can_hold() -> None:
    fault = Fault("c" * 101, "m" * 1001)
    assert (len(fault.code), len(fault.message)) == (100, 1000)


# Expiry


def test_a_step_is_left_alone_until_the_moment_of_complete_by() -> None:
    order = claimed().later(59.999999)
    assert not order.expire("a")
    assert order.later(0.000001).expire("a")


def test_a_step_out_of_time_is_reset_and_a_scheduler_woken() -> None:
    order = claimed(failures_max=2).expired("a")
    step = order.step("a")
    assert (order.states, step.failure_count) == (["Pending"], 1)
    assert (step.locked_by, step.complete_by) == (None, order.now + order.rules.pickup)
    assert order.messages == (Wake(),)


@each([0, 1, 3])
def test_a_step_may_fail_as_often_as_its_threshold_and_once_more_is_an_error(
    failures_max: int,
) -> None:
    order = story("one", failures_max=failures_max)
    for count in range(1, failures_max + 1):
        order.claim()
        order.expired("a")
        assert (order.state, order.step("a").failure_count) == ("Pending", count)
    order.claim()
    order.expired("a")
    assert (order.state, order.step("a").failure_count) == ("Error", failures_max + 1)
    fault = order.step("a").error
    assert fault is not None
    assert fault.code == "timed-out"
    assert f"{failures_max + 1} times; its outcome is unknown" in fault.message
    assert order.notices == ["failed"]
    assert order.alerts == ["step-failed"]


def test_past_the_threshold_the_supervisor_has_the_undo_begun_by_a_scheduler() -> None:
    order = claimed(failures_max=0, on_failure=OnFailure.UNDO).expired("a")
    assert order.states == ["Compensating"]
    assert (order.woken, order.requests) == (True, [])
    assert order.step("a").complete_by == order.now + order.rules.pickup


def test_failures_are_counted_from_zero_after_success() -> None:
    order = claimed("two in a row").expired("a")
    order.claim()
    assert order.done("a").step("a").failure_count == 0


def test_a_step_that_no_scheduler_claimed_is_woken_and_never_failed() -> None:
    order = story("one", failures_max=0)
    for _ in range(50):
        order.expired("a")
        assert order.woken
    assert order.states == ["Pending"]
    assert (order.step("a").failure_count, order.step("a").epoch) == (0, 0)
    assert order.now > T0 + timedelta(hours=10)
    assert order.claim()


def test_a_step_that_no_scheduler_claims_is_woken_at_growing_intervals_up_to_a_quarter_hour() -> (
    None
):
    order = story("one")
    waits = []
    for _ in range(9):
        before = order.now
        order.expired("a")
        waits.append((order.now - before).total_seconds())
    assert waits == [30, 30, 60, 120, 240, 480, 900, 900, 900]


def test_an_operator_gets_an_alert_for_a_step_that_no_scheduler_claims_for_long() -> None:
    order = story("one")
    for _ in range(20):
        if order.incident is not None:
            break
        assert order.step("a").since == T0
        order.expired("a")
    assert order.incident is not None
    assert order.now - T0 == timedelta(minutes=16)
    incident = order.incident
    assert (incident.kind, incident.scope, incident.since) == (
        AlertKind.NOT_PICKED_UP,
        "ordinary orders",
        T0,
    )
    assert incident.until == order.step("a").complete_by
    assert order.messages == (Wake(),)


def test_the_operator_gets_the_alert_from_alert_after_on_and_not_a_moment_earlier() -> None:
    order = story("one")
    order.later(order.rules.alert_after.total_seconds() - 0.000001).expire("a")
    assert order.incident_kind is None
    other = story("one")
    other.later(other.rules.alert_after.total_seconds()).expire("a")
    assert other.incident_kind == "not-picked-up"
    for urgent, scope in ((False, "ordinary orders"), (True, "urgent orders")):
        details = replace(other.order.details, urgent=urgent)
        other.order = replace(other.order, details=details)
        other.expired("a")
        assert other.incident is not None
        assert other.incident.scope == scope


def test_a_workflow_with_a_long_time_for_the_pickup_is_not_woken_more_often() -> None:
    order = story("one")
    order.workflow = replace(order.workflow, pickup=timedelta(hours=2))
    order.later(60).expired("a").expired("a")
    assert order.step("a").complete_by == order.now + timedelta(hours=2)


def test_a_step_is_as_old_as_its_turn_and_not_as_its_wait_for_others() -> None:
    order = claimed("two beside each other").expired("a")
    order.refused("b").later(86_400)
    assert order.resubmit()
    order.expired("a")
    assert order.incident_kind is None
    assert order.step("a").complete_by == order.now + order.rules.pickup


def test_an_undo_reset_after_a_long_wait_is_not_called_long_unclaimed() -> None:
    order = claimed("two in a row").done("a")
    order.undo()
    order.claim()
    order.later(86_400).done("b")
    order.expired("a")
    assert (order.woken, order.step("a").failure_count) == (True, 1)
    order.expired("a")
    assert order.woken
    assert order.incident_kind is None


def test_without_its_workflow_a_due_step_is_postponed_and_the_operator_gets_an_alert() -> None:
    order = claimed()
    assert postpone(order.order, 0, "why", now=order.now) is None
    order.later(60)
    assert order.apply(postpone(order.order, 0, "no such workflow", now=order.now))
    assert order.incident is not None
    assert order.incident.kind is AlertKind.NOT_RUNNABLE
    assert order.incident.scope == "test version 1"
    assert order.incident.text == "no such workflow. Deploy that version again."
    assert order.incident.until == order.now + REWAKE_MAX + DEPLOY_TIME
    assert order.step("a").complete_by == order.now + timedelta(minutes=15)
    assert order.answer(order.reply("a"))


# Resubmission


def test_an_operator_resubmits_a_failed_step_and_its_failures_are_counted_from_zero() -> None:
    order = claimed(failures_max=0).expired("a").later(60)
    assert order.resubmit()
    step = order.step("a")
    assert (order.state, step.failure_count, step.error) == ("Pending", 0, None)
    assert (step.since, step.complete_by) == (order.now, order.now + order.rules.pickup)
    assert order.messages == (Wake(),)
    assert order.claim()
    assert order.requests == [("a", "do", 2)]


def test_resubmission_keeps_the_key_of_the_remote_call() -> None:
    order = claimed().refused("a")
    order.resubmit()
    assert order.step("a").call.generation == 0


def test_every_failed_step_is_resubmitted_and_no_other() -> None:
    order = claimed("three beside each other").refused("a").refused("c").done("b")
    order.resubmit()
    assert order.states == ["Pending", "Processed", "Pending"]


def test_a_failed_undo_is_resubmitted_as_an_undo() -> None:
    order = claimed(failures_max=0).done("a")
    order.undo()
    order.claim()
    order.expired("a")
    assert (order.state, order.step("a").failure_count) == ("Error", 1)
    assert order.resubmit()
    assert (order.states, order.undoing) == (["Compensating"], True)
    assert (order.step("a").failure_count, order.step("a").error) == (0, None)
    assert order.claim()
    assert order.requests == [("a", "undo", 3)]


@each(["submitted", "claimed", "done", "undone"])
def test_an_order_without_an_error_is_not_resubmitted(until: str) -> None:
    order = story("one")
    if until != "submitted":
        order.claim()
    if until in {"done", "undone"}:
        order.done("a")
    if until == "undone":
        order.undo()
    assert not order.resubmit()
