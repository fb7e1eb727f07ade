"""What the client tries again, and what it gives up at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from sas.client import FollowError, NewOrder, OrdersClient, SubmitError, is_end, links
from sas.client.links import LinkError, persist, release
from sas.client.receiving import LINGER_S
from tests.client_link_kit import (
    LOCK_S,
    FakeBus,
    FakeReceiver,
    VirtualLoop,
    client_of,
    notification,
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RETRY_PAUSE_S", 0.01)


async def tried(error_type: type[ServiceBusError], times: int) -> int:
    """Return how often an operation is tried that fails so often."""
    count = 0

    async def operation() -> int:
        nonlocal count
        count += 1
        if count <= times:
            raise error_type(message="not now")
        return count

    return await persist(operation, 5.0)


async def test_a_queue_that_is_disabled_for_a_while_is_tried_again() -> None:
    assert await tried(MessagingEntityDisabledError, 2) == 3


async def test_a_missing_queue_is_reported_at_once() -> None:
    with pytest.raises(LinkError, match="there is no such queue"):
        await tried(MessagingEntityNotFoundError, 1)


async def test_a_message_that_is_settled_already_is_reported_at_once() -> None:
    """The SDK raises a ValueError for it, and no error of Service Bus."""

    async def settle() -> None:
        raise MessageAlreadySettled(action="complete")

    with pytest.raises(LinkError):
        await persist(settle, 5.0)


async def test_without_the_private_method_of_the_sdk_a_message_is_not_given_back() -> None:
    """The client then keeps its lock. With the method: ``test_client_over_broker``."""
    assert not await release(cast("ServiceBusReceiver", object()), cast("Any", object()))


@pytest.mark.parametrize(("version", "gives_back"), [("7.15.0", True), ("7.16.0", False)])
async def test_a_message_is_given_back_only_with_a_release_of_the_sdk_in_which_that_was_tried(
    monkeypatch: pytest.MonkeyPatch, version: str, gives_back: bool
) -> None:
    outcomes: list[tuple[object, ...]] = []

    async def settle(*outcome: object) -> None:
        outcomes.append(outcome)

    monkeypatch.setattr("azure.servicebus.__version__", version)
    receiver: Any = SimpleNamespace(_handler=SimpleNamespace(settle_messages_async=settle))
    message: Any = SimpleNamespace(_delivery_id=7, _delivery_tag=b"t")
    assert await release(receiver, message) is gives_back
    assert outcomes == [(7, b"t", "released")] * gives_back


# -- What a loop, and a submission, then raise ------------------------------------------------


def test_a_missing_queue_is_reported_in_a_sentence() -> None:
    bus = FakeBus(missing=True)

    async def use(client: OrdersClient) -> None:
        with pytest.raises(FollowError, match=r"'responses-shop' cannot be read: there is no such"):
            await anext(client.follow())
        with pytest.raises(SubmitError, match=r"'orders' did not take orders: there is no such"):
            await client.submit(NewOrder(order_id="A", order={}))

    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(use(client))


def test_an_outage_longer_than_the_patience_ends_a_loop_and_a_submission_with_a_sentence() -> None:
    bus = FakeBus()

    async def use(client: OrdersClient) -> None:
        outage = asyncio.create_task(bus.outage(100.0, silent=True))
        for work in (anext(client.follow()), client.submit(NewOrder(order_id="A", order={}))):
            began_at = asyncio.get_running_loop().time()
            with pytest.raises((FollowError, SubmitError), match="check that the namespace"):
                await work
            assert asyncio.get_running_loop().time() - began_at < 20.0  # its patience is 10 s
        await outage
        receipt = await client.submit(NewOrder(order_id="A", order={}))
        assert bus.orders == [receipt.submission_id]

    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(use(client))


def test_a_long_list_of_orders_is_sent_in_parts_and_each_part_says_how_many_were_sent() -> None:
    bus, sent_so_far = FakeBus(), list[int]()
    new_orders = [NewOrder(order_id=f"A-{number}", order={}) for number in range(5)]
    parts = {"client.BATCH_ORDERS_MAX": 2}
    with client_of(bus, **parts) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        receipts = runner.run(client.submit_many(new_orders, sent_so_far.append))
    assert sent_so_far == [2, 4, 5]
    assert bus.orders == [receipt.submission_id for receipt in receipts]


def test_the_answer_to_a_repeat_is_the_last_one_if_the_order_had_ended() -> None:
    for state in ("Processing", "Processed", "Compensated", "Rejected", "Error"):
        answer = notification("A", "received", duplicate=True, state=state)
        assert is_end(answer) is (state != "Processing")


def test_the_last_end_of_an_order_that_went_on_after_an_error_is_returned() -> None:
    bus = FakeBus()
    bus.put(notification("A", "failed", awaits="operator"))
    bus.put(notification("A", "completed"))

    async def use(client: OrdersClient) -> str:
        async with aclosing(client.events()) as events:
            await anext(events)
            await asyncio.sleep(2.0)  # both are read, and none is handed out to its end
            return (await client.wait("A")).type

    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(use(client)) == "sas.order.completed.v1"


def test_what_an_earlier_link_received_keeps_its_lock_although_nobody_follows_its_order() -> None:
    bus = FakeBus()
    stored = bus.put(notification("B", "received"))

    async def use(client: OrdersClient) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(3 * LOCK_S):
                asyncio.get_running_loop().call_later(1.0, bus.cut)
                await client.wait("A")
        assert stored.delivery_count == 0

    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(use(client))


def test_a_loop_that_begins_while_the_link_is_closed_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = FakeBus()

    async def close_slowly(_receiver: FakeReceiver) -> None:
        await asyncio.sleep(3.0)

    async def use(client: OrdersClient) -> None:
        for order_id in ("A", "B"):
            bus.put(notification(order_id, "completed"))
            async with asyncio.timeout(60.0):
                await client.wait(order_id)
            await asyncio.sleep(LINGER_S + 1.0)

    monkeypatch.setattr(FakeReceiver, "close", close_slowly)
    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(use(client))


def test_the_error_says_that_the_queue_is_full_of_notifications_without_a_follower() -> None:
    bus = FakeBus()
    for number in range(3):
        bus.put(notification(f"B-{number}", "completed"))

    async def use(client: OrdersClient) -> list[str]:
        with pytest.raises(FollowError, match=r"3 notifications that no loop .* events\(\)"):
            await client.wait("A-1")
        async with aclosing(client.events()) as events:
            return [(await anext(events)).data.order_id for _ in range(3)]

    full = {"receiving.UNFOLLOWED_MAX": 3}
    with client_of(bus, **full) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(use(client)) == ["B-0", "B-1", "B-2"]


def test_a_loop_that_hears_nothing_for_a_time_ends_with_how_many_orders_are_open() -> None:
    bus = FakeBus()
    bus.put(notification("A-1", "failed", awaits="undo"))

    async def use(client: OrdersClient) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        loop.call_later(5.0, bus.put, notification("A-1", "step-completed"))
        with pytest.raises(TimeoutError, match="for 9 s; 1 orders have not ended"):
            await client.wait("A-1", quiet_s=9.0)
        assert loop.time() - began_at >= 5.0 + 9.0

    with client_of(bus) as client, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(use(client))
