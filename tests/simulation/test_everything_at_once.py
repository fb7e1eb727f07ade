"""Everything at once: agents to choose from, limits, breakers, long steps, callbacks, deadlines and
an operator, while hosts die and stall, the store goes away and services go down.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from sas.domain.ids import idempotency_key
from sas.domain.order import Order
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow, Workflows
from sas.testing.remote import RemoteFaults
from sas.testing.world import Faults
from tests.long import seeds
from tests.simulation.system import (
    COURIED,
    COURIER,
    DRAIN_TIME,
    System,
    build,
    check_commands,
    check_end,
)
from tests.simulation.test_breakers_under_faults import Outages
from tests.simulation.test_operator_under_faults import Hand

TIME = timedelta(seconds=12)
LIMITS = {"inventory": 1, "payment": 2, "invoice": 1}


def crowded(on_failure: OnFailure, deadline: timedelta | None) -> Workflow:
    """Return a workflow with a step of each kind."""
    undo = Undo(TIME)
    backoff = Backoff(timedelta(seconds=3), most=timedelta(seconds=10))
    courier = Undo(TIME, drain_time=DRAIN_TIME)
    return Workflow(
        f"{on_failure.value}-{'by' if deadline else 'ever'}",
        1,
        (
            Step("reserve", "inventory", TIME, (), undo, 1, alternatives=("payment", "invoice")),
            Step("charge", "payment", TIME, (), undo, 2, backoff, ExtendedWait(TIME * 3)),
            Step(COURIED, COURIER, TIME, ("reserve",), courier, 2, backoff),
            Step("invoice", "invoice", TIME, ("charge",), undo, 1),
            Step("tell", "shipping", TIME, ("charge",), None, 1, alternatives=("payment",)),
            Step("deliver", "delivery", TIME, (COURIED, "invoice", "tell"), undo, 2),
        ),
        on_failure,
        deadline=deadline,
        pickup=timedelta(seconds=15),
    )


DEFINED = Workflows(
    crowded(on_failure, deadline)
    for on_failure in OnFailure
    for deadline in (None, timedelta(minutes=4))
)


class HonestHand(Hand):
    """An operator who undoes a step by hand after its undo failed at an earlier agent."""

    def given(self, order: Order, verb: str) -> None:
        for step in order.steps if verb == "skip" else ():
            if step.undo_failed and step.undo.routes:
                agents = DEFINED.find(order.details.workflow).steps[step.number].agents
                other = agents[step.undo.routes[0]] if step.undo.routes[0] else None
                for generation in range(step.call.generation + 1):
                    key = idempotency_key(order.order_id, step.name, generation, other)
                    effects = self.system.ledger.of(key)
                    effects.in_force, effects.tombstone = False, True


class Disasters:
    """Kills hosts and takes the store away, in between the ticks of the supervisor too."""

    def __init__(self, system: System, times: int = 8) -> None:
        self.system = system
        self.left = times
        self._sweep = system.world.timer
        system.world.timer = self.tick

    async def tick(self) -> None:
        world = self.system.world
        if self.left and world.rng.random() < 0.2:
            self.left -= 1
            self._store_back()
            if world.rng.random() < 0.5:
                world.clock.call_later(world.rng.uniform(0, 12), world.restart)
            else:
                world.store.away = world.store.partitions
                world.clock.call_later(world.rng.uniform(1, 90), self._store_back)
        assert self._sweep is not None
        await self._sweep()

    def _store_back(self) -> None:
        self.system.store.away = frozenset()


def prepared(seed: int) -> System:
    faults = Faults(
        crash=0.003,
        lock_lost=0.02,
        duplicate=0.02,
        stalls=0.002,
        store_lost_answer=0.01,
        store_conflict=0.01,
        bus_down=0.005,
        bus_lost_answer=0.01,
    )
    remote = RemoteFaults(
        transient=0.05,
        lost_answer=0.05,
        hangs=0.08,
        refused=0.04,
        undo_refused=0.03,
        later=0.1 if seed % 3 else 0.0,
    )
    outside = (("delivery",), (), ("payment", "delivery"))[seed % 3]
    apart = ((0.0, 3.0, -3.0), (0.0, 1.0))[seed // 2 % 2]
    system = build(
        seed,
        faults,
        remote,
        clocks_apart=apart,
        definitions=DEFINED,
        outside=outside,
        limits=LIMITS if seed % 4 else {},
    )
    system.world.at_once = 8
    return system


async def run(system: System) -> None:
    outages = Outages(system)
    Disasters(system)
    hand = HonestHand(system, 8)
    names = [workflow.name for workflow in DEFINED]
    try:
        for number in range(6):
            name = names[number % len(names)]
            system.submit(f"O-{number}", name, 1 + number % 2, urgent=number % 3 == 0)
        await system.world.run(hand.done)
        outages.end()
        check_end(system)
        check_commands(system)
    finally:
        await system.close()


@pytest.mark.parametrize("seed", seeds(3, 30))
async def test_every_order_ends_whole_whatever_goes_wrong_at_once(seed: int) -> None:
    await run(prepared(seed))


@pytest.mark.long
async def test_everything_that_is_meant_to_go_wrong_at_once_does() -> None:
    words: Counter[str] = Counter()
    for seed in range(40):
        system = prepared(seed)
        await run(system)
        for stored in system.store.orders.values():
            words.update(entry.what for entry in stored.journal)
    assert set(words) >= EVERYTHING, EVERYTHING - set(words)


EVERYTHING = {
    *(
        "progress",
        "another agent asked",
        "undone at one agent",
        "waiting: no call could begin",
        "extended wait",
    ),
    *("step reset", "undo reset", "undo failed", "cancelled", "cancelled step ended", "overdue"),
    *("overdue, undo decided", "step failed, undo decided", "resubmitted", "released"),
}
