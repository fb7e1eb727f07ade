"""Follows that end early, run side by side or in several processes: nothing is lost or stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from devstack.servicebus.core.properties import QueueProperties
from sas.client import FollowError, OrdersClient, is_end
from tests.integration.client_cases import REPLIES, empty, put, told

FIVE = {REPLIES: QueueProperties(max_delivery_count=5)}


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Broker, OrdersClient]]:
    async with (
        Broker(FIVE) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as client,
    ):
        yield broker, client


async def delivery_counts(broker: Broker) -> dict[int | None, int | None]:
    """Receive and complete everything; return how often each message was delivered before."""
    found: dict[int | None, int | None] = {}
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_receiver(REPLIES) as receiver,
    ):
        while broker.counts(REPLIES).active:
            for message in await receiver.receive_messages(50, max_wait_time=1):
                found[message.sequence_number] = message.delivery_count
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
        assert await delivery_counts(broker) == dict.fromkeys(range(1, 6), 0)


async def test_a_follow_leaves_the_ends_of_other_orders_to_the_next_follow() -> None:
    async with shop() as (broker, client), asyncio.timeout(60):
        await put(broker, *(told(f"A-{n}", "completed") for n in range(3)))
        for order_id in ("A-2", "A-0", "A-1"):
            seen = [event.data.order_id async for event in client.follow([order_id])]
            assert seen == [order_id]
        await client.close()
        assert broker.counts(REPLIES).total == 0


async def test_seven_clients_that_follow_and_break_use_up_no_delivery() -> None:
    async with Broker(FIVE) as broker:
        await put(broker, *(told(f"A-{n}", "completed") for n in range(5)))
        for _ in range(7):
            async with OrdersClient(broker.connection_string, reply_queue=REPLIES) as client:
                async for _event in client.follow(["A-4"]):
                    break
        assert broker.counts(REPLIES).dead_letter == 0
        assert await delivery_counts(broker) == dict.fromkeys(range(1, 6), 0)


async def test_follows_side_by_side_each_get_their_own_orders_and_share_a_common_one() -> None:
    async with shop() as (broker, client), asyncio.timeout(60):

        async def seen(*order_ids: str) -> list[str]:
            return [event.id async for event in client.follow(order_ids)]

        follows = asyncio.gather(seen("A-1", "B-1"), seen("A-2", "B-1"), client.wait("A-3"))
        await put(
            broker,
            told("A-3", "received"),
            *(told(order_id, "completed") for order_id in ("A-2", "A-1", "B-1", "A-3")),
        )
        first, second, third = await follows
        assert (set(first), set(second)) == (
            {"A-1/completed", "B-1/completed"},
            {"A-2/completed", "B-1/completed"},
        )
        assert third.id == "A-3/completed"
        await empty(broker)


async def test_a_follow_that_is_cancelled_leaves_its_notifications_to_the_next() -> None:
    async with shop() as (broker, client), asyncio.timeout(60):
        got = asyncio.Event()

        async def follow() -> None:
            async with aclosing(client.follow(["A-1"])) as events:
                async for _ in events:
                    got.set()
                    await asyncio.sleep(3600)

        following = asyncio.create_task(follow())
        waiting = asyncio.create_task(client.wait("A-2"))
        await put(broker, told("A-1", "received"), told("A-1", "completed"))
        await got.wait()
        following.cancel()
        seen = [event.type.split(".")[2] async for event in client.follow(["A-1"])]
        assert seen == ["received", "completed"]
        waiting.cancel()
        await asyncio.gather(following, waiting, return_exceptions=True)
        await empty(broker)


async def test_closing_the_client_ends_every_follow_with_a_sentence_and_gives_all_back() -> None:
    async with shop() as (broker, client):
        await put(broker, told("A-1", "received"), told("B-1", "completed"))
        events = client.follow(["A-1"])
        await anext(events)
        waiting = asyncio.create_task(client.wait("A-2"))
        await asyncio.sleep(0)
        await client.close()
        for ended in (anext(events), waiting, client.wait("A-3")):
            with pytest.raises(FollowError, match="closed: make a new one"):
                await ended
        assert broker.counts(REPLIES).locked == 0
        assert set((await delivery_counts(broker)).values()) == {0}


async def test_two_processes_on_one_queue_each_get_the_ends_of_their_own_orders() -> None:
    count = 40
    async with (
        Broker(FIVE) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as one,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as two,
        asyncio.timeout(120),
    ):

        async def ends(client: OrdersClient, prefix: str) -> set[str]:
            ids = [f"{prefix}-{n}" for n in range(count)]
            return {event.data.order_id async for event in client.follow(ids)}

        both = asyncio.gather(ends(one, "A"), ends(two, "B"))
        ids = [f"{prefix}-{n}" for n in range(count) for prefix in "BA"]
        await put(broker, *(told(order_id, "completed") for order_id in ids))
        assert [len(found) for found in await both] == [count, count]
        await empty(broker)
        assert broker.counts(REPLIES).dead_letter == 0


async def test_a_slow_reader_keeps_its_locks_however_long_it_takes() -> None:
    short = {REPLIES: QueueProperties(max_delivery_count=5, lock_duration_s=4)}
    async with (
        Broker(short) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as client,
    ):
        await put(broker, told("A-1", "received"), told("A-1", "completed"))
        seen: list[str] = []
        async for event in client.follow(["A-1"]):
            seen.append(event.type.split(".")[2])
            await asyncio.sleep(9)
        assert seen == ["received", "completed"]
        await empty(broker)


async def test_a_follow_survives_a_broker_that_is_stopped_and_restarted(tmp_path: Path) -> None:
    first = await Broker(FIVE, data=tmp_path).start()
    try:
        async with (
            OrdersClient(first.connection_string, reply_queue=REPLIES) as client,
            asyncio.timeout(100),
        ):
            await put(first, told("B-1", "completed"), told("A-1", "received"))
            events = client.follow(["A-1"])
            assert (await anext(events)).type.endswith("received.v1")
            await first.stop()
            ended = asyncio.ensure_future(anext(events))
            await asyncio.sleep(2)
            async with Broker(FIVE, data=tmp_path, port=first.port) as again:
                await put(again, told("A-1", "completed"))
                seen = await ended
                while not is_end(seen):
                    seen = await anext(events)
                assert (await client.wait("B-1")).data.order_id == "B-1"
                await events.aclose()
                await client.close()
                assert again.counts(REPLIES).dead_letter == 0
    finally:
        await first.stop()


async def test_a_follow_survives_a_link_that_the_service_detaches() -> None:
    async with shop() as (broker, client), asyncio.timeout(60):
        await put(broker, told("B-1", "completed"), told("A-1", "received"))
        async with aclosing(client.follow(["A-1"])) as events:
            assert (await anext(events)).type.endswith("received.v1")
            for link in [link for link in broker.links() if link.queue is not None]:
                link.detach("amqp:link:detach-forced", "The link is idle for 10 minutes.")
            await put(broker, told("A-1", "completed"))
            seen = [event.type.split(".")[2] async for event in events]
        assert seen[-1] == "completed"
        assert (await client.wait("B-1")).data.order_id == "B-1"
        await empty(broker)
        assert broker.counts(REPLIES).dead_letter == 0


async def test_a_queue_full_of_what_nobody_follows_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.client.receiving.KEPT_MAX", 3)
    async with shop() as (broker, client), asyncio.timeout(60):
        await put(broker, *(told(f"B-{n}", "completed") for n in range(3)))
        with pytest.raises(FollowError, match=r"3 notifications that nobody follows .* events\(\)"):
            await client.wait("A-1")
        async with aclosing(client.events()) as events:
            seen = [(await anext(events)).data.order_id for _ in range(3)]
        assert seen == ["B-0", "B-1", "B-2"]
