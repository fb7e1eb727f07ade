"""A simulated system over the workflows of ``tests.business``, and what must hold at its end."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sas.actors.agent import RetryPolicy
from sas.bootstrap import Application, actors, wired
from sas.codec import internal, outward
from sas.codec.internal import CommandMessage
from sas.codec.outward import AlertMessage, Notification
from sas.codec.strict import convert
from sas.domain.ids import cause_of, digest_id, idempotency_key, message_id
from sas.domain.messages import Alert, JournalEntry, Notify
from sas.domain.order import Direction, Order, OrderState, StepRecord, UndoStatus
from sas.domain.queues import Queues, lane
from sas.domain.workflow import Workflows
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.kept_orders import KeptOrders
from sas.engine.messages import Addresses
from sas.features.callbacks.codec import CallbackKeys
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.features.field_encryption.encryption import FieldEncryption
from sas.ports import (
    AwaitCallback,
    Business,
    Call,
    Callback,
    Message,
    MessageBus,
    RefusedError,
    StateStore,
    TransientError,
)
from sas.simulation.bus import DEAD_LETTERS, MemoryBus, Queued, QueueRules
from sas.simulation.clock import VirtualClock
from sas.simulation.remote import RemoteFaults, RemoteLedger, SimulatedAgent
from sas.simulation.store import MemoryStore
from sas.simulation.world import (
    CrashError,
    Faults,
    Handler,
    HostRules,
    Instance,
    World,
    of_no_host,
)
from tests.business import workflows

INFRA = Path(__file__).parents[2] / "infra"
QUEUES = Queues()
COURIER = "courier"
COURIED = "hand-over"
AGENTS = ("inventory", "payment", "shipping", "invoice", "delivery", COURIER)
KEYS = CallbackKeys(("a-key-for-the-simulation-of-callbacks",))
CALL_LIMIT = timedelta(seconds=20)
"""How long after CompleteBy a call to the courier may still land."""
REPLIES_TO = "responses-web-shop"
BREAKER = BreakerPolicy(
    failures_max=3,
    open_for=timedelta(seconds=3),
    open_for_max=timedelta(seconds=20),
    probe_for=timedelta(seconds=8),
)
"""Quick to open, so that many open and close within a step's time."""


@dataclass
class System:
    """One world with the actors in it."""

    world: World
    store: MemoryStore
    bus: MemoryBus
    ledger: RemoteLedger
    agents: dict[str, SimulatedAgent]
    hosts: Sequence[Host]
    clocks: Sequence[Apart]
    submitted: dict[str, str]
    commands: dict[str, str] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        """The context of the first instance."""
        return self.hosts[0].context

    def deliver_at_most(self, times: int) -> None:
        """Have every queue give its messages up after so many deliveries, but not dead letters."""
        for queue in self.bus.queues.values():
            if queue.rules.forwards_dead_letters_to is not None:
                queue.rules = replace(queue.rules, deliveries_max=times)

    def slow_store(self, seconds: float) -> None:
        """Let each operation of the store take about so long."""
        world = self.world

        async def pause(operation: str, key: str) -> None:
            await world.clock.sleep(seconds * world.rng.uniform(0.5, 1.5))
            await world.store_pause(operation, key)

        self.store.pause = pause

    def submit(
        self,
        order_id: str,
        workflow: str = "order",
        times: int = 1,
        *,
        urgent: bool = False,
        content: Mapping[str, Any] = MappingProxyType({"lines": []}),
    ) -> None:
        """Put an order on the queue, several times under its one MessageId if asked."""
        body = json.dumps(
            {
                "order_id": order_id,
                "workflow": workflow,
                "reply_queue": REPLIES_TO,
                "correlation_id": f"c-{order_id}",
                "order": dict(content),
            }
        ).encode()
        self.submitted[order_id] = workflow
        for _ in range(times):
            queue = lane(QUEUES.orders, urgent=urgent)
            self.bus._enqueue(Message(queue, f"m-{order_id}", body))

    def command(self, order_id: str, verb: Any, seq: int | None, **members: Any) -> None:
        """Put an operator's command on the queue."""
        command_id = f"w-{len(self.commands)}-of-the-operator"
        self.commands[command_id] = order_id
        body = internal.encode(
            CommandMessage(
                id=command_id, order_id=order_id, verb=verb, by="ann", seq=seq, **members
            )
        )
        self.bus._enqueue(Message(QUEUES.scheduler, command_id, body))

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

    def alerts(self) -> Counter[str]:
        """Return how many different alerts of each kind the operator was sent."""
        ids = {m.message_id: m.body for m in self.bus.messages(QUEUES.alerts)}
        return Counter(convert(body, AlertMessage).kind for body in ids.values())

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
    clocks_apart: Sequence[float] = (0.0,),
    definitions: Workflows | None = None,
    breaker: BreakerPolicy = BREAKER,
    outside: Sequence[str] = (),
    limits: Mapping[str, int] = MappingProxyType({}),
    agent: type[SimulatedAgent] = SimulatedAgent,
    encryption: FieldEncryption | None = None,
) -> System:
    """Return a system over the ports in memory, of the business's workflows unless others are
    given, with one instance of every actor for each clock. Clocks are apart by these seconds.
    What the agents ``outside`` are asked for happens outside, and ends by callback.
    """
    random.seed(seed)
    clock = VirtualClock()
    store = MemoryStore()
    bus = MemoryBus(clock)
    for queue, rules in deployed_queues(duplicate_detection=duplicate_detection).items():
        bus.declare(queue, rules=rules)
    world = World(seed, clock, store, bus, faults, deployed_host())
    ledger = RemoteLedger()
    agents = {n: agent(clock, ledger, remote, world.rng) for n in AGENTS}
    agents[COURIER] = Courier(clock, ledger, remote, world.rng)
    agents |= {name: Outside(clock, ledger, remote, world.rng) for name in outside}
    definitions = definitions or workflows(timedelta(seconds=failures_max_seconds))
    business = Business(definitions, agents, limits=limits)
    encryption = encryption or FieldEncryption()
    clocks = [Apart(clock, apart) for apart in clocks_apart]
    hosts = [
        Host(
            world,
            own,
            f"i-{n}",
            business,
            encryption=encryption,
            breaker=breaker,
        )
        for n, own in enumerate(clocks, 1)
    ]
    world.instances = [Instance(host) for host in hosts]
    for one in business.agents.values():
        if isinstance(one, Outside):
            one.tell = _tells(world, hosts)
    return System(world, store, bus, ledger, agents, hosts, clocks, {})


