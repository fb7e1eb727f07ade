"""An outage of any length costs time and nothing else.

Each dependency is away for a while under a running load. ``SAS_SEEDS=2000 make test-all`` runs more
of them. ``python -m lab.outages`` makes the table of docs/failure-modes.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from sas.codec.external import RejectedMessage
from sas.codec.strict import convert
from sas.domain.order import OrderState
from sas.domain.queues import lane
from sas.domain.workflow import OnFailure, Step, Undo, Workflow
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Message
from sas.testing.bus import Queued
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.world import TIMER_EVERY
from tests.long import FIRST_SEED, SEEDS, long
from tests.simulation.outages import (
    DEPENDENCIES,
    MINUTE,
    Cost,
    Outage,
    Story,
    cost_of,
    drawn,
)
from tests.simulation.system import System, build, check_end


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    """Write no log lines: pytest keeps them all, and an outage of days writes many."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


PAYMENT = QUEUES.agent("payment")
OFF = BreakerPolicy(failures_max=0)


def check(cost: Cost, where: object) -> None:
    assert cost.wrong() == {}, where


@pytest.mark.parametrize("duration", ["3 min", *long(["5 s", "30 min", "6 h"])])
def test_an_outage_costs_time_and_nothing_else(duration: str) -> None:
    for dependency in DEPENDENCIES:
        check(cost_of(1, dependency, duration), (dependency, duration))


@pytest.mark.parametrize("count", [3, *long([max(100, SEEDS)])])
def test_any_outage_under_any_load_costs_time_and_nothing_else(count: int) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        dependency, duration, load = drawn(seed)
        check(cost_of(seed, dependency, duration, load), (seed, dependency, duration, load))


async def test_the_outages_that_were_seen_to_cost_orders_cost_none() -> None:
    for dependency, seconds in (
        (f"queue {QUEUES.scheduler} takes nothing", 5.0),
        (f"queue {PAYMENT} disabled", 3 * MINUTE),
        ("table", 2.5 * MINUTE),
        ("table", 8 * MINUTE),
        (f"queue {REPLIES_TO} takes nothing", 30 * MINUTE),
    ):
        cost = await Story(seed=0, outage=Outage(dependency, seconds), load="busy").run()
        check(cost, (dependency, seconds))


def _no_table(system: System, *, outage: bool = False) -> None:
    _all_sends(system, refused=outage)
    system.store.partitions_away = system.store.partitions if outage else frozenset()


def _all_sends(system: System, *, refused: bool = False, forbidden: bool = False) -> None:
    for queue in system.bus.queues.values():
        queue.refuses, queue.forbids = refused, forbidden


ALL_SENDS = {
    "no queue takes a message": (partial(_all_sends, refused=True), _all_sends),
    "the right to send is lost": (partial(_all_sends, forbidden=True), _all_sends),
}
NO_TABLE = {"no send and no table": (partial(_no_table, outage=True), _no_table)}


def without_sends(
    monkeypatch: pytest.MonkeyPatch, seed: int, dependency: str, minutes: float
) -> Story:
    """Return a story in which all sends fail, and receives succeed."""
    monkeypatch.setitem(DEPENDENCIES, dependency, (ALL_SENDS | NO_TABLE)[dependency])
    return Story(seed=seed, outage=Outage(dependency, minutes * MINUTE), load="busy")


def check_timeouts(story: Story) -> None:
    """Each step counts one timeout at most, after its queue excused it ten times."""
    counted = Counter(where.split(" epoch")[0] for where in story.watch.failed_untried)
    assert set(counted.values()) <= {1}
    if story.outage.lasts <= 5 * MINUTE:
        assert not counted


