"""The meters of the twins in memory count what the adapters count over Azurite and the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from devstack.azurite import Azurite
from devstack.servicebus import Broker
from sas.adapters.servicebus import ServiceBus
from sas.adapters.tables.store import TableStore
from sas.domain.change import OutDue
from sas.domain.claim import claim
from sas.domain.content import ref_of
from sas.domain.ids import shard_of
from sas.ports import ConflictError, HeldMessage, Message, StateStore
from sas.telemetry.usage import Usage
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.contract.bus_rigs import QUEUES
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import new_table
from tests.contract.store_kit import finished, neighbours

ONE = cases.rules_of(1)
LARGE = '"' + "x" * 20_000 + '"'
Scene = Callable[[StateStore], Awaitable[None]]


async def an_order(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    order = await store.commit(cases.claimed(order))
    order = await store.commit(cases.answered(order, 0, result=LARGE))
    await store.commit(cases.answered(order, 1))
    await store.load("order-1")
    await store.load("nobody")


async def an_end_and_a_purge(store: StateStore) -> None:
    order = await finished(store)
    await store.finished(10)
    await store.attention(10)
    assert await store.purge(order)
    assert not await store.purge(order)


async def a_purge_of_many_rows(store: StateStore) -> None:
    order = await finished(store, extra=60)
    assert await store.purge(order)


async def a_purge_of_several_orders(store: StateStore) -> None:
    names = neighbours(16)
    orders = [await finished(store, name, extra=90 * (name == names[3])) for name in names]
    assert await store.purge(*orders) == set(names)
    assert await store.purge(*orders[:2]) == set()
    assert await store.finished(10, shard=shard_of(names[0], 16)) == []


async def a_conflict(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    await store.commit(cases.claimed(order, cause="scheduler:1"))
    for change in (cases.submitted("order-1"), cases.claimed(order, cause="scheduler:2")):
        with pytest.raises(ConflictError):
            await store.commit(change)


async def our_own_write_again(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    change = cases.claimed(order)
    await store.commit(change)
    await store.commit(change)


async def a_journal(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1", cause="orders:1"))
    await store.recorded(order.order_id, "orders:1")
    await store.recorded(order.order_id, "orders:2")
    await store.entry(order.order_id, 1)
    await store.entry(order.order_id, 2)
    await store.journal(order.order_id)


async def due_rows(store: StateStore) -> None:
    await store.commit(cases.submitted("order-1"))
    for shard in store.shards:
        await store.due(shard, NOW + timedelta(days=1), 100)
        await store.oldest_due(shard)
    order = await store.load("order-1")
    assert order is not None
    out = OutDue(NOW + 30 * SECOND, "order-1", 2)
    await store.commit(cases.upon(order, claim(order, cases.ROW, now=NOW, instance="i"),
                                  out_at=out.at))  # fmt: skip
    await store.remove_due(out)


async def held_messages(store: StateStore) -> None:
    message = Message("responses-shop", "m-1", b"{}")
    item = HeldMessage(message=message, since=NOW, order_id="order-1")
    await store.hold(item)
    await store.held_queue("")
    await store.held_queue(message.queue)
    await store.held(message.queue, 20)
    await store.held_count(message.queue, 20)
    await store.release(item)


async def an_error_and_a_payload(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    await store.keep_error(order.order_id, 0, cases.attempt_error())
    await store.load(order.order_id)
    data = b"x" * 1_500_000
    await store.put_payload(order.order_id, data)
    await store.get_payload(order.order_id, ref_of(data))


async def shared_values_and_leases(store: StateStore) -> None:
    await store.read_shared("breaker|a")
    value = await store.write_shared("breaker|a", "1", None)
    await store.write_shared("breaker|a", "2", value.token)
    with pytest.raises(ConflictError):
        await store.write_shared("breaker|a", "3", value.token)
    await store.read_shared("breaker|a")
    await store.shared_values("breaker|")
    assert await store.acquire_lease("supervisor", "a", NOW + SECOND, NOW)
    assert await store.acquire_lease("supervisor", "a", NOW + SECOND, NOW)
    assert not await store.acquire_lease("supervisor", "b", NOW + SECOND, NOW)


SCENES: list[Scene] = [
    an_order, an_end_and_a_purge, a_purge_of_many_rows,
    a_purge_of_several_orders, a_conflict, our_own_write_again, a_journal,
    due_rows, held_messages, an_error_and_a_payload, shared_values_and_leases,
]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_the_store_in_memory_counts_what_table_storage_is_asked_for(
    scene: Scene, azurite: Azurite
) -> None:
    memory = MemoryStore()
    await scene(memory)
    table = TableStore.connect(azurite.connection_string, new_table())
    try:
        await table.open()
        before = table.table.meter.now()
        await scene(table)
        assert memory.meter == table.table.meter - before
        assert memory.meter.requests > 0
    finally:
        await table.close()


async def test_the_bus_in_memory_counts_what_service_bus_is_asked_for() -> None:
    def messages(queue: str, count: int, size: int) -> list[Message]:
        return [Message(queue, f"m-{queue}-{n}", b"x" * size) for n in range(count)]

    async def scene(bus: MemoryBus | ServiceBus) -> Usage:
        first, second = QUEUES[0], QUEUES[1]
        await bus.send(messages(first, 4, 10) + messages(second, 1, 10))
        await bus.send(messages(second, 4, 100_000))  # two of them fit into a batch
        for limit in (2, 4, 10):
            await bus.peek(first, limit)
        return bus.meter

    memory = MemoryBus(VirtualClock())
    memory.declare(*QUEUES)
    async with Broker(list(QUEUES)) as broker:
        bus = ServiceBus.connect(broker.connection_string)
        try:
            there = await scene(bus)
        finally:
            await bus.close()
    here = await scene(memory)
    assert here == there == Usage(sends=4, messages=9, peeks=4)
    assert here.message_bytes == there.message_bytes == 400_050


def test_usages_are_added_and_subtracted_count_by_count() -> None:
    usage = Usage(transactions=2, sends=1, message_bytes=7)
    assert usage + usage == Usage(transactions=4, sends=2)
    assert (usage + usage + usage - usage).message_bytes == 14
    assert Usage(reads=1, queries=2, writes=3, deletes=4, transactions=5, peeks=9).requests == 15