def deployed_queues(*, duplicate_detection: bool = True) -> dict[str, QueueRules]:
    """Return the rules of every queue as ``infra/queues.json`` has them."""
    described = json.loads((INFRA / "queues.json").read_text())
    kinds = {name: kind["properties"] for name, kind in described["kinds"].items()}
    ends = described["deadLetterQueue"]
    kind_of = {queue["name"]: queue["kind"] for queue in described["queues"]}
    kind_of |= {REPLIES_TO: "response", ends: "deadLetters"}
    # The list names the agents of orders/, which may be another business.
    own = (QUEUES.agent(name, urgent=urgent) for name in AGENTS for urgent in (False, True))
    kind_of |= dict.fromkeys(own, "request")
    window = "duplicateDetectionHistoryTimeWindow"
    found = {
        name: QueueRules(
            lock_time=_time(kinds[kind]["lockDuration"]),
            deliveries_max=kinds[kind]["maxDeliveryCount"],
            duplicate_window=_time(kinds[kind][window])
            if kinds[kind]["requiresDuplicateDetection"] and duplicate_detection
            else None,
            time_to_live=_time(kinds[kind]["defaultMessageTimeToLive"]),
            dead_letters_expired=kinds[kind]["deadLetteringOnMessageExpiration"],
            forwards_dead_letters_to=None if name == ends else ends,
        )
        for name, kind in kind_of.items()
    }
    return found | {ends + DEAD_LETTERS: QueueRules()}


def deployed_host() -> HostRules:
    """Return the settings of ``host.json``."""
    host = json.loads((INFRA.parent / "host.json").read_text())
    bus = host["extensions"]["serviceBus"]
    return HostRules(
        function_timeout=_clock_time(host["functionTimeout"]),
        lock_renewal_max=_clock_time(bus["maxAutoLockRenewalDuration"]),
        calls_max=bus["maxConcurrentCalls"],
    )


