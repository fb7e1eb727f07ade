"""The bus on Service Bus when links die, queues go, keys are wrong and the broker is slow."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    ServiceBusConnectionError,
)

from devstack.servicebus import Broker, EntityStatus
from sas.adapters import servicebus
from sas.adapters.servicebus import ServiceBus
from sas.ports import (
    QUEUE_DISABLED,
    QUEUE_MISSING,
    BusUnavailableError,
    Message,
    QueueFullError,
    UndeliverableError,
)

SCHEDULED = b"x-opt-scheduled-enqueue-time"
_numbers = itertools.count(1)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[Broker]:
    async with Broker([]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(broker: Broker) -> AsyncIterator[ServiceBus]:
    connection = ServiceBus.connect(broker.connection_string)
    yield connection
    await connection.close()


@pytest_asyncio.fixture(loop_scope="module")
async def queue(broker: Broker) -> AsyncIterator[str]:
    name = f"queue-{next(_numbers)}"
    broker.create_queue(name)
    yield name
    broker.clear_faults()


def message(queue: str, number: int = 1, body: bytes = b"{}") -> Message:
    return Message(queue, f"order-1/{number}/0", body)


async def test_whatever_a_sender_puts_into_a_message_it_hinders_no_peek(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    """One such message, scheduled for 2099, would have ended every sweep."""
    times = [{"TYPE": "LONG", "VALUE": number} for number in (1, 2**53, 2**61, -(2**61))]
    hostile: list[dict[str, Any]] = [
        {"value_body": "text"},
        {"value_body": None},
        {"value_body": {b"order_id": 5}},
        {"sequence_body": [[1, 2], ["x"]]},
        *({"data_body": b"x", "annotations": {SCHEDULED: time}} for time in times),
        {
            "data_body": b"x",
            "properties": AmqpMessageProperties(
                message_id=uuid4(), correlation_id="7", content_type=b"\xff"
            ),
        },
    ]
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for parts in hostile:
            await sender.send_messages(AmqpAnnotatedMessage(**parts))
    await bus.send([message(queue)])
    peeked = await bus.peek(queue, 100)
    assert len(peeked) == len(hostile) + 1
    assert {each.body[:8] for each in peeked[:4]} == {b"not data"}
    assert peeked[-1].body == b"{}"
    now = datetime.now(UTC)
    ages = [now - each.enqueued_at for each in peeked if not each.is_scheduled]
    assert all(timedelta(seconds=-9) < age < timedelta(minutes=1) for age in ages)
    assert max(each.enqueued_at for each in peeked) + timedelta(days=1)
    texts = [text for each in peeked for text in (each.message_id, each.correlation_id or "")]
    assert all(isinstance(text, str) for text in texts)
    assert all(each.message_id for each in peeked)


def links_to(broker: Broker, queue: str) -> list[object]:
    target = broker.namespace.queue(queue)
    return [link for link in broker.links() if link.queue is target]


async def test_a_connection_cut_between_two_sends_is_opened_again(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    await bus.send([message(queue, 1)])
    assert broker.drop_connections(queue) == 1
    await bus.send([message(queue, 2)])
    assert broker.counts(queue).active == 2


async def test_a_new_link_reads_no_certificates(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates: list[str] = []
    read = ssl.SSLContext.load_verify_locations

    def noted(self: ssl.SSLContext, cafile: str) -> None:
        certificates.append(cafile)
        read(self, cafile)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages(ServiceBusMessage(b"{}"))
    assert len(certificates) == 1
    certificates.clear()
    await bus.send([message(queue)])
    assert len(links_to(broker, queue)) == 1
    assert certificates == []


async def test_one_call_makes_one_send_to_each_queue(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{queue}-other"
    broker.create_queue(other)
    sends: list[str] = []
    send = ServiceBusSender.send_messages

    async def noted(
        self: ServiceBusSender, batch: ServiceBusMessage | ServiceBusMessageBatch
    ) -> None:
        sends.append(self.entity_name)
        await send(self, batch)

    monkeypatch.setattr(ServiceBusSender, "send_messages", noted)
    await bus.send([message(name, n) for n, name in enumerate((queue, other, queue, other, queue))])
    assert sends == [queue, other]
    assert (broker.counts(queue).active, broker.counts(other).active) == (3, 2)


@pytest.mark.filterwarnings(
    # The SDK drops a connection that was cut while it waited, without closing its socket.
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)
async def test_messages_whose_acknowledgement_was_lost_are_sent_again(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    broker.arm("lose-acknowledgement", queue, operation="send")
    await bus.send([message(queue, 1), message(queue, 2)])
    assert broker.counts(queue).active == 4  # duplicate detection is the queue's matter
    gc.collect()


async def test_a_throttled_sender_keeps_its_link(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    await bus.send([message(queue, 1)])
    before = links_to(broker, queue)
    broker.arm("server-busy", queue, operation="send", count=2)
    with pytest.raises(BusUnavailableError, match="is reachable"):
        await bus.send([message(queue, 2)])
    await bus.send([message(queue, 3)])
    assert links_to(broker, queue) == before
    assert len(before) == 1


async def test_a_sender_that_never_recovers_is_replaced(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.send([message(queue, 1)])
    broken: list[ServiceBusSender] = []
    send = ServiceBusSender.send_messages

    async def fail(self: ServiceBusSender, message: ServiceBusMessage) -> None:
        broken[:] = broken or [self]
        if self is broken[0]:
            raise ServiceBusConnectionError(message="the link is dead")
        await send(self, message)

    monkeypatch.setattr(ServiceBusSender, "send_messages", fail)
    await bus.send([message(queue, 2)])
    await bus.send([message(queue, 3)])
    assert broker.counts(queue).active == 3


async def test_a_disabled_queue_is_unavailable_until_it_is_enabled(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus, "SHUT_S", 0.0)
    broker.update_queue(queue, status=EntityStatus.SEND_DISABLED)
    with pytest.raises(QueueFullError, match="It is disabled: enable it"):
        await bus.send([message(queue)])
    broker.update_queue(queue, status=EntityStatus.DISABLED)
    with pytest.raises(BusUnavailableError) as disabled:
        await bus.peek(queue, 1)
    assert str(disabled.value) == f"queue {queue}: {QUEUE_DISABLED}"
    broker.update_queue(queue, status=EntityStatus.ACTIVE)
    await bus.send([message(queue)])
    assert broker.counts(queue).active == 1


async def test_a_disabled_queue_is_tried_again_after_its_time_however_often_it_is_asked_for(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.update_queue(queue, status=EntityStatus.SEND_DISABLED)
    seconds, before = [0.0], bus.meter.sends
    monkeypatch.setattr(servicebus, "monotonic", lambda: seconds[0])
    for moment in (0.0, servicebus.SHUT_S - 1, servicebus.SHUT_S + 1):
        seconds[0] = moment
        with pytest.raises(QueueFullError):
            await bus.send([message(queue)])
    assert bus.meter.sends - before == 2
    broker.update_queue(queue, status=EntityStatus.ACTIVE)
    with pytest.raises(QueueFullError):  # what was found when it was tried again is believed too
        await bus.send([message(queue)])
    seconds[0] += servicebus.SHUT_S
    await bus.send([message(queue)])
    assert broker.counts(queue).active == 1


async def test_a_full_queue_is_unavailable_not_undeliverable(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    broker.update_queue(queue, max_size_megabytes=1)
    full = [message(queue, n, b"x" * 200_000) for n in range(8)]
    with pytest.raises(QueueFullError, match="It is full: check that its reader runs"):
        await bus.send(full)
    accepted = broker.counts(queue).active
    assert 0 < accepted < 8


async def test_a_queue_deleted_under_an_open_sender_is_undeliverable_until_it_is_back(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus, "SHUT_S", 0.0)
    await bus.send([message(queue, 1)])
    broker.delete_queue(queue)
    with pytest.raises(UndeliverableError, match=f"^queue {queue}: There is no such queue"):
        await bus.send([message(queue, 2)])
    with pytest.raises(BusUnavailableError) as missing:
        await bus.peek(queue, 1)
    assert str(missing.value) == f"queue {queue}: {QUEUE_MISSING}"
    broker.create_queue(queue)
    await bus.send([message(queue, 3)])
    assert broker.counts(queue).active == 1


async def test_many_sends_to_a_queue_that_is_missing_take_the_time_of_one(
    bus: ServiceBus, queue: str, broker: Broker
) -> None:
    """They waited in line, two seconds each, and held the slots of all other orders."""
    broker.delete_queue(queue)
    began = time.monotonic()
    errors = await asyncio.gather(
        *(bus.send([message(queue, number)]) for number in range(40)), return_exceptions=True
    )
    assert {type(error) for error in errors} == {UndeliverableError}
    assert time.monotonic() - began < 9.0


async def test_many_sends_to_a_queue_that_is_disabled_all_hear_that_it_is(
    bus: ServiceBus, queue: str, broker: Broker
) -> None:
    """Who came late heard that the bus is away, so its message was not counted but put back."""
    broker.update_queue(queue, status=EntityStatus.SEND_DISABLED)
    errors = await asyncio.gather(
        *(bus.send([message(queue, number)]) for number in range(16)), return_exceptions=True
    )
    assert {type(error) for error in errors} == {QueueFullError}


async def test_the_peeks_of_a_queue_share_one_link(
    bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_link = Mock(side_effect=bus._client.get_queue_receiver)
    monkeypatch.setattr(bus._client, "get_queue_receiver", open_link)
    for _ in range(3):
        await bus.peek(queue, 1)
    open_link.assert_called_once_with(queue)


async def test_many_first_sends_open_one_link_and_one_batch_is_one_transfer(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers: list[str | int] = []
    send = ServiceBusSender.send_messages

    async def counted(
        self: ServiceBusSender, batch: ServiceBusMessage | ServiceBusMessageBatch
    ) -> None:
        transfers.append(len(batch) if isinstance(batch, ServiceBusMessageBatch) else "single")
        await send(self, batch)

    monkeypatch.setattr(ServiceBusSender, "send_messages", counted)
    await asyncio.gather(*(bus.send([message(queue, n)]) for n in range(20)))
    assert len(links_to(broker, queue)) == 1
    assert transfers == ["single"] * 20
    transfers.clear()
    await bus.send([message(queue, n) for n in range(100, 130)])
    await bus.send([message(queue, n, b"x" * 200_000) for n in range(200, 203)])
    assert transfers == [30, "single", "single", "single"]
    assert broker.counts(queue).active == 53


async def test_a_send_takes_no_longer_than_it_may_and_the_next_one_works(
    broker: Broker, bus: ServiceBus, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.send([message(queue, 1)])
    broker.arm("delay", queue, operation="send", seconds=120)
    monkeypatch.setattr(bus, "_send_s", 0.4)
    started = time.monotonic()
    with pytest.raises(BusUnavailableError, match=r"did not take 1 messages within 0\.4 s"):
        await bus.send([message(queue, 2)])
    assert time.monotonic() - started < 60
    monkeypatch.undo()
    before = bus.meter.messages
    await bus.send([message(queue, 3)])
    assert bus.meter.messages == before + 1


async def test_a_cancelled_send_leaves_the_bus_usable(
    broker: Broker, bus: ServiceBus, queue: str
) -> None:
    await bus.send([message(queue, 1)])
    before = links_to(broker, queue)
    broker.arm("delay", queue, operation="send", seconds=3)
    task = asyncio.create_task(bus.send([message(queue, 2)]))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bus.send([message(queue, 3)])
    assert broker.counts(queue).active == 3
    assert links_to(broker, queue)[-1:] != before  # the state of the first one was unknown


async def test_senders_are_bounded_and_the_least_recently_used_go_first(
    broker: Broker, queue: str
) -> None:
    queues = [f"{queue}-{n}" for n in range(4)]
    for name in queues:
        broker.create_queue(name)
    bus = ServiceBus.connect(broker.connection_string, senders_max=2)
    await bus.send([message(queues[0]), message(queues[1])])
    before = links_to(broker, queues[0])
    for number in (0, 2, 0):
        await bus.send([message(queues[number])])
    assert links_to(broker, queues[0]) == before
    assert len(bus.senders) == 2
    await asyncio.gather(*(bus.send([message(name)]) for name in queues))
    assert len(bus.senders) == 2
    await bus.close()
    assert len(bus.senders) == 0
    assert [broker.counts(name).active for name in queues] == [4, 2, 2, 1]
    assert [links_to(broker, name) for name in queues] == [[]] * 4


async def test_a_wrong_key_is_reported_as_such() -> None:
    async with Broker(["agent-a"], require_key="the key") as broker:
        bus = ServiceBus.connect(broker.connection_string.replace("the key", "another key"))
        with pytest.raises(BusUnavailableError, match="Check the key in the connection string"):
            await bus.send([message("agent-a")])
        await bus.close()
        assert broker.counts("agent-a").active == 0


async def test_a_broker_that_is_not_there_is_unavailable_and_found_when_it_comes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    broker = Broker(["agent-a"], port=port)
    bus = ServiceBus.connect(broker.connection_string, send_s=3)
    with pytest.raises(BusUnavailableError, match="Check that the namespace"):
        await bus.send([message("agent-a")])
    async with broker:
        await bus.send([message("agent-a")])
        assert broker.counts("agent-a").active == 1
        await bus.close()
