"""Routes: a step with several agents goes to one of them, and stays there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.domain.messages import Request
from sas.domain.moves import IllegalMoveError, check_moves
from sas.domain.order import Direction
from sas.domain.workflow import OnFailure
from tests.each import each
from tests.unit.domain_cases import SECOND, Story, story


def claimed(shape: str = "one", *shut: tuple[str, int], **policy: object) -> Story:
    """Return an order whose steps have two agents each, and whose first step is out."""
    order = story(shape, **({"routes": 2} | policy)).shutting(*shut)
    order.claim()
    return order


# The first request


def test_the_first_agent_is_asked_while_it_is_to_be_had() -> None:
    order = claimed()
    until = order.now + 60 * SECOND
    assert order.messages == (
        Request(step=0, direction=Direction.DO, epoch=1, generation=0, complete_by=until),
    )
    assert order.routed_requests == [("a", "do", 0)]


def test_while_the_first_agent_is_unavailable_the_next_one_is_asked() -> None:
    order = claimed("one", ("a", 0))
    assert order.routed_requests == [("a", "do", 1)]
    assert order.done("a").state == "Processed"


def test_agents_are_tried_in_the_order_in_which_the_step_names_them() -> None:
    assert claimed("one", ("a", 0), ("a", 1), routes=4).routed_requests == [("a", "do", 2)]


def test_if_no_agent_is_available_the_first_one_is_asked() -> None:
    assert claimed("one", ("a", 0), ("a", 1)).routed_requests == [("a", "do", 0)]


def test_what_is_shut_is_shut_for_one_step_only() -> None:
    order = claimed("two beside each other", ("b", 0))
    assert order.routed_requests == [("a", "do", 0), ("b", "do", 1)]


# Every later request


def test_a_retry_goes_to_the_same_agent_whichever_is_available() -> None:
    order = claimed("one", ("a", 0)).expired("a").shutting(("a", 1))
    order.claim()
    assert order.routed_requests == [("a", "do", 1)]


def test_a_step_that_waited_rests_and_is_then_asked_of_the_same_agent() -> None:
    order = claimed("one", ("a", 0), failures_max=0).shutting(("a", 1)).waited("a")
    step = order.step("a")
    assert (order.states, order.messages, step.resting) == (["Pending"], (), True)
    assert (order.incident_kind, step.failure_count) == ("waiting", 0)
    assert order.incident_agent == "a-1"
    order.expired("a").claim()
    assert order.routed_requests == [("a", "do", 1)]


@each([None, '{"amount":1}'])
def test_a_resubmitted_step_goes_to_the_same_agent_with_its_input_edited_or_not(
    edited: str | None,
) -> None:
    order = claimed("one", ("a", 0)).refused("a").shutting(("a", 1))
    assert order.resubmit(edited=edited)
    order.claim()
    assert order.routed_requests == [("a", "do", 1)]
    assert order.step("a").call.generation == (edited is not None)


def test_its_undo_goes_to_the_agent_that_did_it_even_if_it_is_not_to_be_had() -> None:
    order = claimed("one", ("a", 0)).done("a").shutting(("a", 1))
    order.undo()
    order.claim()
    assert order.routed_requests == [("a", "undo", 1)]
    assert order.waited("a").requests == []
    assert order.incident_agent == "a-1"
    order.expired("a").claim()
    assert order.routed_requests == [("a", "undo", 1)]
    assert order.done("a").notices == ["undone"]


def test_a_failed_step_is_undone_where_it_was_asked_and_nowhere_else() -> None:
    order = claimed("one", ("a", 0), on_failure=OnFailure.UNDO).shutting()
    assert order.refused("a").routed_requests == [("a", "undo", 1)]
    assert order.done("a").state == "Compensated"


def test_a_step_that_was_reset_and_not_claimed_since_is_undone_where_it_was_asked() -> None:
    order = claimed("one", ("a", 0)).expired("a").shutting()
    order.undo()
    order.claim()
    assert order.routed_requests == [("a", "undo", 1)]


# The law


def test_a_step_that_was_asked_of_an_agent_goes_to_no_other_one() -> None:
    order = claimed().expired("a")
    step = order.step("a")
    moved = replace(step, call=replace(step.call, route=1))
    with pytest.raises(IllegalMoveError, match="it would go to another agent"):
        check_moves(order.order, replace(order.order, steps=(moved,)))


def test_a_step_that_is_out_is_not_claimed_a_second_time() -> None:
    order = claimed()
    second_claim = replace(order.step("a"), epoch=9)
    with pytest.raises(IllegalMoveError, match="its request is out and would be sent twice"):
        check_moves(order.order, replace(order.order, steps=(second_claim,)))
