"""Compensation: which steps are undone, in which order, and that an undo is final."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.messages import Alert, AlertKind, Notice, Notify, Wake
from sas.domain.order import Fault
from sas.domain.workflow import OnFailure
from tests.each import each
from tests.unit.domain_cases import Story, story


def processed(shape: str = "two in a row", **policy: object) -> Story:
    order = story(shape, **policy)
    order.claim()
    for step in order.order.steps:
        order.done(step.name)
    return order


def test_an_order_never_dispatched_is_compensated_and_notified_at_once() -> None:
    order = story("two in a row")
    assert order.undo()
    assert order.states == ["Compensated", "Compensated"]
    assert Notify(Notice.UNDONE) in order.messages
    assert order.order.complete_by is None


def test_every_step_that_was_dispatched_is_undone_and_no_other() -> None:
    order = story("three in a row")
    order.claim()
    order.done("a").undo()
    assert order.states == ["Compensating", "Compensating", "Compensated"]


def test_a_reset_step_is_undone_because_it_may_have_had_its_effect() -> None:
    order = story("one")
    order.claim()
    order.expired("a").undo()
    assert order.states == ["Compensating"]


def test_a_refused_step_is_undone_as_well() -> None:
    order = story("one")
    order.claim()
    order.refused("a").undo()
    assert order.states == ["Compensating"]


def test_processed_steps_without_an_undo_are_compensated() -> None:
    order = processed(without_undo=frozenset("ab"))
    assert order.state == "Processed"
    assert order.undo()
    assert order.state == "Compensated"
    assert Notify(Notice.UNDONE) in order.messages


def test_undo_wakes_a_scheduler_and_takes_the_lock_from_what_is_out() -> None:
    order = story("one")
    order.claim()
    assert order.later(5).undo()
    step = order.step("a")
    assert order.messages == (Wake(),)
    assert step.locked_by is None
    assert step.complete_by == order.now + order.rules.pickup


def test_undo_counts_failures_from_zero_and_keeps_the_epoch() -> None:
    order = story("one")
    order.claim()
    order.expired("a")
    order.claim()
    assert order.step("a").failure_count == 1
    order.undo()
    assert (order.step("a").failure_count, order.step("a").epoch) == (0, 2)


def test_the_undo_of_a_step_is_given_what_its_do_returned_under_the_same_key() -> None:
    order = processed("one")
    order.undo()
    assert (order.step("a").result, order.step("a").call.generation) == ('"ok"', 0)


def test_an_answer_to_the_do_is_too_late_once_undo_is_decided() -> None:
    order = story("one")
    order.claim()
    reply = order.reply("a")
    order.undo()
    assert not order.answer(reply)
    order.claim()
    assert not order.answer(reply)


def test_the_last_undo_makes_the_order_compensated_and_notifies_once() -> None:
    order = processed()
    order.undo()
    order.claim()
    assert order.done("b").notices == []
    assert order.done("a").notices == ["undone"]
    assert order.state == "Compensated"


def test_undo_is_decided_once() -> None:
    order = processed()
    assert order.undo()
    assert not order.undo()
    order.claim()
    order.done("b", "a")
    assert not order.undo()


def test_an_order_with_a_failed_undo_is_resubmitted_and_not_undone_again() -> None:
    order = processed("one")
    order.undo()
    order.claim()
    order.refused("a")
    assert not order.undo()
    assert order.resubmit()
    assert order.states == ["Compensating"]


def test_a_refused_undo_alerts_with_what_is_left_and_what_to_do() -> None:
    order = processed("three in a row")
    order.undo()
    order.claim()
    fault = Fault("no", "the parcel has left.")
    order.done("c").refused("b", fault)
    assert order.messages == (
        Notify(Notice.FAILED, step=1, fault=fault),
        Alert(
            AlertKind.UNDO_FAILED,
            1,
            "the undo of step b failed: “the parcel has left”. "
            "a: undoing, b: undo failed, c: undone. "
            "Resubmit to try the undo again, or skip it once it is undone by hand.",
        ),
    )
    assert (order.state, order.step("b").error) == ("Error", fault)


@each(OnFailure)
def test_an_undo_out_of_time_is_tried_again_up_to_its_threshold_then_in_error(
    policy: OnFailure,
) -> None:
    order = processed("one", failures_max=1, on_failure=policy)
    order.undo()
    order.claim()
    order.expired("a")
    step = order.step("a")
    assert (order.states, step.failure_count, step.locked_by) == (["Compensating"], 1, None)
    assert step.complete_by == order.now + order.rules.pickup
    assert order.messages == (Wake(),)
    order.claim()
    assert order.requests == [("a", "undo", 3)]
    order.expired("a")
    assert (order.state, order.step("a").failure_count) == ("Error", 2)
    assert order.alerts == ["undo-failed"]
    fault = order.step("a").error
    assert fault == Fault("timed-out", "no answer to the undo within CompleteBy, 2 times")


def test_an_undo_that_no_scheduler_claimed_is_woken_and_never_failed() -> None:
    order = processed("one", failures_max=0)
    order.undo()
    for _ in range(20):
        order.expired("a")
        assert order.woken
    assert (order.states, order.step("a").failure_count) == (["Compensating"], 0)


def test_a_refusal_with_undo_of_an_order_without_any_undo_ends_it_at_once() -> None:
    order = story("one", on_failure=OnFailure.UNDO, without_undo=frozenset("a"))
    order.claim()
    order.expired("a")
    order.claim()
    order.refused("a")
    assert (order.state, order.step("a").failure_count) == ("Compensated", 0)
    assert order.notices == ["failed", "undone"]


def test_since_is_the_time_when_the_undo_was_decided() -> None:
    order = processed("one").later(3600)
    order.undo()
    assert order.step("a").since == order.now
    order.later(1).claim()
    assert order.step("a").since == order.now - timedelta(seconds=1)


def test_a_failed_undo_has_an_error_of_its_own_beside_those_of_other_steps() -> None:
    order = story("two beside each other")
    order.claim()
    order.refused("a", Fault("sold-out", "none is left")).refused("b", Fault("shut", "no"))
    assert order.order.error_text == "sold-out: none is left; shut: no"
    order.undo()
    order.claim()
    order.refused("a", Fault("gone", "it has left"))
    assert order.step("a").error == Fault("gone", "it has left")
    assert order.order.error_text == "gone: it has left"
    order.refused("b", Fault("lost", "no such place"))
    assert order.order.fingerprints == ("a/gone", "b/lost")
