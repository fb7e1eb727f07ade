"""The main test: whole orders through the real actors while everything goes wrong, by seed.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from sas.domain.order import OrderState
from sas.testing.invariants import at_end
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from tests.long import seeds
from tests.simulation.system import System, build, check_end

ORDERS = 4


async def run(system: System, *, times: int = 1) -> System:
    for number in range(ORDERS):
        workflow = "order" if number % 2 else "order-with-care"
        system.submit(f"O-{number}", workflow, times)
    try:
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    return system


async def test_without_faults_every_order_is_processed_and_notified() -> None:
    system = await run(build(1, Faults()))
    assert set(system.states().values()) == {OrderState.PROCESSED}
    assert system.bus.messages(QUEUES.rejected) == []
    assert system.bus.messages(QUEUES.alerts) == []


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_while_handlers_crash_and_locks_are_lost(seed: int) -> None:
    faults = Faults(crash=0.02, lock_lost=0.05, duplicate=0.05, transient=0.1, lost_answer=0.1)
    await run(build(seed, faults))


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_while_store_and_bus_fail(seed: int) -> None:
    faults = Faults(
        store_down=0.03,
        store_lost_answer=0.03,
        store_conflict=0.05,
        bus_down=0.03,
        bus_lost_answer=0.03,
        transient=0.1,
    )
    await run(build(seed, faults))


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_while_services_hang_and_refuse(seed: int) -> None:
    of_services = Faults(transient=0.2, lost_answer=0.1, hangs=0.15, refused=0.1, undo_refused=0.05)
    await run(build(seed, replace(of_services, crash=0.01, lock_lost=0.03)))


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_without_duplicate_detection(seed: int) -> None:
    faults = Faults(
        crash=0.03, lock_lost=0.05, duplicate=0.1, bus_lost_answer=0.1, hangs=0.1, refused=0.05
    )
    await run(build(seed, faults, duplicate_detection=False), times=2)


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_whose_steps_go_on_for_longer_than_their_time_allowed(
    seed: int,
) -> None:
    faults = Faults(
        crash=0.02,
        lock_lost=0.05,
        duplicate=0.05,
        bus_lost_answer=0.03,
        later=0.6,
        transient=0.1,
        lost_answer=0.1,
        refused=0.05,
    )
    system = await run(build(seed, faults))
    words = [entry.what for stored in system.store.orders.values() for entry in stored.journal]
    assert "progress" in words


@pytest.mark.parametrize("seed", seeds(1, 5))
async def test_without_faults_no_step_that_goes_on_runs_out_of_time(seed: int) -> None:
    system = await run(build(seed, Faults(later=0.7)))
    assert set(system.states().values()) == {OrderState.PROCESSED}
    words = {entry.what for stored in system.store.orders.values() for entry in stored.journal}
    assert words == {"submitted", "claimed", "progress", "step processed"}
    steps = [step for stored in system.store.orders.values() for step in stored.order.steps]
    assert {step.epoch for step in steps} == {1}


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_whose_steps_are_ended_from_outside(seed: int) -> None:
    faults = Faults(
        crash=0.02,
        lock_lost=0.05,
        duplicate=0.05,
        store_conflict=0.03,
        bus_lost_answer=0.03,
        transient=0.1,
        lost_answer=0.1,
        refused=0.05,
        later=0.2,
    )
    await run(build(seed, faults, outside=("payment", "shipping")))


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_that_is_followed_until_it_is_delivered_ends_whole(seed: int) -> None:
    """Polled or told, with the invoice beside shipping, and undone from anywhere."""
    faults = Faults(
        crash=0.02,
        lock_lost=0.03,
        duplicate=0.03,
        bus_lost_answer=0.02,
        transient=0.1,
        refused=0.08,
        later=0.3,
        hangs=0.02,
    )
    outside = ("delivery",) if seed % 2 else ()
    system = build(seed, faults, outside=outside)
    for number in range(ORDERS):
        system.submit(f"D-{number}", "order-delivered")
    try:
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()


async def test_a_callback_of_an_order_in_error_waits_for_its_operator_as_the_order_does() -> None:
    faults = Faults(
        crash=0.01, lock_lost=0.03, duplicate=0.03, hangs=0.3, lost_answer=0.3, refused=0.2
    )
    waiting: list[bytes] = []
    for seed in range(200):
        system = await run(build(seed, faults, outside=("payment",)))
        waiting = [queued.message.body for queued in system.bus.queues[QUEUES.scheduler].waiting]
        if waiting:
            break
    assert waiting
    for body in waiting:
        assert system.states()[json.loads(body)["order_id"]] is OrderState.ERROR
    assert list(at_end(system)) == []


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_every_order_ends_whole_whose_long_steps_meet_clocks_that_are_apart(
    seed: int,
) -> None:
    faults = Faults(crash=0.01, lock_lost=0.03, duplicate=0.03, later=0.4, hangs=0.2, refused=0.05)
    apart = (0.0, 4.0, -4.0)
    await run(build(seed, faults, clocks_apart=apart, outside=("payment",)))


@pytest.mark.parametrize("seed", seeds(1, 5))
async def test_without_faults_a_callback_in_time_ends_its_step_at_once(seed: int) -> None:
    system = await run(build(seed, Faults(), outside=("shipping",)))
    for stored in system.store.orders.values():
        words = {entry.what for entry in stored.journal}
        too_late = {"step failed", "step failed, undo decided"} & words
        assert (stored.order.process_state is OrderState.PROCESSED) != bool(too_late)
    aside = [json.loads(message.body) for message in system.bus.messages(QUEUES.rejected)]
    reasons = {rejected["reason"] for rejected in aside}
    assert reasons <= {"expired"}  # what happened outside took too long
    entries = [entry for stored in system.store.orders.values() for entry in stored.journal]
    assert any(e.by == "callback" and e.what == "step processed" for e in entries)


async def test_the_faults_lead_to_every_kind_of_end() -> None:
    """What the tests above claim to cover happens: each end is reached, handlers crash."""
    ends: Counter[OrderState] = Counter()
    crashes = 0
    expected = {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.ERROR, OrderState.REJECTED}
    for seed in range(120):
        faults = Faults(
            crash=0.12,
            lock_lost=0.05,
            store_lost_answer=0.02,
            bus_down=0.02,
            transient=0.2,
            hangs=0.3,
            refused=0.15,
            undo_refused=0.1,
        )
        built = build(seed, faults)
        built.deliver_at_most(1 + seed % 3)
        system = await run(built)
        ends.update(system.states().values())
        crashes += system.world.crashes
        if crashes > 50 and expected <= set(ends):
            break
    assert crashes > 50
    assert expected <= set(ends), ends
