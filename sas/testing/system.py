"""One simulated system: instances of the application, model services, and what happens to them.

``System`` builds a world, and a plan makes it fail. Our tests, the kit and ``sas sim`` use both.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec

from sas.codec import external, internal
from sas.codec.internal import CallbackMessage, CommandMessage, FaultBody, Kind
from sas.codec.strict import MalformedError, convert
from sas.domain.ids import URGENT_SUFFIX, reply_id, shard_of
from sas.domain.messages import Verb
from sas.domain.order import CLOCK_SKEW, Direction, Order, OrderState, StepState
from sas.domain.queues import lane
from sas.domain.workflow import TIME_ALLOWED_MAX, Rules, Workflow, Workflows
from sas.features.callbacks.endpoint import AGAIN_MAX
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Agent, Business, BusUnavailableError, Callback, Message, PayloadCodec
from sas.testing.bus import DEAD_LETTERS, MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.hosts import BREAKER, Host
from sas.testing.own_agents import OwnAgents, Script
from sas.testing.plan import (
    NO_WORKFLOW,
    Apart,
    Away,
    Chance,
    Deploy,
    Faults,
    Forge,
    Item,
    Kill,
    Outside,
    Plan,
    Press,
    Redrive,
    Submit,
    Unforwarded,
)
from sas.testing.platform import (
    QUEUES,
    REPLIES_TO,
    STRANGE_QUEUE,
    HostRules,
    host_rules,
    queue_rules,
)
from sas.testing.redrives import AGAIN_S, Redriver
from sas.testing.remote import ModelService, RemoteLedger
from sas.testing.store import MemoryStore
from sas.testing.wire import SimulatedLoop
from sas.testing.world import CrashError, Instance, World, of_no_host

SEND_AGAIN_S = 30.0
"""How long an application waits before it sends again to a queue that takes no message."""
TIMER_IDLE = timedelta(minutes=2)
TIMER_IDLE_OF_SCRIPT = timedelta(hours=6)
"""The functions of an adopter wait for days, and the queues are never away meanwhile."""
WATCH_S = 10.0
WATCHES_MAX = 60
"""An operator looks for a reason to act each ``WATCH_S`` seconds, and acts after the last look."""
MORE_TIME = 1.5
"""A new version allows its steps so many times the time."""
CHANCE_S = 7200.0
"""Faults by chance end so many seconds after the last outage."""
THROTTLED = 0.7
"""The share of operations that wait at a throttled table."""
SCHEDULER = {lane(QUEUES.scheduler, urgent=urgent) for urgent in (False, True)}
AT_REST = frozenset(
    {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.ERROR, OrderState.REJECTED}
)
_FOR_ERROR = frozenset({Verb.RESUBMIT, Verb.SKIP, Verb.ACKNOWLEDGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What is simulated: the workflows of an application, on its own platform.

    If there is a ``script``, the functions of its sagas run. Otherwise model services stand in for
    the agents.
    """

    workflows: Workflows
    queues: Mapping[str, QueueRules]
    host: HostRules
    script: Script | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    """How many calls each agent may have out at a time, where model services stand in."""
    codec: PayloadCodec | None = None

    @classmethod
    def of(cls, workflows: Workflows, directory: Path, script: Script | None = None) -> Self:
        """Return a project by its directory; raises PlatformFileError."""
        queues = queue_rules(directory, sorted(workflows.agents()))
        return cls(workflows=workflows, queues=queues, host=host_rules(directory), script=script)


