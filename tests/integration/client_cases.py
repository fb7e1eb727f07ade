"""Orders and notifications for the tests of the client and of the command."""

from __future__ import annotations

import asyncio
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from sas.client import NewOrder
from sas.codec import external
from tests import client_link_kit

REPLIES = "responses-web-shop"


def notification(order_id: str, notice: str, **data: Any) -> ServiceBusMessage:
    event = client_link_kit.notification(order_id, notice, **data)
    return ServiceBusMessage(external.encode(event))


def order(number: int, size: int = 10) -> NewOrder:
    return NewOrder(order_id=f"A-{number}", order={"note": "x" * size})


async def put(broker: Broker, *messages: ServiceBusMessage) -> None:
    """Send messages to the response queue."""
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_sender(REPLIES) as sender,
    ):
        for message in messages:
            await sender.send_messages(message)


async def empty(broker: Broker) -> None:
    """Wait until everything on the response queue is completed: that takes about a second."""
    async with asyncio.timeout(120):
        while broker.counts(REPLIES).active:  # noqa: ASYNC110  no event tells it
            await asyncio.sleep(0.02)
