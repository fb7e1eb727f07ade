"""Follows that end early, run side by side or in several processes: nothing is lost or stuck."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from devstack.servicebus import Broker
from devstack.servicebus.core.properties import QueueProperties
from sas.client import FollowError, OrdersClient, is_end
from sas.client.receiving import BACKLOG_MAX
from tests.integration.client_cases import REPLIES, empty, notification, put
from tests.ports import free_port

FEW = {REPLIES: QueueProperties(max_delivery_count=3)}
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # The SDK leaves a socket open whenever it gives a connection up and opens another.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class Shop:
    """A broker, and the SDK's own links to the response queue: to open one takes a second."""

    broker: Broker
    sender: ServiceBusSender
    receiver: ServiceBusReceiver

    def client(self) -> OrdersClient:
        return OrdersClient(self.broker.connection_string, reply_queue=REPLIES)

    async def put(self, *messages: ServiceBusMessage) -> None:
        """Send messages to the response queue."""
        for message in messages:
            await self.sender.send_messages(message)

    async def delivery_counts(self) -> list[int | None]:
        """Receive and complete everything; return how often each message was delivered before."""
        counts: list[int | None] = []
        while count := self.broker.counts(REPLIES).active:  # no credit may stay on the link
            for message in await self.receiver.receive_messages(count, max_wait_time=1):
                counts.append(message.delivery_count)
                await self.receiver.complete_message(message)
        return counts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def links() -> AsyncIterator[Shop]:
    async with (
        Broker(FEW) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_sender(REPLIES) as sender,
        sdk.get_queue_receiver(REPLIES) as receiver,
    ):
        yield Shop(broker, sender, receiver)


@pytest_asyncio.fixture(loop_scope="module")
async def shop(links: Shop) -> AsyncIterator[Shop]:
    yield links
    assert links.broker.counts(REPLIES).locked == 0
    await links.delivery_counts()
    assert links.broker.counts(REPLIES).total == 0
    gc.collect()


async def test_twenty_follows_with_a_break_lose_no_notification_and_use_up_no_delivery(
    shop: Shop,
) -> None:
    async with shop.client() as client:
        await shop.put(*(notification(f"A-{n}", "completed") for n in range(5)))
        for _ in range(20):
            async for event in client.follow(["A-4"]):
                assert event.data.order_id == "A-4"
                break
        await client.close()
        counts = shop.broker.counts(REPLIES)
        assert (counts.active, counts.locked, counts.dead_letter) == (5, 0, 0)
        assert await shop.delivery_counts() == [0] * 5


async def test_a_follow_leaves_the_ends_of_other_orders_to_the_next_follow(shop: Shop) -> None:
    async with shop.client() as client, asyncio.timeout(120):
        await shop.put(*(notification(f"A-{n}", "completed") for n in range(3)))
        for order_id in ("A-2", "A-0", "A-1"):
            order_ids = [event.data.order_id async for event in client.follow([order_id])]
            assert order_ids == [order_id]
        await client.close()
        assert shop.broker.counts(REPLIES).total == 0


async def test_four_clients_that_follow_and_break_use_up_no_delivery(shop: Shop) -> None:
    await shop.put(*(notification(f"A-{n}", "completed") for n in range(5)))
    for _ in range(4):
        async with shop.client() as client:
            async for _event in client.follow(["A-4"]):
                break
    assert shop.broker.counts(REPLIES).dead_letter == 0
    assert await shop.delivery_counts() == [0] * 5


async def test_follows_side_by_side_each_get_their_own_orders_and_share_a_common_one(
    shop: Shop,
) -> None:
    async with shop.client() as client, asyncio.timeout(120):

        async def event_ids(*order_ids: str) -> list[str]:
            return [event.id async for event in client.follow(order_ids)]

        follows = asyncio.gather(
            event_ids("A-1", "B-1"), event_ids("A-2", "B-1"), client.wait("A-3")
        )
        await shop.put(
            notification("A-3", "received"),
            *(notification(order_id, "completed") for order_id in ("A-2", "A-1", "B-1", "A-3")),
        )
        first, second, third = await follows
        assert (set(first), set(second)) == (
            {"A-1/completed", "B-1/completed"},
            {"A-2/completed", "B-1/completed"},
        )
        assert third.id == "A-3/completed"
        await empty(shop.broker)


