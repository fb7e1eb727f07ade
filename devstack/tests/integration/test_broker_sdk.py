"""The real azure-servicebus, synchronous, against the broker on a thread."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusQuotaExceededError,
)

from devstack.servicebus import Broker, EntityStatus, QueueCounts
from devstack.servicebus.amqp import encode
from devstack.servicebus.core.message import parse_message
from devstack.tests.broker_runners import BrokerThread
from devstack.tests.sdk_kit import SDK

pytestmark = SDK


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(["graves"]) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker: BrokerThread) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=1, retry_backoff_factor=0.05
    ) as client:
        yield client


class Bench:
    """A queue of one test, filled without the SDK if the test is not about sending."""

    def __init__(self, broker: BrokerThread, client: ServiceBusClient) -> None:
        self.broker = broker
        self.client = client
        self.name = ""

    def create(self, name: str, *bodies: str, **properties: Any) -> None:
        self.name = name
        self.broker.call(lambda b: b.create_queue(name, **properties))
        self.put(*bodies)

    def put(self, *bodies: str, queue: str = "") -> None:
        def work(broker: Broker) -> None:
            data = [b"\x00\x53\x75" + encode.binary(body.encode()) for body in bodies]
            messages = [parse_message(payload) for payload in data]
            broker.namespace.queue(queue or self.name).enqueue(messages, broker.clock())
            broker.context.touch()

        self.broker.call(work)

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.client.get_queue_receiver(self.name, **options)

    def dead_letters(self) -> ServiceBusReceiver:
        return self.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    def send(self, message: ServiceBusMessage) -> None:
        with self.client.get_queue_sender(self.name) as sender:
            sender.send_messages(message)

    @property
    def counts(self) -> QueueCounts:
        return self.broker.call(lambda b: b.counts(self.name))


@pytest.fixture
def bench(broker: BrokerThread, client: ServiceBusClient) -> Bench:
    return Bench(broker, client)


def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        batch = receiver.receive_messages(count - len(messages), max_wait_time=60)
        assert batch, f"only {len(messages)} of {count} messages came"
        messages += batch
    return messages


def test_a_message_arrives_as_it_was_sent(bench: Bench) -> None:
    bench.create("as-sent")
    began = datetime.now(UTC) - timedelta(seconds=1)  # the service rounds
    bench.send(
        ServiceBusMessage(
            b"\x00\xffbody",
            application_properties={"number": 7, "text": "ä", "flag": True},
            message_id="id-1",
            correlation_id="cor",
            subject="sub",
            reply_to="answers",
            content_type="application/json",
            time_to_live=timedelta(hours=1),
        )
    )
    with bench.receiver() as receiver:
        (message,) = receive(receiver)
        locked_until = message.locked_until_utc
        receiver.complete_message(message)
    assert b"".join(message.body) == b"\x00\xffbody"
    assert message.application_properties == {b"number": 7, b"text": "ä".encode(), b"flag": True}
    assert (message.message_id, message.correlation_id, message.subject) == ("id-1", "cor", "sub")
    assert (message.reply_to, message.content_type) == ("answers", "application/json")
    assert message.time_to_live == timedelta(hours=1)
    assert (message.delivery_count, message.sequence_number) == (0, 1)
    assert message.enqueued_time_utc is not None
    assert began < message.enqueued_time_utc < datetime.now(UTC)
    assert locked_until is not None
    assert began + timedelta(seconds=60) < locked_until < datetime.now(UTC) + timedelta(seconds=60)


def test_a_batch_arrives_whole_and_in_order(bench: Bench) -> None:
    bench.create("batches")
    with bench.client.get_queue_sender("batches") as sender:
        batch = sender.create_message_batch()
        for number in range(50):
            batch.add_message(ServiceBusMessage(str(number)))
        sender.send_messages(batch)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with bench.receiver(receive_mode=mode) as receiver:
        assert [str(m) for m in receive(receiver, 50)] == [str(number) for number in range(50)]
    assert bench.counts.total == 0


def test_complete_abandon_defer_and_dead_letter(bench: Bench) -> None:
    bench.create("verbs", "complete", "abandon", "defer", "bury")
    with bench.receiver() as receiver:
        completed, abandoned, deferred, buried = receive(receiver, 4)
        receiver.complete_message(completed)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(buried, reason="R", error_description="D")
        receiver.abandon_message(abandoned)
        (again,) = receive(receiver)
        assert (str(again), again.delivery_count) == ("abandon", 1)
        receiver.complete_message(again)
        (later,) = receiver.receive_deferred_messages([deferred.sequence_number or 0])
        assert str(later) == "defer"
        receiver.complete_message(later)
    with bench.dead_letters() as receiver:
        (letter,) = receive(receiver)
        reason, description = letter.dead_letter_reason, letter.dead_letter_error_description
        assert (str(letter), reason, description) == ("bury", "R", "D")
        receiver.complete_message(letter)
    assert bench.counts.total == 0


def test_a_lost_lock_is_reported_and_two_failures_make_a_dead_letter(bench: Bench) -> None:
    bench.create("brief", "poison", max_delivery_count=2)
    with bench.receiver() as receiver:
        (first,) = receive(receiver)
        bench.broker.call(lambda b: b.expire_locks("brief"))
        (second,) = receive(receiver)
        assert second.delivery_count == 1
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        receiver.abandon_message(second)
    assert bench.counts.dead_letter == 1


def test_an_unknown_queue_is_refused_with_its_token_as_in_azure(client: ServiceBusClient) -> None:
    """The same as Microsoft's own test_sb_client_bad_entity, which runs against Azure."""
    with (
        pytest.raises(ServiceBusAuthenticationError) as refusal,
        client.get_queue_sender("grave") as sender,
    ):
        sender.send_messages(ServiceBusMessage("1"))
    assert "'grave' could not be found" in str(refusal.value.inner_exception)
    with (
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_receiver("grave") as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)


def test_full_disabled_and_oversized_have_different_errors(bench: Bench) -> None:
    bench.create("small", max_message_kilobytes=1024, max_size_megabytes=1)
    with bench.client.get_queue_sender("small") as sender:
        sender.send_messages(ServiceBusMessage("x" * 700_000))
        with pytest.raises(ServiceBusQuotaExceededError, match="MaxSizeInMegabytes"):
            sender.send_messages(ServiceBusMessage("x" * 700_000))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x" * 1_100_000))
        bench.broker.call(lambda b: b.update_queue("small", status=EntityStatus.SEND_DISABLED))
        with pytest.raises(MessagingEntityDisabledError, match="SendDisabled"):
            sender.send_messages(ServiceBusMessage("1"))


def test_prefetched_messages_of_a_closed_receiver_come_again_uncounted(bench: Bench) -> None:
    bench.create("prefetched", *[str(number) for number in range(10)])
    with bench.receiver(prefetch_count=10) as receiver:
        receiver.complete_message(receive(receiver)[0])
    assert (bench.counts.active, bench.counts.locked) == (9, 0)
    with bench.receiver() as receiver:
        rest = receive(receiver, 9)
    assert {(str(message), message.delivery_count) for message in rest} == {
        (str(number), 0) for number in range(1, 10)
    }
