"""Routes: a step with several agents, and its undo at the agents that may have done it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain import reply
from sas.domain.command import takes_input
from sas.domain.messages import Alert, AlertKind, Notice, Notify, Progress, Request
from sas.domain.moves import IllegalMoveError, check_moves
from sas.domain.order import CLOCK_SKEW, Direction, Fault, UndoStatus
from sas.domain.workflow import OnFailure
from tests.unit.domain_cases import SECOND, Story, story

LIMIT = timedelta(minutes=5)


def routed(shape: str = "one", **policy: object) -> Story:
    """Return an order whose steps have two agents each."""
    return story(shape, **({"routes": 2} | policy))


def claimed(shape: str = "one", *shut: tuple[str, int], **policy: object) -> Story:
    order = routed(shape, **policy).shutting(*shut)
    order.claim()
    return order


def done_elsewhere(shape: str = "one", **policy: object) -> Story:
    """Return an order whose first step timed out at its first agent, and was done at its second."""
    order = claimed(shape, **policy).expired("a").shutting(("a", 0))
    if order.step("a").resting:
        order.expired("a")
    order.claim()
    return order.done("a")


# Who is asked


def test_the_first_agent_is_asked_while_it_is_to_be_had() -> None:
    order = claimed()
    until = order.now + 60 * SECOND
    assert order.sent == (Request(0, Direction.DO, 1, 0, until, route=0),)


def test_while_the_first_agent_is_unavailable_the_next_one_is_asked() -> None:
    order = claimed("one", ("a", 0))
    until = order.now + 60 * SECOND
    assert order.sent == (Request(0, Direction.DO, 1, 0, until, route=1),)
    assert order.done("a").state == "Processed"
    assert (order.step("a").call.route, order.step("a").undo.routes) == (1, ())


def test_if_no_agent_is_available_the_request_waits_at_its_last_agent() -> None:
    assert claimed("one", ("a", 0), ("a", 1)).asked == [("a", "do", 0)]
    order = claimed("one", ("a", 0)).expired("a").shutting(("a", 0), ("a", 1))
    order.claim()
    assert order.asked == [("a", "do", 1)]


def test_what_is_shut_is_shut_for_one_step_only() -> None:
    order = claimed("two beside each other", ("b", 0))
    assert order.asked == [("a", "do", 0), ("b", "do", 1)]


def test_a_retry_goes_back_to_the_first_agent_once_it_is_available_again() -> None:
    order = claimed("one", ("a", 0)).expired("a").shutting()
    order.claim()
    assert order.asked == [("a", "do", 0)]
    assert order.step("a").undo.routes == (1,)


def test_a_step_that_names_no_undo_waits_at_the_agent_that_may_have_done_it() -> None:
    order = claimed(without_undo=frozenset("a")).expired("a").shutting(("a", 0))
    order.claim()
    assert order.asked == [("a", "do", 0)]
    assert order.done("a").state == "Processed"


# An agent that could begin no call


def test_a_step_that_waited_counts_no_failure_and_the_next_agent_is_asked_at_once() -> None:
    order = claimed(failures_max=0).waited("a")
    assert order.asked == [("a", "do", 1)]
    step = order.step("a")
    assert (step.failure_count, step.epoch, step.undo.routes) == (0, 2, (0,))
    order.done("a")
    assert (order.notices, order.asked) == (["step-completed"], [("a", "undo", 0)])
    assert order.done("a").notices == ["completed"]


def test_agents_further_down_are_asked_and_never_one_before() -> None:
    order = routed(routes=4).shutting(("a", 0), ("a", 2))
    order.claim()
    assert order.asked == [("a", "do", 1)]
    order.shutting(("a", 2))
    assert order.waited("a").asked == [("a", "do", 3)]


def test_where_every_agent_waited_the_step_rests_and_then_begins_with_the_first() -> None:
    order = claimed(failures_max=0).waited("a").waited("a")
    step = order.step("a")
    assert (order.states, order.sent, step.resting) == (["Pending"], (), True)
    assert (order.incident_kind, step.undo.routes, step.failure_count) == ("waiting", (1, 0), 0)
    order.expired("a").claim()
    assert order.asked == [("a", "do", 0)]


def test_a_step_whose_other_agents_are_shut_rests_where_it_waited() -> None:
    order = claimed().shutting(("a", 1)).waited("a")
    assert (order.sent, order.step("a").resting) == ((), True)


def test_a_step_that_names_no_undo_rests_where_it_waited_and_is_asked_for_there_again() -> None:
    order = claimed(without_undo=frozenset("a")).waited("a")
    assert (order.states, order.sent, order.step("a").resting) == (["Pending"], (), True)
    order.expired("a").claim()
    assert order.asked == [("a", "do", 0)]


def test_what_an_agent_may_have_done_before_is_kept_when_the_next_one_waits() -> None:
    order = claimed(routes=3).expired("a").shutting(("a", 0))
    order.claim()
    order.waited("a")
    assert order.asked == [("a", "do", 2)]
    assert order.step("a").undo.routes == (1, 0)
    assert order.done("a").asked == [("a", "undo", 1)]
    assert order.done("a").asked == [("a", "undo", 0)]


def test_no_other_agent_is_asked_once_another_step_is_in_error() -> None:
    order = claimed("two beside each other").refused("b").waited("a")
    assert (order.states, order.requests) == (["Pending", "Error"], [])
    assert order.step("a").resting


def test_an_undo_that_waited_stays_with_its_agent() -> None:
    order = done_elsewhere().waited("a")
    assert (order.requests, order.step("a").resting) == ([], True)
    order.expired("a").claim()
    assert order.asked == [("a", "undo", 0)]


def test_a_cancelled_step_that_waited_is_undone_like_the_rest() -> None:
    order = claimed()
    order.cancel()
    order.waited("a")
    assert (order.states, order.asked) == (["Compensating"], [("a", "undo", 0)])


# Done at one agent, perhaps at another as well


def test_a_step_done_elsewhere_is_processed_and_undone_where_it_timed_out() -> None:
    order = done_elsewhere()
    step = order.step("a")
    assert (order.states, order.state) == (["Processed"], "Processing")
    assert order.asked == [("a", "undo", 0)]
    assert (step.call.route, step.undo.routes, step.direction) == (1, (0,), Direction.DO)
    assert (step.result, step.undo.status) == ('"ok"', UndoStatus.NOT_DECIDED)
    assert step.complete_by == order.now + 90 * SECOND
    assert order.order.settled_at is None


def test_the_application_is_notified_of_the_end_only_when_that_is_undone() -> None:
    order = done_elsewhere()
    assert order.notices == ["step-completed"]
    assert order.done("a").notices == ["completed"]
    assert (order.state, order.step("a").undo.routes) == ("Processed", ())
    assert order.order.complete_by is None


def test_the_steps_after_it_go_on_meanwhile() -> None:
    order = done_elsewhere("two in a row")
    assert order.asked == [("a", "undo", 0), ("b", "do", 0)]
    assert order.done("b").notices == ["step-completed"]
    assert (order.states, order.state) == (["Processed", "Processed"], "Processing")
    assert order.done("a").notices == ["completed"]


def test_a_step_done_where_it_timed_out_before_has_nothing_to_be_undone() -> None:
    order = claimed().expired("a")
    order.claim()
    assert order.done("a").state == "Processed"
    assert order.step("a").undo.routes == ()


def test_every_agent_where_it_timed_out_is_undone_the_last_one_first() -> None:
    order = claimed(routes=3, failures_max=2).expired("a").shutting(("a", 0))
    order.claim()
    order.expired("a").shutting(("a", 0), ("a", 1))
    order.claim()
    assert order.done("a").asked == [("a", "undo", 1)]
    assert order.done("a").asked == [("a", "undo", 0)]
    assert order.step("a").failure_count == 0
    assert order.done("a").notices == ["completed"]


def test_a_late_reply_of_the_agent_asked_before_changes_nothing() -> None:
    order = claimed()
    late = order.reply("a")
    order.expired("a").shutting(("a", 0))
    order.claim()
    assert not order.answer(late)
    order.done("a")
    assert not order.answer(late)
    order.done("a")
    assert not order.answer(late)
    assert order.state == "Processed"


def test_an_undo_elsewhere_that_times_out_is_tried_again_and_the_step_stays_processed() -> None:
    order = done_elsewhere(failures_max=1).expired("a")
    assert (order.states, order.step("a").failure_count, order.woken) == (["Processed"], 1, True)
    order.claim()
    assert order.asked == [("a", "undo", 0)]
    assert order.done("a").state == "Processed"
    assert order.step("a").failure_count == 0


def test_an_undo_at_another_agent_that_no_scheduler_claimed_is_woken() -> None:
    order = done_elsewhere(failures_max=1).expired("a")
    for _ in range(5):
        order.expired("a")
        assert (order.states, order.woken) == (["Processed"], True)


def test_an_undo_elsewhere_waits_until_no_call_of_the_do_can_land_any_more() -> None:
    order = done_elsewhere(drain_time=LIMIT)
    step = order.step("a")
    assert (order.requests, order.notices) == ([], ["step-completed"])
    assert step.call.called_until is not None
    assert (step.resting, step.complete_by) == (True, step.call.called_until + CLOCK_SKEW + LIMIT)
    assert not order.claim()
    order.expired("a")
    order.claim()
    assert order.asked == [("a", "undo", 0)]


def test_an_undo_elsewhere_that_outlasts_a_call_is_given_the_time_it_asks_for() -> None:
    order = done_elsewhere()
    until = order.now + 600 * SECOND
    said = Progress("order-1", 0, Direction.UNDO, order.step("a").epoch, until, "half way")
    assert order.apply(reply.progressed(order.order, said, now=order.now))
    step = order.step("a")
    assert (order.states, step.complete_by, step.note) == (["Processed"], until, "half way")
    assert order.done("a").step("a").note is None


# Its undo elsewhere fails


def test_an_undo_elsewhere_that_is_refused_puts_its_step_into_error_saying_where() -> None:
    fault = Fault("no", "the parcel has left")
    order = done_elsewhere("two in a row").refused("a", fault)
    step = order.step("a")
    assert (order.states, order.state) == (["Error", "Processing"], "Error")
    assert step.undo.status is UndoStatus.FAILED_ELSEWHERE
    assert (step.direction, step.error) == (Direction.DO, fault)
    assert order.sent == (
        Notify(Notice.FAILED, 0, fault),
        Alert(
            AlertKind.UNDO_FAILED,
            0,
            "the undo of step a at agent a failed: the parcel has left. "
            "a: undo failed at another agent, b: Processing. "
            "Resubmit to try the undo again, or skip it once it is undone by hand.",
        ),
    )


@pytest.mark.parametrize("policy", OnFailure)
def test_an_undo_at_another_agent_past_its_threshold_is_in_error_under_every_policy(
    policy: OnFailure,
) -> None:
    order = done_elsewhere(failures_max=1, on_failure=policy).expired("a")
    order.claim()
    assert order.expired("a").state == "Error"
    assert order.undoing is False
    assert order.step("a").undo.routes == (0,)


def test_no_new_step_starts_while_an_undo_elsewhere_is_in_error() -> None:
    order = done_elsewhere("three in a row").refused("a").done("b")
    assert order.requests == []
    assert order.states == ["Error", "Processed", "Pending"]


def test_resubmitted_it_is_tried_again_with_the_step_processed() -> None:
    order = done_elsewhere().refused("a")
    assert order.resubmit()
    step = order.step("a")
    assert (order.states, step.error, order.woken) == (["Processed"], None, True)
    assert step.undo.status is UndoStatus.NOT_DECIDED
    order.claim()
    assert order.asked == [("a", "undo", 0)]
    assert order.done("a").notices == ["completed"]


def test_a_skipped_undo_is_recorded_as_undone_by_hand_and_the_result_is_kept() -> None:
    order = done_elsewhere().refused("a")
    assert order.skip(result='"instead"')
    assert (order.state, order.notices) == ("Processed", ["completed"])
    assert (order.step("a").result, order.step("a").undo.routes) == ('"ok"', ())


def test_skipped_at_one_agent_it_is_undone_at_the_next() -> None:
    order = claimed(routes=3, failures_max=2).expired("a").shutting(("a", 0))
    order.claim()
    order.expired("a").shutting(("a", 0), ("a", 1))
    order.claim()
    order.done("a").refused("a")
    assert order.skip()
    assert (order.states, order.woken, order.notices) == (["Processed"], True, [])
    order.claim()
    assert order.asked == [("a", "undo", 0)]


def test_edited_input_is_refused_for_it() -> None:
    order = claimed().refused("a")
    assert takes_input(order.step("a"), order.rules)
    order = done_elsewhere().refused("a")
    assert not takes_input(order.step("a"), order.rules)
    assert order.resubmit(edited='{"amount":1}')
    assert (order.step("a").call.edited, order.step("a").call.generation) == (None, 0)


def test_a_failed_step_that_is_skipped_is_undone_where_it_timed_out_before() -> None:
    order = claimed().expired("a").shutting(("a", 0))
    order.claim()
    order.refused("a")
    assert order.skip()
    assert (order.states, order.step("a").undo.routes, order.notices) == (["Processed"], (0,), [])
    order.claim()
    assert order.asked == [("a", "undo", 0)]


# The undo of the whole order


def test_the_undo_of_a_step_covers_every_agent_it_was_asked_of_the_last_one_first() -> None:
    order = done_elsewhere("two in a row")
    order.undo()
    order.claim()
    assert order.asked == [("b", "undo", 0)]
    assert order.done("b").asked == [("a", "undo", 1)]
    assert order.done("a").asked == [("a", "undo", 0)]
    assert order.states == ["Compensating", "Compensated"]
    assert order.done("a").notices == ["undone"]
    assert order.step("a").undo.routes == ()


def test_an_order_done_by_an_alternative_is_undone_there() -> None:
    order = claimed("one", ("a", 0)).done("a").shutting(("a", 1))
    order.undo()
    order.claim()
    assert order.asked == [("a", "undo", 1)]


def test_an_undo_goes_to_the_agent_that_did_even_if_it_is_not_to_be_had() -> None:
    order = done_elsewhere()
    assert (order.shut, order.asked) == (frozenset({(0, 0)}), [("a", "undo", 0)])


def test_an_undo_elsewhere_that_is_out_gives_way_to_the_undo_of_all() -> None:
    order = done_elsewhere()
    late = order.reply("a")
    order.undo()
    assert (order.states, order.step("a").undo.routes) == (["Compensating"], (1, 0))
    assert not order.answer(late)
    order.claim()
    assert not order.answer(late)
    order.done("a", "a")
    assert order.state == "Compensated"


def test_an_order_in_error_for_an_undo_elsewhere_can_be_undone_whole() -> None:
    order = done_elsewhere().refused("a")
    assert order.undo()
    order.claim()
    assert order.done("a", "a").state == "Compensated"


def test_an_undo_that_failed_at_one_agent_and_is_undone_by_hand_goes_on_at_the_next() -> None:
    order = done_elsewhere()
    order.undo()
    order.claim()
    order.refused("a")
    assert "the undo of step a at agent a-1 failed" in str(order.sent)
    assert order.skip()
    assert (order.states, order.ledger, order.woken) == (["Compensating"], ["undoing"], True)
    order.claim()
    assert order.asked == [("a", "undo", 0)]
    assert order.done("a").notices == ["undone"]


def test_resubmitted_a_failed_undo_begins_where_it_failed() -> None:
    order = done_elsewhere()
    order.undo()
    order.claim()
    order.done("a").refused("a")
    order.resubmit()
    order.claim()
    assert order.asked == [("a", "undo", 0)]
    assert order.done("a").state == "Compensated"


def test_a_refusal_with_undo_undoes_where_the_step_timed_out_before() -> None:
    order = claimed(on_failure=OnFailure.UNDO).expired("a").shutting(("a", 0))
    order.claim()
    assert order.refused("a").asked == [("a", "undo", 1)]
    assert order.done("a").asked == [("a", "undo", 0)]


def test_a_deadline_does_not_pass_over_an_undo_elsewhere() -> None:
    order = done_elsewhere(deadline=timedelta(days=1), on_failure=OnFailure.UNDO)
    assert order.order.deadline is not None
    assert order.overdue()
    assert order.states == ["Compensating"]


# The law


def test_a_step_that_is_out_at_an_agent_is_not_claimed_a_second_time_there() -> None:
    order = done_elsewhere()
    before = order.order
    twice = replace(order.step("a"), epoch=9)
    with pytest.raises(IllegalMoveError, match="its request is out and would be sent twice"):
        check_moves(before, replace(before, steps=(twice,)))
