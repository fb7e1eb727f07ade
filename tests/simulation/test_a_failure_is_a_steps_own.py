"""A failure is a step's own: no other queue excuses it, and no outage of its own queue counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.expire import EXCUSES_MAX
from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import OrderState, StepRecord
from sas.domain.workflow import OnFailure, Step, Workflow, Workflows
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from sas.testing.settings import ENVIRONMENT
from sas.testing.world import Handler
from tests.simulation.system import System, build, check_end

TIME = timedelta(seconds=10)
DEAD = Workflow(
    "dead", version=1, steps=(Step("charge", agent="payment", time_allowed=TIME, failures_max=3),)
)
UNDONE = Workflow(
    "undone",
    version=1,
    steps=(Step("charge", agent="payment", time_allowed=TIME, failures_max=0),),
    on_failure=OnFailure.UNDO,
)
BUSY = Workflow(
    "busy",
    version=1,
    steps=(Step("reserve", agent="inventory", time_allowed=2 * TIME, failures_max=0),),
)
PAYMENT = QUEUES.agent("payment")


def made(seconds_max: float = 2.0) -> System:
    return build(1, Faults(seconds_max=seconds_max), definitions=Workflows([DEAD, BUSY, UNDONE]))


def handlers(system: System) -> dict[str, Handler]:
    (instance,) = system.world.instances
    by_queue = instance.functions.handlers
    assert isinstance(by_queue, dict)
    return by_queue


def stop(system: System, queue: str) -> None:
    """Let a queue be without a reader."""
    del handlers(system)[queue]


def charge(system: System, order_id: str) -> StepRecord:
    return system.store.orders[order_id].order.steps[0]


def journal(system: System, order_id: str) -> list[JournalEntry]:
    return system.store.orders[order_id].journal


async def no_timer() -> None:
    """Fire no timer."""


async def minutes(system: System, number: float) -> None:
    """Let time pass, even if work is under way."""
    await system.world.run_for(60 * number)


@pytest.mark.long
async def test_an_order_at_a_dead_agent_fails_in_bounded_time_while_another_queue_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "SAS_QUEUE_DELAY_SECONDS", "60")
    system = made(seconds_max=10.0)
    stop(system, PAYMENT)
    system.world.rules = replace(system.world.rules, calls_max=1)
    system.submit("O-dead", "dead")
    for number in range(250):
        system.submit(f"B-{number}", "busy")
    began = system.world.clock.now()
    try:
        await minutes(system, 120)
    finally:
        await system.close()
    (at,) = (e.at for e in journal(system, "O-dead") if e.what is JournalWord.STEP_FAILED)
    assert at - began < 4 * (EXCUSES_MAX + 1) * 2 * TIME
    ends = [row.at for n in range(250) for row in journal(system, f"B-{n}")]
    assert sum(end > at for end in ends) > 20  # the other queue was late all the time
    assert charge(system, "O-dead").failure_count == 4
    assert system.alerts()["step-failed"] == 1  # load alone failed none of the others
    assert system.alerts()["queue-delay"] >= 1


async def test_a_step_whose_queue_is_disabled_for_three_hours_is_never_counted() -> None:
    system = made()
    system.submit("O-1", "undone")
    try:
        await minutes(system, 0.02)
        system.bus.cut(PAYMENT)
        system.submit("O-2", "undone")
        await minutes(system, 180)
        for order_id in ("O-1", "O-2"):
            step = charge(system, order_id)
            assert (step.failure_count, step.epoch) == (0, 1)
            assert len(journal(system, order_id)) < 30  # an outage does not fill the journal
        assert system.alerts()["queue-delay"] >= 1
        system.bus.mend(PAYMENT)
        await system.world.run(system.at_rest, hours_max=1)
        check_end(system)
    finally:
        await system.close()
    assert set(system.states().values()) == {OrderState.PROCESSED}
    assert charge(system, "O-1").epoch == charge(system, "O-2").epoch == 1


async def test_a_host_that_was_down_for_six_hours_counts_nothing_for_requests_that_wait() -> None:
    system = made()
    readers, timer = dict(handlers(system)), system.world.timer
    stop(system, PAYMENT)
    stop(system, QUEUES.agent("inventory"))
    for number in range(200):
        system.submit(f"O-{number}", ("undone", "busy")[number % 2])
    try:
        await minutes(system, 0.1)
        handlers(system).clear()
        system.world.timer = no_timer
        await minutes(system, 360)
        system.world.timer = timer
        await minutes(system, 0.5)  # the supervisor comes back first
        handlers(system).update(readers)
        await system.world.run(system.at_rest, hours_max=2)
        check_end(system)
    finally:
        await system.close()
    assert Counter(system.states().values()) == {OrderState.PROCESSED: 200}
    steps = [stored.order.steps[0] for stored in system.store.orders.values()]
    assert {step.epoch for step in steps} == {1}
