"""The actors over the ports in memory, with agents that play the script of a test."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from sas.actors.agent import AgentActor
from sas.actors.dead_letters import DeadLetters
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.actors.supervisor import Supervisor
from sas.bootstrap import assemble
from sas.codec import external, internal
from sas.codec.external import AlertMessage, Notification, RejectedMessage
from sas.codec.internal import CommandMessage, ReplyMessage, RequestMessage
from sas.domain.change import OutDue
from sas.domain.messages import JournalEntry
from sas.domain.order import Order
from sas.domain.queues import Queues, lane
from sas.domain.workflow import NO_TIME, OnFailure, Step, Undo, Workflow, Workflows
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.hooks import CallGuard
from sas.engine.kept_orders import KeptOrders
from sas.engine.receiver import Receiver
from sas.engine.retry import RetryPolicy
from sas.engine.transition import TransitionRunner
from sas.features.call_limit import CallLimit
from sas.features.callbacks.codec import CallbackKeys, message_of, parse_body
from sas.features.callbacks.endpoint import Callbacks
from sas.features.circuit_breaker.guard import CircuitBreaker, breakers
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy
from sas.features.long_steps.steps import ContinuedSteps
from sas.ports import (
    Agent,
    AgentCall,
    Business,
    CorruptOrderError,
    Message,
    PayloadCodec,
    RefusedError,
    StateStore,
    UnavailableError,
)
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from sas.testing.settings import settings
from sas.testing.store import MemoryStore

T = TypeVar("T")
QUEUES = Queues()
SHOP = "responses-shop"
AGENTS = ("stock", "payment")
ALLOWED = timedelta(seconds=30)
ROUNDS_MAX = 10_000
"""Most rounds over all queues until nothing waits in one of them."""
UNDO = Undo(ALLOWED)
KEYS = CallbackKeys(("first-key-of-callbacks-0123456789",), "https://app.example/api/callbacks")

CHAIN = Workflow(
    "chain",
    version=1,
    steps=(
        Step("reserve", agent="stock", time_allowed=ALLOWED, undo=UNDO, failures_max=1),
        Step("pay", agent="payment", time_allowed=ALLOWED, undo=UNDO, failures_max=1),
    ),
    on_failure=OnFailure.UNDO,
    notify_steps=True,
)
CARE = Workflow(
    "care",
    version=1,
    steps=(
        Step("reserve", agent="stock", time_allowed=ALLOWED, after=(), undo=UNDO, failures_max=1),
        Step("pay", agent="payment", time_allowed=ALLOWED, after=(), undo=UNDO, failures_max=1),
    ),
    on_failure=OnFailure.HOLD,
    notify_steps=True,
)

HOLDING = replace(CHAIN, on_failure=OnFailure.HOLD)

Behaviour = Callable[[AgentCall], Awaitable[Any]]


@dataclass
class ScriptedAgent:
    """Plays its script (values, exceptions, coroutine functions), then succeeds.

    Then its result is ``result``, or without one an object of its own.
    """

    script: deque[Any] = field(default_factory=deque)
    result: Any = None
    calls: list[tuple[str, AgentCall]] = field(default_factory=list)

    def then(self, *behaviours: Any) -> None:
        self.script.extend(behaviours)

    async def do(self, call: AgentCall) -> Any:
        return await self._next("do", call)

    async def undo(self, call: AgentCall) -> Any:
        return await self._next("undo", call)

    async def close(self) -> None:
        pass

    async def _next(self, verb: str, call: AgentCall) -> Any:
        self.calls.append((verb, call))
        behaviour = self.script.popleft() if self.script else self.result or {"by": call.key}
        if isinstance(behaviour, BaseException):
            raise behaviour
        return await behaviour(call) if callable(behaviour) else behaviour


@dataclass(kw_only=True)
class Kit:
    """Everything a test of an actor needs."""

    clock: VirtualClock
    store: MemoryStore
    bus: MemoryBus
    business: Business
    agents: dict[str, ScriptedAgent]
    context: Context
    receiver: Receiver
    submitter: Submitter
    scheduler: Scheduler
    supervisor: Supervisor
    dead_letters: DeadLetters
    actors: dict[str, AgentActor]
    callbacks: Callbacks

    async def run(self, work: Awaitable[T]) -> T:
        """Await in virtual time."""
        return await self.clock.run(work)

    async def submit(self, body: bytes | None = None, message_id: str = "m-1") -> None:
        body = order() if body is None else body
        await self.run(
            self.submitter.handle(Delivery(body=body, message_id=message_id, queue=QUEUES.orders))
        )

    async def hand(self, message: Message) -> None:
        """Hand one message to the actor of its queue. Nothing runs on: all messages are sent."""
        await self.run(self._handlers()[message.queue](delivery(message)))

    async def receive(self, message: Message, **changes: Any) -> object:
        """Have the function of a queue receive a message. Its first delivery runs on."""
        handler = self._handlers()[message.queue]
        return await self.run(self.receiver.receive(handler, delivery(message, **changes)))

    def _handlers(self) -> dict[str, Callable[[Delivery], Awaitable[object]]]:
        handlers: dict[str, Callable[[Delivery], Awaitable[object]]] = {}
        for urgent in (False, True):
            handlers[lane(QUEUES.orders, urgent=urgent)] = self.submitter.handle
            handlers[lane(QUEUES.scheduler, urgent=urgent)] = self.scheduler.handle
            for name, actor in self.actors.items():
                handlers[QUEUES.agent(name, urgent=urgent)] = actor.handle
        return handlers

    async def step(self, queue: str) -> Message:
        """Take the oldest message of a queue, handle it, return it."""
        message = self.bus.take(queue)
        assert message is not None, f"nothing waits on {queue}"
        await self.hand(message)
        return message

    async def drain(self) -> None:
        """Handle messages until no actor's queue holds any."""
        orders = {QUEUES.orders, lane(QUEUES.orders, urgent=True)}
        queues = [name for name in QUEUES.on_the_way(self.agents) if name not in orders]
        for _ in range(ROUNDS_MAX):
            if not any(self.bus.messages(queue) for queue in queues):
                return
            for queue in queues:
                if self.bus.messages(queue):
                    await self.step(queue)
        raise AssertionError("the queues never become empty")

    def taken(self, queue: str) -> list[Message]:
        """Take all messages of a queue that can be received now."""
        return [message for _ in self.bus.messages(queue) if (message := self.bus.take(queue))]

    def agents_die(self) -> None:
        """Let every request be taken from its queue by an agent that dies with it."""
        for name in self.actors:
            self.taken(QUEUES.agent(name))

    async def sweep(self) -> dict[str, int]:
        """Let the supervisor sweep; return what it did."""
        return (await self.run(self.supervisor.sweep())).done

    async def later(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    def order(self, order_id: str = "O-1") -> Order:
        return self.store.orders[order_id].order

    def journal(self, order_id: str = "O-1") -> list[JournalEntry]:
        return self.store.orders[order_id].journal

    def words(self, order_id: str = "O-1") -> list[str]:
        return [entry.what for entry in self.journal(order_id)]

    def states(self, order_id: str = "O-1") -> list[str]:
        return [step.process_state.value for step in self.order(order_id).steps]

    def state(self, order_id: str = "O-1") -> str:
        return self.order(order_id).process_state.value

    def notices(self, queue: str = SHOP) -> list[str]:
        """Return the kinds of the notifications that an application was sent."""
        return [external.notice_of(event.type) for event in self.events(queue)]

    def events(self, queue: str = SHOP) -> list[Notification]:
        messages = self.bus.messages(queue)
        return [external.decode_notification(message.body) for message in messages]

    def rejected(self) -> list[RejectedMessage]:
        messages = self.bus.messages(QUEUES.rejected)
        return [msgspec.json.decode(m.body, type=RejectedMessage) for m in messages]

    def alerts(self) -> list[AlertMessage]:
        messages = self.bus.messages(QUEUES.alerts)
        return [msgspec.json.decode(m.body, type=AlertMessage) for m in messages]

    def ids(self, queue: str) -> list[str]:
        return [message.message_id for message in self.bus.messages(queue)]

    def requests(self, agent: str) -> list[RequestMessage]:
        messages = self.bus.messages(QUEUES.agent(agent))
        return [internal.decode(m.body, RequestMessage) for m in messages]

    def outs(self) -> int:
        """Return how many out rows and held messages there are."""
        rows = [row for shard in self.store._due.values() for row in shard.values()]
        return sum(isinstance(row, OutDue) for row in rows) + len(self.store.held_messages)

    def held(self) -> list[Message]:
        return [item.message for item in self.store.held_messages.values()]


def kit(
    *workflows: Workflow,
    instance: str = "host-1",
    duplicate_window: timedelta | None = None,
    beside: Kit | None = None,
    callback_keys: CallbackKeys = KEYS,
    codec: PayloadCodec | None = None,
    queues: Queues = QUEUES,
    deploy_wait: timedelta = NO_TIME,
    kept_orders: KeptOrders | None = None,
    inline: Collection[str] = (),
    results: Mapping[str, type] | None = None,
    circuit: BreakerPolicy | None = None,
    queue_delay: timedelta = timedelta(minutes=5),
    **checks: Callable[[bytes], object],
) -> Kit:
    """Return actors of one instance; ``beside`` another one they share store, bus and clock."""
    clock = beside.clock if beside else VirtualClock()
    store = beside.store if beside else MemoryStore()
    bus = beside.bus if beside else MemoryBus(clock)
    agents = beside.agents if beside else {name: ScriptedAgent() for name in AGENTS}
    if beside is None:
        plain = {QUEUES.orders, lane(QUEUES.orders, urgent=True), QUEUES.dead_letters}
        bus.declare(*plain)
        bus.declare(
            *(QUEUES.alerts, QUEUES.rejected, SHOP, *set(QUEUES.on_the_way(AGENTS)) - plain),
            *map(queues.response_of, queues.applications),
            duplicate_window=duplicate_window,
        )
    business = Business(
        workflows=Workflows(workflows or (CHAIN, CARE)),
        agents=agents,
        checks={(name, 1): check for name, check in checks.items()},
        inline=inline,
        results={
            (workflow.name, workflow.version): {
                step: msgspec.json.Decoder(shape).decode for step, shape in (results or {}).items()
            }
            for workflow in workflows or (CHAIN, CARE)
        },
    )
    config = settings(
        instance,
        queues=queues,
        circuit=circuit or BreakerPolicy(failures_max=0),
        callback_keys=callback_keys,
        payload_codec=codec,
        deploy_wait=deploy_wait,
        queue_delay=queue_delay,
    )
    app = assemble(
        store, bus, clock=clock, business=business, settings=config, kept_orders=kept_orders
    )
    return Kit(
        clock=clock,
        store=store,
        bus=bus,
        business=business,
        agents=agents,
        context=app.context,
        receiver=app.receiver,
        submitter=app.submitter,
        scheduler=app.scheduler,
        supervisor=app.supervisor,
        dead_letters=app.dead_letters,
        actors=dict(app.agents),
        callbacks=app.callbacks,
    )


class AnyWorkflow(Workflows):
    """Knows a workflow of every name: the agent of a test works on any request."""

    def find(self, name: str, version: int | None = None) -> Workflow:
        return CHAIN


def agent_actor(
    context: Context,
    name: str,
    agent: Agent,
    *,
    policy: RetryPolicy | None = None,
    circuit: BreakerPolicy | None = None,
    limit: int = 0,
) -> AgentActor:
    """Return an actor of one agent, guarded as ``sas.bootstrap`` guards it."""
    guards: list[CallGuard] = [CircuitBreaker(context, name, circuit)] if circuit else []
    guards += [CallLimit(context, name, limit)] if limit else []
    return AgentActor(
        context,
        name,
        agent,
        policy or RetryPolicy(0.2, 1.0),
        guards=guards,
        long_steps=ContinuedSteps(context, name),
        callbacks=KEYS.issuer(context.clock),
        workflows=AnyWorkflow((CHAIN,)),
        runner=TransitionRunner(context, lambda _: CHAIN),
    )


async def breaker_of(store: StateStore, agent: str = "stock") -> Breaker:
    """Return the state of an agent's circuit that all instances share."""
    entry = await breakers(store).read(agent)
    return entry.value if entry else Breaker()


async def keep_breaker(store: StateStore, breaker: Breaker, agent: str = "stock") -> None:
    """Write the state of an agent's circuit, as another instance would."""
    shared = breakers(store)
    await shared.write(agent, breaker, await shared.read(agent))


def delivery(message: Message, **changes: Any) -> Delivery:
    """Return a message as a function receives it for the first time."""
    defaults: dict[str, Any] = {
        "body": message.body,
        "message_id": message.message_id,
        "queue": message.queue,
        "urgent": message.queue.endswith("-urgent"),
        "properties": message.properties,
        "count": 1,
    }
    return Delivery(**(defaults | changes))


def received(queue: str, message_id: str, body: bytes, **changes: Any) -> Delivery:
    """Return a message of a queue as its function receives it for the first time."""
    urgent = changes.pop("urgent", False)
    return delivery(Message(lane(queue, urgent=urgent), message_id, body), **changes)


def order(order_id: str = "O-1", **changes: Any) -> bytes:
    """Return an order message; a member changed to None is left out."""
    members = {
        "order_id": order_id,
        "workflow": "chain",
        "reply_queue": SHOP,
        "correlation_id": f"c-{order_id}",
        "order": {"lines": [1, 2, 3]},
    }
    return json.dumps({k: v for k, v in (members | changes).items() if v is not None}).encode()


def command(
    verb: Any, seq: int, command_id: str = "w-1", order_id: str = "O-1", **members: Any
) -> Message:
    message = CommandMessage(
        id=command_id, order_id=order_id, verb=verb, seq=seq, by="ann", **members
    )
    return Message(QUEUES.scheduler, command_id, internal.encode(message))


def done(order_id: str = "O-1", step: int = 0, epoch: int = 1, **changes: Any) -> Message:
    """Return an agent's reply "done", or with some members changed."""
    members: dict[str, Any] = {
        "id": f"{order_id}/{step:02d}/do/{epoch}",
        "order_id": order_id,
        "step": step,
        "direction": "do",
        "epoch": epoch,
        "outcome": "done",
        "seq": 0,
        "result": msgspec.Raw(b'{"ok":true}'),
    }
    reply = ReplyMessage(**(members | changes))
    return Message(QUEUES.scheduler, reply.id, internal.encode(reply))


def called_back(token: str, message_id: str = "c-1", **members: Any) -> Message:
    """Return the message that the callback endpoint makes of a token and a body."""
    body = {"outcome": "done", "result": {"signed_by": "Ann"}} | members
    body = {name: value for name, value in body.items() if value is not None}
    parsed = parse_body(json.dumps(body).encode())
    message = message_of(token, KEYS.read(token), parsed)
    return Message(QUEUES.scheduler, message_id, internal.encode(message))


def letter(
    message: Message | bytes, source: str | None = None, message_id: str = "m-1"
) -> Delivery:
    """Return a message as the dead-letters queue hands it over."""
    if isinstance(message, bytes):
        message, reason, why = (
            Message("unknown", message_id, message),
            "MaxDeliveryCountExceeded",
            "5 times",
        )
    else:
        source, reason, why = source or message.queue, "Max", ""
    properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": why}
    return delivery(message, queue=QUEUES.dead_letters, source_queue=source, properties=properties)


DECLINED = "payment refused: the customer's card was declined"


def break_row(system: Kit, broken_id: str, error: UnavailableError | None = None) -> str:
    """Let an order not be read any more, as if a row was changed by hand; return the reason."""
    load = system.store.load
    row = f"row order|{broken_id}|a|step|01 cannot be read: 'Done' is not a valid StepState"
    reason = error or CorruptOrderError(broken_id, row)

    async def broken(order_id: str) -> Order | None:
        if order_id == broken_id:
            raise reason
        return await load(order_id)

    system.store.load = broken  # type: ignore[method-assign]
    return str(reason)


async def running(workflow: str = "chain", *, alive: bool = False, **options: Any) -> Kit:
    """Return an order whose first steps are out. Unless ``alive``, its agents died with them."""
    system = kit(**options)
    await system.submit(order(workflow=workflow))
    await system.step(QUEUES.scheduler)
    if not alive:
        system.agents_die()
    return system


async def fail(system: Kit, order_id: str, agent: str, code: str, message: str) -> None:
    """Submit an order that one of its agents refuses."""
    system.agents[agent].then(RefusedError(code, message))
    await submit(system, order_id)


async def submit(system: Kit, order_id: str, workflow: str = "care") -> None:
    """Submit an order, and let it go as far as it can."""
    await system.submit(
        order(order_id, workflow=workflow, order={"amount": 12.50}), f"m-{order_id}"
    )
    await system.drain()
    await system.later(1)


async def night() -> Kit:
    """Three orders failed in two ways, one is complete."""
    system = kit(CARE)
    for order_id in ("10248", "10249"):
        await fail(system, order_id, agent="payment", code="card-declined", message=DECLINED)
    await fail(
        system, "10250", agent="stock", code="sold-out", message="nothing is left of product 11"
    )
    await submit(system, "10251")
    await system.later(60)
    return system
