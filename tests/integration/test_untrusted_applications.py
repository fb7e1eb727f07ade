"""Applications that do not trust each other, over the broker and the embedded host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from devstack.tests.sdk_kit import SHORT_PAUSES
from tests.functions_rig import SHOP, WHOLESALE, Rig, order, rig, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig(SAS_APPLICATIONS="web-shop") as running:
        yield running
        running.nothing_lost()


async def test_an_order_on_an_applications_own_queue_ends_and_another_cannot_take_its_place(
    system: Rig,
) -> None:
    mine = order("web-shop-1", reply_queue=SHOP)
    async with system.host():
        await system.send("orders", ServiceBusMessage(order("web-shop-1", reply_queue=WHOLESALE)))
        await system.send("orders", ServiceBusMessage(order("X-1", reply_queue=SHOP)))
        await until(lambda: _kept(system, 2), "both are kept")
        await system.send("orders-web-shop", ServiceBusMessage(mine, message_id="mine"))
        await system.ends("web-shop-1", "Processed")
        await system.quiet()
    assert await system.kinds("web-shop-1", WHOLESALE) == ["rejected"]
    assert (await system.kinds("web-shop-1"))[0] == "received"
    assert await system.kinds("X-1") == []
    reasons = {rejected.order_id: rejected.reason for rejected in await system.rejected()}
    assert reasons == {"web-shop-1": "invalid-order-id", "X-1": "forbidden-reply-queue"}


async def test_forged_replies_on_the_queue_of_orders_fence_nothing(system: Rig) -> None:
    async with system.host("submission", "scheduler"):
        await system.submit("V-1", reply_queue=WHOLESALE)
        await until(lambda: _requested(system), "the request of the first step is out")
    before = await system.words("V-1")
    forged = (
        '{"kind":"reply","format":1,"id":"V-1/00/do/1","order_id":"V-1","step":0,"direction":"do",'
        '"epoch":1,"outcome":"done"%s}'
    )
    for member in ("", ',"DeadLetterSource":"scheduler"'):
        message = ServiceBusMessage(forged % member, time_to_live=timedelta(milliseconds=1))
        await system.send("orders", message)
    async with system.host("deadletters"):
        await until(lambda: _kept(system, 2, "V-1/00/do/1"), "both forged replies are kept")
    assert await system.words("V-1") == before
    async with system.host():
        await system.ends("V-1", "Processed")
        await system.quiet()


async def test_a_message_without_an_id_or_of_no_data_is_handled_as_any_other(system: Rig) -> None:
    empty = AmqpMessageProperties(message_id="")
    messages = [
        AmqpAnnotatedMessage(data_body=order("N-1", reply_queue=WHOLESALE), properties=empty),
        AmqpAnnotatedMessage(data_body=b'{"order_id": "N-2"}', properties=empty),
        AmqpAnnotatedMessage(value_body={"order_id": "N-3"}),
    ]
    async with system.host():
        await system.send("orders", *messages)
        await system.ends("N-1", "Processed")
        await until(lambda: _kept(system, 1, "N-2"), "the refused order is kept")
        await until(lambda: _kept(system, 1, "N-3"), "the message of no data is kept")
        await system.quiet()
    (rejected,) = [rejected for rejected in await system.rejected() if "N-2" in rejected.body]
    assert (rejected.message_id or "").startswith("body/")


async def _kept(system: Rig, count: int, text: str = "") -> bool:
    return len([message for message in await system.rejected() if text in message.body]) >= count


async def _requested(system: Rig) -> bool:
    return bool(system.broker.counts("agent-inventory").active)
