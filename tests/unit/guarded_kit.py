"""Agents with circuit breakers and call limits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from sas.domain.workflow import Workflow
from sas.engine.retry import RetryPolicy
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import AgentCall
from tests.unit.actors_kit import QUEUES, Kit, agent_actor, keep_breaker, kit

POLICY = BreakerPolicy(
    failures_max=3, open_for=timedelta(seconds=20), open_for_max=timedelta(seconds=20)
)
RETRY = RetryPolicy(0.2, 1.0)
STOCK = QUEUES.agent("stock")


def system_with(*workflows: Workflow, limit: int = 0) -> Kit:
    """Return a system whose agents have breakers, and a limit."""
    system = kit(*workflows)
    for name, agent in system.agents.items():
        system.actors[name] = agent_actor(
            system.context, name, agent, policy=RETRY, circuit=POLICY, limit=limit
        )
    return system


async def cut_off(system: Kit, *, seconds: float) -> None:
    """Open the breaker of stock for so long."""
    until = system.clock.now() + timedelta(seconds=seconds)
    opened = Breaker(
        state=BreakerState.OPEN,
        since=system.clock.now(),
        until=until,
        prober=None,
        rounds=1,
        why="down",
    )
    await keep_breaker(system.store, opened)


async def pass_time(system: Kit, seconds: int) -> None:
    """Let time pass, the supervisor sweep every ten seconds, and messages be handled."""
    for _ in range(seconds // 10):
        await system.later(10)
        await system.sweep()
        await system.drain()


async def hangs(call: AgentCall) -> Any:
    await asyncio.Event().wait()
