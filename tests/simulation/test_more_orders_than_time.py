"""Many more orders at once than an agent does in a step's time allowed: they take long, none fails.

Here each queue has handlers of its own, as functions have, and the agents' are the bottleneck.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.order import OrderState
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.testing.plan import Faults
from tests.simulation.system import build, check_end

TIME = timedelta(seconds=20)
CROWDED = Workflows(
    [
        Workflow(
            "crowded",
            version=1,
            steps=(
                Step("reserve", agent="inventory", time_allowed=TIME, undo=Undo(TIME)),
                Step("charge", agent="payment", time_allowed=TIME, undo=Undo(TIME)),
            ),
            on_failure=OnFailure.UNDO,
        )
    ]
)
SHORT = Workflows(
    [
        Workflow(
            "short", version=1, steps=(Step("reserve", agent="inventory", time_allowed=TIME / 4),)
        )
    ]
)
OFF = BreakerPolicy(failures_max=0)
ORDERS = 300
AT_ONCE = 3
"""Calls of an agent. Short ones take a second on average: a step is through in 100 seconds."""


@pytest.mark.parametrize(
    ("seconds_max", "orders"),
    [(2.0, ORDERS), (13.0, ORDERS // 5)],
    ids=["short calls", "calls of two thirds of the time allowed"],
)
async def test_a_backlog_longer_than_the_time_allowed_fails_no_order(
    seconds_max: float, orders: int
) -> None:
    system = build(0, Faults(seconds_max=seconds_max), definitions=CROWDED)
    system.world.rules = replace(system.world.rules, calls_max=AT_ONCE)
    system.slow_store(0.2)
    for number in range(orders):
        system.submit(f"O-{number}", "crowded")
    try:
        await system.world.run(system.at_rest, hours_max=1)
        check_end(system)
    finally:
        await system.close()
    assert Counter(system.states().values()) == {OrderState.PROCESSED: orders}
    steps = [step for stored in system.store.orders.values() for step in stored.order.steps]
    assert sum(step.epoch for step in steps) <= 1.1 * len(steps)  # hardly any was asked for twice
    words = {entry.what for stored in system.store.orders.values() for entry in stored.journal}
    assert "step reset" not in words
    assert set(system.alerts()) <= {"queue-delay", "cleared"}


async def test_a_clock_that_is_apart_keeps_no_failure_from_being_counted() -> None:
    """Every message seems late to it: that must not excuse a service that never answers."""
    system = build(1, Faults(), definitions=SHORT, clocks_apart=(3.0,), breaker=OFF)
    system.agents["inventory"].down = True
    system.submit("O-1", "short")
    try:
        await system.world.run(system.at_rest, hours_max=1)
    finally:
        await system.close()
    assert system.states() == {"O-1": OrderState.ERROR}
