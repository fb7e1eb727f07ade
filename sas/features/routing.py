"""Feature: alternative agents. A step that names several goes to the first whose circuit is closed.

A scheduler looks before it decides whom to ask. What it sees may be a second old. The agent that is
asked looks again, and its request waits where its circuit has opened meanwhile.
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
        """Read the state of these agents; seldom, however often it is called."""
        ...

    def is_open(self, agent: str, now: datetime) -> bool:
        """Return whether a new request of an agent would have to wait."""
        ...


class Routing:
    """Closes the routes to agents that cannot be called. See ``sas.engine.hooks.RuleSource``."""

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
        """See ``RuleSource.refresh``."""
        await self._circuits.refresh(self._agents)

    def adjust(self, rules: Rules, workflow: Workflow, now: datetime, *, urgent: bool) -> Rules:  # noqa: ARG002
        """See ``RuleSource.adjust``."""
        shut = frozenset(
            (number, route)
            for number, step in enumerate(workflow.steps)
            if step.alternatives
            for route, agent in enumerate(step.agents)
            if self._circuits.is_open(agent, now)
        )
        return replace(rules, shut=shut) if shut else rules
