"""An instance of this version beside one of the next, over one store and one bus.

The newer one writes every order, every shared value and some of its messages in the next format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.change import Change
from sas.domain.expire import DEPLOY_TIME
from sas.domain.order import Order
from sas.engine.run_on import CHAIN_TIME
from sas.ports import FORMAT, Message, MessageBus, Peeked
from sas.testing.bus import Queued
from sas.testing.hosts import Host
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from sas.testing.store import MemoryStore
from sas.testing.world import Handler, Instance
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

ORDERS = 12
FAULTS = Faults(lock_lost=0.02, duplicate=0.02, bus_down=0.01)


class NewerStore(MemoryStore):
    """The store as the newer version uses it. It shares all content with the older one's."""

    format = FORMAT + 1

    def __init__(self, shared: MemoryStore) -> None:
        self.__dict__ = shared.__dict__
        self.wrote: set[str] = set()

    async def commit(self, change: Change) -> Order:
        written = await super().commit(change)
        self.wrote.add(change.after.order_id)
        return written


class NewerBus:
    """The bus as the newer version uses it: some of its messages have the next format."""

    def __init__(self, bus: MessageBus, rng: random.Random) -> None:
        self._bus, self._rng = bus, rng

    async def send(self, messages: Sequence[Message]) -> None:
        await self._bus.send([self._newer(message) for message in messages])

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        return await self._bus.peek(queue, limit, after)

    async def close(self) -> None:
        pass

    def _newer(self, message: Message) -> Message:
        body = json.loads(message.body)
        if body.get("format") != FORMAT or self._rng.random() < 0.5:
            return message
        newer = {**body, "format": FORMAT + 1, "newly": [1]}
        return replace(message, body=json.dumps(newer).encode())


class NewerHost(Host):
    """The functions of the newer version: they read both formats."""

    def start(self) -> None:
        super().start()
        self.handlers = {queue: _reads_both(handle) for queue, handle in self.handlers.items()}


def _reads_both(handle: Handler) -> Handler:
    async def newer(queued: Queued) -> object:
        body: Any = None
        with suppress(ValueError):
            body = json.loads(queued.message.body)
        if isinstance(body, dict) and body.pop("newly", None):
            text = json.dumps(body | {"format": FORMAT}).encode()
            queued = replace(queued, message=replace(queued.message, body=text))
        return await handle(queued)

    return newer


def side_by_side(seed: int, faults: Faults) -> tuple[System, NewerStore]:
    """Return a system with an older and a newer instance, and the store of the newer one."""
    system = build(seed, faults)
    world, older = system.world, system.hosts[0]
    store = NewerStore(world.store)
    bus = NewerBus(world.bus, world.rng)
    newer = NewerHost(world, "newer", older.business, store=store, bus=bus)
    system.hosts.append(newer)
    world.instances.append(Instance(functions=newer))
    for number in range(ORDERS):
        system.submit(f"O-{number}")
    return system, store


async def run_for(system: System, time: timedelta) -> None:
    """Run for some virtual time, whether all is done or not."""
    with suppress(TimeoutError):
        await system.world.run(lambda: False, hours_max=time / timedelta(hours=1))


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("seeds", ranges(3, 50))
async def test_orders_run_to_their_end_on_two_versions_at_once(
    seeds: Seeds, faults: Faults
) -> None:
    for seed in seeds:
        system, newer = side_by_side(seed, faults)
        await system.world.run(system.at_rest)
        check_end(system)
        assert newer.wrote
        assert {newer.formats[order_id] for order_id in newer.wrote} == {FORMAT + 1}
        assert system.alerts() == {}
        await system.close()


@pytest.mark.parametrize("seeds", ranges(3, 30))
async def test_orders_of_a_newer_format_are_left_alone_and_reported_while_it_is_away(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        system, newer = side_by_side(seed, Faults())
        await run_for(system, timedelta(seconds=0.5 + seed % 3))
        system.world.instances[1].up = False
        await run_for(system, CHAIN_TIME)  # its functions run on to their end
        orders_before = {order_id: system.store.orders[order_id].order for order_id in newer.wrote}
        await run_for(system, 2 * DEPLOY_TIME)
        orders_after = {order_id: system.store.orders[order_id].order for order_id in orders_before}
        assert orders_after == orders_before
        unfinished = [order for order in orders_before.values() if order.stopped_at is None]
        assert set(system.alerts()) == ({"not-runnable"} if unfinished else set())
        assert system.bus.messages(QUEUES.rejected) == []
        system.world.instances[1].up = True
        await system.world.run(system.at_rest)
        check_end(system)
        await system.close()