async def test_a_follow_that_is_cancelled_leaves_its_notifications_to_the_next(shop: Shop) -> None:
    async with shop.client() as client, asyncio.timeout(120):
        arrival = asyncio.Event()

        async def follow() -> None:
            async with aclosing(client.follow(["A-1"])) as events:
                async for _ in events:
                    arrival.set()
                    await asyncio.sleep(3600)

        following = asyncio.create_task(follow())
        waiting = asyncio.create_task(client.wait("A-2"))
        await shop.put(notification("A-1", "received"), notification("A-1", "completed"))
        await arrival.wait()
        following.cancel()
        kinds = [event.type.split(".")[2] async for event in client.follow(["A-1"])]
        assert kinds == ["received", "completed"]
        waiting.cancel()
        await asyncio.gather(following, waiting, return_exceptions=True)
        await empty(shop.broker)


async def test_closing_the_client_ends_every_follow_with_a_sentence_and_gives_all_back(
    shop: Shop,
) -> None:
    async with shop.client() as client:
        await shop.put(notification("A-1", "received"), notification("B-1", "completed"))
        events = client.follow(["A-1"])
        await anext(events)
        waiting = asyncio.create_task(client.wait("A-2"))
        await asyncio.sleep(0)
        await client.close()
        for ended in (anext(events), waiting, client.wait("A-3")):
            with pytest.raises(FollowError, match="closed: make a new one"):
                await ended
        assert shop.broker.counts(REPLIES).locked == 0
        assert await shop.delivery_counts() == [0, 0]


