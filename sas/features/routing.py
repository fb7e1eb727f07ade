"""What rules have that is of the moment: which agents are not to be had right now, for the steps
that name several, and how much longer than its time allowed a request is given for a long queue.

A scheduler looks at their breakers, once a second at most, before it decides whom to ask. What
it sees may be a second old: the agent that is asked looks again, and answers that it called
nobody where its breaker has opened meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sas.domain.queues import lane
from sas.domain.workflow import Rules, Workflow, Workflows
from sas.engine.context import Context
from sas.features.circuit_breaker.guard import LOOK_AGAIN_AFTER, cell_name, from_cell
from sas.features.circuit_breaker.rules import Breaker, wait_of
from sas.features.queue_delay.rules import grace


class Routes:
    """The breakers of all agents among which there is a choice, and every queue's lag."""

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
        """Read the breakers, where any matter and the last look is not a second ago; and lags.

        Raises:
            StoreUnavailableError: let the message come again.
        """
        await self._context.lags.look()
        now = self._context.clock.now()
        if self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER:
            return
        for agent in sorted(self._agents):
            self._breakers[agent] = from_cell(
                await self._context.store.read_shared(cell_name(agent))
            )
        self._looked_at = now

    def rules_of(self, workflow: Workflow, now: datetime, *, urgent: bool) -> Rules:
        """Return a workflow's rules, with what is shut right now and whose queues are long."""
        shut = frozenset(
            (number, route)
            for number, step in enumerate(workflow.steps)
            if step.alternatives
            for route, agent in enumerate(step.agents)
            if wait_of(self._breakers.get(agent, Breaker()), "", now) is not None
        )
        grace = self._slack(workflow, urgent=urgent)
        if not shut and not grace:
            return workflow.rules
        return replace(workflow.rules, shut=shut, slack=grace)

    def _slack(self, workflow: Workflow, *, urgent: bool) -> dict[tuple[int, int], timedelta]:
        queues, lags = self._context.queues, self._context.lags
        replies = lags.behind(lane(queues.replies, urgent=urgent))
        found = {
            (number, route): replies + lags.behind(queues.agent(agent, urgent=urgent))
            for number, step in enumerate(workflow.steps)
            for route, agent in enumerate(step.agents)
        }
        return {at: grace(behind) for at, behind in found.items() if behind}
