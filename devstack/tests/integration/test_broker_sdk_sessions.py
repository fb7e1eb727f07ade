"""Sessions and tokens with the real azure-servicebus, and faults on demand."""

import time
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.core.message import parse_message
from devstack.tests.queue_kit import raw
from devstack.tests.sdk_kit import SDK

pytestmark = SDK

QUEUES = {
    "lanes": QueueProperties(requires_session=True),
    "plain": QueueProperties(),
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(QUEUES) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=1, retry_backoff_factor=0.05
    ) as client:
        yield client


def put(broker: Broker, queue: str, session_id: str | None, *bodies: bytes) -> None:
    messages = [parse_message(raw(body, session_id=session_id)) for body in bodies]
    broker.namespace.queue(queue).enqueue(messages, time.time())


async def open_and_close(handler: ServiceBusReceiver | ServiceBusSender) -> None:
    try:
        await handler.__aenter__()
    finally:
        await handler.close()


async def test_a_session_is_received_renewed_and_keeps_its_state(
    broker: Broker, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender("lanes") as sender:
        await sender.send_messages([ServiceBusMessage(n, session_id="s") for n in ("1", "2")])
    async with client.get_queue_receiver("lanes", session_id="s") as receiver:
        first, second = [await anext(aiter(receiver)) for _ in range(2)]
        assert (str(first), str(second), first.session_id) == ("1", "2", "s")
        await receiver.session.set_state(b"half way")
        assert await receiver.session.get_state() == b"half way"
        assert await receiver.session.renew_lock() == receiver.session.locked_until_utc
        await receiver.complete_message(first)
        await receiver.defer_message(second)
        (later,) = await receiver.receive_deferred_messages([second.sequence_number or 0])
        await receiver.complete_message(later)
        with pytest.raises(SessionCannotBeLockedError):
            await open_and_close(client.get_queue_receiver("lanes", session_id="s"))
    assert broker.counts("lanes").total == 0


async def test_the_next_free_session_is_given_or_the_wait_ends(
    broker: Broker, client: ServiceBusClient
) -> None:
    put(broker, "lanes", "only", b"1")
    async with client.get_queue_receiver(
        "lanes", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=60
    ) as receiver:
        assert receiver.session.session_id == "only"
        with pytest.raises(OperationTimeoutError):
            await open_and_close(
                client.get_queue_receiver(
                    "lanes", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1
                )
            )


async def test_a_lost_session_is_reported(broker: Broker, client: ServiceBusClient) -> None:
    put(broker, "lanes", "s", b"1")
    async with client.get_queue_receiver("lanes", session_id="s") as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=60)
        broker.expire_locks("lanes")
        broker.namespace.tick(broker.clock())
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(message)


async def test_only_the_required_key_opens_links() -> None:
    async with Broker(["plain"], require_key="r1ght=") as broker:
        right_string, port = broker.connection_string, broker.port
        async with (
            ServiceBusClient.from_connection_string(right_string) as client,
            client.get_queue_sender("plain") as sender,
        ):
            await sender.send_messages(ServiceBusMessage("in"))
        wrong_string = right_string.replace("r1ght=", "wr0ng=")
        async with ServiceBusClient.from_connection_string(wrong_string, retry_total=0) as client:
            with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
                await open_and_close(client.get_queue_sender("plain"))
        assert broker.counts("plain").active == 1
        assert port


async def test_a_lost_acknowledgement_makes_the_client_send_twice(
    broker: Broker, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender("plain") as sender:
        broker.arm("lose-acknowledgement", "plain", operation="send")
        await sender.send_messages(ServiceBusMessage("twice", message_id="same"))
    ids = [m.message_id for m in broker.namespace.queue("plain").messages.values()]
    assert ids == ["same", "same"]
