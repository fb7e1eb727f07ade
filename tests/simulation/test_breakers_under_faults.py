"""Services that are down for a while: breakers open, probe and close, and every order ends whole.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sas.domain.order import OrderState
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import BreakerPolicy, BreakerState
from sas.ports import AgentCall, TransientError
from sas.testing.hosts import BREAKER
from sas.testing.plan import Faults
from sas.testing.remote import ModelService
from tests.long import Seeds, ranges
from tests.simulation.flapping import FAULTS, flapping
from tests.simulation.patient_workflows import defined
from tests.simulation.system import System, build, check_end

ORDERS = 8
OFF = BreakerPolicy(failures_max=0)


async def breaker_states(system: System) -> Counter[BreakerState]:
    """Return how many breakers are in each state."""
    cells = await breakers(system.store).all()
    return Counter(cell.value.state for cell in cells.values())


def prepared(
    seed: int,
    faults: Faults,
    *,
    clocks_apart: Sequence[float] = (0.0,),
    breaker: BreakerPolicy = BREAKER,
) -> System:
    faults = replace(faults, transient=0.05, lost_answer=0.05, hangs=0.05, refused=0.05)
    system = build(seed, faults, clocks_apart=clocks_apart, definitions=defined(), breaker=breaker)
    system.world.at_once = 4  # orders take long enough to meet outages
    return system


async def run(system: System) -> System:
    """Have orders end through outages."""
    system.happens(*flapping(system))
    try:
        for number in range(ORDERS):
            system.submit(f"O-{number}", "undoing" if number % 2 else "holding")
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    return system


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_every_order_ends_whole_while_services_go_down_and_breakers_open(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        for clocks_apart in ((0.0,), (0.0, 3.0, -3.0)):
            await run(prepared(seed, FAULTS, clocks_apart=clocks_apart))


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_when_services_are_back_orders_pass_and_no_breaker_stays_open(seeds: Seeds) -> None:
    """No circuit stays half-open because the instance with the probe died."""
    for seed in seeds:
        system = prepared(seed, Faults(crash=0.05, lock_lost=0.05), clocks_apart=(0.0, 2.0))
        system.deliver_at_most(1)
        await run(system)
        system.world.faults.stop()
        system.world.faults.refused = 0.0
        for number in range(ORDERS, 2 * ORDERS):
            system.submit(f"O-{number}", "holding")
        try:
            await system.world.run(system.at_rest)
        finally:
            await system.close()
        states = [system.states()[f"O-{number}"] for number in range(ORDERS, 2 * ORDERS)]
        assert set(states) == {OrderState.PROCESSED}
        assert set(await breaker_states(system)) <= {BreakerState.CLOSED}


async def play_poisoned(seed: int) -> None:
    system = build(seed, Faults(), definitions=defined())
    stock = system.agents["inventory"]
    do = stock.do

    async def fails_for_one(call: AgentCall) -> Any:
        if call.order_id == "O-poison":
            raise TransientError("inventory answered 500", kind="http-500", error_answer=True)
        return await do(call)

    stock.do = fails_for_one  # type: ignore[method-assign]
    system.submit("O-poison", "holding")
    healthy = [f"O-{number}" for number in range(ORDERS)]
    try:
        await system.world.run(lambda: "O-poison" in system.states())
        await system.world.clock.advance(5)
        for order_id in healthy:
            system.submit(order_id, "holding")
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    assert {system.states()[order_id] for order_id in healthy} == {OrderState.PROCESSED}
    assert system.states()["O-poison"] is OrderState.ERROR
    assert system.alerts()["breaker-open"] == 0


@pytest.mark.parametrize("seeds", ranges(2, 10))
async def test_an_order_that_its_service_cannot_answer_keeps_no_other_order_waiting(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        await play_poisoned(seed)


async def test_a_service_that_is_down_is_called_far_less_with_breakers_than_without() -> None:
    calls = Counter[str]()
    for seed in range(3):
        for name, policy in (("with", BREAKER), ("without", OFF)):
            system = prepared(seed, Faults(), breaker=policy)
            for agent in system.agents.values():
                _count(agent, calls, name)
            await run(system)
    assert calls["without"] > 2 * calls["with"] > 0, calls


def _count(agent: ModelService, calls: Counter[str], name: str) -> None:
    """Count the calls of a service that is down."""
    do = agent.do

    async def counted(call: AgentCall) -> Any:
        calls[name] += agent.down
        return await do(call)

    agent.do = counted  # type: ignore[method-assign]
