"""What an order, a recovery and an idle system ask of the platform, exactly.

The whole system runs in memory; ``tests/contract/test_meters.py`` holds its meters to the real
ones. docs/cost.md has the same counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sas.bootstrap import Application, assemble
from sas.config import read_config
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import Agent, Business, Message, RefusedError
from sas.telemetry.usage import Usage
from sas.testing.bus import MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore
from sas.testing.world import CrashError
from tests.unit.actors_kit import ScriptedAgent, delivery

Counts = tuple[int, int, int]
"""Requests to Table Storage, messages sent to Service Bus, executions of functions."""
COUNTS: Mapping[str, Counts] = {
    "an order of three steps, in one process": (5, 6, 4),
    "an order of three steps of inline agents, in one process": (5, 3, 1),
    "an order of three steps": (11, 6, 4),
    "each further step": (3, 1, 1),
    "an order of three steps of inline agents": (8, 3, 1),
    "each further step of an inline agent": (2, 0, 0),
    "a sweep that finds nothing": (19, 0, 1),
    "the health check, once a minute": (2, 0, 0),
    "an agent dies: its step is reset": (6, 2, 1),
    "an inline agent dies with its process: the order is redelivered": (17, 3, 3),
    "three steps are undone": (3, 4, 3),
    "three steps of inline agents are undone": (3, 1, 0),
    "a purge that finds nothing": (34, 0, 1),
    "an order that a purge removes": (4, 0, 0),
}
ORDER_USAGE = Usage(transactions=5, sends=6, messages=6)
INLINE_USAGE = Usage(transactions=5, sends=3, messages=3)
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
        while messages := [m for queue in handlers if (m := self.bus.receive(queue)) is not None]:
            for message in messages:
                if self.apart:  # nothing that was read lately is remembered
                    await self.clock.sleep(2)
                await self._hand(message)

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


def plus(*names: str) -> Counts:
    """Return the sum of these counts."""
    requests, messages, executions = zip(*(COUNTS[name] for name in names), strict=True)
    return sum(requests), sum(messages), sum(executions)


async def test_a_three_step_order_takes_five_requests_and_six_messages() -> None:
    """The order, two notifications, and a request to each agent."""
    system = await warm()
    before = system.used()
    assert (
        await system.counts(system.submit("O-1"))
        == COUNTS["an order of three steps, in one process"]
    )
    assert system.used() - before == ORDER_USAGE
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


async def test_where_all_agents_are_inline_it_takes_five_requests_and_three_messages() -> None:
    """The order and two notifications: one execution does all of its work."""
    system = await warm(inline=True)
    before = system.used()
    assert (
        await system.counts(system.submit("O-1"))
        == COUNTS["an order of three steps of inline agents, in one process"]
    )
    assert system.used() - before == INLINE_USAGE
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


@pytest.mark.parametrize("further", [0, 1, 4])
async def test_where_each_function_has_its_own_process_each_reads_the_order(further: int) -> None:
    """Flex Consumption scales each function alone. Each agent looks at its circuit once, too."""
    system = await warm(apart=True, steps=3 + further)
    steps = ["each further step"] * further
    assert await system.counts(system.submit("O-1")) == plus("an order of three steps", *steps)


@pytest.mark.parametrize("further", [0, 1, 4])
async def test_inline_agents_need_no_process_of_their_own_and_no_read(further: int) -> None:
    """The process of the orders does it all. Here too each agent looks at its circuit once."""
    system = await warm(apart=True, inline=True, steps=3 + further)
    steps = ["each further step of an inline agent"] * further
    counts = plus("an order of three steps of inline agents", *steps)
    assert await system.counts(system.submit("O-1")) == counts


async def test_a_sweep_that_finds_nothing_reads_each_shard_and_takes_its_lease() -> None:
    system = await warm()
    await system.clock.advance(10)
    assert await system.counts(system.sweep()) == plus("a sweep that finds nothing")
    await system.clock.advance(60)
    counts = plus("a sweep that finds nothing", "the health check, once a minute")
    assert await system.counts(system.sweep()) == counts


async def test_a_recovery_of_a_dead_agent_costs_just_this() -> None:
    system = await warm()

    async def course() -> None:
        system.silent = {QUEUES.agent(LAST)}
        await system.submit("O-1")
        system.silent = set()
        await system.clock.sleep(31)
        await system.sweep()
        await system.work()

    assert await system.counts(course()) == plus(
        "an order of three steps, in one process",
        "an agent dies: its step is reset",
        "a sweep that finds nothing",
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


async def test_a_recovery_of_a_process_that_died_in_an_inline_call_costs_just_this() -> None:
    """Its redelivery walks the journal, and sends the request. It notifies a second time."""
    system = await warm(inline=True)
    system.agents[LAST].then(CrashError())
    assert await system.counts(system.submit("O-1")) == plus(
        "an order of three steps of inline agents, in one process",
        "an inline agent dies with its process: the order is redelivered",
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


@pytest.mark.parametrize(
    ("inline", "kind"), [(False, ""), (True, " of inline agents")], ids=["queued", "inline"]
)
async def test_an_undo_of_three_steps_costs_just_this(inline: bool, kind: str) -> None:
    system = await warm(inline=inline)
    system.agents[LAST].then(RefusedError("sold-out", "none left"))
    assert await system.counts(system.submit("O-1")) == plus(
        f"an order of three steps{kind}, in one process", f"three steps{kind} are undone"
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.COMPENSATED


@pytest.mark.parametrize("orders", [0, 1])
async def test_a_purge_costs_what_it_removes(orders: int) -> None:
    system = System()
    for number in range(orders):
        await system.clock.run(system.submit(f"P-{number}"))
    await system.clock.advance(timedelta(days=31).total_seconds())
    removed = ["an order that a purge removes"] * orders
    assert await system.counts(system.purge()) == plus("a purge that finds nothing", *removed)
    assert not system.store.orders


def test_the_page_has_these_counts() -> None:
    page = Path(__file__).parents[2] / "docs" / "cost.md"
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", page.read_text(), re.MULTILINE)
    assert {name: tuple(map(int, counts)) for name, *counts in rows} == COUNTS