@pytest.mark.parametrize("minutes", [3, *long([60, 6 * 60])])
async def test_while_all_sends_fail_for_any_time_no_message_is_lost_or_put_aside(
    monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """What a function cannot put back before it must end is held in the table."""
    for dependency in ALL_SENDS:
        story = without_sends(monkeypatch, 3, dependency, minutes)
        cost = await story.run()
        check(replace(cost, failed_untried=0), (dependency, minutes))
        check_timeouts(story)


async def test_without_sends_and_table_for_over_an_hour_messages_are_put_aside_and_no_order_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Receives succeed, so the deliveries are used up."""
    story = without_sends(monkeypatch, 3, "no send and no table", 75)
    cost = await story.run()
    check_timeouts(story)
    aside = [
        convert(message.body, RejectedMessage)
        for message in story.system.bus.messages(QUEUES.rejected)
    ]
    assert len(aside) == cost.parked == story.system.alerts()["dead-lettered"] > 0
    check(replace(cost, parked=0, failed_untried=0), 3)


@pytest.mark.parametrize("queue", [QUEUES.scheduler, PAYMENT])
async def test_a_right_to_send_that_comes_late_costs_time_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """Rights are given for each queue, and reach a new one some minutes after its deploy."""

    def set_right(system: System, *, forbids: bool) -> None:
        system.bus.queues[queue].forbids = forbids

    dependency = f"no right to send to {queue}"
    late = partial(set_right, forbids=True), partial(set_right, forbids=False)
    monkeypatch.setitem(DEPENDENCIES, dependency, late)
    cost = await Story(seed=1, outage=Outage(dependency, 3 * MINUTE)).run()
    check(cost, queue)


def workflow(name: str, agent: str, seconds: float, failures_max: int = 2) -> Workflow:
    time = timedelta(seconds=seconds)
    step = Step("only", agent=agent, time_allowed=time, undo=Undo(time), failures_max=failures_max)
    return Workflow(name, version=1, steps=(step,), on_failure=OnFailure.HOLD)


@pytest.mark.parametrize("with_host", [False, True])
async def test_when_the_sweeping_instance_is_killed_another_sweeps_within_two_firings(
    with_host: bool,
) -> None:
    system = build(1, Faults(), clocks_apart=(0.0, 0.0))
    world = system.world
    sweeps: list[timedelta] = []
    began = world.clock.now()
    due = system.store.due

    async def swept(shard: str, until: object, limit: int) -> object:
        sweeps.append(world.clock.now() - began)
        return await due(shard, until, limit)  # type: ignore[arg-type]

    system.store.due = swept  # type: ignore[method-assign,assignment]

    def kill() -> None:
        holder, _ = system.store._leases["supervisor"]
        (sweeping,) = [
            instance
            for instance, host in zip(world.instances, system.hosts, strict=True)
            if host.context.instance == holder
        ]
        world.kill(sweeping, with_host=with_host)

    world.clock.call_later(25, kill)
    try:
        with pytest.raises(TimeoutError):
            await world.run(lambda: False, hours_max=5 / 60)
    finally:
        await system.close()
    after = min(at for at in sweeps if at > timedelta(seconds=25))
    assert after <= timedelta(seconds=25) + 2 * TIMER_EVERY


async def test_a_function_past_its_time_costs_the_orders_beside_it_nothing() -> None:
    """It takes its whole worker along, again and again: 18 others each time."""
    system = build(1, Faults(seconds_max=30.0), failures_max_seconds=120.0)
    world = system.world
    host = system.hosts[0]
    stuck = lane(QUEUES.scheduler, urgent=True)

    async def hang(_queued: Queued) -> None:
        await world.clock.sleep(7200)

    start = host.start

    def started() -> None:
        start()
        host.handlers[stuck] = hang

    host.start = started  # type: ignore[method-assign]
    started()
    system.bus.queues[stuck].rules = replace(system.bus.queues[stuck].rules, deliveries_max=6)
    system.bus._enqueue(Message(stuck, "stuck", b"{}"))
    for number in range(120):
        world.clock.call_later(number * 25.0, partial(system.submit, f"O-{number}", "order"))
        system.submitted[f"O-{number}"] = "order"
    try:
        await world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    assert world.timed_out >= 4
    assert Counter(system.states().values()) == {OrderState.PROCESSED: 120}
    assert len(system.bus.messages(QUEUES.rejected)) == 1  # what hung, and nothing beside it
