"""Backoff, extended waits, the deadline of an order, and the undo that waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sas.domain.change import DeadlineDue, StepDue, due_rows
from sas.domain.claim import with_step
from sas.domain.expire import expire_deadline, postpone_deadline
from sas.domain.messages import Alert, AlertKind, Notice, Notify, Outcome, Wake
from sas.domain.order import CLOCK_SKEW, AttemptError, Fault
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure
from tests.each import each
from tests.unit.domain_cases import SECOND, T0, Story, story

BACKOFF = Backoff(10 * SECOND, factor=3, most=60 * SECOND)
HOUR = timedelta(hours=1)
LIMIT = timedelta(minutes=5)
DAY = timedelta(days=1)


def claimed(shape: str = "one", **policy: object) -> Story:
    order = story(shape, **policy)
    order.claim()
    return order


# Backoff


def test_a_step_that_timed_out_rests_before_it_is_tried_again_and_longer_each_time() -> None:
    order = claimed(failures_max=4, backoff=BACKOFF)
    for rest in (10, 30, 60, 60):
        order.expired("a")
        step = order.step("a")
        assert (step.process_state.value, step.resting, order.messages) == ("Pending", True, ())
        assert step.complete_by == order.now + rest * SECOND
        order.expired("a")
        assert (order.step("a").resting, order.woken) == (False, True)
        assert order.claim()


def test_a_stray_wake_does_not_end_a_rest() -> None:
    order = claimed(backoff=BACKOFF).expired("a")
    assert not order.later(9.9).claim()
    assert not order.expire("a")
    assert order.later(0.1).expire("a")
    assert order.claim()


def test_an_undo_that_timed_out_rests_as_well() -> None:
    order = claimed(backoff=BACKOFF).done("a")
    order.undo()
    order.claim()
    order.expired("a")
    assert (order.states, order.step("a").resting) == (["Compensating"], True)
    assert order.step("a").complete_by == order.now + 10 * SECOND
    assert not order.claim()
    order.expired("a")
    assert order.claim()
    assert order.requests == [("a", "undo", 3)]


def test_a_rest_of_one_step_does_not_hold_back_another() -> None:
    order = claimed("two beside each other", backoff=BACKOFF).expired("a")
    order.expired("b").expired("a")
    assert order.step("b").resting
    order.claim()
    assert order.requests == [("a", "do", 2)]


def test_without_a_backoff_a_step_is_tried_again_at_once() -> None:
    order = claimed().expired("a")
    assert (order.step("a").resting, order.woken) == (False, True)
    assert order.claim()


# Extended waits


def test_past_the_threshold_a_step_has_an_extended_wait_and_the_operator_gets_an_alert() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR)).expired("a")
    step, until = order.step("a"), order.now + HOUR
    assert (step.process_state.value, step.resting, step.complete_by) == ("Pending", True, until)
    assert (step.failure_count, step.failures.extended_waits, step.locked_by) == (1, 1, None)
    assert order.messages == ()
    assert order.incident is not None
    assert order.incident.kind is AlertKind.WAITING
    assert order.incident.scope == "test version 1, step a"
    assert (order.incident.since, order.incident.until) == (order.now, until)
    assert "In test version 1, step a timed out past its threshold." in order.incident.text
    assert due_rows(order.order) == {StepDue(at=until, order_id="order-1", step=0, epoch=1)}


@each([(OnFailure.HOLD, "Error"), (OnFailure.UNDO, "Compensating")])
def test_after_the_last_extended_wait_the_policy_applies(policy: OnFailure, end: str) -> None:
    wait = ExtendedWait(HOUR, times=2)
    order = claimed(failures_max=1, extended_wait=wait, on_failure=policy)
    attempts = 1
    for _ in range(9):
        if order.expired("a").states != ["Pending"]:
            break
        if order.step("a").resting:
            order.expired("a")
        assert order.claim()
        attempts += 1
    turned = policy is OnFailure.UNDO  # its undo has all its waits again
    assert (attempts, order.state, order.step("a").failures.extended_waits) == (
        4,
        end,
        0 if turned else 2,
    )


def test_an_undo_past_its_threshold_waits_too_before_it_fails_for_good() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR, times=1))
    assert order.undo()
    assert order.claim()
    order.expired("a")
    step = order.step("a")
    assert (step.process_state.value, step.resting, step.failures.extended_waits) == (
        "Compensating",
        True,
        1,
    )
    assert order.incident is not None
    assert order.incident.scope == "test version 1, the undo of step a"
    order.expired("a")
    assert order.claim()
    order.expired("a")
    assert order.alerts == ["undo-failed"]
    assert order.state == "Error"


def test_a_step_and_its_undo_that_cannot_begin_are_separate_incidents() -> None:
    order = claimed()
    assert order.answer(order.reply("a", outcome=Outcome.WAITED, result=None))
    assert order.incident is not None
    assert order.incident.scope == "test version 1, step a"
    assert "In test version 1, step a cannot begin: the circuit" in order.incident.text
    assert order.undo()
    assert order.claim()
    assert order.answer(order.reply("a", outcome=Outcome.WAITED, result=None))
    assert order.incident.scope == "test version 1, the undo of step a"


def test_an_answer_after_a_rest_ends_the_incident_of_the_step_or_of_its_undo() -> None:
    order = claimed("two in a row", failures_max=0, extended_wait=ExtendedWait(HOUR))
    order.expired("a").expired("a").claim()
    assert order.done("a").ended == "test version 1, step a"
    order.waited("b").expired("b").claim()
    order.waited("b").expired("b").claim()
    assert order.done("b").ended == "test version 1, step b"
    order.undo()
    order.claim()
    order.expired("b").expired("b").claim()
    assert order.done("b").ended == "test version 1, the undo of step b"
    assert order.step("b").failure_count == 0
    assert order.done("a").ended is None, "it did not rest"


def test_a_step_that_succeeds_after_its_wait_is_as_new() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR)).expired("a").expired("a")
    order.claim()
    order.done("a")
    assert (
        order.state,
        order.step("a").failures.extended_waits,
        order.step("a").failure_count,
    ) == (
        "Processed",
        0,
        0,
    )


def test_a_final_refusal_leads_to_no_extended_wait() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR))
    assert order.refused("a").state == "Error"


def test_a_resubmitted_step_has_all_its_waits_again() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR)).expired("a").expired("a")
    order.claim()
    assert order.expired("a").state == "Error"
    order.resubmit()
    order.claim()
    assert order.expired("a").incident_kind == "waiting"


def test_an_order_is_undone_out_of_an_extended_wait_at_once() -> None:
    order = claimed(failures_max=0, extended_wait=ExtendedWait(HOUR)).expired("a")
    assert order.undo()
    assert (order.states, order.step("a").resting) == (["Compensating"], False)
    assert order.claim()


# The deadline of an order


def test_an_order_has_a_due_row_at_its_deadline() -> None:
    order = story("one", deadline=DAY)
    assert order.order.deadline == T0 + DAY
    assert DeadlineDue(T0 + DAY, "order-1") in due_rows(order.order)
    assert due_rows(order.order) == {
        DeadlineDue(T0 + DAY, "order-1"),
        StepDue(at=T0 + order.rules.pickup, order_id="order-1", step=0, epoch=0),
    }


def test_a_deadline_is_let_pass_to_the_moment() -> None:
    order = story("one", deadline=DAY).later(DAY.total_seconds() - 0.001)
    early = expire_deadline(order.order, order.rules, now=order.now)
    assert early is None
    assert order.overdue()


@each(["done", "undo", "cancel"])
def test_the_deadline_row_is_gone_once_the_order_is_processed_or_being_undone(end: str) -> None:
    order = claimed(deadline=DAY)
    ends = {"done": lambda: order.done("a"), "undo": order.undo, "cancel": order.cancel}
    assert ends[end]()
    assert order.order.deadline is None
    assert not any(isinstance(row, DeadlineDue) for row in due_rows(order.order))
    assert not order.later(DAY.total_seconds()).overdue()


def test_an_overdue_order_that_holds_goes_on_with_an_alert_once() -> None:
    order = claimed("two in a row", deadline=10 * SECOND)
    before = order.order.steps
    assert order.overdue()
    text = (
        f"the order is past its deadline ({(T0 + 10 * SECOND).isoformat()}) and goes on. "
        "Undo or cancel it if need be."
    )
    assert order.messages == (Alert(AlertKind.OVERDUE, None, text),)
    assert order.order.steps == before
    assert not order.later(3600).overdue()
    assert order.done("a", "b").state == "Processed"


def test_an_overdue_order_that_undoes_is_undone_and_the_notification_says_why() -> None:
    order = claimed("two in a row", deadline=10 * SECOND, on_failure=OnFailure.UNDO)
    assert order.overdue()
    text = f"the order is past its deadline ({(T0 + 10 * SECOND).isoformat()})"
    assert order.messages == (
        Wake(),
        Notify(Notice.FAILED, step=None, fault=Fault("overdue", text), undoing=True),
    )
    assert order.states == ["Compensating", "Compensated"]
    assert order.order.deadline is None


def test_an_overdue_order_that_never_began_is_compensated_and_notified() -> None:
    order = story("one", deadline=10 * SECOND, on_failure=OnFailure.UNDO)
    assert order.overdue()
    assert (order.state, order.notices) == ("Compensated", ["failed", "undone"])


def test_without_its_workflow_a_passed_deadline_is_reported_once_and_forgotten() -> None:
    order = claimed(deadline=10 * SECOND)
    early = postpone_deadline(order.order, "why", now=order.now)
    assert early is None
    order.later(10)
    decision = postpone_deadline(order.order, "no version 7", now=order.now)
    assert order.apply(decision)
    assert order.alerts == ["overdue"]
    assert order.order.deadline is None
    assert postpone_deadline(order.order, "why", now=order.now) is None


# The undo of a remote without tombstones


def test_an_undo_waits_until_no_call_of_its_do_can_land_any_more() -> None:
    order = claimed(drain_time=LIMIT)
    called_until = order.step("a").complete_by
    assert called_until is not None
    order.later(5).undo()
    step = order.step("a")
    assert (step.resting, step.complete_by) == (True, called_until + CLOCK_SKEW + LIMIT)
    assert not order.claim()
    assert not order.later(300).expire("a")
    order.expired("a")
    assert order.now == called_until + CLOCK_SKEW + LIMIT
    assert order.claim()
    assert order.requests == [("a", "undo", 2)]


def test_an_undo_waits_for_the_last_of_several_calls() -> None:
    order = claimed(drain_time=LIMIT, failures_max=3).expired("a")
    order.claim()
    order.later(1).done("a").undo()  # the first call may still be on its way
    assert order.step("a").complete_by == T0 + 120 * SECOND + CLOCK_SKEW + LIMIT


def test_an_undo_need_not_wait_where_no_call_can_land_any_more() -> None:
    order = claimed(drain_time=LIMIT).done("a").later(3600)
    order.undo()
    assert order.step("a").resting is False
    assert order.claim()


def test_an_undo_that_waits_holds_back_what_came_before_it() -> None:
    order = claimed("two in a row", drain_time=LIMIT).later(3600).done("a")
    order.undo()
    assert [step.resting for step in order.order.steps] == [False, True]
    assert not order.claim()
    order.expired("b")
    order.claim()
    assert order.requests == [("b", "undo", 2)]
    assert order.done("b").requests == [("a", "undo", 2)]


# The last error of an attempt


def failed_attempt(order: Story, name: str, message: str, *, epoch: int | None = None) -> None:
    """Let the agent of a step keep the error of an attempt, as a load returns it."""
    step = order.step(name)
    error = AttemptError(
        epoch=epoch or step.epoch, attempt=3, kind="http-500", message=message, at=order.now
    )
    changed = replace(step, last_error=error)
    order.order = replace(order.order, steps=with_step(order.order.steps, changed))


def test_a_step_that_timed_out_has_the_last_error_of_its_attempts() -> None:
    order = claimed(failures_max=0)
    failed_attempt(order, "a", "the hotel answered 500: out of memory.")
    order.expired("a")
    fault = order.step("a").error
    assert fault is not None
    assert fault.code == "timed-out"
    assert fault.message == (
        "no success within CompleteBy, 1 times; its outcome is unknown. Last error: "
        "“http-500: the hotel answered 500: out of memory”"
    )
    (alert,) = (m.text for m in order.messages if isinstance(m, Alert))
    assert 'Last error: "http-500: the hotel answered 500: out of memory"”. Resubmit it' in alert
    (notified_fault,) = (m.fault for m in order.messages if isinstance(m, Notify))
    assert notified_fault == fault


def test_an_undo_that_timed_out_has_the_last_error_of_its_attempts() -> None:
    order = claimed(failures_max=0).done("a")
    order.undo()
    order.claim()
    failed_attempt(order, "a", "KeyError: 'room'")
    order.expired("a")
    fault = order.step("a").error
    assert fault is not None
    assert fault.message == (
        "no success to the undo within CompleteBy, 1 times. "
        "Last error: “http-500: KeyError: 'room'”"
    )


def test_the_error_of_an_earlier_dispatch_explains_no_later_timeout() -> None:
    order = claimed(failures_max=1)
    failed_attempt(order, "a", "the hotel answered 500")
    order.expired("a")
    order.claim()
    order.expired("a")
    fault = order.step("a").error
    assert fault is not None
    assert fault.message == "no answer within CompleteBy, 2 times; its outcome is unknown"
