"""``sas.testing.Simulation``: what an adopter's own tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sas.ports import AgentCall, RefusedError
from sas.testing import Away, Chance, Kill, OrderState, Press, Simulation, Verb
from sas.testing.plan import dependencies
from sas.testing.violation import Violation
from tests.business import workflows

ROOT = Path(__file__).parents[2]
STEPS = ("reserve-stock", "take-payment", "ship")


def test_an_order_is_processed_once_its_service_is_back_though_its_instance_dies() -> None:
    with Simulation(workflows(), seed=1, project=ROOT) as simulation:
        simulation.submit("O-1", "order", {"lines": []})
        simulation.happens(Away(at_s=0, lasts_s=600, what="service payment"), Kill(at_s=30))
        simulation.run_for(60)
        assert simulation.order("O-1").process_state is OrderState.PROCESSING
        assert simulation.effects("O-1")["take-payment"] == 0
        simulation.run()
        assert simulation.order("O-1").process_state is OrderState.PROCESSED
        assert simulation.effects("O-1") == dict.fromkeys(STEPS, 1)
        assert simulation.notifications("O-1") == ["received", "completed"]


def test_an_agent_of_a_test_plays_itself_and_an_operator_undoes_the_order() -> None:
    class Refuses:
        async def do(self, call: AgentCall) -> Any:
            raise RefusedError("no-ship", f"{call.order_id} does not fit")

        async def undo(self, _call: AgentCall) -> Any:
            return None

        async def close(self) -> None:
            pass

    agents = {"shipping": Refuses()}
    with Simulation(workflows(), project=ROOT, agents=agents) as simulation:
        simulation.submit("O-1", "order-with-care", {"lines": []})
        simulation.run()
        assert simulation.order("O-1").process_state is OrderState.ERROR
        simulation.happens(Press(at_s=0, order_id="O-1", verb=Verb.UNDO))
        simulation.run()
        assert simulation.order("O-1").process_state is OrderState.COMPENSATED
        assert set(simulation.effects("O-1").values()) == {0}


def test_the_same_seed_plays_the_same_story_under_faults_by_chance() -> None:
    ends = []
    for _ in range(2):
        with Simulation(workflows(), seed=7, instances=2, project=ROOT) as simulation:
            simulation.happens(Chance("lost_answer", 0.4), Chance("crash", 0.02))
            simulation.submit("O-1", "order", {"lines": []})
            simulation.run()
            ends.append(simulation.order("O-1"))
    assert ends[0].seq == ends[1].seq
    assert ends[0].stopped_at == ends[1].stopped_at


def test_a_broken_invariant_fails_the_test() -> None:
    with Simulation(workflows(), project=ROOT) as simulation:
        simulation._broken.append(Violation(7, "a step had its effect twice"))
        with pytest.raises(AssertionError, match="invariant 7: a step had its effect twice"):
            simulation.run()


def test_every_dependency_can_be_away_and_come_back() -> None:
    agents = sorted(workflows().agents())
    for dependency in dependencies(agents):
        with Simulation(workflows(), project=ROOT) as simulation:
            simulation.happens(Away(at_s=2, lasts_s=20, what=dependency))
            simulation.submit("O-1", "order", {"lines": []})
            simulation.run()
            assert simulation.order("O-1").process_state is OrderState.PROCESSED, dependency
