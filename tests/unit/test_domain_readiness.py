"""Readiness: which steps are claimed, in which order, and which steps block them."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.expire import expire, postpone
from sas.domain.messages import Request
from sas.domain.order import Direction
from sas.domain.workflow import OnFailure
from tests.each import each
from tests.unit.domain_cases import T0, story


def test_a_new_order_has_its_first_step_ready_and_the_others_blocked() -> None:
    order = story("three in a row").order
    assert [step.complete_by is not None for step in order.steps] == [True, False, False]


def test_of_two_parallel_steps_both_are_claimed_at_once() -> None:
    order = story("two beside each other")
    assert order.claim()
    assert order.requests == [("a", "do", 1), ("b", "do", 1)]
    assert order.states == ["Processing", "Processing"]


def test_of_two_steps_in_a_row_the_second_is_claimed_when_the_first_is_processed() -> None:
    order = story("two in a row")
    order.claim()
    assert order.requests == [("a", "do", 1)]
    order.done("a")
    assert order.requests == [("b", "do", 1)]


def test_the_join_of_a_diamond_waits_for_both_its_arms() -> None:
    order = story("diamond")
    order.claim()
    assert order.done("a").requests == [("b", "do", 1), ("c", "do", 1)]
    assert order.done("c").requests == []
    assert order.step("d").complete_by is None
    assert order.done("b").requests == [("d", "do", 1)]


def test_a_claim_locks_the_step_to_the_scheduler_until_its_time_is_up() -> None:
    order = story("one").later(7)
    order.claim("scheduler-7")
    step = order.step("a")
    assert step.locked_by == "scheduler-7" == order.order.locked_by
    assert step.complete_by == order.now + timedelta(seconds=60) == order.order.complete_by
    assert step.since == order.now


def test_a_request_has_all_that_an_agent_needs() -> None:
    order = story("one")
    order.claim()
    assert order.messages == (
        Request(
            step=0,
            direction=Direction.DO,
            epoch=1,
            generation=0,
            complete_by=T0 + timedelta(seconds=60),
        ),
    )


def test_an_undo_has_a_time_of_its_own() -> None:
    order = story("one")
    order.claim()
    order.done("a").undo()
    order.claim()
    assert order.messages == (
        Request(
            step=0,
            direction=Direction.UNDO,
            epoch=2,
            generation=0,
            complete_by=T0 + timedelta(seconds=90),
        ),
    )


def test_of_two_schedulers_claiming_one_order_the_second_finds_nothing() -> None:
    order = story("two beside each other")
    assert order.claim("scheduler-1")
    assert not order.claim("scheduler-2")


def test_no_new_step_is_begun_while_another_is_in_error() -> None:
    order = story("two beside each other")
    order.claim()
    order.expired("a")
    order.refused("b")
    assert order.states == ["Pending", "Error"]
    assert order.step("a").complete_by is None
    assert not order.claim()


def test_a_step_already_out_is_still_recorded_while_another_is_in_error() -> None:
    order = story("two beside each other")
    order.claim()
    order.refused("a").done("b")
    assert order.states == ["Error", "Processed"]


def test_what_waited_for_a_failed_step_is_ready_again_once_it_is_resubmitted() -> None:
    order = story("two beside each other")
    order.claim()
    order.expired("a")
    order.refused("b").resubmit()
    assert order.woken
    order.claim()
    assert order.requests == [("a", "do", 2), ("b", "do", 2)]


def test_undo_goes_back_in_the_reverse_order() -> None:
    order = story("diamond")
    order.claim()
    order.done("a", "b", "c", "d").undo()
    order.claim()
    assert order.requests == [("d", "undo", 2)]
    assert order.done("d").requests == [("b", "undo", 2), ("c", "undo", 2)]
    assert order.done("b").requests == []
    assert order.done("c").requests == [("a", "undo", 2)]


def test_undo_waits_for_what_comes_later_even_beyond_a_step_without_undo() -> None:
    order = story("three in a row", without_undo=frozenset("b"))
    order.claim()
    order.done("a", "b", "c").undo()
    assert order.states == ["Compensating", "Compensated", "Compensating"]
    order.claim()
    assert order.requests == [("c", "undo", 2)]


def test_a_failed_undo_holds_back_what_came_before_it_and_nothing_beside_it() -> None:
    order = story("diamond")
    order.claim()
    order.done("a", "b", "c", "d").undo()
    order.claim()
    order.done("d").refused("b")
    assert order.state == "Error"
    order.done("c")
    assert order.requests == []
    order.resubmit()
    order.claim()
    assert order.requests == [("b", "undo", 3)]
    assert order.done("b").requests == [("a", "undo", 2)]


def test_a_step_on_hold_is_not_claimed_by_a_stray_wake() -> None:
    order = story("one")
    order.rest("a", seconds=600)
    assert not order.claim()
    assert not order.later(599).expire("a")
    assert order.later(1).expire("a")
    assert (order.woken, order.step("a").resting) == (True, False)
    assert order.claim()


def test_a_step_released_from_hold_while_another_is_in_error_has_no_due_row() -> None:
    order = story("two beside each other", on_failure=OnFailure.HOLD)
    order.claim()
    order.expired("a")
    order.rest("a", seconds=600)
    order.refused("b")
    order.expired("a")
    assert order.step("a").complete_by is None


def test_undo_and_resubmit_end_a_hold() -> None:
    order = story("one")
    order.claim()
    order.expired("a")
    order.rest("a", seconds=600)
    order.undo()
    assert order.step("a").resting is False
    assert order.claim()


@each([0, 2])
def test_a_due_row_of_another_dispatch_changes_nothing(epoch_seen: int) -> None:
    order = story("one")
    order.claim()
    order.later(3600)
    assert expire(order.order, 0, epoch_seen, order.rules, now=order.now) is None


@each([-1, 1, 30])
def test_a_due_row_or_a_reply_for_a_step_that_is_not_there_changes_nothing(number: int) -> None:
    order = story("one")
    order.claim()
    assert expire(order.order, number, 1, order.rules, now=order.later(99).now) is None
    assert postpone(order.order, number, "why", now=order.now) is None
    assert not order.answer(order.reply("a", step=number))
