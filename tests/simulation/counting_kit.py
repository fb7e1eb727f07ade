"""A whole system in memory, wired as it is deployed, that counts what it asks of the platform."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sas.bootstrap import Application, assemble
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.config import read_config
from sas.domain.queues import Queues
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import Agent, Business, Message
from sas.telemetry.usage import Usage
from sas.testing.bus import MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import ScriptedAgent, delivery

QUEUES = Queues()
SHOP = "responses-shop"
TIME = timedelta(seconds=30)
RULES = QueueRules(
    deliveries_max=5,
    duplicate_window=timedelta(minutes=10),
    forwards_dead_letters_to=QUEUES.dead_letters,
)
"""As ``infra/queues.json`` has them; orders are not checked for duplicates."""
SETTINGS = {
    "ServiceBus": "Endpoint=sb://count",
    "SAS_TABLES": "AccountName=count",
    "SAS_CALLBACK_KEY": "kR4vQ9-wLz71xTfB0mNcYhUeP3sGdJ5a",
    "SAS_CALLBACK_URL": "https://app.example/api/callbacks",
}


def workflows(agents: Sequence[str], others: tuple[str, ...] = ()) -> Workflows:
    """Return workflows of steps in a row, one for each agent: undone or held if one fails.

    ``others`` are alternative agents of the last step.
    """
    steps = tuple(
        Step(f"step-{number}", agent, TIME, undo=Undo(TIME), failures_max=1)
        for number, agent in enumerate(agents)
    )
    steps = *steps[:-1], replace(steps[-1], alternatives=others)
    return Workflows(
        [
            Workflow("order", 1, steps, OnFailure.UNDO, notify_steps=False),
            Workflow("order-with-care", 1, steps, OnFailure.HOLD, notify_steps=False),
            Workflow("order-of-two", 1, steps[:2], OnFailure.UNDO, notify_steps=False),
        ]
    )


class KilledError(BaseException):
    """Raised by an agent: its process is killed in the call, and the request comes again."""


@dataclass
class Spent:
    """What a block asked for, and the executions of each function."""

    usage: Usage = field(default_factory=Usage)
    executions: Counter[str] = field(default_factory=Counter)


class System:
    """The functions over ports in memory.

    ``apart``: each function has a process of its own, as on Flex Consumption. Otherwise one process
    has them all. Functions that are ``silent`` lose each message. ``before`` has what happens just
    before a function runs the next time. The next message of a function in ``again`` is delivered
    again when it was handled, and that of one in ``given_up`` becomes a dead letter.
    """

    def __init__(
        self, *, apart: bool = False, steps: int = 3, others: tuple[str, ...] = (), **settings: str
    ) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.bus = MemoryBus(self.clock)
        self.agents = {f"agent-{n}": ScriptedAgent() for n in range(steps)}
        self.executions: Counter[str] = Counter()
        self.apart = apart
        self.silent: set[str] = set()
        self.again: set[str] = set()
        self.given_up: set[str] = set()
        self.before: dict[str, Callable[[], None]] = {}
        self._settings = read_config(SETTINGS | settings)
        self._applications: dict[str, Application] = {}
        self._workflows = workflows(tuple(self.agents), others)
        self.agents |= {name: ScriptedAgent() for name in others}
        self.bus.declare(*QUEUES.own(self.agents), SHOP, rules=RULES)
        self.bus.declare(QUEUES.orders, rules=replace(RULES, duplicate_window=None))
        self.bus.declare(QUEUES.dead_letters)

    def application(self, function: str) -> Application:
        """Return the application of the process that a function runs in."""
        process = function if self.apart else "all"
        if process not in self._applications:
            agents: Mapping[str, Agent] = self.agents
            self._applications[process] = assemble(
                self.store, self.bus, self.clock, Business(self._workflows, agents), self._settings
            )
        return self._applications[process]

    def used(self) -> Usage:
        """Return all that was counted so far."""
        return self.store.meter + self.bus.meter

    async def spent(self, work: Awaitable[object]) -> Spent:
        """Return what a piece of work, and all that follows from it, asked for."""
        usage, executions = self.used(), Counter(self.executions)
        await self.clock.run(work)
        return Spent(self.used() - usage, self.executions - executions)

    async def submit(self, order_id: str, content: Any = None, name: str = "order") -> None:
        """Send an order as an application does, and let the system work until it rests."""
        body = {"order_id": order_id, "workflow": name, "reply_queue": SHOP, "order": content or {}}
        sent = json.dumps(body).encode()
        await self.bus.send([Message(QUEUES.orders, f"m-{order_id}-{self.bus.meter.sends}", sent)])
        await self.work()

    async def command(self, verb: Any, order_id: str) -> None:
        """Send an operator's command, and let the system work until it rests."""
        seq = self.store.orders[order_id].order.seq
        made = CommandMessage(id=f"w-{order_id}", order_id=order_id, verb=verb, seq=seq, by="ann")
        await self.bus.send([Message(QUEUES.scheduler, made.id, internal.encode(made))])
        await self.work()

    async def work(self) -> None:
        """Hand out messages until none is visible. Apart, two seconds pass before each."""
        functions = self._functions()
        while taken := [m for queue in functions if (m := self._take(queue)) is not None]:
            for queued in taken:
                if self.apart:  # nothing that was read lately is remembered
                    await self.clock.sleep(2)
                await self.hand(queued)

    async def until_visible(self, queue: str) -> None:
        """Let the time pass until the first message of a queue can be received."""
        at = self.bus.next_visible(queue)
        assert at is not None
        await self.clock.sleep((at - self.clock.now()).total_seconds())

    async def hand(self, queued: Queued) -> None:
        """Hand one message to its function, and once more if that dies or its lock is lost."""
        function, handler = self._functions()[queued.message.queue]
        if function in self.silent:
            return
        application = self.application(function)
        self.executions[function] += 1
        self.before.pop(function, lambda: None)()
        taken = delivery(queued.message, count=queued.deliveries, source_queue=queued.source)
        try:
            await application.receive(handler(application), taken)
        except KilledError:
            self.again.add(function)
        if function in self.again:
            self.again.remove(function)
            await self.hand(replace(queued, deliveries=queued.deliveries + 1))

    async def sweep(self) -> None:
        """Run the supervisor's function."""
        self.executions["supervisor"] += 1
        await self.application("supervisor").supervisor.sweep()

    async def purge(self) -> None:
        """Run the purger's function."""
        self.executions["purge"] += 1
        await self.application("purge").purger.run()

    def _take(self, queue: str) -> Queued | None:
        function, _ = self._functions()[queue]
        if function in self.given_up and self.bus.messages(queue):
            self.given_up.remove(function)
            self.bus.give_up_first(queue)
        found = self.bus.receive(queue)
        if found is not None:
            self.bus.complete(found)
        return found

    def _functions(self) -> dict[str, tuple[str, Callable[[Application], Any]]]:
        return {
            QUEUES.orders: ("submission", lambda app: app.submitter.handle),
            QUEUES.scheduler: ("scheduler", lambda app: app.scheduler.handle),
            QUEUES.replies: ("replies", lambda app: app.scheduler.handle_reply),
            QUEUES.callbacks: ("callbacks", lambda app: app.callbacks.handle),
            **{
                QUEUES.agent(name): (name, _agent_handler(name)) for name in self.agents
            },
            QUEUES.dead_letters: ("deadletters", lambda app: app.dead_letters.handle),
        }  # fmt: skip


def _agent_handler(name: str) -> Callable[[Application], Any]:
    return lambda app: app.agents[name].handle
