"""The functions over ports in memory, and what they ask of the platform."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sas.bootstrap import Application, assemble
from sas.config import read_config
from sas.domain.queues import Queues
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import Agent, Business, Message
from sas.telemetry.usage import Usage
from sas.testing.bus import MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore
from sas.testing.world import CrashError
from tests.unit.actors_kit import ScriptedAgent, delivery

Counts = tuple[int, int, int]
"""Requests to Table Storage, messages sent to Service Bus, executions of functions."""
QUEUES = Queues()
SHOP = "responses-shop"
LAST = "agent-2"
TIME = timedelta(seconds=30)
RULES = QueueRules(
    deliveries_max=5,
    duplicate_window=timedelta(minutes=10),
    forwards_dead_letters_to=QUEUES.dead_letters,
)
"""As ``infra/queues.json`` has them; orders are not checked for duplicates."""
SETTINGS = {"ServiceBus": "Endpoint=sb://count", "SAS_TABLES": "AccountName=count"}


class System:
    """The functions over ports in memory, and what they asked for.

    ``apart``: each function has a process of its own, as on Flex Consumption. Otherwise one process
    has them all. ``inline``: all agents are called inline. Functions that are ``silent`` lose each
    message.
    """

    def __init__(self, *, apart: bool = False, inline: bool = False, steps: int = 3) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.bus = MemoryBus(self.clock)
        self.agents = {f"agent-{number}": ScriptedAgent() for number in range(steps)}
        self.apart = apart
        self.inline = tuple(self.agents) if inline else ()
        self.silent: set[str] = set()
        self.executions = 0
        self._applications: dict[str, Application] = {}
        row = [
            Step(f"step-{number}", agent=agent, time_allowed=TIME, undo=Undo(TIME), failures_max=1)
            for number, agent in enumerate(self.agents)
        ]
        self._workflows = Workflows(
            [
                Workflow(
                    "order",
                    version=1,
                    steps=tuple(row),
                    on_failure=OnFailure.UNDO,
                    notify_steps=False,
                )
            ]
        )
        self.bus.declare(*QUEUES.own(self.agents), SHOP, rules=RULES)
        self.bus.declare(QUEUES.orders, rules=replace(RULES, duplicate_window=None))
        self.bus.declare(QUEUES.dead_letters)

    async def counts(self, work: Awaitable[object]) -> Counts:
        """Return what a piece of work, and all that follows from it, asked for."""
        before, executions = self.used(), self.executions
        await self.clock.run(work)
        usage = self.used() - before
        return usage.requests, usage.messages, self.executions - executions

    def used(self) -> Usage:
        return self.store.meter + self.bus.meter

    async def submit(self, order_id: str) -> None:
        """Send an order as an application does, and let the system work until it rests."""
        order = {"order_id": order_id, "workflow": "order", "reply_queue": SHOP, "order": {}}
        await self.bus.send([Message(QUEUES.orders, f"m-{order_id}", json.dumps(order).encode())])
        await self.work()

    async def work(self) -> None:
        """Hand out messages until none is visible. Apart, two seconds pass before each."""
        handlers = self._handlers()
        for _ in range(10_000):
            messages = [m for queue in handlers if (m := self.bus.receive(queue)) is not None]
            if not messages:
                return
            for message in messages:
                if self.apart:  # nothing that was read lately is remembered
                    await self.clock.sleep(2)
                await self._hand(message)
        raise AssertionError("the messages have no end")

    async def sweep(self) -> None:
        """Run the supervisor's function."""
        self.executions += 1
        await self.application("supervisor").supervisor.sweep()

    async def purge(self) -> None:
        """Run the purger's function."""
        self.executions += 1
        await self.application("purge").purger.run()

    def application(self, function: str) -> Application:
        """Return the application of the process that a function runs in."""
        process = function if self.apart else "all"
        if process not in self._applications:
            agents: Mapping[str, Agent] = self.agents
            business = Business(workflows=self._workflows, agents=agents, inline=self.inline)
            self._applications[process] = assemble(
                self.store,
                self.bus,
                clock=self.clock,
                business=business,
                settings=read_config(SETTINGS),
            )
        return self._applications[process]

    async def _hand(self, queued: Queued) -> None:
        queue = queued.message.queue
        if queue not in self.silent:
            self.executions += 1
            application = self.application(queue)
            message = delivery(queued.message, count=queued.deliveries, source_queue=queued.source)
            try:
                await application.receiver.receive(self._handlers()[queue](application), message)
            except CrashError:
                self.bus.abandon(queued)
                del self._applications["all"]
                return
        self.bus.complete(queued)

    def _handlers(self) -> dict[str, Callable[[Application], Any]]:
        return {
            QUEUES.orders: lambda app: app.submitter.handle,
            QUEUES.scheduler: lambda app: app.scheduler.handle,
            **{QUEUES.agent(name): _of_agent(name) for name in self.agents},
        }


def _of_agent(name: str) -> Callable[[Application], Any]:
    return lambda app: app.agents[name].handle


async def warm(*, apart: bool = False, inline: bool = False, steps: int = 3) -> System:
    """Return a system that has looked up what each process looks up once."""
    system = System(apart=apart, inline=inline, steps=steps)
    await system.clock.run(system.submit("warm"))
    await system.clock.run(system.sweep())
    return system
