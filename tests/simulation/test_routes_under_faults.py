"""Steps that several agents can do, while services go down: each effect once, at one of them.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.messages import Request
from sas.domain.order import Direction, OrderState
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import AgentCall
from sas.testing.plan import Faults
from sas.testing.remote import ModelService
from tests.long import Seeds, ranges
from tests.simulation.flapping import FAULTS, flapping
from tests.simulation.system import System, build, check_end

TIME = timedelta(seconds=10)
ORDERS = 8


def chosen(on_failure: OnFailure) -> Workflow:
    """Return a workflow whose first step three agents can do, its second two, its third one."""
    undo = Undo(TIME)
    return Workflow(
        on_failure.value,
        version=1,
        steps=(
            Step(
                "store",
                agent="inventory",
                time_allowed=TIME,
                undo=undo,
                alternatives=("shipping", "payment"),
            ),
            Step("pay", agent="payment", time_allowed=TIME, undo=undo, alternatives=("inventory",)),
            Step(
                "tell",
                agent="shipping",
                time_allowed=TIME,
                after=("store",),
                alternatives=("payment",),
            ),
            Step("ship", agent="shipping", time_allowed=TIME, after=("pay", "tell"), undo=undo),
        ),
        on_failure=on_failure,
    )


def prepared(
    seed: int,
    faults: Faults = FAULTS,
    *,
    clocks_apart: Sequence[float] = (0.0,),
    limits: Mapping[str, int] | None = None,
) -> System:
    definitions = Workflows([chosen(OnFailure.UNDO), chosen(OnFailure.HOLD)])
    faults = replace(faults, transient=0.05, lost_answer=0.05, hangs=0.1, refused=0.1)
    return build(
        seed, faults, clocks_apart=clocks_apart, definitions=definitions, limits=limits or {}
    )


def note_calls(system: System) -> dict[tuple[str, str], set[str]]:
    """Return the agents that are called for each step, by order and step."""
    called: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def noted(name: str, act: Any) -> Any:
        async def note(call: AgentCall) -> Any:
            called[call.order_id, call.step].add(name)
            return await act(call)

        return note

    for name, agent in system.agents.items():
        for verb in ("do", "undo"):
            setattr(agent, verb, noted(name, getattr(agent, verb)))
    return called


async def run(system: System, *, outages: bool = True) -> None:
    """Have orders end, every third of them urgent. All calls of a step go to one agent."""
    called = note_calls(system)
    if outages:
        system.happens(*flapping(system))
    try:
        for number in range(ORDERS):
            system.submit(f"O-{number}", "undo" if number % 2 else "hold", urgent=number % 3 == 0)
        await system.world.run(system.at_rest)
        check_end(system)
        assert {len(agents) for agents in called.values()} == {1}
    finally:
        await system.close()


def route_counts(system: System) -> Counter[str]:
    """Return how often what routes are about came to pass."""
    counts: Counter[str] = Counter()
    for stored in system.store.orders.values():
        for entry in stored.journal:
            counts[entry.what] += 1
            for message in entry.messages:
                if isinstance(message, Request) and stored.order.steps[message.step].call.route:
                    counts[f"{message.direction.value} elsewhere"] += 1
        steps = [step for step in stored.order.steps if step.call.route]
        counts["done elsewhere"] += len(steps) * (
            stored.order.process_state is OrderState.PROCESSED
            and stored.order.direction is Direction.DO
        )
    return counts


@pytest.mark.parametrize("seeds", ranges(2, 30))
@pytest.mark.parametrize("clocks_apart", [(0.0,), (0.0, 3.0, -3.0)])
async def test_every_effect_is_in_force_once_at_one_agent_while_services_go_down(
    clocks_apart: tuple[float, ...], seeds: Seeds
) -> None:
    for seed in seeds:
        await run(prepared(seed, clocks_apart=clocks_apart))


class Watched:
    """Counts the calls that one agent has out at a time."""

    def __init__(self, agent: ModelService) -> None:
        self.in_flight = self.in_flight_max = 0
        for verb in ("do", "undo"):
            setattr(agent, verb, self._counted(getattr(agent, verb)))

    def _counted(self, method: Any) -> Any:
        async def counted(call: AgentCall) -> Any:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            try:
                return await method(call)
            finally:
                self.in_flight -= 1

        return counted


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_limits_hold_over_all_instances_and_every_order_ends_whole(seeds: Seeds) -> None:
    """Here no request is at two instances at once: both would have its one slot."""
    faults = Faults(crash=0.01, store_lost_answer=0.02, store_down=0.01, bus_down=0.01)
    limits = {"inventory": 1, "payment": 2}
    for seed in seeds:
        system = prepared(seed, faults, clocks_apart=(0.0, 2.0), limits=limits)
        watched = {name: Watched(system.agents[name]) for name in limits}
        await run(system, outages=False)
        assert watched["inventory"].in_flight_max == 1
        assert watched["payment"].in_flight_max <= 2


@pytest.mark.long
async def test_the_faults_lead_to_everything_that_routes_are_about() -> None:
    """What the tests above claim to cover happens."""
    counts: Counter[str] = Counter()
    for seed in range(80):
        system = prepared(seed)
        await run(system)
        counts += route_counts(system)
    for word in (
        "do elsewhere",
        "undo elsewhere",
        "done elsewhere",
        "step reset",
    ):
        assert counts[word], word
