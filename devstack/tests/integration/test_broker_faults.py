"""Faults from the management port, as the real azure-servicebus sees them."""

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from devstack.servicebus import Broker
from devstack.tests.sdk_kit import SDK

pytestmark = SDK


class Bench:
    """A broker, its management port, and a client's two links to its one queue."""

    def __init__(
        self, broker: Broker, client: ServiceBusClient, http: aiohttp.ClientSession
    ) -> None:
        self.broker, self.client, self._http = broker, client, http
        self.sender: ServiceBusSender = client.get_queue_sender("q")
        self.receiver: ServiceBusReceiver = client.get_queue_receiver("q")

    async def ask(self, kind: str, **more: Any) -> dict[str, Any]:
        """POST /$faults for the queue."""
        wish = {"kind": kind, "queue": "q", **more}
        async with self._http.post("/$faults", json=wish) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def message(self) -> Any:
        """Send one message and receive it."""
        await self.sender.send_messages(ServiceBusMessage("1"))
        (message,) = await self.receiver.receive_messages(1, max_wait_time=60)
        return message

    @property
    def active(self) -> int:
        return self.broker.counts("q").active


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with (
        Broker(["q"], management_port=0) as broker,
        aiohttp.ClientSession(f"http://127.0.0.1:{broker.management_port}") as http,
        ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=1, retry_backoff_factor=0.05
        ) as client,
    ):
        bench = Bench(broker, client, http)
        async with bench.sender, bench.receiver:
            yield bench


async def test_connections_are_dropped_and_the_client_comes_back(bench: Bench) -> None:
    await bench.message()
    async with bench.client.get_queue_receiver("q", sub_queue="deadletter"):
        assert await bench.ask("drop-connections") == {"dropped": 3}
    await bench.sender.send_messages(ServiceBusMessage("2"))
    assert bench.active == 2


@pytest.mark.parametrize("operation", ["send", "settle"])
async def test_an_answer_comes_late(bench: Bench, operation: str) -> None:
    message = await bench.message()
    await bench.ask("delay", operation=operation, seconds=0.4)
    began = time.monotonic()
    if operation == "send":
        await bench.sender.send_messages(ServiceBusMessage("2"))
    else:
        await bench.receiver.complete_message(message)
    assert time.monotonic() - began >= 0.4
    assert bench.active == (2 if operation == "send" else 0)


async def test_a_busy_server_refuses_a_settlement_and_the_client_settles_otherwise(
    bench: Bench,
) -> None:
    message = await bench.message()
    await bench.ask("server-busy", operation="settle")
    await bench.receiver.complete_message(message)  # by $management, as the SDK does
    assert bench.active == 0


async def test_a_busy_server_refuses_requests(bench: Bench) -> None:
    await bench.sender.send_messages(ServiceBusMessage("1"))
    await bench.ask("server-busy", queue="q/$DeadLetterQueue")  # another queue's does not matter
    await bench.ask("server-busy", operation="manage", count=2)
    with pytest.raises(ServiceBusServerBusyError, match="busy; wait a moment and try again"):
        await bench.receiver.peek_messages(1)
    assert len(await bench.receiver.peek_messages(1)) == 1


async def test_a_busy_server_refuses_links_and_a_retry_gets_through(bench: Bench) -> None:
    await bench.ask("server-busy", operation="attach", count=1)
    async with bench.client.get_queue_sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("1"))
    await bench.ask("server-busy", operation="attach", count=2)
    with pytest.raises(ServiceBusError, match="busy; wait a moment and try again"):
        await bench.client.get_queue_sender("q").__aenter__()


async def test_a_lost_acknowledgement_of_a_completion_leaves_the_message_completed(
    bench: Bench,
) -> None:
    message = await bench.message()
    await bench.ask("lose-acknowledgement", operation="settle")
    with pytest.raises((ServiceBusConnectionError, MessageLockLostError)):
        await bench.receiver.complete_message(message)
    assert bench.active == 0


async def test_a_completed_message_is_delivered_once_more(bench: Bench) -> None:
    message = await bench.message()
    await bench.ask("duplicate-delivery", count=2)  # a message is delivered again once, not twice
    await bench.receiver.complete_message(message)
    (again,) = await bench.receiver.receive_messages(1, max_wait_time=60)
    assert again.sequence_number == message.sequence_number
    await bench.receiver.complete_message(again)
    assert bench.active == 0
