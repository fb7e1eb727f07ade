"""One simulated system: the real actors over the ports in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sas.bootstrap import Application, assemble
from sas.codec import internal
from sas.codec.internal import CallbackMessage, CommandMessage
from sas.codec.strict import MalformedError
from sas.domain.ids import digest_id
from sas.domain.order import Order, OrderState
from sas.domain.queues import lane
from sas.domain.workflow import Rules, Workflows
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.kept_orders import KeptOrders
from sas.features.callbacks.codec import CallbackKeys
from sas.features.callbacks.endpoint import AGAIN_MAX
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import (
    Business,
    Callback,
    Message,
    MessageBus,
    PayloadCodec,
    StateStore,
)
from sas.testing.bus import DEAD_LETTERS, MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.remote import RemoteLedger, SimulatedAgent
from sas.testing.settings import settings
from sas.testing.store import MemoryStore
from sas.testing.world import CrashError, Faults, Handler, HostRules, Instance, World

KEYS = CallbackKeys(("a-key-for-the-simulation-of-callbacks",))
BREAKER = BreakerPolicy(
    failures_max=3,
    open_for=timedelta(seconds=3),
    open_for_max=timedelta(seconds=20),
    probe_for=timedelta(seconds=8),
)
"""Short times, so that many circuits open and close within a step's time."""
CALLBACKS = {lane(QUEUES.callbacks, urgent=urgent) for urgent in (False, True)}
AT_REST = frozenset(
    {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.ERROR, OrderState.REJECTED}
)


@dataclass
class ClockApart:
    """The clock of one instance, some seconds ahead of the others."""

    clock: VirtualClock
    seconds: float = 0.0

    def now(self) -> datetime:
        """See ``Clock.now``."""
        now = self.clock.now()
        return now + timedelta(seconds=self.seconds) if self.seconds else now

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await self.clock.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """See ``Clock.timeout``."""
        return self.clock.timeout(seconds)


class Host:
    """The functions of one instance. What they know ends with the instance.

    One of four keeps no orders, and reads each again (docs/adr/0026).
    """

    def __init__(
        self,
        world: World,
        clock: ClockApart,
        name: str,
        business: Business,
        *,
        codec: PayloadCodec | None = None,
        breaker: BreakerPolicy = BREAKER,
        ports: tuple[StateStore, MessageBus] | None = None,
    ) -> None:
        self.business, self.clock = business, clock
        self._store, self._bus = ports or (world.store, world.bus)
        self._codec, self._breaker = codec, breaker
        self._name, self._starts = name, 0
        self._reads_all = int(digest_id(str(world.seed), name), 16) % 4 == 0
        self.start()

    def start(self) -> None:
        """See ``Functions.start``."""
        self._starts += 1
        name = f"{self._name}.{self._starts}"
        business = self.business
        config = settings(
            name,
            queues=QUEUES,
            circuit=self._breaker,
            callback_keys=KEYS,
            payload_codec=self._codec,
        )
        kept = KeptOrders(0) if self._reads_all else None
        app = assemble(self._store, self._bus, self.clock, business, config, kept=kept)
        self.context: Context = app.context
        self.callbacks, self._supervisor = app.callbacks, app.supervisor
        self.handlers: dict[str, Handler] = _handlers(app, business)

    async def sweep(self) -> object:
        """See ``Functions.sweep``."""
        return await self._supervisor.sweep()


def _handlers(app: Application, business: Business) -> dict[str, Handler]:
    def handler(handle: Callable[[Delivery], Awaitable[object]]) -> Handler:
        return lambda queued: app.receiver.receive(handle, delivery(queued))

    own = {
        QUEUES.dead_letters: handler(app.dead_letters.handle),
        QUEUES.dead_letters + DEAD_LETTERS: handler(app.dead_letters.handle_given_up),
    }
    for urgent in (False, True):
        own[lane(QUEUES.orders, urgent=urgent)] = handler(app.submitter.handle)
        own[lane(QUEUES.scheduler, urgent=urgent)] = handler(app.scheduler.handle)
        own[lane(QUEUES.replies, urgent=urgent)] = handler(app.scheduler.handle_reply)
        own[lane(QUEUES.callbacks, urgent=urgent)] = handler(app.callbacks.handle)
        for name in business.agents:
            own[QUEUES.agent(name, urgent=urgent)] = handler(app.agents[name].handle)
    return own


