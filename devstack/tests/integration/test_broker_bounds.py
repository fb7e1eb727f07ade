"""The cost of many idle connections, and of closed ones."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.wire.connection import AmqpConnection
from devstack.servicebus.wire.session import AmqpSession, Link
from devstack.tests.integration.test_broker_wire import BODY, Peer, peer_of, put, settled, works

IDLE = 200


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker({"q": QueueProperties(max_delivery_count=2000)}) as broker:
        yield broker


async def test_200_idle_connections_cost_little_and_the_next_is_served(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer_of(broker)) for _ in range(IDLE)]
        gc.collect()
        tracemalloc.start()
        try:
            start_bytes = tracemalloc.get_traced_memory()[0]
            for peer in peers:
                await open_links(peer)
            gc.collect()
            growth = tracemalloc.get_traced_memory()[0] - start_bytes
        finally:
            tracemalloc.stop()
        assert len(broker.links()) == 2 * IDLE
        assert growth / IDLE < 40_000  # this includes the peer's side
        await works(broker)
    await settled(broker)


async def open_links(peer: Peer) -> None:
    await peer.open()
    await peer.attach("q", receives=False, handle=0)
    await peer.attach("q", receives=True, handle=1)


async def test_a_connection_that_is_gone_leaves_nothing_in_memory(broker: Broker) -> None:
    put(broker, 3)
    for number in range(60):
        async with peer_of(broker) as peer:
            await open_links(peer)
            peer.send(frames.FLOW, *[encode.uint(n) for n in (1, 9, 0, 9, 1, 0, 2)])
            await peer.expect(frames.TRANSFER)
            peer.transfer(0, BODY[: len(BODY) // 2], more=True)
            if number % 3 == 0:
                peer.send(frames.END)
                await peer.expect(frames.END)
            elif number % 3 == 1:
                peer.send(frames.CLOSE)
                await peer.closed()
        broker.expire_locks()
    await settled(broker)
    await asyncio.sleep(0)
    gc.collect()
    kinds = AmqpConnection | AmqpSession | Link
    leftovers = [thing for thing in gc.get_objects() if isinstance(thing, kinds)]
    assert leftovers == []
    assert broker.counts("q").active == 3
