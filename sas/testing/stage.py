"""Play a plan on a simulated system: orders, outages, kills, commands and deploys in their time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from sas.codec.internal import Kind
from sas.domain.ids import URGENT_SUFFIX, reply_id, shard_of
from sas.domain.messages import Verb
from sas.domain.order import Direction, OrderState, StepState
from sas.domain.workflow import TIME_ALLOWED_MAX, Workflow, Workflows
from sas.ports import Business, BusUnavailableError, Message
from sas.testing.bus import DEAD_LETTERS, QueueRules
from sas.testing.own_agents import Given, OwnAgents
from sas.testing.plan import (
    NO_WORKFLOW,
    Apart,
    Away,
    Chance,
    Deploy,
    Forge,
    Item,
    Kill,
    Outside,
    Plan,
    Press,
    Redrive,
    Submit,
    Unforwarded,
    away_as,
    faults_of,
)
from sas.testing.platform import QUEUES, STRANGE_QUEUE
from sas.testing.redrives import AGAIN_S, Redriver
from sas.testing.remote import RemoteFaults
from sas.testing.services import ModelService, drain_times, service_seconds
from sas.testing.system import AT_REST, ClockApart, Host, System, world_of
from sas.testing.watch import Ear
from sas.testing.wire import SimulatedLoop
from sas.testing.world import HostRules, of_no_host

SEND_AGAIN_S = 30.0
"""How long an application waits before it sends again to a queue that takes nothing."""
TIMER_IDLE = timedelta(minutes=2)
WATCH_S = 10.0
MORE_TIME = 1.5
"""How much more time a new version allows its steps."""
WATCHES_MAX = 60
"""How often, and how long, an operator looks whether an order is in Error."""
CHANCE_S = 7200.0
"""Faults happen by chance until so long after the last outage, in seconds."""
_FOR_ERROR = frozenset({Verb.RESUBMIT, Verb.SKIP, Verb.ACKNOWLEDGE})


class Stage(System):
    """Plays a plan on a system. ``tell`` gets a sentence for each item."""

    def __init__(
        self,
        plan: Plan,
        workflows: Workflows,
        queues: Mapping[str, QueueRules],
        rules: HostRules,
        tell: Callable[[str], None] = lambda _text: None,
        given: Given | None = None,
        seconds: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        faults, remote = faults_of(plan)
        super().__init__(world_of(plan.seed, queues, rules, faults), workflows)
        self.tell = tell
        self.ears: list[Ear] = []
        self._deployed = workflows
        self._left = 0
        self._senders: set[asyncio.Task[None]] = set()
        self._redriver = Redriver(self, tell)
        self.world.timer_idle = TIMER_IDLE
        remote.strikes = self.world.strikes
        self.store.on_shared = self._saw_shared
        clock = self.world.clock
        drained = drain_times(workflows)
        outside = {item.agent for item in plan.items if isinstance(item, Outside)}
        self.own = self._own_agents(given, remote, drained) if given else None
        for name in sorted(workflows.agents()):
            if self.own is not None:
                self.agents[name] = self.own.agent(name)
                continue
            self.agents[name] = ModelService(
                clock,
                self.ledger,
                remote,
                self.world.rng,
                drain_times=drained.get(name, {}),
                tell=self.call_back if name in outside else None,
            )
        for name, takes in service_seconds(workflows, seconds).items():
            self.agents[name].seconds = takes
        business = Business(workflows, dict(self.agents))
        self.begin(
            [self._host(number, ClockApart(clock), business) for number in range(plan.instances)]
        )
        for item in plan.items:
            self._prepare(item)
        if any(isinstance(item, Chance) for item in plan.items):
            ends = (item.at_s + item.lasts_s for item in plan.items if isinstance(item, Away))
            until_s = max(ends, default=0.0) + CHANCE_S
            self.world.clock.call_later(until_s, lambda: self._end_chance(remote))

    def _end_chance(self, remote: RemoteFaults) -> None:
        """End the faults that happen by chance: every order must end once faults stop."""
        self.tell("no fault happens by chance any more")
        self.world.calm = True
        remote.transient = remote.lost_answer = remote.hangs = 0.0

    def _own_agents(
        self, given: Given, faults: RemoteFaults, limits: Mapping[str, Mapping[str, timedelta]]
    ) -> OwnAgents:
        """Return the adopter's agents. Their clients reach a model service by the event loop."""
        world, tell = self.world, self.call_back
        own = OwnAgents(
            given, world.clock, self.ledger, faults, world.rng, limits, self.submitted, tell
        )
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)  # noqa: S101  play made it
        loop.follow(world.clock, own.serve)
        return own

    def owes_effect(self, step: str, keys: Iterable[str]) -> bool:
        """See ``System.owes_effect``. An agent of the adopter owes what its service did not do."""
        if self.own is None:
            return True
        return step not in self.own.given.no_effect and not self.ledger.unmet.isdisjoint(keys)

    def _content(self, order_id: str, workflow: str, *, edited: bool = False) -> Any:
        """Return the content of an order: one of the adopter's if its own agents read it."""
        if self.own is None or workflow == NO_WORKFLOW:
            return {"edited": True} if edited else {"id": order_id}
        return self.own.given.order_of(workflow, f"{self.world.seed}/{order_id}/{edited}")

    def _host(self, number: int, clock: ClockApart, business: Business) -> Host:
        ear = Ear(self.world.bus, clock)
        self.ears.append(ear)
        ports = self.world.store, ear
        return Host(self.world, clock, f"instance-{number}", business, ports=ports)

    def at_rest(self) -> bool:
        """Return whether all of the plan has happened and every order is at an end, or in Error."""
        if self._left or self._senders or any(self._redriver.waiting(self.subqueues)):
            return False
        return super().at_rest()

    async def close(self) -> None:
        """See ``System.close``."""
        if self.own is not None:
            with suppress(RuntimeError):  # a client that never closes
                await self.world.clock.run(self.own.close())
        await super().close()
        for task in self._senders:
            task.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    # --- what a plan does ---

    def _prepare(self, item: Item) -> None:
        match item:
            case Apart():
                self.hosts[item.instance % len(self.hosts)].clock.seconds = item.seconds
                self.world.strikes("clocks apart")
            case Submit():
                if item.workflow == NO_WORKFLOW:
                    self.unknown.add(item.order_id)
                else:
                    self.submitted[item.order_id] = item.workflow
                self._later(item.at_s, item, lambda: self._begin(self._send_until_taken(item)))
            case Away():
                self._later(item.at_s, item, lambda: self._turn(item.what, away=True))
                back = f"{item.what}: back"
                self._later(
                    item.at_s + item.lasts_s, back, lambda: self._turn(item.what, away=False)
                )
            case Kill():
                self._later(item.at_s, item, lambda: self._kill(item))
            case Forge():
                self._later(item.at_s, item, lambda: self._forge(item))
            case Press() | Redrive():
                self._left += 1
                self.world.clock.call_later(item.at_s, lambda: self._watch(item, WATCHES_MAX))
            case Unforwarded():
                self._keep_dead_letters(item)
            case Deploy():
                self.workflows = with_newer(self._deployed)
                self._deploy(item)

    def _later(self, at_s: float, what: object, act: Callable[[], None]) -> None:
        self._left += 1

        def happen() -> None:
            self._left -= 1
            self.tell(str(what))
            act()

        self.world.clock.call_later(at_s, happen)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let somebody outside of every instance do something."""
        task = asyncio.ensure_future(work)
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    async def _send_until_taken(self, item: Submit) -> None:
        of_no_host()
        for _ in range(item.times):
            while True:
                try:
                    content = self._content(item.order_id, item.workflow)
                    self.put_order(item.order_id, item.workflow, content, urgent=item.urgent)
                    break
                except BusUnavailableError:
                    await self.world.clock.sleep(SEND_AGAIN_S)

    def _turn(self, what: str, *, away: bool) -> None:
        if away:
            self.world.strikes(away_as(what))
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

    def _saw_shared(self, name: str, value: str) -> None:
        if name.startswith("breaker|") and '"state":"open"' in value:
            self.world.strikes("circuit open")

    def _kill(self, item: Kill) -> None:
        self.world.strikes("instance killed")
        instances = self.world.instances
        chosen = instances if item.instance is None else [instances[item.instance % len(instances)]]
        for instance in chosen:
            self.world.kill(instance, with_host=item.with_host)

    def _forge(self, item: Forge) -> None:
        """Have an unknown queue dead-letter what looks like a reply to a request that is out."""
        stored = self.store.orders.get(item.order_id)
        for step in stored.order.steps if stored else ():
            if step.dispatched:
                doing = step.process_state is StepState.PROCESSING
                direction = (Direction.DO if doing else Direction.UNDO).value
                own_id = reply_id(item.order_id, step.number, direction, step.epoch)
                members = {"id": own_id, "order_id": item.order_id, "step": step.number}
                body = {"kind": Kind.REPLY.value, "format": 1, **members, "direction": direction}
                body |= {"epoch": step.epoch, "outcome": "done"}
                forged = Message(STRANGE_QUEUE, own_id, json.dumps(body).encode())
                with suppress(BusUnavailableError):
                    self.bus._enqueue(forged)  # noqa: SLF001
                    self.bus.give_up_first(STRANGE_QUEUE)
                    self.world.strikes("forged dead letter")

    def _deploy(self, item: Deploy) -> None:
        for number, host in enumerate(self.hosts):
            at_s = item.at_s + 20.0 * number
            self._later(at_s, f"instance {number} is deployed anew", self._deploys(number, host))

    def _deploys(self, number: int, host: Host) -> Callable[[], None]:
        def deploy() -> None:
            self.world.strikes("deploy")
            host.business = replace(host.business, workflows=self.workflows)
            self.world.kill(self.world.instances[number])

        return deploy

    def _watch(self, item: Press | Redrive, left: int) -> None:
        """Let the operator act as soon as there is something to act on, or at last."""
        if left and not self._is_due(item):
            self.world.clock.call_later(WATCH_S, lambda: self._watch(item, left - 1))
            return
        self._left -= 1
        self.tell(str(item))
        if isinstance(item, Press):
            self._press(item)
        else:
            self.world.strikes("redrive")
            self._begin(self._redriver.resend(back=item.back, dies=item.twice))

    def _is_due(self, item: Press | Redrive) -> bool:
        """Return whether an order is in Error for its command, or something was put aside."""
        if isinstance(item, Redrive):
            return bool(self.bus.queues[QUEUES.rejected].waiting)
        stored = self.store.orders.get(item.order_id)
        state = stored.order.process_state if stored else OrderState.PENDING
        return item.verb not in _FOR_ERROR or state in AT_REST

    def _press(self, item: Press) -> None:
        stored = self.store.orders.get(item.order_id)
        if stored is None or stored.order.rejected:
            return
        order = stored.order
        failed = [one.name for one in order.steps if one.process_state is StepState.ERROR]
        members: dict[str, Any] = {}
        if failed and item.verb in {Verb.RESUBMIT, Verb.SKIP}:
            members["step"] = failed[0]
            if item.verb is Verb.SKIP and self.own is not None:
                result = self._result(order.details.workflow, failed[0])
                if result is not None:
                    members["input"] = msgspec.Raw(result.encode())
            elif item.edited:
                content = self._content(order.order_id, order.details.workflow, edited=True)
                members["input"] = msgspec.Raw(msgspec.json.encode(content))
        for _ in range(1 + item.twice):
            try:
                self.world.strikes(item.verb.value)
                self.put_command(order.order_id, item.verb.value, order.seq - item.stale, **members)
            except BusUnavailableError:
                self.tell("the operator sees that the command could not be sent")

    def _result(self, workflow: str, name: str) -> str | None:
        """Return a result that a step had in an order; None if it has had none so far."""
        every = (stored.order for stored in self.store.orders.values())
        results = (
            step.result
            for order in every
            if order.details.workflow == workflow
            for step in order.steps
            if step.name == name and step.process_state is StepState.PROCESSED
        )
        return next((one for one in results if isinstance(one, str)), None)

    def _keep_dead_letters(self, item: Unforwarded) -> None:
        agents = sorted(self.workflows.agents())
        for name in (*QUEUES.on_the_way(agents), QUEUES.dead_letters):
            if item.queue in (None, name, name.removesuffix(URGENT_SUFFIX)):
                queue = self.bus.queues[name]
                most = 1 if item.at_once else queue.rules.deliveries_max
                rules = replace(queue.rules, forwards_dead_letters_to=None, deliveries_max=most)
                queue.rules = rules
                if name != QUEUES.dead_letters:  # a function reads its subqueue
                    self.bus.declare(name + DEAD_LETTERS)
                    self.subqueues.add(name + DEAD_LETTERS)
        self.world.clock.call_later(item.from_s, lambda: self._look(item, item.die))

    def _look(self, item: Unforwarded, die: int) -> None:
        """Let an operator redrive dead letters that lie in subqueues, and look again later."""
        paths = *sorted(self.subqueues), QUEUES.dead_letters + DEAD_LETTERS
        if any(self._redriver.waiting(paths)):
            self.world.strikes("dead letters not forwarded")
            for _ in range(1 + item.twice):
                self._begin(self._redriver.redrive(dies=die > 0))
            die -= 1
        self.world.clock.call_later(AGAIN_S, lambda: self._look(item, die))


def with_newer(workflows: Workflows) -> Workflows:
    """Return the workflows with one more version of each, as a deploy in the middle brings them.

    Its steps are allowed more time. Orders under way keep their version, and its times.
    """
    names = dict.fromkeys(one.name for one in workflows)
    newer = [_newer(workflows.find(name)) for name in names]
    return Workflows([*workflows, *newer])


def _newer(workflow: Workflow) -> Workflow:
    steps = tuple(
        replace(step, time_allowed=min(step.time_allowed * MORE_TIME, TIME_ALLOWED_MAX))
        for step in workflow.steps
    )
    return replace(workflow, version=workflow.version + 1, steps=steps)


def seeded(plan: Plan) -> None:
    """Seed what is left to chance outside the world: the jitter of retries."""
    random.seed(plan.seed)
