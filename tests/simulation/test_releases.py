"""A release: all instances stop at once and start with other code, as Azure does by default.

Two versions side by side, as after a rolling update: ``test_versions_side_by_side.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.actors.agent import AgentActor
from sas.actors.dead_letters import DeadLetters
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.domain.order import OrderState
from sas.engine.delivery import Delivery
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from sas.testing.system import with_newer
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

ORDERS = 200
FAULTS = Faults(lock_lost=0.02, duplicate=0.02, bus_down=0.01, lost_answer=0.05)


class BadRelease:
    """A version whose handlers all have a bug. Its supervisor works."""

    def __init__(self, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as code:
            for actor in (Submitter, Scheduler, AgentActor, DeadLetters):
                code.setattr(actor, "handle", self.handle)
            deploy(system)

    async def handle(self, _delivery: Delivery) -> None:
        raise KeyError("amount")


def deploy(system: System) -> None:
    """Stop all instances at once, and start them with the current code."""
    for instance in system.world.instances:
        system.world.kill(instance, with_host=True)


@pytest.mark.parametrize("seeds", ranges(1, 10))
async def test_a_bad_release_for_two_minutes_rejects_nothing_and_is_one_alert(
    seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        system = build(seed, Faults(), clocks_apart=(0.0, 1.0))
        system.slow_store(0.2)
        for number in range(ORDERS):
            system.submit(f"O-{number}")
        await system.world.run_for(2)
        assert 0 < len(system.store.orders) < ORDERS
        BadRelease(system, monkeypatch)
        await system.world.run_for(120)
        assert system.alerts() == {"agent-failing": 1}
        deploy(system)
        await system.world.run(system.at_rest)
        check_end(system)
        assert set(system.states().values()) == {OrderState.PROCESSED}
        assert len(system.states()) == ORDERS
        assert system.bus.messages(QUEUES.rejected) == []
        await system.world.run_for(900)
        assert system.alerts() == {"agent-failing": 1, "cleared": 1}
        await system.close()


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("seeds", ranges(3, 50))
async def test_orders_under_way_go_on_after_a_release_that_stops_all_instances_at_once(
    seeds: Seeds, faults: Faults
) -> None:
    for seed in seeds:
        system = build(seed, faults, clocks_apart=(0.0, 1.0))
        system.slow_store(0.2)
        for number in range(20):
            system.submit(f"O-{number}")
        await system.world.run_for(1.0 + seed % 5)
        assert any(instance.running for instance in system.world.instances)
        system.workflows = with_newer(system.workflows)
        for host in system.hosts:
            host.business = replace(host.business, workflows=system.workflows)
        deploy(system)
        for number in range(20, 30):
            system.submit(f"O-{number}")
        await system.world.run(system.at_rest)
        check_end(system)
        orders = [stored.order for stored in system.store.orders.values()]
        assert {order.process_state for order in orders} == {OrderState.PROCESSED}
        assert {order.details.version for order in orders} == {1, 2}
        assert system.alerts() == {}
        await system.close()
