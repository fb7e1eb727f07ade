"""The cost of many idle connections, and of closed ones."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from devstack.servicebus import Broker, Limits, QueueProperties
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.wire.connection import AmqpConnection
from devstack.servicebus.wire.session import AmqpSession, Link
from devstack.tests.wire_kit import BODY, Peer, peer_of, put, request, settled, works

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


async def test_unfinished_messages_of_all_connections_share_one_bound() -> None:
    """The oldest are given up. An honest peer finishes its own within moments, so it is served."""
    limits = Limits(held_bytes=1_000_000)
    async with Broker(["q"], limits=limits) as broker, AsyncExitStack() as stack:
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(60):
                peer = await stack.enter_async_context(peer_of(broker))
                await peer.open()
                for handle in range(3):
                    await peer.attach("q", receives=False, handle=handle)
                    peer.transfer(handle, b"x" * 60_000, more=True, handle=handle)
                    if number < 3:  # pieces of one byte cost more than they carry
                        for _ in range(2_000):
                            peer.transfer(handle, b"y", more=True, handle=handle)
                await peer.writer.drain()
            await works(broker)
            await asyncio.sleep(0.1)
            memory = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert len(broker.links()) < 20  # of 180
        assert memory < 15_000_000
        last = peer
        last.transfer(2, b"", handle=2)
        await last.expect(frames.DISPOSITION)
    await settled(broker)


async def test_the_sender_of_a_message_that_is_given_up_hears_why() -> None:
    async with (
        Broker(["q"], limits=Limits(held_bytes=100_000)) as broker,
        peer_of(broker) as first,
        peer_of(broker) as second,
    ):
        for peer in (first, second):
            await peer.open()
            await peer.attach("q", receives=False)
            peer.transfer(0, b"x" * 60_000, more=True)
            await peer.writer.drain()
        fields = await first.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:resource-limit-exceeded"
        await works(broker)


async def test_answers_without_credit_are_given_up_too() -> None:
    async with Broker(["q"], limits=Limits(held_bytes=300_000)) as broker, peer_of(broker) as peer:
        put(broker, 1, b"x" * 60_000)
        await peer.open()
        await peer.attach("q/$management", receives=True, handle=0)  # and no credit
        await peer.attach("q/$management", receives=False, handle=1)
        peek = {"from-sequence-number": encode.int64(0), "message-count": encode.int32(1)}
        body = encode.map_((encode.string(name), value) for name, value in peek.items())
        for number in range(6):
            peer.transfer(number, request(body, operation="com.microsoft:peek-message"), handle=1)
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:resource-limit-exceeded"
        await works(broker)
