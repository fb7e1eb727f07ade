"""One simulated system: the real actors over the ports in memory, and the plan that it meets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from sas.actors.agent import RetryPolicy
from sas.bootstrap import Application, actors, wired
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.ids import idempotency_key, shard_of
from sas.domain.order import Order, OrderState, StepState
from sas.domain.queues import lane
from sas.domain.workflow import Workflows
from sas.engine.delivery import Delivery
from sas.engine.hooks import Encryption
from sas.engine.messages import Addresses
from sas.features.callbacks.codec import CallbackKeys
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Business, BusUnavailableError, Callback, Message
from sas.sim.plan import (
    Apart,
    Away,
    Deploy,
    Item,
    Kill,
    Outside,
    Plan,
    Press,
    Submit,
    faults_of,
)
from sas.sim.platform import QUEUES, REPLIES_TO
from sas.sim.services import ModelService, call_limits
from sas.simulation.bus import DEAD_LETTERS, MemoryBus, Queued, QueueRules
from sas.simulation.clock import VirtualClock
from sas.simulation.remote import RemoteLedger
from sas.simulation.store import MemoryStore
from sas.simulation.world import CrashError, Handler, HostRules, Instance, World, of_no_host

KEYS = CallbackKeys(("a-key-for-the-simulation-of-callbacks",))
BREAKER = BreakerPolicy(
    failures_max=3,
    open_for=timedelta(seconds=3),
    open_for_max=timedelta(seconds=20),
    probe_for=timedelta(seconds=8),
)
"""Quick to open, so that many open and close within a step's time."""
AT_REST = frozenset(
    {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.ERROR, OrderState.REJECTED}
)
SEND_AGAIN_S = 30.0
"""How long an application waits before it sends again to a queue that takes nothing."""
TIMER_IDLE = timedelta(minutes=2)
WATCH_S = 10.0
WATCHES_MAX = 60
"""How often, and how long, an operator looks whether an order is in Error."""
_FOR_ERROR = frozenset({"resubmit", "skip", "acknowledge"})


@dataclass
class ClockApart:
    """The clock of one instance, some seconds ahead of the others."""

    clock: VirtualClock
    seconds: float = 0.0

    def now(self) -> datetime:
        """See ``Clock.now``."""
        return self.clock.now() + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await self.clock.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """See ``Clock.timeout``."""
        return self.clock.timeout(seconds)


class Host:
    """The functions of one instance. What they know ends with the instance."""

    def __init__(self, world: World, clock: ClockApart, name: str, business: Business) -> None:
        self.business = business
        self.clock = clock
        self._world = world
        self._name, self._starts = name, 0
        self.start()

    def start(self) -> None:
        """See ``Functions.start``."""
        self._starts += 1
        name = f"{self._name}.{self._starts}"
        world, business = self._world, self.business
        to = Addresses(QUEUES, "/simulation")
        context = wired(
            world.store, world.bus, self.clock, to, name, business.workflows, Encryption()
        )
        app = actors(
            context,
            business,
            policy=RetryPolicy(0.2, 2.0),
            circuit=BREAKER,
            callback_keys=KEYS,
        )
        self.callbacks, self._supervisor = app.callbacks, app.supervisor
        self.handlers: Mapping[str, Handler] = dict(_handlers(app, business))

    async def sweep(self) -> object:
        """See ``Functions.sweep``."""
        return await self._supervisor.sweep()


def _handlers(app: Application, business: Business) -> dict[str, Handler]:
    def handler(handle: Callable[[Delivery], Awaitable[object]]) -> Handler:
        return lambda queued: app.receive(handle, _delivery(queued))

    letters = handler(app.dead_letters.handle)
    own = {QUEUES.dead_letters: letters, QUEUES.dead_letters + DEAD_LETTERS: letters}
    for urgent in (False, True):
        own[lane(QUEUES.orders, urgent=urgent)] = handler(app.submitter.handle)
        own[lane(QUEUES.scheduler, urgent=urgent)] = handler(app.scheduler.handle)
        own[lane(QUEUES.replies, urgent=urgent)] = handler(app.scheduler.handle_reply)
        own[lane(QUEUES.callbacks, urgent=urgent)] = handler(app.callbacks.handle)
        for name in business.agents:
            own[QUEUES.agent(name, urgent=urgent)] = handler(app.agents[name].handle)
    return own


