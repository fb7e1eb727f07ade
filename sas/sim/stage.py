"""Play a plan on a simulated system: orders, outages, kills, commands and deploys in their time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from sas.domain.ids import idempotency_key, shard_of
from sas.domain.order import Order, OrderState, StepState
from sas.domain.workflow import Workflows
from sas.ports import Business, BusUnavailableError
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
from sas.sim.services import ModelService, call_limits
from sas.sim.system import AT_REST, ClockApart, Host, System, world_of
from sas.simulation.bus import QueueRules
from sas.simulation.world import HostRules, of_no_host

SEND_AGAIN_S = 30.0
"""How long an application waits before it sends again to a queue that takes nothing."""
TIMER_IDLE = timedelta(minutes=2)
WATCH_S = 10.0
WATCHES_MAX = 60
"""How often, and how long, an operator looks whether an order is in Error."""
_FOR_ERROR = frozenset({"resubmit", "skip", "acknowledge"})


class Stage(System):
    """A system that a plan happens to. ``tell`` hears of each item in a sentence."""

    def __init__(
        self,
        plan: Plan,
        workflows: Workflows,
        queues: Mapping[str, QueueRules],
        rules: HostRules,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        faults, remote = faults_of(plan)
        super().__init__(world_of(plan.seed, queues, rules, faults), workflows)
        self.tell = tell
        self._left = 0
        self._senders: set[asyncio.Task[None]] = set()
        self.world.timer_idle = TIMER_IDLE
        clock = self.world.clock
        limits = call_limits(workflows)
        outside = {item.agent for item in plan.items if isinstance(item, Outside)}
        for name in sorted(workflows.agents()):
            self.agents[name] = ModelService(
                clock,
                self.ledger,
                remote,
                self.world.rng,
                limits=limits.get(name, {}),
                tell=self.call_back if name in outside else None,
            )
        business = Business(workflows, dict(self.agents))
        self.begin(
            [
                Host(self.world, ClockApart(clock), f"instance-{number}", business)
                for number in range(plan.instances)
            ]
        )
        for item in plan.items:
            self._prepare(item)

    def at_rest(self) -> bool:
        """Return whether all of the plan has happened and every order is at an end, or in Error."""
        return not self._left and super().at_rest()

    async def close(self) -> None:
        """See ``System.close``."""
        await super().close()
        for task in self._senders:
            task.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

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
        for _ in range(item.times):
            while True:
                try:
                    content = {"id": item.order_id}
                    self.put_order(item.order_id, item.workflow, content, urgent=item.urgent)
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
            try:
                self.put_command(order.order_id, item.verb, order.seq - item.stale, **members)
            except BusUnavailableError:
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


def seeded(plan: Plan) -> None:
    """Seed what is left to chance outside the world: the jitter of retries."""
    random.seed(plan.seed)
