"""The client against the broker, through the real SDK."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus import ServiceBusReceivedMessage as Message
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from sas.client import InvalidOrderError, NewOrder, OrdersClient, SubmitError, is_end
from tests.integration.client_cases import REPLIES, empty, notification, order, put
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Sdk:
    """Links of the SDK, opened once: to open and close one takes a second or two."""

    client: ServiceBusClient
    links: dict[str, Any] = field(default_factory=dict)

    async def put(self, *messages: ServiceBusMessage) -> None:
        """Send messages to the response queue."""
        if "put" not in self.links:
            self.links["put"] = self.client.get_queue_sender(REPLIES)
        for message in messages:
            await self.links["put"].send_messages(message)

    async def take_all(self, broker: Broker, queue: str, *, dead: bool = False) -> list[Message]:
        """Receive and complete everything a queue holds."""
        name = f"{queue} {dead}"
        if name not in self.links:
            sub_queue = ServiceBusSubQueue.DEAD_LETTER if dead else None
            self.links[name] = self.client.get_queue_receiver(queue, sub_queue=sub_queue)
        received: list[Message] = []
        async with asyncio.timeout(120):
            while (c := broker.counts(queue)) and (c.dead_letter if dead else c.active):
                messages = await self.links[name].receive_messages(1000, max_wait_time=60)
                for message in messages:
                    await self.links[name].complete_message(message)
                received += messages
        return received


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["orders", REPLIES]) as broker:
        yield broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(broker: Broker) -> AsyncIterator[Sdk]:
    async with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield Sdk(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: Broker) -> AsyncIterator[OrdersClient]:
    async with OrdersClient(broker.connection_string, reply_queue=REPLIES) as client:
        yield client


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _nothing_left_behind(broker: Broker) -> AsyncIterator[None]:
    yield
    await empty(broker)
    for queue in ("orders", REPLIES):
        assert broker.counts(queue).total == 0


async def test_an_order_on_the_queue_follows_the_contract(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    receipt = await client.submit(
        NewOrder(
            order_id="A-1",
            order={"customer": "Münster 🙂"},
            correlation_id="basket-7",
            workflow_version=1,
        )
    )
    [message] = await sdk.take_all(broker, "orders")
    assert message.message_id == receipt.submission_id
    assert message.correlation_id == "basket-7"
    assert message.content_type == "application/json"
    assert json.loads(b"".join(message.body)) == {
        "order_id": "A-1",
        "workflow": "order",
        "workflow_version": 1,
        "reply_queue": REPLIES,
        "correlation_id": "basket-7",
        "submission_id": receipt.submission_id,
        "order": {"customer": "Münster 🙂"},
    }


@pytest.mark.parametrize(("size", "count"), [(10, 250), (120_000, 12)])
async def test_many_orders_arrive_once_each_and_in_order_whatever_their_size(
    broker: Broker, client: OrdersClient, sdk: Sdk, size: int, count: int
) -> None:
    progress: list[int] = []
    receipts = await client.submit_many((order(n, size) for n in range(count)), progress.append)
    messages = await sdk.take_all(broker, "orders")
    assert [m.message_id for m in messages] == [r.submission_id for r in receipts]
    assert [r.order_id for r in receipts] == [f"A-{n}" for n in range(count)]
    assert progress[-1] == count
    assert progress == sorted(progress)


async def test_an_invalid_order_is_named_and_the_orders_before_it_are_sent(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    bad = NewOrder(order_id="A/2", order={})
    progress: list[int] = []
    with pytest.raises(InvalidOrderError, match="order 'A/2': order_id contains '/'") as caught:
        await client.submit_many([order(0), order(1), bad, order(3)], progress.append)
    assert caught.value.index == 2
    assert progress == [2]
    assert len(await sdk.take_all(broker, "orders")) == 2


async def test_an_order_larger_than_the_link_takes_is_refused_and_the_next_one_goes_through(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    with pytest.raises(InvalidOrderError, match="at most 258,048 are accepted"):
        await client.submit(order(1, 300 * 1024))
    async with OrdersClient(
        broker.connection_string, reply_queue=REPLIES, order_bytes_max=4 * 1024 * 1024
    ) as larger:
        with pytest.raises(SubmitError, match="larger than the namespace takes"):
            await larger.submit(order(1, 262_144 - 160))
    await client.submit(order(2))
    assert len(await sdk.take_all(broker, "orders")) == 1


async def test_following_ends_when_every_order_has_ended(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    await sdk.put(
        notification("A-1", "received"),
        notification("A-2", "failed", awaits="undo"),
        notification("A-1", "completed"),
        notification("B-9", "completed"),
        notification("A-2", "undone"),
        notification("A-3", "failed", awaits="operator"),
        notification("A-4", "received", duplicate=True, state="Processing"),
        notification("A-4", "received", duplicate=True, state="Processed"),
        notification("A-5", "rejected"),
        notification("B-1", "greeting"),
    )
    ids = ["A-1", "A-2", "A-3", "A-4", "A-5"]
    order_ids = [event.data.order_id async for event in client.follow(ids, quiet_s=120)]
    assert order_ids == ["A-1", "A-2", "A-1", "A-2", "A-3", "A-4", "A-4", "A-5"]
    assert (await client.wait("B-9")).type == "sas.order.completed.v1"
    async with aclosing(client.follow(["B-1"])) as events:
        async for event in events:
            assert event.type == "sas.order.greeting.v1"
            await sdk.put(notification("B-1", "completed"))
            break
    others = [event.type async for event in client.follow(["B-1"])]
    assert others == ["sas.order.greeting.v1", "sas.order.completed.v1"]


async def test_a_notification_is_completed_when_the_loop_asks_for_the_next_one(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    await sdk.put(*(notification(f"A-{n}", "completed") for n in range(3)))
    async with aclosing(client.follow()) as events:
        assert (await anext(events)).data.order_id == "A-0"
        assert (await anext(events)).data.order_id == "A-1"
    async with asyncio.timeout(120):
        while broker.counts(REPLIES).active != 2:  # noqa: ASYNC110  no event tells it
            await asyncio.sleep(0.02)
    order_ids = [event.data.order_id async for event in client.follow(["A-1", "A-2"])]
    assert order_ids == ["A-1", "A-2"]


async def test_a_message_that_is_not_a_notification_is_dead_lettered_with_a_reason(
    broker: Broker, client: OrdersClient, sdk: Sdk
) -> None:
    bodies = [b"hello", b"\xff\xfe", b"{}", b"[]", b'{"order_id": "A-1"}']
    await sdk.put(*map(ServiceBusMessage, bodies), notification("A-1", "completed"))
    order_ids = [event.data.order_id async for event in client.follow(["A-1"], quiet_s=120)]
    assert order_ids == ["A-1"]
    dead = await sdk.take_all(broker, REPLIES, dead=True)
    assert {message.dead_letter_reason for message in dead} == {"not-a-notification"}
    assert all(len(message.dead_letter_error_description or "") > 10 for message in dead)
    assert [b"".join(message.body) for message in dead] == bodies


# -- Links that break, and other readers ------------------------------------------------------


async def test_twenty_follows_with_a_break_lose_no_notification_and_use_up_no_delivery(
    broker: Broker, sdk: Sdk
) -> None:
    """Giving back calls a private method of the SDK: only the real one can show that it works."""
    await sdk.put(*(notification(f"A-{n}", "completed") for n in range(5)))
    async with OrdersClient(broker.connection_string, reply_queue=REPLIES) as client:
        for _ in range(20):
            async for event in client.follow(["A-4"]):
                assert event.data.order_id == "A-4"
                break
    counts = broker.counts(REPLIES)
    assert (counts.active, counts.locked, counts.dead_letter) == (5, 0, 0)
    messages = await sdk.take_all(broker, REPLIES)
    assert [message.delivery_count for message in messages] == [0] * 5


async def test_two_processes_on_one_queue_each_get_the_ends_of_their_own_orders(
    broker: Broker, client: OrdersClient, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sas.client.inbox.FOREIGN_WAIT_S", 0.5)
    count = 40

    async def ends(client: OrdersClient, prefix: str) -> set[str]:
        ids = [f"{prefix}-{n}" for n in range(count)]
        return {event.data.order_id async for event in client.follow(ids)}

    async with (
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as second,
        asyncio.timeout(120),
    ):
        endings = asyncio.gather(ends(client, "A"), ends(second, "B"))
        ids = [f"{prefix}-{n}" for n in range(count) for prefix in "BA"]
        await sdk.put(*(notification(order_id, "completed") for order_id in ids))
        assert [len(order_ids) for order_ids in await endings] == [count, count]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_follow_and_a_submission_survive_cut_and_detached_links_and_a_restart(
    tmp_path: Path,
) -> None:
    """The SDK leaves a socket open whenever it gives a connection up and opens another."""
    queues = ["orders", REPLIES]
    first = await Broker(queues, data=tmp_path, port=free_port()).start()
    text = first.connection_string
    try:
        async with (
            OrdersClient(text, reply_queue=REPLIES, patience_s=90) as client,
            asyncio.timeout(100),
            aclosing(client.follow(["A-1"])) as events,
        ):
            await put(first, notification("A-1", "received"))
            assert (await anext(events)).type.endswith("received.v1")
            await client.submit(order(1))
            for link in [link for link in first.links() if link.queue]:
                link.detach("amqp:link:detach-forced", "The link is idle for 10 minutes.")
            await put(first, notification("A-1", "step-completed"))
            assert (await anext(events)).type.endswith("step-completed.v1")
            first.drop_connections(REPLIES)
            first.drop_connections("orders")
            await client.submit(order(2))
            await first.stop()
            ended = asyncio.ensure_future(anext(events))
            submitting = asyncio.create_task(client.submit(order(3)))
            await asyncio.sleep(1)
            async with Broker(queues, data=tmp_path, port=first.port) as again:
                await put(again, notification("A-1", "completed"))
                event = await ended
                async with asyncio.timeout(120):
                    while not is_end(event):
                        event = await anext(events)
                assert (await submitting).order_id == "A-3"
                assert again.counts("orders").active == 3
                await events.aclose()
                await client.close()
    finally:
        await first.stop()
        gc.collect()