def _delivery(queued: Queued) -> Delivery:
    message = queued.message
    return Delivery(
        message.body,
        message.message_id,
        message.queue.removesuffix(DEAD_LETTERS),
        urgent=message.queue.endswith("-urgent"),
        properties=message.properties,
        count=queued.deliveries,
        enqueued_at=queued.visible_at,
        source_queue=queued.source,
    )


@dataclass
class System:
    """A world with the actors of a plan in it, and what was asked of it."""

    plan: Plan
    workflows: Workflows
    queues: Mapping[str, QueueRules]
    rules: HostRules
    tell: Callable[[str], None] = lambda _text: None
    submitted: dict[str, str] = field(default_factory=dict)
    commands: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The order of each command, and the seq that the operator saw."""
    world: World = field(init=False)
    ledger: RemoteLedger = field(default_factory=RemoteLedger)
    agents: dict[str, ModelService] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)
    _left: int = 0
    _senders: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        clock, store = VirtualClock(), MemoryStore()
        bus = MemoryBus(clock)
        for queue, rules in self.queues.items():
            bus.declare(queue, rules=rules)
        faults, remote = faults_of(self.plan)
        self.world = World(self.plan.seed, clock, store, bus, faults, self.rules)
        self.world.timer_idle = TIMER_IDLE
        limits = call_limits(self.workflows)
        outside = {item.agent for item in self.plan.items if isinstance(item, Outside)}
        for name in sorted(self.workflows.agents()):
            self.agents[name] = ModelService(
                clock,
                self.ledger,
                remote,
                self.world.rng,
                limits=limits.get(name, {}),
                tell=self._call_back if name in outside else None,
            )
        business = Business(self.workflows, dict(self.agents))
        for number in range(self.plan.instances):
            own = ClockApart(clock)
            self.hosts.append(Host(self.world, own, f"instance-{number}", business))
        self.world.instances = [Instance(host) for host in self.hosts]
        for item in self.plan.items:
            self._prepare(item)

    @property
    def store(self) -> MemoryStore:
        """The state store."""
        return self.world.store

    @property
    def bus(self) -> MemoryBus:
        """The queues."""
        return self.world.memory_bus

    def at_rest(self) -> bool:
        """Return whether all of the plan has happened and every order is at an end, or in Error."""
        if self._left or any(self.store._due.values()):  # noqa: SLF001  the twin of a table
            return False
        orders = self.store.orders
        return all(
            order_id in orders and orders[order_id].order.process_state in AT_REST
            for order_id in self.submitted
        )

    async def close(self) -> None:
        """Stop everything that still runs."""
        await self.world.close()
        calls = [call for agent in self.agents.values() for call in agent.calls]
        for task in (*calls, *self._senders):
            task.cancel()
        await asyncio.gather(*calls, *self._senders, return_exceptions=True)

    # --- what a plan does ---

    def _prepare(self, item: Item) -> None:
        match item:
            case Apart():
                self.hosts[item.instance % len(self.hosts)].clock.seconds = item.seconds
            case Submit():
                self.submitted[item.order_id] = item.workflow
                self._later(item.at_s, item, lambda: self._send(item))
            case Away():
                self._later(item.at_s, item, lambda: self._turn(item.what, away=True))
                back = f"{item.what}: back"
                self._later(
                    item.at_s + item.lasts_s, back, lambda: self._turn(item.what, away=False)
                )
            case Kill():
                self._later(item.at_s, item, lambda: self._kill(item))
            case Press():
                self._left += 1
                self.world.clock.call_later(item.at_s, lambda: self._watch(item, WATCHES_MAX))
            case Deploy():
                for number, host in enumerate(self.hosts):
                    at_s = item.at_s + 20.0 * number
                    self._later(
                        at_s, f"instance {number} is deployed anew", self._deploys(number, host)
                    )

    def _later(self, at_s: float, what: object, act: Callable[[], None]) -> None:
        self._left += 1

        def happen() -> None:
            self._left -= 1
            self.tell(str(what))
            act()

        self.world.clock.call_later(at_s, happen)

    def _send(self, item: Submit) -> None:
        task = asyncio.ensure_future(self._send_until_taken(item))
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    async def _send_until_taken(self, item: Submit) -> None:
        of_no_host()
        body = {
            "order_id": item.order_id,
            "workflow": item.workflow,
            "reply_queue": REPLIES_TO,
            "correlation_id": f"c-{item.order_id}",
            "order": {"id": item.order_id},
        }
        queue = lane(QUEUES.orders, urgent=item.urgent)
        message = Message(queue, f"m-{item.order_id}", json.dumps(body).encode())
        for _ in range(item.times):
            while True:
                try:
                    self.bus._enqueue(message)  # noqa: SLF001  no fault of an instance hits it
                    break
                except BusUnavailableError:
                    await self.world.clock.sleep(SEND_AGAIN_S)

    def _turn(self, what: str, *, away: bool) -> None:
        kind, _, rest = what.partition(" ")
        match kind:
            case "table":
                self.store.away = self.store.partitions if away else frozenset()
            case "one":
                first = next(iter(self.submitted), "O-0")
                shard = frozenset({shard_of(first, len(self.store.shards))})
                self.store.away = shard if away else frozenset()
            case "namespace":
                self.bus.cut() if away else self.bus.mend()
            case "service":
                self.agents[rest].down = away
            case _:
                name, _, how = rest.partition(" ")
                if how == "disabled":
                    self.bus.cut(name) if away else self.bus.mend(name)
                else:
                    self.bus.queues[name].refuses = away

    def _kill(self, item: Kill) -> None:
        instances = self.world.instances
        chosen = instances if item.instance is None else [instances[item.instance % len(instances)]]
        for instance in chosen:
            self.world.kill(instance, with_host=item.with_host)

    def _deploys(self, number: int, host: Host) -> Callable[[], None]:
        newer = [replace(one, version=one.version + 1) for one in self.workflows]
        both = replace(host.business, workflows=Workflows([*self.workflows, *newer]))

        def deploy() -> None:
            host.business = both
            self.world.kill(self.world.instances[number])

        return deploy

    def _watch(self, item: Press, left: int) -> None:
        """Give a command; one for an order in Error as soon as the operator sees it there."""
        stored = self.store.orders.get(item.order_id)
        state = stored.order.process_state if stored else OrderState.PENDING
        if item.verb in _FOR_ERROR and state not in AT_REST and left:
            self.world.clock.call_later(WATCH_S, lambda: self._watch(item, left - 1))
            return
        self._left -= 1
        self.tell(str(item))
        self._press(item)

    def _press(self, item: Press) -> None:
        stored = self.store.orders.get(item.order_id)
        if stored is None or stored.order.rejected:
            return
        order = stored.order
        failed = [one.name for one in order.steps if one.process_state is StepState.ERROR]
        members: dict[str, Any] = {}
        if failed and item.verb in {"resubmit", "skip"}:
            members["step"] = failed[0]
            if item.edited:
                members["input"] = msgspec.Raw(b'{"edited":true}')
        if item.verb == "skip":
            self._undone_by_hand(order)
        for _ in range(1 + item.twice):
            command_id = f"w-{len(self.commands)}-of-the-operator"
            self.commands[command_id] = order.order_id, order.seq - item.stale
            message = CommandMessage(
                id=command_id,
                order_id=order.order_id,
                verb=item.verb,  # type: ignore[arg-type]
                by="ann",
                seq=order.seq - item.stale,
                **members,
            )
            try:
                self.bus._enqueue(  # noqa: SLF001
                    Message(QUEUES.scheduler, command_id, internal.encode(message))
                )
            except BusUnavailableError:
                del self.commands[command_id]
                self.tell("the operator sees that the command could not be sent")

    def _undone_by_hand(self, order: Order) -> None:
        """Undo what failed to be undone at another agent, as an operator does who skips it."""
        for step in order.steps:
            if not (step.undo_failed and step.undo.routes):
                continue
            workflow = self.workflows.find(order.details.workflow)
            agents = workflow.steps[step.number].agents
            other = agents[step.undo.routes[0]] if step.undo.routes[0] else None
            for generation in range(step.call.generation + 1):
                key = idempotency_key(order.order_id, step.name, generation, other)
                effects = self.ledger.of(key)
                effects.in_force, effects.tombstone = False, True

    async def _call_back(self, callback: Callback, body: bytes) -> bool:
        """Tell the result of work outside: by HTTP to any instance, or on the queue."""
        rng = self.world.rng
        if rng.random() < 0.5:
            said = json.dumps(json.loads(body) | {"token": callback.token}).encode()
            try:
                self.bus._enqueue(Message(QUEUES.callbacks, f"{rng.random()}", said))  # noqa: SLF001
            except BusUnavailableError:
                return False
            return True
        try:
            answer = await rng.choice(self.hosts).callbacks.answer(callback.token, None, body)
        except CrashError:  # the connection is cut
            return False
        return answer.status != 503


def seeded(plan: Plan) -> None:
    """Seed what is left to chance outside the world: the jitter of retries."""
    random.seed(plan.seed)
