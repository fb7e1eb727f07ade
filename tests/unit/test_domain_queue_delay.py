"""A step past its CompleteBy gets more time while a message of it waits in a queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.domain.expire import EXCUSES_MAX, REWAKE_MAX, Excuse
from sas.domain.expire import expire as decide_expiry
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.reply import progressed
from sas.domain.workflow import OnFailure
from tests.unit.domain_cases import SECOND, Story, story

ALLOWED = 60 * SECOND


def claimed(shape: str = "one", **policy: object) -> Story:
    order = story(shape, **policy)
    assert order.claim()
    return order


def expire(order: Story, name: str, excuse: Excuse | None) -> bool:
    """Let a step's CompleteBy pass with this excuse."""
    step = order.step(name)
    assert step.complete_by is not None
    order.now = max(order.now, step.complete_by)
    return order.apply(
        decide_expiry(
            order.order, step.number, step.epoch, order.rules, now=order.now, excuse=excuse
        )
    )


@pytest.mark.parametrize("excuse", Excuse)
def test_an_excused_step_gets_its_time_allowed_again_and_no_second_request(excuse: Excuse) -> None:
    order = claimed("one", failures_max=0, on_failure=OnFailure.UNDO)
    assert expire(order, "a", excuse)
    step = order.step("a")
    assert (order.states, step.failure_count, step.epoch) == (["Processing"], 0, 1)
    assert step.complete_by == step.call.called_until == order.now + ALLOWED
    assert (order.requests, order.woken) == ([], False)
    assert order.done("a").state == "Processed"


@pytest.mark.parametrize("excuse", [Excuse.WAITS, Excuse.AWAY])
def test_a_queue_that_moves_or_is_away_excuses_without_limit_at_growing_intervals(
    excuse: Excuse,
) -> None:
    order = claimed("one", failures_max=0)
    since = order.now
    for _ in range(40):
        assert expire(order, "a", excuse)
        step = order.step("a")
        assert step.complete_by == order.now + min(max(ALLOWED, order.now - since), REWAKE_MAX)
    assert (order.states, step.failure_count) == (["Processing"], 0)


def test_a_queue_that_does_not_move_excuses_a_dispatch_ten_times_and_then_it_counts() -> None:
    order = claimed("one", failures_max=1)
    for epoch, state in ((1, "Pending"), (2, "Error")):
        for _ in range(EXCUSES_MAX):
            assert expire(order, "a", Excuse.STUCK)
            assert order.step("a").complete_by == order.now + ALLOWED
            assert order.step("a").failure_count == epoch - 1
        assert expire(order, "a", Excuse.STUCK)
        assert (order.states, order.step("a").failure_count) == ([state], epoch)
        order.claim()


def test_a_step_without_an_excuse_is_counted_whatever_it_was_excused_before() -> None:
    order = claimed("one", failures_max=0)
    assert expire(order, "a", Excuse.WAITS)
    assert expire(order, "a", None)
    assert order.state == "Error"


def test_an_undo_is_excused_as_well_and_is_not_given_up_for_a_long_queue() -> None:
    order = claimed("one", failures_max=0)
    assert order.undo()
    assert order.claim()
    out = order.step("a")
    for _ in range(5):
        assert expire(order, "a", Excuse.STUCK)
        step = order.step("a")
        assert (order.states, step.failure_count) == (["Compensating"], 0)
        assert step.complete_by == order.now + order.rules.steps[0].undo_time
    assert (step.epoch, step.call) == (out.epoch, out.call)
    assert order.done("a").state == "Compensated"


def test_what_waits_in_a_queue_is_undone_all_the_same() -> None:
    order = claimed("one")
    assert expire(order, "a", Excuse.WAITS)
    assert order.undo()
    assert order.ledger == ["undoing"]
    assert order.claim()
    assert order.requests == [("a", "undo", 2)]


def test_while_a_callback_is_awaited_no_further_call_may_begin_however_long_it_waits() -> None:
    order = claimed("one")
    until = order.now + 10 * ALLOWED
    progress = Progress(
        order_id="O-1", step=0, direction=Direction.DO, epoch=1, complete_by=until, awaits=True
    )
    progress = replace(progress, order_id=order.order.order_id)
    assert order.apply(progressed(order.order, progress, order.rules, now=order.now, instance="s"))
    called_until = order.step("a").call.called_until
    assert expire(order, "a", Excuse.AWAY)
    assert order.step("a").call.called_until == called_until


def test_a_cancelled_step_is_turned_however_long_its_queue_is() -> None:
    order = claimed("one")
    assert order.cancel()
    assert expire(order, "a", Excuse.WAITS)
    assert order.states == ["Compensating"]