def delivery(queued: Queued) -> Delivery:
    """Return a message as a host hands it over."""
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
    """A world with the actors in it, and what was asked of it."""

    world: World
    workflows: Workflows
    ledger: RemoteLedger = field(default_factory=RemoteLedger)
    agents: dict[str, SimulatedAgent] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)
    submitted: dict[str, str] = field(default_factory=dict)
    """The workflow of each order."""
    unknown: set[str] = field(default_factory=set)
    """Orders that name a workflow that does not exist."""
    commands: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    """The order of each command, and the seq that the operator saw."""
    redriven: list[bytes] = field(default_factory=list)
    """What lay on the queue of rejected messages until an operator sent it again."""
    subqueues: set[str] = field(default_factory=set)
    """The subqueues of queues that do not forward their dead letters."""
    on_answered: Callable[[Callback, int], None] = lambda _callback, _status: None
    """Called with each callback by HTTP and the status of its answer."""

    @property
    def store(self) -> MemoryStore:
        """The state store."""
        return self.world.store

    @property
    def bus(self) -> MemoryBus:
        """The queues."""
        return self.world.memory_bus

    def begin(self, hosts: list[Host]) -> None:
        """Take these hosts for the instances."""
        self.hosts = hosts
        self.world.instances = [Instance(host) for host in hosts]
        self.world.resting = self._waits_for_operator

    def rules_of(self, order: Order) -> Rules:
        """Return the rules of an order: those of its own version of its workflow."""
        return self.workflows.rules(order.details.workflow, order.details.version)

    def at_rest(self) -> bool:
        """Return whether every order is at an end, or in Error, and nothing is due."""
        if any(self.store._due.values()):  # noqa: SLF001  the twin of a table
            return False
        orders = self.store.orders
        return all(
            order_id in orders and orders[order_id].order.process_state in AT_REST
            for order_id in self.submitted
        )

    def _waits_for_operator(self, queued: Queued) -> bool:
        """Return whether a message is a callback of an order in Error that has waited for long.

        It waits for its operator, up to a week, as the order does.
        """
        if queued.message.queue not in CALLBACKS:
            return False
        if queued.visible_at - queued.enqueued_at < AGAIN_MAX:
            return False
        try:
            callback = internal.decode(queued.message.body, CallbackMessage)
        except MalformedError:
            return False
        stored = self.store.orders.get(callback.order_id)
        return stored is not None and stored.order.process_state is OrderState.ERROR

    def put_order(
        self, order_id: str, workflow: str, content: Mapping[str, Any], *, urgent: bool
    ) -> None:
        """Put an order on its queue, with the MessageId of the first time. No fault hits it.

        Raises:
            BusUnavailableError: the queue takes nothing.
        """
        body = {
            "order_id": order_id,
            "workflow": workflow,
            "reply_queue": REPLIES_TO,
            "correlation_id": f"c-{order_id}",
            "order": dict(content),
        }
        queue = lane(QUEUES.orders, urgent=urgent)
        self._put(queue, f"m-{order_id}", json.dumps(body).encode())

    def put_command(self, order_id: str, verb: Any, seq: int | None, **members: Any) -> None:
        """Put an operator's command on its queue. No fault hits it.

        Raises:
            BusUnavailableError: the queue takes nothing.
        """
        command_id = f"w-{len(self.commands)}-of-the-operator"
        message = CommandMessage(
            id=command_id, order_id=order_id, verb=verb, by="ann", seq=seq, **members
        )
        self._put(QUEUES.scheduler, command_id, internal.encode(message))
        self.commands[command_id] = order_id, seq

    def owes_effect(self, step: str, keys: Iterable[str]) -> bool:  # noqa: ARG002  Stage asks both
        """Return whether a Processed step must have had its effect under one of these keys."""
        return True

    async def call_back(self, callback: Callback, body: bytes) -> bool:
        """Hand over the result of a callback by HTTP, to any instance."""
        self.world.strikes("callback")
        try:
            answer = await self.world.rng.choice(self.hosts).callbacks.answer(
                callback.token, None, body
            )
        except CrashError:  # the connection is cut
            return False
        self.on_answered(callback, answer.status)
        return answer.status != 503

    async def close(self) -> None:
        """Stop everything that still runs, also calls that never end."""
        await self.world.close()
        calls = [call for agent in self.agents.values() for call in agent.calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _put(self, queue: str, message_id: str, body: bytes) -> None:
        self.bus._enqueue(Message(queue, message_id, body))  # noqa: SLF001


def world_of(
    seed: int, queues: Mapping[str, QueueRules], rules: HostRules, faults: Faults
) -> World:
    """Return an empty world with these queues."""
    clock = VirtualClock()
    bus = MemoryBus(clock)
    for queue, own in queues.items():
        bus.declare(queue, rules=own)
    return World(seed, clock, MemoryStore(), bus, faults, rules)
