"""A simulated system over the workflows of ``tests.business``, and what must hold at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sas.codec import external
from sas.codec.external import AlertMessage, Notification
from sas.codec.strict import convert
from sas.domain.messages import JournalWord
from sas.domain.order import OrderState
from sas.domain.workflow import Workflows
from sas.engine.context import Context
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import PayloadCodec
from sas.testing import system as simulated
from sas.testing.bus import QueueRules
from sas.testing.hosts import BREAKER
from sas.testing.invariants import of_commands, of_orders, recorded
from sas.testing.plan import Apart, Faults, Outside, Plan
from sas.testing.platform import QUEUES, REPLIES_TO, HostRules, host_rules, queue_rules
from sas.testing.remote import ModelService
from sas.testing.system import Project
from sas.testing.world import TIMER_EVERY
from tests.business import workflows

PROJECT = Path(__file__).parents[2]
COURIER = "courier"
COURIED = "hand-over"
AGENTS = ("inventory", "payment", "shipping", "invoice", "delivery", COURIER)
DRAIN_TIME = timedelta(seconds=20)
"""How long after CompleteBy a call to the courier may still land."""


class System(simulated.System):
    """A system with the words that tests use."""

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
        self.submitted[order_id] = workflow
        for _ in range(times):
            self.put_order(order_id, workflow, content, urgent=urgent)

    def states(self) -> dict[str, OrderState]:
        """Return each stored order's state."""
        return {key: stored.order.process_state for key, stored in self.store.orders.items()}

    def notices(self, order_id: str) -> Counter[str]:
        """Return how many different notifications of each kind an order's application was sent."""
        kinds: dict[str, str] = {}
        for event in self.events():
            if event.data.order_id == order_id:
                kinds[event.id] = external.notice_of(event.type)
        return Counter(kinds.values())

    def alerts(self) -> Counter[str]:
        """Return how many different alerts of each kind the operator was sent."""
        ids = {m.message_id: m.body for m in self.bus.messages(QUEUES.alerts)}
        return Counter(convert(body, AlertMessage).kind for body in ids.values())

    def events(self) -> list[Notification]:
        """Return everything on the response queue."""
        messages = self.bus.messages(REPLIES_TO)
        return [external.decode_notification(message.body) for message in messages]


def build(
    seed: int,
    faults: Faults,
    *,
    failures_max_seconds: float = 10.0,
    duplicate_detection: bool = True,
    clocks_apart: Sequence[float] = (0.0,),
    definitions: Workflows | None = None,
    breaker: BreakerPolicy = BREAKER,
    outside: Sequence[str] = (),
    limits: Mapping[str, int] = MappingProxyType({}),
    agent: type[ModelService] = ModelService,
    codec: PayloadCodec | None = None,
) -> System:
    """Return a system over the ports in memory, of the business's workflows unless others are
    given, with one instance of every actor for each clock. Clocks are apart by these seconds.
    What the agents ``outside`` are asked for happens outside, and ends by callback.
    """
    queues = deployed_queues(duplicate_detection=duplicate_detection)
    definitions = definitions or workflows(timedelta(seconds=failures_max_seconds))
    apart = [Apart(number, seconds) for number, seconds in enumerate(clocks_apart)]
    plan = Plan(seed, len(apart), (*apart, *map(Outside, outside)))
    system = System(
        Project(
            workflows=definitions, queues=queues, host=deployed_host(), limits=limits, codec=codec
        ),
        plan,
        faults=faults,
        breaker=breaker,
        service=agent,
    )
    system.world.timer_idle = TIMER_EVERY
    return system


def deployed_queues(*, duplicate_detection: bool = True) -> dict[str, QueueRules]:
    """Return the rules of every queue as ``infra/queues.json`` has them."""
    rules = queue_rules(PROJECT, AGENTS)
    if duplicate_detection:
        return rules
    return {name: replace(queue, duplicate_window=None) for name, queue in rules.items()}


def deployed_host() -> HostRules:
    """Return the settings of ``host.json``."""
    return host_rules(PROJECT)


def check_end(system: System) -> None:
    """Assert what must hold of every order once nothing is under way any more."""
    assert list(map(str, of_orders(system))) == [], f"seed {system.world.seed}"


def check_commands(system: System) -> Counter[str]:
    """Assert that every command was carried out once, refused or put aside; count what it was."""
    assert list(map(str, of_commands(system))) == [], f"seed {system.world.seed}"
    alerts = {message.message_id for message in system.bus.messages(QUEUES.alerts)}
    ends: Counter[str] = Counter()
    for command_id in system.commands:
        carried = [
            entry.what.value
            for entry in recorded(system, command_id)
            if entry.what is not JournalWord.FENCED
        ]
        refused = "refused" if f"refused/{command_id}" in alerts else "put aside"
        ends[carried[0] if carried else refused] += 1
    return ends
