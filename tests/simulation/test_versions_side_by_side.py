"""An instance of this version (the older one) beside one of the next, over one table and one bus.

Some messages of the newer one have a format that only it understands, and it has a version of a
workflow that the older one does not know. The older one leaves both to the newer one.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.order import OrderState
from sas.domain.workflow import Workflows
from sas.ports import Business, Message, MessageBus, Peeked
from sas.testing.bus import Queued
from sas.testing.hosts import Host
from sas.testing.plan import Faults, Plan
from sas.testing.platform import QUEUES
from sas.testing.system import Project
from sas.testing.world import Handler, Instance
from tests.business import workflows
from tests.long import seeds
from tests.simulation.system import System, deployed_host, deployed_queues

ORDERS = 12
FAULTS = Faults(lock_lost=0.02, duplicate=0.02, bus_down=0.01)


class NewerBus:
    """The bus as the newer version uses it: some messages only it understands."""

    def __init__(self, bus: MessageBus, rng: random.Random) -> None:
        self._bus, self._rng = bus, rng

    async def send(self, messages: Sequence[Message]) -> None:
        await self._bus.send([self._newer(one) for one in messages])

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        return await self._bus.peek(queue, limit)

    async def close(self) -> None:
        pass

    def _newer(self, message: Message) -> Message:
        body = json.loads(message.body)
        if "kind" not in body or "v" not in body or self._rng.random() > 0.3:
            return message
        return replace(message, body=json.dumps(body | {"v": 2, "newer": [1]}).encode())


def understands(handle: Handler) -> Handler:
    """Return a handler of the newer version, given one that knows version 1 only."""

    async def newer(queued: Queued) -> object:
        body = queued.message.body
        with suppress(ValueError):
            parsed = json.loads(body)
            if isinstance(parsed, dict) and parsed.get("v") == 2:
                del parsed["newer"]
                body = json.dumps(parsed | {"v": 1}).encode()
        return await handle(replace(queued, message=replace(queued.message, body=body)))

    return newer


class SideBySide(System):
    """Two instances, the older one first."""

    def __init__(self, seed: int, faults: Faults) -> None:
        old = Workflows(
            [replace(one, notify_steps=True) for one in workflows(timedelta(minutes=3))]
        )
        first = old.find("order")
        new = Workflows([*old, replace(first, version=2, steps=first.steps[1:])])
        project = Project(new, deployed_queues(), deployed_host())
        super().__init__(project, Plan(seed, 1, ()), faults=faults)
        world = self.world
        self.hosts = [
            Host(world, name, Business(known, self.agents), bus=bus)
            for name, known, bus in (
                ("older", old, world.bus),
                ("newer", new, NewerBus(world.bus, world.rng)),
            )
        ]
        newer = self.hosts[1]
        newer.handlers = {name: understands(handle) for name, handle in newer.handlers.items()}
        self._both = [Instance(host) for host in self.hosts]
        self.run_only(0, 1)

    def run_only(self, *running: int) -> None:
        """Let these instances run: messages go to whichever, and all of them sweep."""
        self.world.instances = [self._both[number] for number in running]

    def send(self, order_id: str, version: int | None) -> None:
        self.submitted[order_id] = "order"
        self.put_order(order_id, "order", {}, version=version)

    def check(self) -> None:
        """Every order is Processed, its application notified, and nothing needed an operator."""
        assert self.alerts() == Counter()
        assert self.bus.messages(QUEUES.rejected) == []
        assert set(self.states().values()) == {OrderState.PROCESSED}
        for order_id in self.submitted:
            steps = len(self.store.orders[order_id].order.steps)
            told = {"received": 1, "step-completed": steps, "completed": 1}
            assert self.notices(order_id) == Counter(told)

    def failures(self) -> int:
        return sum(stored.order.failure_count for stored in self.store.orders.values())


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("seed", seeds(2, 50))
async def test_orders_run_to_their_end_on_two_versions_at_once(seed: int, faults: Faults) -> None:
    both = SideBySide(seed, faults)
    for number in range(ORDERS):
        both.send(f"O-{number}", (None, 1, 2)[number % 3])
    await both.world.run(both.at_rest)
    both.check()
    if faults == Faults():
        assert both.failures() == 0
    await both.close()


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_what_a_newer_version_began_an_older_one_ends_or_leaves_alone(seed: int) -> None:
    """The newer one is taken back for some minutes, in the middle of its orders."""
    both = SideBySide(seed, Faults())
    both.run_only(1)
    for number in range(ORDERS):
        both.send(f"O-{number}", 1 + number % 2)
    while len(both.store.orders) < ORDERS:
        await both.world.run_for(0.5)
    both.run_only(0)
    await both.world.run_for(200)
    assert both.alerts() == Counter()
    assert len(set(both.states().values())) == 2, "some waited for the newer one"
    both.run_only(0, 1)
    await both.world.run(both.at_rest)
    both.check()
    await both.close()


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_what_an_older_version_began_a_newer_one_ends(seed: int) -> None:
    both = SideBySide(seed, Faults())
    both.run_only(0)
    for number in range(ORDERS):
        both.send(f"O-{number}", 1)
    await both.world.run_for(0.5 + seed % 3)
    both.run_only(1)
    await both.world.run(both.at_rest)
    both.check()
    assert both.failures() == 0
    await both.close()