def _time(text: str) -> timedelta:
    """Return a duration of whole days, or of hours, minutes and seconds: P14D, PT1M."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", text)
    assert found, text
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _clock_time(text: str) -> timedelta:
    hours, minutes, seconds = map(int, text.split(":"))
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


@dataclass
class Apart:
    """The clock of one instance, some seconds before or behind the others."""

    clock: VirtualClock
    seconds: float

    def now(self) -> datetime:
        return self.clock.now() + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        return self.clock.timeout(seconds)


class Courier(SimulatedAgent):
    """An agent of a service that leaves no tombstones, but cuts every call off at its limit."""

    async def _do(self, call: Call) -> Any:
        await self._travel()
        if self._clock.now() > call.complete_by + CALL_LIMIT:
            raise TransientError("cut off")
        effects = self._ledger.of(call.key)
        effects.done += not effects.in_force
        effects.in_force = True
        effects.content = call.order
        await self._answer()
        return {"done_by": call.key}

    async def _undo(self, call: Call) -> Any:
        result = await super()._undo(call)
        self._ledger.of(call.key).tombstone = False
        return result


class Outside(SimulatedAgent):
    """An agent of a service whose work somebody outside does in their own time, and tells.

    It happens once per key, however often it is asked for, and not after its undo; and is told
    until the telling is taken, by HTTP or on the queue.
    """

    tell: Callable[[Callback, bytes], Awaitable[bool]]

    async def _do(self, call: Call) -> Any:
        await self._travel()
        effects = self._ledger.of(call.key)
        if effects.tombstone:
            raise RefusedError("undone", "this key was undone")
        if effects.in_force:
            return {"done_by": call.key}
        within = timedelta(seconds=self._rng.uniform(20, 300))
        effects.content = call.order
        task = asyncio.ensure_future(self._happens(call.key, call.callback(within)))
        self.calls.add(task)
        task.add_done_callback(self._landed)
        await self._answer()
        return AwaitCallback(within, "for somebody outside")

    async def _happens(self, key: str, callback: Callback) -> None:
        of_no_host()
        await self._clock.sleep(self._rng.uniform(0, 200))
        effects = self._ledger.of(key)
        if effects.tombstone:
            return
        effects.done += not effects.in_force
        effects.in_force = True
        body = json.dumps({"outcome": "done", "result": {"done_by": key}}).encode()
        while not await self.tell(callback, body):
            await self._clock.sleep(self._rng.uniform(1, 5))


def _tells(world: World, hosts: Sequence[Host]) -> Callable[..., Awaitable[bool]]:
    """Return how those outside tell: by HTTP to any instance, or on the queue."""

    async def tell(callback: Callback, body: bytes) -> bool:
        if world.rng.random() < 0.5:
            said = json.dumps(json.loads(body) | {"token": callback.token}).encode()
            world.memory_bus._enqueue(Message(QUEUES.callbacks, f"{world.rng.random()}", said))
            return True
        try:
            called_back = world.rng.choice(hosts).callbacks
            answer = await called_back.answer(callback.token, None, body)
        except CrashError:  # the connection is cut
            return False
        return answer.status != 503

    return tell


class Host:
    """The functions of one instance; what they know dies with the instance."""

    def __init__(
        self,
        world: World,
        clock: Apart,
        name: str,
        business: Business,
        *,
        encryption: FieldEncryption,
        breaker: BreakerPolicy,
        store: StateStore | None = None,
        bus: MessageBus | None = None,
    ) -> None:
        self._world, self._clock, self.business = world, clock, business
        self._store, self._bus = store or world.store, bus or world.bus
        self._name, self._starts = name, 0
        self._encryption, self._breaker = encryption, breaker
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.context = wired(
            self._store,
            self._bus,
            self._clock,
            Addresses(QUEUES, "/simulation"),
            f"{self._name}.{self._starts}",
            self.business.workflows,
            self._encryption,
        )
        if hash_of(self._world.seed, self._name) % 4 == 0:  # it reads every order
            self.context = replace(self.context, kept=KeptOrders(0))
        app = actors(
            self.context,
            self.business,
            policy=RetryPolicy(0.2, 2.0),
            circuit=self._breaker,
            callback_keys=KEYS,
        )
        self.callbacks, self.sweep = app.callbacks, app.supervisor.sweep
        letters = _handler(app, app.dead_letters.handle)
        own = {QUEUES.dead_letters: letters, QUEUES.dead_letters + DEAD_LETTERS: letters}
        for urgent in (False, True):
            own[lane(QUEUES.orders, urgent=urgent)] = _handler(app, app.submitter.handle)
            own[lane(QUEUES.scheduler, urgent=urgent)] = _handler(app, app.scheduler.handle)
            own[lane(QUEUES.replies, urgent=urgent)] = _handler(app, app.scheduler.handle_reply)
            own[lane(QUEUES.callbacks, urgent=urgent)] = _handler(app, app.callbacks.handle)
            for name, actor in app.agents.items():
                own[QUEUES.agent(name, urgent=urgent)] = _handler(app, actor.handle)
        self.handlers: dict[str, Handler] = own


def hash_of(*parts: object) -> int:
    """Return a number that is the same in every run."""
    return int(digest_id(*map(str, parts)), 16)


def _handler(app: Application, handle: Callable[[Delivery], Awaitable[object]]) -> Handler:
    return lambda queued: app.receive(handle, delivery(queued))


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


def check_end(system: System) -> None:
    """Assert what must hold of every order once nothing is under way any more."""
    for order_id in system.submitted:
        order = system.store.orders[order_id].order
        state = order.process_state
        where = f"seed {system.world.seed} order {order_id} {state.value}"
        told = system.notices(order_id)
        if state is OrderState.REJECTED:
            assert told["rejected"] == 1, where
            continue
        for step in order.steps:
            _check_effects(system, order, step, f"{where}: {step.name}")
        journal = system.store.orders[order_id].journal
        assert told == notices_of(journal), f"{where}: {told}"
        assert told["received"] == 1, f"{where}: {told}"
        assert told["undone"] == (state is OrderState.COMPENSATED), f"{where}: {told}"
        if state is OrderState.PROCESSED:
            assert told["completed"] == 1, f"{where}: {told}"
        if state is OrderState.ERROR:
            assert told["failed"] >= 1, f"{where}: {told}"
        alerted = {message.message_id for message in system.bus.messages(QUEUES.alerts)}
        for entry in journal:
            for index, message in enumerate(entry.messages):
                if isinstance(message, Alert):
                    assert message_id(order_id, entry.seq, index) in alerted, f"{where}: {message}"
        if not system.commands:
            _check_untouched(system, order, told, where)


def _check_untouched(system: System, order: Order, told: Counter[str], where: str) -> None:
    """What holds as well of an order that no operator has put a hand to."""
    state = order.process_state
    assert told["completed"] == (state is OrderState.PROCESSED), f"{where}: {told}"
    if state is OrderState.PROCESSED:
        details, definitions = order.details, system.hosts[0].business.workflows
        rules = definitions.rules(details.workflow, details.version)
        steps = len(order.steps) if rules.notify_steps else 0
        assert told["step-completed"] == steps, f"{where}: {told}"
    if order.direction is Direction.DO and state is not OrderState.ERROR:
        assert told["failed"] == 0, f"{where}: {told}"


def _check_effects(system: System, order: Order, step: StepRecord, where: str) -> None:
    """An effect is there where the order is Processed, once, and none where it is undone.

    A step that an operator skipped may lack its effect, one undone by hand or that names no
    undo may keep it. However many keys there are (an input was edited), one effect is in force
    at most: the older keys are undone before a new one is used.
    """
    generations = range(step.call.generation + 1)
    keys = [
        idempotency_key(order.order_id, step.name, number, agent)
        for number in generations
        for agent in (None, *AGENTS)
    ]
    known = [system.ledger.by_key[key] for key in keys if key in system.ledger.by_key]
    if order.process_state is OrderState.ERROR and {*step.undo.routes} - {step.call.route}:
        return  # what another agent may have done is in force until somebody helps
    there = any(effects.in_force for effects in known)
    if step.name != COURIED:  # without tombstones a late do after an undo has an effect again
        assert all(effects.done <= 1 for effects in known), f"{where}: more than one effect"
        in_force = sum(effects.in_force for effects in known)
        assert in_force <= 1, f"{where}: {in_force} effects in force under several keys"
    if order.process_state is OrderState.PROCESSED and not skipped(step):
        assert there, f"{where} has no effect"
        if step.call.edited is not None:
            (done,) = (effects.content for effects in known if effects.in_force)
            assert done == json.loads(step.call.edited), f"{where} was done with an older input"
    no_undo = step.undo.status is UndoStatus.NOT_NEEDED and step.epoch > 0
    undone = step.undo.status is not UndoStatus.BY_HAND and not no_undo
    if order.process_state is OrderState.COMPENSATED and undone:
        assert not there, f"{where} is still in force"


def skipped(step: StepRecord) -> bool:
    """Return whether a result is an operator's word and not the remote service's."""
    return isinstance(step.result, str | None) and "done_by" not in (step.result or "")


def notices_of(journal: Sequence[JournalEntry]) -> Counter[str]:
    """Return the notifications that the journal says were due."""
    messages = (message for entry in journal for message in entry.messages)
    return Counter(m.notice.value for m in messages if isinstance(m, Notify))


def check_commands(system: System) -> Counter[str]:
    """Assert that every command was carried out once, refused or put aside; count what it was."""
    alerts = {message.message_id for message in system.bus.messages(QUEUES.alerts)}
    aside = b"".join(message.body for message in system.bus.messages(QUEUES.rejected))
    ends: Counter[str] = Counter()
    for command_id, order_id in system.commands.items():
        journal = system.store.orders[order_id].journal
        cause = cause_of(QUEUES.scheduler, command_id)
        done = [entry for entry in journal if entry.cause == cause]
        carried = [entry for entry in done if entry.what != "fenced"]
        refused = f"refused/{command_id}" in alerts
        where = f"seed {system.world.seed} command {command_id}"
        assert len(done) <= 1, f"{where} was carried out {len(done)} times"
        assert carried or refused or _held(command_id, aside), f"{where} was lost"
        assert not (carried and refused), f"{where} was carried out and refused"
        ends[carried[0].what if carried else "refused" if refused else "put aside"] += 1
    return ends


def _held(command_id: str, aside: bytes) -> bool:
    return command_id.encode() in aside
