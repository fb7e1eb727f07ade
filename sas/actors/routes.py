"""Which agents are not to be had right now, for the steps that name several.

A scheduler looks at their breakers, once a second at most, before it decides whom to ask. What
it sees may be a second old: the agent that is asked looks again, and answers that it called
nobody where its breaker has opened meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sas.actors.breakers import LOOK_AGAIN_AFTER
from sas.actors.context import Context
from sas.codec.breakers import cell_name, from_cell
from sas.domain.breaker import Breaker, wait_of
from sas.domain.workflow import Rules, Workflow, Workflows


class Routes:
    """The breakers of all agents among which there is a choice."""

    def __init__(self, context: Context, workflows: Workflows) -> None:
        self._context = context
        self._agents = {
            agent
            for workflow in workflows
            for step in workflow.steps
            if step.alternatives
            for agent in step.agents
        }
        self._breakers: dict[str, Breaker] = {}
        self._looked_at: datetime | None = None

    async def look(self) -> None:
        """Read the breakers, where any matter and the last look is not a second ago.

        Raises:
            StoreUnavailableError: let the message come again.
        """
        now = self._context.clock.now()
        if self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER:
            return
        for agent in sorted(self._agents):
            self._breakers[agent] = from_cell(await self._context.store.read_cell(cell_name(agent)))
        self._looked_at = now

    def rules_of(self, workflow: Workflow, now: datetime) -> Rules:
        """Return a workflow's rules, with what is shut right now."""
        shut = frozenset(
            (number, route)
            for number, step in enumerate(workflow.steps)
            if step.alternatives
            for route, agent in enumerate(step.agents)
            if wait_of(self._breakers.get(agent, Breaker()), "", now) is not None
        )
        return replace(workflow.rules, shut=shut) if shut else workflow.rules
