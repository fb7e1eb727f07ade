"""A simulated system over the business's own workflows, and what must hold at its end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from orders.workflows import workflows
from sas.actors.agent import AgentActor, RetryPolicy
from sas.actors.compose import Addresses
from sas.actors.context import Context
from sas.actors.deadletters import DeadLetter, DeadLetters
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.actors.supervisor import Supervisor
from sas.codec import outward
from sas.codec.outward import Notification
from sas.domain.ids import idempotency_key
from sas.domain.model import Direction, OrderState
from sas.domain.queues import Queues
from sas.ports import Business, Message
from sas.simulation.bus import MemoryBus
from sas.simulation.clock import VirtualClock
from sas.simulation.remote import RemoteFaults, RemoteLedger, SimulatedAgent
from sas.simulation.store import MemoryStore
from sas.simulation.world import Faults, Handler, World

QUEUES = Queues()
AGENTS = ("inventory", "payment", "shipping")
REPLIES_TO = "responses-web-shop"


@dataclass
class System:
    """One world with the actors in it."""

    world: World
    store: MemoryStore
    bus: MemoryBus
    ledger: RemoteLedger
    agents: dict[str, SimulatedAgent]
    context: Context
    submitted: dict[str, str]

    def submit(self, order_id: str, workflow: str = "order", times: int = 1) -> None:
        """Put an order on the queue, several times under its one MessageId if asked."""
        body = json.dumps(
            {
                "order_id": order_id,
                "workflow": workflow,
                "reply_queue": REPLIES_TO,
                "correlation_id": f"c-{order_id}",
                "order": {"lines": []},
            }
        ).encode()
        self.submitted[order_id] = workflow
        for _ in range(times):
            self.bus._enqueue(Message(QUEUES.orders, f"m-{order_id}", body))

    def states(self) -> dict[str, OrderState]:
        """Return each stored order's state."""
        return {key: stored.order.process_state for key, stored in self.store.orders.items()}

    def finished(self) -> bool:
        """Return whether every order submitted has come to an end or waits for an operator."""
        rest = {
            OrderState.PROCESSED,
            OrderState.COMPENSATED,
            OrderState.ERROR,
            OrderState.REJECTED,
        }
        states = self.states()
        outs = any(self.store._due.values())
        return all(states.get(o) in rest for o in self.submitted) and not outs

    def notices(self, order_id: str) -> Counter[str]:
        """Return how many different notifications of each kind an order's application was sent."""
        told: dict[str, str] = {}
        for event in self.events():
            if event.data.order_id == order_id:
                told[event.id] = outward.notice_of(event.type)
        return Counter(told.values())

    async def close(self) -> None:
        """Stop what still runs, calls that never landed among it."""
        await self.world.close()
        calls = [call for agent in self.agents.values() for call in agent.calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def events(self) -> list[Notification]:
        """Return everything on the response queue."""
        messages = self.bus.messages(REPLIES_TO)
        return [outward.decode_notification(message.body) for message in messages]


def build(
    seed: int,
    faults: Faults,
    remote: RemoteFaults,
    *,
    failures_max_seconds: float = 10.0,
    duplicate_detection: bool = True,
) -> System:
    """Return a system of the business's workflows over the ports in memory."""
    random.seed(seed)
    clock = VirtualClock(settle_rounds=8)
    store = MemoryStore()
    bus = MemoryBus(clock)
    window = timedelta(minutes=5) if duplicate_detection else None
    bus.declare(QUEUES.orders, QUEUES.dead_letters)
    bus.declare(
        QUEUES.scheduler,
        QUEUES.replies,
        QUEUES.alerts,
        QUEUES.rejected,
        REPLIES_TO,
        *(QUEUES.agent(name) for name in AGENTS),
        duplicate_window=window,
    )
    world = World(seed, clock, store, bus, faults)
    ledger = RemoteLedger()
    agents = {n: SimulatedAgent(clock, ledger, remote, world.rng) for n in AGENTS}
    context = Context.of(store, world.bus, clock, Addresses(QUEUES, "/simulation"), "sim-1")
    business = Business(workflows(timedelta(seconds=failures_max_seconds)), agents)
    _wire(world, context, business)
    return System(world, store, bus, ledger, agents, context, {})


def _wire(world: World, context: Context, business: Business) -> None:
    submitter = Submitter(context, business)
    scheduler = Scheduler(context, business)
    dead = DeadLetters(context, business)
    supervisor = Supervisor(context, business.workflows.rules)
    world.handlers = {
        QUEUES.orders: lambda m: submitter.handle(m.body, m.message_id),
        QUEUES.scheduler: lambda m: scheduler.handle(m.body, m.message_id),
        QUEUES.replies: lambda m: scheduler.handle_reply(m.body, m.message_id),
        QUEUES.dead_letters: lambda m: dead.handle(dead_letter(m)),
    }
    policy = RetryPolicy(0.2, 2.0)
    for name, agent in business.agents.items():
        world.handlers[QUEUES.agent(name)] = _handler(AgentActor(context, name, agent, policy))
    world.timer = supervisor.sweep


def _handler(actor: AgentActor) -> Handler:
    return lambda message: actor.handle(message.body, message.message_id)


def dead_letter(message: Message) -> DeadLetter:
    """Return a message of the dead-letters queue as its handler gets it."""
    return DeadLetter(
        body=message.body,
        message_id=message.message_id,
        source_queue=message.properties.get("source"),
        reason="MaxDeliveryCountExceeded",
        description=None,
    )


def check_end(system: System) -> None:
    """Assert what must hold of every order once nothing is under way any more."""
    for order_id in system.submitted:
        stored = system.store.orders[order_id]
        order = stored.order
        state = order.process_state
        where = f"seed {system.world.seed} order {order_id} {state.value}"
        if state is OrderState.REJECTED:
            assert system.notices(order_id)["rejected"] == 1, where
            continue
        for step in order.steps:
            effects = system.ledger.of(idempotency_key(order_id, step.name, 0))
            assert effects.done <= 1, f"{where}: {step.name} took effect {effects.done} times"
            if state is OrderState.PROCESSED:
                assert effects.in_force, f"{where}: {step.name} has no effect"
            if state is OrderState.COMPENSATED:
                assert not effects.in_force, f"{where}: {step.name} is still in force"
        told = system.notices(order_id)
        assert told["received"] == 1, f"{where}: {told}"
        assert told["completed"] == (state is OrderState.PROCESSED), f"{where}: {told}"
        assert told["undone"] == (state is OrderState.COMPENSATED), f"{where}: {told}"
        if state is OrderState.PROCESSED:
            assert told["step-completed"] == len(order.steps), f"{where}: {told}"
        if state is OrderState.ERROR:
            assert told["failed"] >= 1, f"{where}: {told}"
            assert any(order_id.encode() in m.body for m in system.bus.messages(QUEUES.alerts))
        if order.direction is Direction.DO and state is not OrderState.ERROR:
            assert told["failed"] == 0, f"{where}: {told}"
