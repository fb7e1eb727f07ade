"""The real azure-servicebus, asynchronous, against the broker in the test's own loop."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.children import free_port
from devstack.servicebus import Broker
from devstack.tests.sdk_kit import SDK

pytestmark = SDK


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["a", "b"]) as broker:
        yield broker


async def test_many_senders_and_receivers_share_one_loop_with_the_broker(broker: Broker) -> None:
    async with ServiceBusClient.from_connection_string(broker.connection_string) as client:

        async def produce(queue: str) -> None:
            async with client.get_queue_sender(queue) as sender:
                for number in range(20):
                    await sender.send_messages(ServiceBusMessage(f"{queue}{number}"))

        async def consume(queue: str) -> list[str]:
            bodies: list[str] = []
            async with client.get_queue_receiver(queue, max_wait_time=60) as receiver:
                async for message in receiver:
                    bodies.append(str(message))
                    await receiver.complete_message(message)
                    if len(bodies) == 20:
                        return bodies
            return bodies

        results = await asyncio.gather(produce("a"), produce("b"), consume("a"), consume("b"))
    assert results[2] == [f"a{number}" for number in range(20)]
    assert results[3] == [f"b{number}" for number in range(20)]
    assert broker.counts("a").total == broker.counts("b").total == 0


async def test_a_stopped_broker_leaves_its_port_and_no_connection() -> None:
    port = free_port()
    async with Broker(["a"], port=port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    async with Broker(["a"], port=port) as again:
        assert again.port == port
    writer.close()
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection("127.0.0.1", port)
