"""Feature: alternative agents. A step with several goes to the first one whose circuit is closed.

A scheduler reads the circuits before it chooses the route of a step, at its first request. They may
be a second old. The agent reads its circuit again, and the request waits there if the circuit has
opened meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from sas.domain.workflow import Rules, Workflow, Workflows


class Unavailable(Protocol):
    """Knows which agents cannot be called now."""

    async def refresh(self, agents: Mapping[str, object]) -> None:
        """Read the state of these agents, at most once a second."""
        ...

    def is_open(self, agent: str, now: datetime) -> bool:
        """Return whether a new request of an agent would have to wait."""
        ...


class Routing:
    """Marks the routes to agents that cannot be called. See ``sas.engine.hooks.RuntimeRules``."""

    def __init__(self, workflows: Workflows, circuits: Unavailable) -> None:
        self._circuits = circuits
        self._agents = {
            agent: step
            for workflow in workflows
            for step in workflow.steps
            if step.alternatives
            for agent in step.agents
        }

    async def refresh(self) -> None:
        """See ``RuntimeRules.refresh``."""
        await self._circuits.refresh(self._agents)

    def of(self, workflow: Workflow, now: datetime) -> Rules:
        """See ``RuntimeRules.of``."""
        unavailable = frozenset(
            (number, route)
            for number, step in enumerate(workflow.steps)
            if step.alternatives
            for route, agent in enumerate(step.agents)
            if self._circuits.is_open(agent, now)
        )
        return replace(workflow.rules, unavailable=unavailable) if unavailable else workflow.rules