async def test_two_processes_on_one_queue_each_get_the_ends_of_their_own_orders(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sas.client.inbox.FOREIGN_WAIT_S", 0.5)
    count = 40
    async with shop.client() as first, shop.client() as second, asyncio.timeout(120):

        async def ends(client: OrdersClient, prefix: str) -> set[str]:
            ids = [f"{prefix}-{n}" for n in range(count)]
            return {event.data.order_id async for event in client.follow(ids)}

        endings = asyncio.gather(ends(first, "A"), ends(second, "B"))
        ids = [f"{prefix}-{n}" for n in range(count) for prefix in "BA"]
        await shop.put(*(notification(order_id, "completed") for order_id in ids))
        assert [len(order_ids) for order_ids in await endings] == [count, count]
        await empty(shop.broker)
        assert shop.broker.counts(REPLIES).dead_letter == 0


async def test_a_client_that_waits_does_so_without_a_busy_loop(shop: Shop) -> None:
    async with shop.client() as client:
        times: list[float] = []

        def enough() -> bool:
            times.append(time.monotonic())
            return len(times) > 10

        assert [event async for event in client.events(until=enough)] == []
    assert times[-1] - times[0] > 1


async def test_in_a_burst_every_notification_is_delivered_once_and_handed_out_in_order(
    shop: Shop,
) -> None:
    links_before = shop.broker.links()
    async with shop.client() as client, aclosing(client.events()) as events:
        ids = [f"A-{n}" for n in range(300)]
        await shop.put(*(notification(order_id, "completed") for order_id in ids))
        assert [(await anext(events)).data.order_id for _ in ids] == ids
        [link] = [link for link in shop.broker.links() if link.queue and link not in links_before]
        assert link.delivery_count == 300


async def test_a_slow_follower_has_a_bounded_number_of_notifications_locked(shop: Shop) -> None:
    queue = shop.broker.namespace.queue(REPLIES)
    ids = [f"A-{n}" for n in range(300)]
    await shop.put(*(notification(order_id, "completed") for order_id in ids))
    async with shop.client() as client, aclosing(client.events()) as events:
        first = (await anext(events)).data.order_id
        await asyncio.sleep(1.5)
        assert len(queue.locked) <= BACKLOG_MAX + 1
        assert [first, *[(await anext(events)).data.order_id for _ in ids[1:]]] == ids


async def test_a_slow_reader_keeps_its_locks_however_long_it_takes(shop: Shop) -> None:
    queue = shop.broker.update_queue(REPLIES, lock_duration_s=8)
    async with shop.client() as client:
        await shop.put(notification("A-1", "received"), notification("A-1", "completed"))
        kinds: list[str] = []
        async for event in client.follow(["A-1"]):
            kinds.append(event.type.split(".")[2])
            if len(kinds) == 1:
                while len(locked := set(queue.locked)) < 2:  # noqa: ASYNC110  no event tells it
                    await asyncio.sleep(0.02)
                await asyncio.sleep(10)
                assert set(queue.locked) == locked
        assert kinds == ["received", "completed"]
        await empty(shop.broker)
    shop.broker.update_queue(REPLIES, lock_duration_s=60)


async def test_a_follow_survives_a_broker_that_is_stopped_and_restarted(tmp_path: Path) -> None:
    first = await Broker(FEW, data=tmp_path, port=free_port()).start()
    try:
        async with (
            OrdersClient(first.connection_string, reply_queue=REPLIES) as client,
            asyncio.timeout(100),
        ):
            await put(first, notification("B-1", "completed"), notification("A-1", "received"))
            events = client.follow(["A-1"])
            assert (await anext(events)).type.endswith("received.v1")
            await first.stop()
            ended = asyncio.ensure_future(anext(events))
            await asyncio.sleep(1)
            async with Broker(FEW, data=tmp_path, port=first.port) as again:
                await put(again, notification("A-1", "completed"))
                event = await ended
                while not is_end(event):
                    event = await anext(events)
                assert (await client.wait("B-1")).data.order_id == "B-1"
                await events.aclose()
                await client.close()
                assert again.counts(REPLIES).dead_letter == 0
    finally:
        await first.stop()


@pytest.mark.parametrize(
    "why",
    [
        "The link is idle for 10 minutes.",
        "Code: RenewToken. Details: Unauthorized access to 'q': the token has expired.",
    ],
)
async def test_a_follow_survives_a_link_that_the_service_detaches(shop: Shop, why: str) -> None:
    links_before = shop.broker.links()
    async with shop.client() as client, asyncio.timeout(120):
        await shop.put(notification("B-1", "completed"), notification("A-1", "received"))
        async with aclosing(client.follow(["A-1"])) as events:
            assert (await anext(events)).type.endswith("received.v1")
            for link in [
                link for link in shop.broker.links() if link.queue and link not in links_before
            ]:
                link.detach("amqp:link:detach-forced", why)
            await shop.put(notification("A-1", "completed"))
            kinds = [event.type.split(".")[2] async for event in events]
        assert kinds[-1] == "completed"
        assert (await client.wait("B-1")).data.order_id == "B-1"
        await empty(shop.broker)
        assert shop.broker.counts(REPLIES).dead_letter == 0


async def test_the_error_says_that_the_queue_is_full_of_notifications_without_a_follower(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sas.client.receiving.UNFOLLOWED_MAX", 3)
    async with shop.client() as client, asyncio.timeout(120):
        await shop.put(*(notification(f"B-{n}", "completed") for n in range(3)))
        with pytest.raises(FollowError, match=r"3 notifications that no loop .* events\(\)"):
            await client.wait("A-1")
        async with aclosing(client.events()) as events:
            order_ids = [(await anext(events)).data.order_id for _ in range(3)]
        assert order_ids == ["B-0", "B-1", "B-2"]