class System:
    """A world with the application in it, and a plan of what happens to it.

    ``tell`` gets a sentence for each thing that happens. ``faults`` happen by chance from the start
    on. ``service`` is the class of the model services. Each agent of ``agents`` takes the place of
    the model service of its name.
    """

    def __init__(
        self,
        project: Project,
        plan: Plan,
        tell: Callable[[str], None] = lambda _text: None,
        *,
        faults: Faults | None = None,
        breaker: BreakerPolicy = BREAKER,
        service: type[ModelService] = ModelService,
        agents: Mapping[str, Agent] = MappingProxyType({}),
    ) -> None:
        random.seed(plan.seed)  # the jitter of retries
        self.workflows, self.tell, self.ledger = project.workflows, tell, RemoteLedger()
        clock = VirtualClock()
        bus = MemoryBus(clock)
        for queue, rules in project.queues.items():
            bus.declare(queue, rules=rules)
        self.world = World(
            seed=plan.seed,
            clock=clock,
            store=MemoryStore(),
            memory_bus=bus,
            faults=faults or Faults(),
            rules=project.host,
        )
        self.world.timer_idle = TIMER_IDLE if project.script is None else TIMER_IDLE_OF_SCRIPT
        self.world.resting = self._waits_for_operator
        self.submitted: dict[str, str] = {}
        """The workflow of each order."""
        self.unknown: set[str] = set()
        """Orders that name a workflow that does not exist."""
        self.commands: dict[str, tuple[str, int | None]] = {}
        """The order of each command, and the seq that the operator saw."""
        self.redriven: list[bytes] = []
        """The rejected messages that an operator sent again."""
        self.subqueues: set[str] = set()
        """The subqueues of queues that do not forward their dead letters."""
        self.on_answered: Callable[[Callback, int], None] = lambda _callback, _status: None
        """Called with each callback and the status of its answer."""
        self._deployed, self._items_left = project.workflows, 0
        self._chance_until = clock.now()
        self._senders: set[asyncio.Task[None]] = set()
        agent_names = sorted(project.workflows.agents())
        self._redriver = Redriver(self.world, agent_names, self.redriven, tell)
        self.own_agents = self._own_agents(project.script) if project.script else None
        self.agents = self._services(project, service)
        actual_agents: dict[str, Agent] = {**self.agents, **agents}
        if self.own_agents is not None:
            business = self.own_agents.script.business()
            checks = {
                saga: self.own_agents.watched(check, saga[0])
                for saga, check in business.checks.items()
            }
            business = replace(business, agents=actual_agents, checks=checks)
        else:
            business = Business(
                workflows=project.workflows,
                agents=actual_agents,
                limits=project.limits,
                codec=project.codec,
            )
        self.hosts = [
            Host(
                self.world,
                f"instance-{number}",
                business,
                breaker=breaker,
                is_script=project.script is not None,
            )
            for number in range(plan.instances)
        ]
        self.world.instances = [Instance(functions=host) for host in self.hosts]
        self.happens(*plan.items)

    def _services(self, project: Project, service: type[ModelService]) -> dict[str, ModelService]:
        world, services = self.world, {}
        drained = drain_times(project.workflows)
        for name in sorted(project.workflows.agents()):
            services[name] = (
                service(
                    world.clock,
                    self.ledger,
                    world.faults,
                    world.rng,
                    drain_times=drained.get(name, {}),
                    send_callback=self.call_back,
                )
                if self.own_agents is None
                else self.own_agents.agent(name)
            )
        return services

    def _own_agents(self, script: Script) -> OwnAgents:
        """Return the adopter's agents, and let the event loop follow the virtual clock for them."""
        world = self.world
        agents = OwnAgents(
            script=script,
            seed=world.seed,
            clock=world.clock,
            ledger=self.ledger,
            faults=world.faults,
            rng=world.rng,
            drain_times=drain_times(self.workflows),
            send_callback=self.call_back,
        )
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)  # noqa: S101  play made it
        loop.follow(world.clock)
        return agents

    @property
    def store(self) -> MemoryStore:
        """The state store."""
        return self.world.store

    @property
    def bus(self) -> MemoryBus:
        """The queues."""
        return self.world.memory_bus

    def rules_of(self, order: Order) -> Rules:
        """Return the rules of an order: those of its own version of its workflow."""
        return self.workflows.rules(order.details.workflow, order.details.version)

    def at_rest(self) -> bool:
        """Return whether the whole plan has happened, and every order has ended or is in Error."""
        if self._items_left or self._senders or any(self._redriver.waiting(self.subqueues)):
            return False
        if self.store.due_rows:
            return False
        orders = self.store.orders
        return all(
            orders[order_id].order.process_state in AT_REST
            if order_id in orders
            else self.is_refused(order_id)
            for order_id in self.submitted
        )

    def is_refused(self, order_id: str) -> bool:
        """Return whether the saga's check refused an order. Then it is nowhere in the store."""
        if self.own_agents is None or order_id in self.store.orders:
            return False
        text = f'"{order_id}"'
        return any(
            text in _rejected_body(message) for message in self.bus.messages(QUEUES.rejected)
        )

    def _waits_for_operator(self, queued: Queued) -> bool:
        """Return whether a message is a callback that waits for an order in Error.

        It was put back for ``AGAIN_MAX``. It waits for the operator, as its order does.
        """
        if queued.message.queue not in SCHEDULER:
            return False
        if queued.visible_at - queued.enqueued_at < AGAIN_MAX:
            return False
        try:
            callback = internal.decode(queued.message.body, CallbackMessage)
        except MalformedError:
            return False
        stored = self.store.orders.get(callback.order_id)
        return stored is not None and stored.order.process_state is OrderState.ERROR

    def owes_effect(self, keys: Iterable[str]) -> bool:
        """Return whether a Processed step must have had its effect under one of these keys.

        A model service always owes it. A function of the adopter owes it only if a request for it
        failed, because a step of an adopter may need no effect.
        """
        if self.own_agents is None:
            return True
        return not self.ledger.unmet.isdisjoint(keys)

    async def close(self) -> None:
        """Stop everything that still runs, even calls that never end."""
        if self.own_agents is not None:
            with suppress(RuntimeError):  # a client that never closes
                await self.world.clock.run(self.own_agents.close())
        await self.world.close()
        calls = [call for agent in self.agents.values() for call in agent.calls]
        for task in (*calls, *self._senders):
            task.cancel()
        await asyncio.gather(*calls, *self._senders, return_exceptions=True)

    # --- people and applications; no fault by chance hits what they send ---

    def put_order(
        self,
        order_id: str,
        workflow: str,
        content: Mapping[str, Any],
        *,
        urgent: bool = False,
        version: int | None = None,
    ) -> None:
        """Put an order on its queue. The same order has the same MessageId each time.

        Raises:
            BusUnavailableError: the queue takes nothing.
        """
        body: dict[str, Any] = {
            "order_id": order_id,
            "workflow": workflow,
            "reply_queue": REPLIES_TO,
            "correlation_id": f"c-{order_id}",
            "order": dict(content),
        }
        if version is not None:
            body["workflow_version"] = version
        queue = lane(QUEUES.orders, urgent=urgent)
        self._put(queue, f"m-{order_id}", json.dumps(body).encode())

    def put_command(self, order_id: str, verb: Any, seq: int | None, **members: Any) -> None:
        """Put an operator's command on its queue.

        Raises:
            BusUnavailableError: the queue takes nothing.
        """
        command_id = f"w-{len(self.commands)}-of-the-operator"
        message = CommandMessage(
            id=command_id, order_id=order_id, verb=verb, by="ann", seq=seq, **members
        )
        self._put(QUEUES.scheduler, command_id, internal.encode(message))
        self.commands[command_id] = order_id, seq

    async def call_back(self, callback: Callback, body: bytes) -> bool:
        """Hand over the result of a callback by HTTP. Return False if it was not taken."""
        host = self.world.rng.choice(self.hosts)
        try:
            answer = await host.callbacks.answer(callback.token, None, body)
        except CrashError:  # the connection is cut
            return False
        self.on_answered(callback, answer.status)
        return answer.status != 503

    def _put(self, queue: str, message_id: str, body: bytes) -> None:
        self.bus._enqueue(Message(queue, message_id, body))  # noqa: SLF001

    # --- what happens ---

    def happens(self, *items: Item) -> None:
        """Let some items happen, each in so many seconds from now.

        Faults by chance end two hours after the last outage that comes with them.
        """
        for item in items:
            self._prepare(item)
        if any(isinstance(item, Chance) for item in items):
            ends = (item.at_s + item.lasts_s for item in items if isinstance(item, Away))
            self.goes_on_for(timedelta(seconds=max(ends, default=0.0)))
            self._end_chance()

    def goes_on_for(self, span: timedelta) -> None:
        """Let faults by chance end two hours after this time, if they would end before."""
        until = self.world.clock.now() + span + timedelta(seconds=CHANCE_S)
        self._chance_until = max(self._chance_until, until)

    def _prepare(self, item: Item) -> None:  # noqa: C901, PLR0912  a case for each kind
        match item:
            case Chance():
                setattr(self.world.faults, item.name, item.share)
            case Outside():
                self.agents[item.agent].outside = True
            case Apart():
                self.hosts[item.instance % len(self.hosts)].clock.seconds = item.seconds
            case Submit():
                if item.workflow == NO_WORKFLOW:
                    self.unknown.add(item.order_id)
                else:
                    self.submitted[item.order_id] = item.workflow
                self._later(item.at_s, item, lambda: self._begin(self._send_until_taken(item)))
            case Away():
                ends_s = item.at_s + item.lasts_s
                self._later(item.at_s, item, lambda: self.turn(item.what, is_away=True))
                self._later(
                    ends_s, f"{item.what}: back", lambda: self.turn(item.what, is_away=False)
                )
            case Kill():
                self._later(item.at_s, item, lambda: self._kill(item))
            case Forge():
                self._later(item.at_s, item, lambda: self._forge(item))
            case Press() | Redrive():
                self._items_left += 1
                self.world.clock.call_later(item.at_s, lambda: self._watch(item, WATCHES_MAX))
            case Unforwarded():
                self._keep_dead_letters(item)
            case Deploy():
                self.workflows = with_newer(self._deployed)
                for number, host in enumerate(self.hosts):
                    sentence = f"instance {number} is deployed anew"
                    self._later(item.at_s + 20.0 * number, sentence, self._deploys(number, host))

    def _later(self, at_s: float, sentence: object, act: Callable[[], None]) -> None:
        self._items_left += 1

        def happen() -> None:
            self._items_left -= 1
            self.tell(str(sentence))
            act()

        self.world.clock.call_later(at_s, happen)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that is done outside of every instance."""
        task = asyncio.ensure_future(work)
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    def _end_chance(self) -> None:
        """End the faults that happen by chance: every order must end once faults stop."""
        seconds_left = (self._chance_until - self.world.clock.now()).total_seconds()
        if seconds_left > 0:
            self.world.clock.call_later(seconds_left, self._end_chance)
            return
        self.tell("no fault happens by chance any more")
        self.world.faults.stop()

    async def _send_until_taken(self, item: Submit) -> None:
        of_no_host()
        content = self._content(item.order_id)
        for _ in range(item.times):
            while True:
                try:
                    self.put_order(item.order_id, item.workflow, content, urgent=item.urgent)
                    break
                except BusUnavailableError:
                    await self.world.clock.sleep(SEND_AGAIN_S)

    def _content(self, order_id: str, *, edited: bool = False) -> Any:
        """Return the content of an order."""
        if self.own_agents is not None:
            return self.own_agents.script.orders[order_id]
        return {"edited": True} if edited else {"id": order_id}

    def turn(self, dependency: str, *, is_away: bool) -> None:  # noqa: C901, PLR0912  a case for each
        """Take a dependency away, or bring it back. See ``Away``."""
        kind, _, name = dependency.partition(" ")
        match kind, name:
            case "table", "":
                self.store.partitions_away = self.store.partitions if is_away else frozenset()
            case "table", _:
                self.world.faults.store_throttled = THROTTLED if is_away else 0.0
            case "one", _:
                order_id = next(iter(self.submitted), "O-0")
                shard = frozenset({shard_of(order_id, len(self.store.shards))})
                self.store.partitions_away = shard if is_away else frozenset()
            case "namespace", _:
                self.bus.cut() if is_away else self.bus.mend()
            case "service", _ if self.own_agents is not None:
                self.own_agents.turn(name, is_away=is_away)
            case "service", _:
                self.agents[name].down = is_away
            case "every", _:
                if is_away:
                    self.world.restart()
                for instance in self.world.instances:
                    instance.up = not is_away
            case "clock", _:
                jump = CLOCK_SKEW.total_seconds() * (1 if name == "ahead" else -1)
                self.hosts[0].clock.seconds = jump if is_away else 0.0
            case _:
                queue, _, fault = name.partition(" ")
                if fault == "disabled":
                    self.bus.cut(queue) if is_away else self.bus.mend(queue)
                else:
                    self.bus.queues[queue].refuses = is_away

    def _kill(self, item: Kill) -> None:
        instances = self.world.instances
        victims = (
            instances if item.instance is None else [instances[item.instance % len(instances)]]
        )
        for instance in victims:
            self.world.kill(instance, with_host=item.with_host)

    def _forge(self, item: Forge) -> None:
        """Let a queue of another system dead-letter what looks like a reply to a request."""
        stored = self.store.orders.get(item.order_id)
        if stored is None:
            return
        for step in stored.order.steps:
            if step.dispatched:
                doing = step.process_state is StepState.PROCESSING
                direction = (Direction.DO if doing else Direction.UNDO).value
                own_id = reply_id(item.order_id, step.number, direction, step.epoch)
                members = {"id": own_id, "order_id": item.order_id, "step": step.number}
                body = {"kind": Kind.REPLY.value, "format": 1, **members, "direction": direction}
                body |= {"epoch": step.epoch, "outcome": "done", "seq": stored.order.seq}
                with suppress(BusUnavailableError):
                    self._put(STRANGE_QUEUE, own_id, json.dumps(body).encode())
                    self.bus.give_up_first(STRANGE_QUEUE)

    def _deploys(self, number: int, host: Host) -> Callable[[], None]:
        def deploy() -> None:
            host.business = replace(host.business, workflows=self.workflows)
            self.world.kill(self.world.instances[number])

        return deploy

    # --- the operator ---

    def _watch(self, item: Press | Redrive, times: int) -> None:
        """Let the operator act as soon as there is a reason, or after the last look."""
        if times and not self._is_due(item):
            self.world.clock.call_later(WATCH_S, lambda: self._watch(item, times - 1))
            return
        self._items_left -= 1
        self.tell(str(item))
        if isinstance(item, Press):
            self._press(item)
        else:
            self._begin(self._redriver.resend(back=item.back, dies=item.twice))

    def _is_due(self, item: Press | Redrive) -> bool:
        """Return whether the operator has a reason: an order that needs the command, or a message
        that was put aside.
        """
        if isinstance(item, Redrive):
            return bool(self.bus.queues[QUEUES.rejected].waiting)
        stored = self.store.orders.get(item.order_id)
        state = stored.order.process_state if stored else OrderState.PENDING
        if item.verb is Verb.CALLBACK:
            steps = stored.order.steps if stored else ()
            return any(step.awaits_callback for step in steps)
        return item.verb not in _FOR_ERROR or state in AT_REST

    def _press(self, item: Press) -> None:
        stored = self.store.orders.get(item.order_id)
        if stored is None or stored.order.rejected:
            return
        order = stored.order
        failed_steps = [step.name for step in order.steps if step.process_state is StepState.ERROR]
        members: dict[str, Any] = {}
        if item.verb is Verb.CALLBACK:
            members = self._callback_by_hand(order, item)
        elif failed_steps and item.verb in {Verb.RESUBMIT, Verb.SKIP}:
            members["step"] = failed_steps[0]
            if item.edited:
                content = self._content(order.order_id, edited=True)
                members["input"] = msgspec.Raw(msgspec.json.encode(content))
        for _ in range(1 + item.twice):
            try:
                self.put_command(order.order_id, item.verb.value, order.seq - item.stale, **members)
            except BusUnavailableError:
                self.tell("the operator sees that the command could not be sent")

    def _callback_by_hand(self, order: Order, item: Press) -> dict[str, Any]:
        """Return the members of a command that ends the first step that waits for a callback."""
        name = next((step.name for step in order.steps if step.awaits_callback), None)
        if item.refuses:
            return {"step": name, "error": FaultBody("not-approved", "an operator refused it")}
        return {"step": name}

    def _keep_dead_letters(self, item: Unforwarded) -> None:
        agents = sorted(self.workflows.agents())
        for name in (*QUEUES.on_the_way(agents), QUEUES.dead_letters):
            if item.queue in (None, name, name.removesuffix(URGENT_SUFFIX)):
                queue = self.bus.queues[name]
                deliveries_max = 1 if item.at_once else queue.rules.deliveries_max
                rules = replace(
                    queue.rules, forwards_dead_letters_to=None, deliveries_max=deliveries_max
                )
                queue.rules = rules
                if name != QUEUES.dead_letters:  # a function reads its subqueue
                    self.bus.declare(name + DEAD_LETTERS)
                    self.subqueues.add(name + DEAD_LETTERS)
        self.world.clock.call_later(item.from_s, lambda: self._look(item, item.die))

    def _look(self, item: Unforwarded, die: int) -> None:
        """Let an operator redrive dead letters that lie in subqueues, and look again later."""
        paths = *sorted(self.subqueues), QUEUES.dead_letters + DEAD_LETTERS
        if any(self._redriver.waiting(paths)):
            for _ in range(1 + item.twice):
                self._begin(self._redriver.redrive(dies=die > 0))
            die -= 1
        self.world.clock.call_later(AGAIN_S, lambda: self._look(item, die))


def _rejected_body(message: Message) -> str:
    return convert(message.body, external.RejectedMessage).body


def drain_times(workflows: Workflows) -> dict[str, dict[str, timedelta]]:
    """Return the drain times of steps by name, for each agent that can do them."""
    times: dict[str, dict[str, timedelta]] = {}
    for workflow in workflows:
        for step in workflow.steps:
            if step.undo is not None and step.undo.drain_time is not None:
                for agent in step.agents:
                    times.setdefault(agent, {})[step.name] = step.undo.drain_time
    return times


def with_newer(workflows: Workflows) -> Workflows:
    """Return the workflows with one more version of each, as a deploy in the middle brings them.

    Its steps are allowed more time. Orders under way keep their version, and its times.
    """
    names = dict.fromkeys(workflow.name for workflow in workflows)
    newer = [_newer(workflows.find(name)) for name in names]
    return Workflows([*workflows, *newer])


def _newer(workflow: Workflow) -> Workflow:
    steps = tuple(
        replace(step, time_allowed=min(step.time_allowed * MORE_TIME, TIME_ALLOWED_MAX))
        for step in workflow.steps
    )
    return replace(workflow, version=workflow.version + 1, steps=steps)
