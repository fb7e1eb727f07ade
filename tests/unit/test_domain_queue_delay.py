"""Grace is added to the time allowed for queue delay; a delay excuses timeouts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.expire import delay_excuses
from sas.domain.expire import expire as decide_expiry
from sas.domain.workflow import NO_TIME, OnFailure
from sas.features.queue_delay.delays import queue_delays
from sas.features.queue_delay.rules import FRESH, QueueDelay, grace, longest
from sas.simulation.store import MemoryStore
from tests.unit.domain_cases import SECOND, T0, Story, story


def claimed(shape: str = "one", **policy: object) -> Story:
    order = story(shape, **policy)
    assert order.claim()
    return order


def with_delay(order: Story, name: str, seconds: float, route: int = 0) -> None:
    """Let the requests of a step be given so much more time from now on."""
    step = order.step(name)
    rules = replace(order.workflow.rules, grace={(step.number, route): seconds * SECOND})
    object.__setattr__(order.workflow, "rules", rules)


def expire(order: Story, name: str, behind: float) -> bool:
    """Let a step's time pass while queues are so many seconds behind."""
    step = order.step(name)
    assert step.complete_by is not None
    order.now = max(order.now, step.complete_by)
    return order.apply(
        decide_expiry(
            order.order, step.number, step.epoch, order.rules, now=order.now,
            delay=behind * SECOND,
        )
    )  # fmt: skip


def test_the_longest_of_the_lags_that_are_fresh_counts() -> None:
    found = [
        QueueDelay(9 * SECOND, T0 - FRESH),
        QueueDelay(4 * SECOND, T0),
        QueueDelay(5 * SECOND, T0),
    ]
    assert longest(found, T0) == 9 * SECOND
    assert longest(found, T0 + SECOND) == 5 * SECOND
    assert longest([], T0) == NO_TIME


@pytest.mark.parametrize(("delay", "given"), [(0, 0), (2, 6), (60, 180), (3600, 600)])
def test_grace_is_a_multiple_of_the_delay_within_a_bound(delay: float, given: float) -> None:
    assert grace(delay * SECOND) == given * SECOND


def test_a_delay_excuses_from_half_the_time_allowed_on() -> None:
    assert delay_excuses(30 * SECOND, 60 * SECOND)
    assert not delay_excuses(29 * SECOND, 60 * SECOND)


def test_what_clocks_may_be_apart_excuses_nothing_however_short_the_time_allowed() -> None:
    assert not delay_excuses(4 * SECOND, SECOND)
    assert delay_excuses(5 * SECOND, SECOND)


async def test_a_delay_is_read_as_it_was_written() -> None:
    shared = queue_delays(MemoryStore())
    delay = QueueDelay(timedelta(seconds=12, microseconds=345678), T0)
    await shared.write("agent-stock-urgent", delay, None)
    assert {name: one.value for name, one in (await shared.all()).items()} == {
        "agent-stock-urgent": delay
    }


def test_a_request_to_a_long_queue_is_given_grace_on_top_of_its_time_allowed() -> None:
    order = story("two in a row")
    with_delay(order, "a", 90)
    assert order.claim()
    assert order.step("a").complete_by == order.now + 60 * SECOND + 90 * SECOND
    assert order.step("a").call.called_until == order.step("a").complete_by
    order.done("a")
    assert order.step("b").complete_by == order.now + 60 * SECOND  # its own queue is not long


def test_so_is_the_request_of_an_undo() -> None:
    order = claimed("one")
    order.done("a")
    assert order.undo()
    with_delay(order, "a", 90)
    assert order.claim()
    allowed = order.rules.steps[0].undo_time_allowed
    assert allowed is not None
    assert order.step("a").complete_by == order.now + allowed + 90 * SECOND


def test_grace_follows_the_queue_of_the_agent_that_is_asked() -> None:
    order = story("one", routes=2)
    with_delay(order, "a", 90, route=1)
    order.shutting(("a", 0))
    assert order.claim()
    assert order.step("a").call.route == 1
    assert order.step("a").complete_by == order.now + 150 * SECOND


@pytest.mark.parametrize("policy", OnFailure)
def test_while_queues_are_far_behind_a_step_is_asked_for_anew_and_no_failure_counted(
    policy: OnFailure,
) -> None:
    order = claimed("one", failures_max=0, on_failure=policy)
    for epoch in range(1, 8):
        assert order.step("a").epoch == epoch
        assert expire(order, "a", behind=30)
        step = order.step("a")
        assert (order.states, step.failure_count, step.locked_by) == (["Pending"], 0, None)
        assert order.woken
        assert order.claim()
    assert order.done("a").state == "Processed"


def test_what_may_have_run_without_an_answer_is_undone_all_the_same() -> None:
    order = claimed("one")
    assert expire(order, "a", behind=30)
    assert order.undo()
    assert order.ledger == ["undoing"]
    assert order.claim()
    assert order.requests == [("a", "undo", 2)]


def test_an_undo_is_not_given_up_for_a_long_queue() -> None:
    order = claimed("one", failures_max=0)
    assert order.undo()
    for _ in range(5):
        assert order.claim()
        assert expire(order, "a", behind=60)
        assert (order.states, order.step("a").failure_count) == (["Compensating"], 0)
    assert order.claim()
    assert order.done("a").state == "Compensated"


def test_a_lag_that_is_short_of_half_the_time_allowed_excuses_nothing() -> None:
    order = claimed("one", failures_max=0)
    assert expire(order, "a", behind=29)
    assert order.state == "Error"


def test_a_cancelled_step_is_turned_however_long_the_queues_are() -> None:
    order = claimed("one")
    assert order.cancel()
    assert expire(order, "a", behind=600)
    assert order.states == ["Compensating"]
