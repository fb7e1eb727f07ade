"""The main test: whole orders through the real actors while everything goes wrong, by seed.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from sas.domain.order import OrderState
from sas.testing.invariants import at_end
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

ORDERS = 4
WORKFLOWS = "order-with-care", "order"
DELIVERED = ("order-delivered",)
"""Steps polled or told, with the invoice beside shipping, and undone from anywhere."""
APART = (0.0, 4.0, -4.0)


async def run(system: System, *, times: int = 1, workflows: tuple[str, ...] = WORKFLOWS) -> System:
    for number in range(ORDERS):
        system.submit(f"O-{number}", workflows[number % len(workflows)], times)
    try:
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    return system


def words(system: System) -> set[str]:
    """Return everything that the journals say."""
    return {entry.what for stored in system.store.orders.values() for entry in stored.journal}


async def test_without_faults_every_order_is_processed_and_notified() -> None:
    system = await run(build(1, Faults()))
    assert set(system.states().values()) == {OrderState.PROCESSED}
    assert system.bus.messages(QUEUES.rejected) == []
    assert system.bus.messages(QUEUES.alerts) == []


HOSTS = Faults(crash=0.02, lock_lost=0.05, duplicate=0.05, transient=0.1, lost_answer=0.1)
STORE_AND_BUS = Faults(
    store_down=0.03,
    store_lost_answer=0.03,
    store_conflict=0.05,
    bus_down=0.03,
    bus_lost_answer=0.03,
    transient=0.1,
)
SERVICES = Faults(
    crash=0.01,
    lock_lost=0.03,
    transient=0.2,
    lost_answer=0.1,
    hangs=0.15,
    refused=0.1,
    undo_refused=0.05,
)
COPIES = Faults(
    crash=0.03, lock_lost=0.05, duplicate=0.1, bus_lost_answer=0.1, hangs=0.1, refused=0.05
)
LONG_STEPS = Faults(
    crash=0.02,
    lock_lost=0.05,
    duplicate=0.05,
    bus_lost_answer=0.03,
    later=0.6,
    transient=0.1,
    lost_answer=0.1,
    refused=0.05,
)
CALLBACKS = Faults(
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
DELIVERIES = Faults(
    crash=0.02,
    lock_lost=0.03,
    duplicate=0.03,
    bus_lost_answer=0.02,
    transient=0.1,
    refused=0.08,
    later=0.3,
    hangs=0.02,
)
CLOCKS = Faults(crash=0.01, lock_lost=0.03, duplicate=0.03, later=0.4, hangs=0.2, refused=0.05)
MIXES: Mapping[str, tuple[Faults, Mapping[str, Any], Mapping[str, Any]]] = {
    "hosts": (HOSTS, {}, {}),
    "store and bus": (STORE_AND_BUS, {}, {}),
    "services": (SERVICES, {}, {}),
    "without duplicate detection": (COPIES, {"duplicate_detection": False}, {"times": 2}),
    "long steps": (LONG_STEPS, {}, {}),
    "callbacks": (CALLBACKS, {"outside": ("payment", "shipping")}, {}),
    "deliveries": (DELIVERIES, {}, {"workflows": DELIVERED}),
    "deliveries by callback": (DELIVERIES, {"outside": ("delivery",)}, {"workflows": DELIVERED}),
    "clocks apart": (CLOCKS, {"clocks_apart": APART, "outside": ("payment",)}, {}),
}
"""Faults, what the system is built with, and how orders are sent."""


@pytest.mark.parametrize("seeds", ranges(2, 30))
@pytest.mark.parametrize("mix", MIXES)
async def test_every_order_ends_whole_whatever_fails(mix: str, seeds: Seeds) -> None:
    faults, built, orders = MIXES[mix]
    events: set[str] = set()
    for seed in seeds:
        events |= words(await run(build(seed, faults, **built), **orders))
    assert ("progress" in events) or not faults.later


@pytest.mark.parametrize("seeds", ranges(1, 5))
async def test_without_faults_no_step_that_goes_on_runs_out_of_time(seeds: Seeds) -> None:
    for seed in seeds:
        system = await run(build(seed, Faults(later=0.7)))
        assert set(system.states().values()) == {OrderState.PROCESSED}
        assert words(system) == {"submitted", "claimed", "progress", "step processed"}
        steps = [step for stored in system.store.orders.values() for step in stored.order.steps]
        assert {step.epoch for step in steps} == {1}


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


@pytest.mark.parametrize("seeds", ranges(1, 5))
async def test_without_faults_a_callback_in_time_ends_its_step_at_once(seeds: Seeds) -> None:
    for seed in seeds:
        system = await run(build(seed, Faults(), outside=("shipping",)))
        for stored in system.store.orders.values():
            events = {entry.what for entry in stored.journal}
            too_late = {"step failed", "step failed, undo decided"} & events
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
