"""Operators at random moments, patient workflows, clocks apart, supervisors side by side.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from sas.domain.order import Order, OrderState, StepState
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

ALLOWED = timedelta(seconds=10)
UNDO = Undo(ALLOWED)
VERBS = ("resubmit", "resubmit", "skip", "undo", "cancel", "acknowledge")
COMMANDS = 10


def patient(name: str, on_failure: OnFailure, deadline: timedelta) -> Workflow:
    """Return a workflow with backoffs, extended waits, a drain time and a deadline."""
    backoff = Backoff(timedelta(seconds=4), most=timedelta(seconds=15))
    wait = ExtendedWait(timedelta(seconds=90))
    courier = Undo(ALLOWED, drain_time=DRAIN_TIME)
    return Workflow(
        name,
        1,
        (
            Step("reserve", "inventory", ALLOWED, (), UNDO, 1, backoff, wait),
            Step("charge", "payment", ALLOWED, (), UNDO, 1, backoff),
            Step(COURIED, COURIER, ALLOWED, ("reserve",), courier, 2, backoff, wait),
            Step("thank", "shipping", ALLOWED, ("charge", COURIED), None, 1),
        ),
        on_failure,
        deadline=deadline,
    )


def defined() -> Workflows:
    return Workflows(
        [
            patient("holding", OnFailure.HOLD, timedelta(minutes=3)),
            patient("undoing", OnFailure.UNDO, timedelta(seconds=50)),
        ]
    )


class Hand:
    """An operator who gives this many commands at times, with the current or an old seq."""

    def __init__(self, system: System, commands: int) -> None:
        self.system = system
        self.left = commands
        self._sweep = system.world.timer
        system.world.timer = self.tick

    async def tick(self) -> None:
        rng = self.system.world.rng
        known = [o for o in self.system.submitted if o in self.system.store.orders]
        if self.left and known and rng.random() < 0.6:
            self.left -= 1
            self.command(rng.choice(known))
        assert self._sweep is not None
        await self._sweep()

    def command(self, order_id: str) -> None:
        rng = self.system.world.rng
        order = self.system.store.orders[order_id].order
        verb = rng.choice(VERBS)
        seq = order.seq - (rng.random() < 0.15)
        failed = [s.name for s in order.steps if s.process_state is StepState.ERROR]
        members: dict[str, object] = {}
        if verb in {"resubmit", "skip"} and failed and rng.random() < 0.5:
            members["step"] = rng.choice(failed)
            if rng.random() < 0.5:
                members["input"] = msgspec.Raw(b'{"lines":[],"edited":true}')
        sent = None if verb == "cancel" and rng.random() < 0.3 else seq
        self.given(order, verb)
        self.system.put_command(order_id, verb, sent, **members)
        if rng.random() < 0.2:  # pressed twice, on a page as it was: another id, the same wish
            self.system.put_command(order_id, verb, sent, **members)

    def given(self, order: Order, verb: str) -> None:
        """What an operator does outside as the command is given."""

    def done(self) -> bool:
        return not self.left and self.system.at_rest()


async def run(system: System, commands: int = COMMANDS) -> Hand:
    hand = Hand(system, commands)
    for number in range(4):
        system.submit(f"O-{number}", "undoing" if number % 2 else "holding")
    try:
        await system.world.run(hand.done)
        check_end(system)
        check_commands(system)
    finally:
        await system.close()
    return hand


REMOTE = RemoteFaults(transient=0.1, lost_answer=0.1, hangs=0.2, refused=0.15, undo_refused=0.1)


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_while_operators_meddle_and_clocks_are_apart(
    seed: int,
) -> None:
    faults = Faults(crash=0.005, lock_lost=0.03, duplicate=0.03, store_lost_answer=0.02)
    system = build(seed, faults, REMOTE, clocks_apart=(0.0, 2.0, -2.0), definitions=defined())
    await run(system)


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_while_supervisors_sweep_side_by_side_and_die_on_the_way(
    seed: int,
) -> None:
    faults = Faults(crash=0.02, store_conflict=0.05, bus_down=0.02)
    system = build(
        seed,
        faults,
        REMOTE,
        clocks_apart=(0.5, -0.5),
        definitions=defined(),
    )
    await run(system, commands=3)


async def test_without_faults_a_patient_order_is_processed_on_clocks_apart() -> None:
    system = build(1, Faults(), RemoteFaults(), clocks_apart=(2.0, -2.0), definitions=defined())
    await run(system, commands=0)
    assert set(system.states().values()) == {OrderState.PROCESSED}


@pytest.mark.long
async def test_the_hand_and_the_faults_lead_to_everything_that_can_happen_to_an_order() -> None:
    """What the tests above claim to cover happens: see the words of the journals."""
    words: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(200):
        system = build(seed, Faults(crash=0.003), REMOTE, definitions=defined())
        await run(system, commands=16)
        for stored in system.store.orders.values():
            words.update(entry.what for entry in stored.journal)
        ends.update(check_commands(system))
        if not EVERYTHING - set(words):
            break
    assert EVERYTHING - set(words) == set()
    assert ends["refused"] > 5


EVERYTHING = {
    *("submitted", "claimed", "step processed", "step reset", "released", "extended wait"),
    *("step failed", "step failed, undo decided", "step undone", "undo reset", "undo failed"),
    *("resubmitted", "skipped", "undone by hand", "undo decided", "cancelled", "acknowledged"),
    *("cancelled step ended", "overdue", "overdue, undo decided"),
}
