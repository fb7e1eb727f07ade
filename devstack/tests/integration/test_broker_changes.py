"""Open links whose queue is changed or deleted, and links that are refused."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.core.properties import EntityStatus
from devstack.tests.queue_kit import raw
from devstack.tests.sdk_kit import SDK
from devstack.tests.wire_kit import BODY, peer_of, put

pytestmark = SDK


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    queues = {"q": QueueProperties(), "lanes": QueueProperties(requires_session=True)}
    async with Broker(queues) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0
    ) as client:
        yield client


@pytest.mark.parametrize("part", ["q", "q/$DeadLetterQueue"])
async def test_a_disabled_queue_gives_nothing_to_receivers_that_were_there_before(
    broker: Broker, part: str
) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        await peer.attach(part, receives=True, handle=1)
        peer.credit(5)
        put(broker, 1)
        await peer.expect(frames.TRANSFER)
        broker.update_queue("q", status=EntityStatus.RECEIVE_DISABLED)
        for handle in (0, 1):
            detach = await peer.expect(frames.DETACH)
            assert (detach[0], detach[2].value[0]) == (handle, "com.microsoft:entity-disabled")
        put(broker, 1)
        assert broker.counts("q").locked == 1


async def test_nothing_is_received_from_a_queue_that_forwards(
    broker: Broker, client: ServiceBusClient
) -> None:
    broker.create_queue("source", forward_to="q")
    with pytest.raises(ServiceBusError, match="auto-forwarding enabled: use 'q'"):
        await client.get_queue_receiver("source").__aenter__()
    with pytest.raises(ServiceBusError, match="message browser on an entity with auto-forwarding"):
        async with client.get_queue_sender("source") as sender:
            await sender.schedule_messages(ServiceBusMessage("1"), datetime.now(UTC))
    dead = client.get_queue_receiver("source", sub_queue="transferdeadletter")
    async with dead:
        assert await dead.peek_messages() == []


async def test_a_deleted_queue_ends_the_links_to_its_dead_letters(
    broker: Broker, client: ServiceBusClient
) -> None:
    async with client.get_queue_receiver("q", sub_queue="deadletter") as receiver:
        waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=60))
        await asyncio.sleep(0.2)
        broker.delete_queue("q")
        with pytest.raises(MessagingEntityNotFoundError, match=r"'q' was deleted|not be found"):
            await waiting


async def test_a_receiver_that_waits_for_a_session_gets_an_error_when_the_queue_is_deleted(
    broker: Broker, client: ServiceBusClient
) -> None:
    receiver = client.get_queue_receiver(
        "lanes", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=120
    )
    waiting = asyncio.ensure_future(receiver.__aenter__())
    async with asyncio.timeout(120):
        while not any(link.queue for link in broker.links()):  # noqa: ASYNC110 (no such event)
            await asyncio.sleep(0.01)
        broker.delete_queue("lanes")
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting
    await receiver.close()


# -- disabled queues ----------------------------------------------------------------------------

DISABLED = "com.microsoft:entity-disabled"
SENDS = {EntityStatus.DISABLED, EntityStatus.SEND_DISABLED}
RECEIVES = {EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED}
STATUSES = pytest.mark.parametrize("status", [*EntityStatus][1:])


@STATUSES
async def test_a_disabled_queue_refuses_links_and_other_links_of_the_connection_go_on(
    broker: Broker, status: EntityStatus
) -> None:
    broker.create_queue("other")
    broker.update_queue("q", status=status)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("other", receives=False)
        for handle, receives in ((1, True), (2, False)):
            terminus = (await peer.attach("q", receives=receives, handle=handle))[6 - receives]
            refused = status in (RECEIVES if receives else SENDS)
            assert (terminus is None) == refused
            if refused:
                detach = await peer.expect(frames.DETACH)
                assert (detach[0], detach[2].value[0]) == (handle, DISABLED)
        peer.transfer(1, BODY)
        assert (await peer.expect(frames.DISPOSITION))[4].descriptor == frames.ACCEPTED
    assert broker.counts("other").active == 1


@STATUSES
async def test_links_to_a_queue_that_is_disabled_are_detached_and_nothing_is_lost(
    broker: Broker, status: EntityStatus
) -> None:
    put(broker, 3)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        await peer.attach("q", receives=False, handle=1)
        await peer.attach("lanes", receives=False, handle=2)
        peer.credit(2)
        for _ in range(2):
            await peer.expect(frames.TRANSFER)
        broker.update_queue("q", status=status)
        for handle in [h for h, closed in enumerate((RECEIVES, SENDS)) if status in closed]:
            detach = await peer.expect(frames.DETACH)
            assert (detach[0], detach[2].value[0]) == (handle, DISABLED)
        peer.transfer(1, BODY, handle=1)  # on its way when the link was detached
        peer.transfer(2, raw(b"1", session_id="s"), handle=2)
        answers = []
        while 2 not in answers:
            fields = await peer.expect(frames.DISPOSITION)
            answers.append(fields[1])
            assert fields[4].descriptor == frames.ACCEPTED
        assert (1 in answers) == (status not in SENDS)
        fields = [b"\x41", encode.uint(1), b"\x40", b"\x42", frames.ACCEPTED_STATE]
        peer.send(frames.DISPOSITION, *fields)
        echo = (await peer.expect(frames.DISPOSITION))[4]
        assert (echo.descriptor == frames.ACCEPTED) == (status not in RECEIVES)
    arrivals, completions = status not in SENDS, status not in RECEIVES
    assert broker.counts("q").active == 3 + arrivals - completions
    assert broker.counts("lanes").active == 1


async def test_a_delivery_in_flight_when_its_queue_is_disabled_comes_again_afterwards(
    broker: Broker, client: ServiceBusClient
) -> None:
    put(broker, 1)
    async with client.get_queue_receiver("q") as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=60)
        broker.update_queue("q", status=EntityStatus.RECEIVE_DISABLED)
        with pytest.raises(MessagingEntityDisabledError):
            await receiver.complete_message(message)
    assert broker.counts("q").active == 1
    broker.update_queue("q", status=EntityStatus.ACTIVE)
    broker.expire_locks("q")
    async with client.get_queue_receiver("q") as receiver:
        (again,) = await receiver.receive_messages(1, max_wait_time=60)
        assert again.delivery_count == 1
        await receiver.complete_message(again)
    assert broker.counts("q").total == 0


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_peeks_and_requests_follow_the_status_of_a_queue(
    broker: Broker, client: ServiceBusClient, status: EntityStatus
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    async with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
        number = await sender.schedule_messages(ServiceBusMessage("later"), at)
        put(broker, 1)
        (message,) = await receiver.receive_messages(1, max_wait_time=60)
        broker.update_queue("q", status=status)
        with pytest.raises(MessagingEntityDisabledError, match=status.value):
            async with client.get_queue_receiver("q") as browser:
                await browser.peek_messages(1)
        for refused, work in (
            (SENDS, lambda: sender.schedule_messages(ServiceBusMessage("no"), at)),
            (SENDS, lambda: sender.cancel_scheduled_messages(number)),
            (RECEIVES, lambda: receiver.renew_message_lock(message)),
        ):
            if status in refused:
                with pytest.raises(MessagingEntityDisabledError, match=status.value):
                    await work()
            else:
                await work()
