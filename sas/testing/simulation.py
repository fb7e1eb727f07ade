"""A simulated system for the tests of an adopter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from sas.codec import external
from sas.domain.order import Order
from sas.domain.workflow import Workflows
from sas.ports import Agent, Business
from sas.testing.invariants import Invariants, at_end, in_force
from sas.testing.plan import Item, Plan
from sas.testing.platform import REPLIES_TO
from sas.testing.system import Project, System
from sas.testing.violation import Violation


class Simulation:
    """Your workflows in memory: the real engine in virtual time, and faults when you say so.

    A model service stands in for each agent. It keeps idempotency keys, and you can read its
    effects. An agent that you give in ``agents``, by its name, runs itself; you check its effects.
    ``project`` is where ``infra/queues.json`` and ``host.json`` are. The same seed plays the same
    story::

        with Simulation(business(), seed=1) as simulation:
            simulation.submit("T-1", "trip", {"city": "Oslo"})
            simulation.happens(Away(at_s=0, lasts_s=600, what="service airline"))
            simulation.run()
            assert simulation.order("T-1").process_state is OrderState.PROCESSED
    """

    def __init__(
        self,
        application: Business | Workflows,
        *,
        seed: int = 0,
        instances: int = 1,
        project: Path = Path(),
        agents: Mapping[str, Agent] = MappingProxyType({}),
    ) -> None:
        if isinstance(application, Workflows):
            self._project = Project.of(application, project)
        else:
            base = Project.of(application.workflows, project)
            self._project = replace(base, limits=application.limits, codec=application.codec)
        self._plan = Plan(seed, instances, ())
        self._agents = agents
        self._broken: list[Violation] = []

    def __enter__(self) -> Self:
        """Build the system."""
        self._runner = asyncio.Runner()
        self._runner.run(self._begin())
        return self

    async def _begin(self) -> None:
        self._system = System(self._project, self._plan, agents=self._agents)
        self._invariants = Invariants(self._system, self._broken.append)
        self._system.store.on_written = self._invariants.written

    def __exit__(self, *_error: object) -> None:
        """Stop everything that still runs."""
        self._runner.run(self._system.close())
        self._runner.close()

    def submit(self, order_id: str, workflow: str, content: Mapping[str, Any]) -> None:
        """Send an order, as an application does."""
        self._system.submitted[order_id] = workflow
        self._system.put_order(order_id, workflow, content)

    def happens(self, *items: Item) -> None:
        """Let things happen, each in so many seconds from now: ``Away``, ``Kill``, ``Press``..."""

        async def prepare() -> None:
            self._system.happens(*items)

        self._runner.run(prepare())

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._runner.run(self._system.world.run_for(seconds))

    def run(self, hours_max: float = 24.0) -> None:
        """Run until every order is at an end or waits for an operator.

        Raises:
            TimeoutError: that took more than ``hours_max`` virtual hours.
            AssertionError: an invariant did not hold.
        """
        self._runner.run(self._system.world.run(self._system.at_rest, hours_max))
        broken = [*self._broken, *at_end(self._system), *self._invariants.left_over()]
        if broken:
            raise AssertionError("\n".join(map(str, broken)))

    def order(self, order_id: str) -> Order:
        """Return an order as it is stored now."""
        return self._system.store.orders[order_id].order

    def effects(self, order_id: str) -> dict[str, int]:
        """Return how many effects of each step are in force at its model service."""
        order = self.order(order_id)
        return {step.name: in_force(self._system, order, step) for step in order.steps}

    def notifications(self, order_id: str) -> list[str]:
        """Return the kinds of the notifications that were sent to the application of an order."""
        events = [
            external.decode_notification(message.body)
            for message in self._system.bus.messages(REPLIES_TO)
        ]
        return [
            str(external.notice_of(event.type))
            for event in {event.id: event for event in events}.values()
            if event.data.order_id == order_id
        ]
