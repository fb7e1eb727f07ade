"""Follows that end early, side by side or in several processes: nothing is lost, nothing is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from devstack.servicebus.core.properties import QueueProperties
from sas.client import OrdersClient
from tests.integration.client_cases import REPLIES, put, told

FIVE = {REPLIES: QueueProperties(max_delivery_count=5)}


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Broker, OrdersClient]]:
    async with (
        Broker(FIVE) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as client,
    ):
        yield broker, client


async def delivery_counts(broker: Broker) -> dict[str, int | None]:
    """Receive and complete everything; return how often each message was delivered before."""
    found: dict[str, int | None] = {}
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_receiver(REPLIES) as receiver,
    ):
        while broker.counts(REPLIES).active:
            for message in await receiver.receive_messages(50, max_wait_time=1):
                found[str(message.message_id)] = message.delivery_count
                await receiver.complete_message(message)
    return found


async def test_twenty_follows_with_a_break_lose_no_notification_and_use_up_no_delivery() -> None:
    async with shop() as (broker, client):
        await put(broker, *(told(f"A-{n}", "completed") for n in range(5)))
        for _ in range(20):
            async for event in client.follow(["A-4"]):
                assert event.data.order_id == "A-4"
                break
        await client.close()
        counts = broker.counts(REPLIES)
        assert (counts.active, counts.locked, counts.dead_letter) == (5, 0, 0)
        assert set((await delivery_counts(broker)).values()) == {0}


async def test_a_follow_leaves_the_ends_of_other_orders_to_the_next_follow() -> None:
    async with shop() as (broker, client), asyncio.timeout(60):
        await put(broker, *(told(f"A-{n}", "completed") for n in range(3)))
        for order_id in ("A-2", "A-0", "A-1"):
            seen = [event.data.order_id async for event in client.follow([order_id])]
            assert seen == [order_id]
        await client.close()
        assert broker.counts(REPLIES).total == 0
