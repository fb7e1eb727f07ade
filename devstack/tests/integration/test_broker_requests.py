"""What clients of other languages send: AMQP's own types, requests by frame, tokens."""

import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.sections import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    VALUE,
    pairs,
    sections,
)
from devstack.servicebus.core.message import Message, encode_message
from devstack.tests.sdk_kit import SDK
from devstack.tests.wire_kit import Peer, peer_of, put, request

pytestmark = SDK


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    queues = {"q": QueueProperties(), "lanes": QueueProperties(requires_session=True)}
    async with Broker(queues) as broker:
        yield broker


def section(payload: bytes, code: int) -> dict[Any, bytes]:
    """Return the values of a map section, still encoded."""
    (part,) = [part for part in sections(payload) if part.code == code]
    return {key: value for key, _, value in pairs(payload, part.value_at)}


class Answer(NamedTuple):
    status: int
    condition: str | None
    body: Any


class Requests:
    """The two links of a node, and requests on them."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sent = 0

    @classmethod
    async def attach(cls, peer: Peer, node: str) -> "Requests":
        await peer.attach(node, receives=True, handle=90)
        peer.send(frames.FLOW, *[encode.uint(n) for n in (1, 2048, 0, 2048, 90, 0, 1000)])
        await peer.attach(node, receives=False, handle=91)
        return cls(peer)

    async def ask(self, operation: str, body: bytes, **named: str) -> Answer:
        payload = request(body, operation=operation, **named)
        self._peer.transfer(self._sent, payload, handle=91)
        self._sent += 1
        payload = await self._peer.message()
        status = {key: decode.decode(value)[0] for key, value in reply_properties(payload).items()}
        bodies = [
            decode.decode(payload, s.value_at)[0] for s in sections(payload) if s.code == VALUE
        ]
        return Answer(status["statusCode"], status.get("errorCondition"), bodies[0])


def reply_properties(payload: bytes) -> dict[Any, bytes]:
    return section(payload, APPLICATION_PROPERTIES)


def named(**entries: bytes) -> bytes:
    return encode.map_((encode.string(k.replace("_", "-")), v) for k, v in entries.items())


# -- properties that a settlement gives ---------------------------------------------------------

#: Values as Microsoft.Azure.Amqp writes them. Python has no types of its own for most of them.
OF_NET = {
    "TimeSpan": b"\x00" + encode.symbol("com.microsoft:timespan") + encode.int64(15_000_000),
    "DateTimeOffset": b"\x00" + encode.symbol("com.microsoft:datetime-offset") + encode.int64(7),
    "Uri": b"\x00" + encode.symbol("com.microsoft:uri") + encode.string("http://h/"),
    "ulong.MaxValue": encode.ulong(2**64 - 1),
    "DateTime": encode.timestamp(1e9),
    "decimal": b"\x94" + bytes(range(16)),
    "char": b"\x73" + "é".encode("utf-32-be"),
    "byte": encode.ubyte(7),
    "float": b"\x72" + struct.pack(">f", 1.5),
    "int": encode.int32(-1),
    "Guid": encode.uuid(UUID(int=5)),
    "null": encode.NULL,
}
MAP = encode.map_((encode.symbol(name), value) for name, value in OF_NET.items())


def outcome(how: str, properties: bytes) -> bytes:
    if how == "dead-letter":
        condition = encode.symbol("com.microsoft:dead-letter")
        error = encode.composite(frames.ERROR, [condition, encode.NULL, properties])
        return encode.composite(frames.REJECTED, [error])
    flags = [encode.TRUE, encode.boolean(how == "defer")]
    return encode.composite(frames.MODIFIED, [*flags, properties])


def only_message(broker: Broker, how: str) -> Message:
    queue = broker.namespace.find("q/$DeadLetterQueue" if how == "dead-letter" else "q")
    (message,) = queue.messages.values()
    return message


@pytest.mark.parametrize("how", ["abandon", "defer", "dead-letter"])
async def test_properties_given_with_a_settlement_keep_their_types(
    broker: Broker, how: str
) -> None:
    put(broker, 1)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        peer.credit(1)
        await peer.expect(frames.TRANSFER)
        state = outcome(how, MAP)
        peer.send(frames.DISPOSITION, b"\x41", encode.uint(1), b"\x40", b"\x42", state)
        echo = await peer.expect(frames.DISPOSITION)
    assert (echo[3], echo[4].descriptor) == (True, state[2])
    expected = dict(OF_NET)
    if how == "dead-letter":  # an info of null is one that the client left out
        del expected["null"]
    payload = encode_message(only_message(broker, how))
    assert section(payload, APPLICATION_PROPERTIES) == expected


@pytest.mark.parametrize(
    ("how", "status"),
    [("abandon", "abandoned"), ("defer", "defered"), ("dead-letter", "suspended")],
)
async def test_properties_given_with_a_settlement_by_request_keep_their_types(
    broker: Broker, how: str, status: str
) -> None:
    put(broker, 1)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        peer.credit(1)
        tag = (await peer.expect(frames.TRANSFER))[2]
        requests = await Requests.attach(peer, "q/$management")
        body = named(
            disposition_status=encode.string(status),
            lock_tokens=encode.array([encode.uuid(UUID(bytes_le=tag))]),
            properties_to_modify=MAP,
        )
        answer = await requests.ask("com.microsoft:update-disposition", body)
    assert answer.status == 200
    payload = encode_message(only_message(broker, how))
    assert section(payload, APPLICATION_PROPERTIES) == OF_NET


async def test_a_message_id_above_the_range_of_long_is_taken_and_known_again(
    tmp_path: Path,
) -> None:
    """`ulong` is a type of message-ids, and the data directory keeps the ids."""
    properties = encode.composite(0x73, [encode.ulong(2**64 - 1)])
    queues = {"q": QueueProperties(requires_duplicate_detection=True)}
    for _ in range(2):
        async with Broker(queues, data=tmp_path) as broker, peer_of(broker) as peer:
            await peer.open()
            await peer.attach("q", receives=False)
            peer.transfer(0, properties + b"\x00\x53\x75" + encode.binary(b"x"))
            assert (await peer.expect(frames.DISPOSITION))[4].descriptor == frames.ACCEPTED
            assert broker.counts("q").active == 1


# -- peeks -------------------------------------------------------------------------------------


async def test_a_peek_shows_scheduled_and_deferred_messages_with_their_state(
    broker: Broker,
) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        async with client.get_queue_sender("q") as sender:
            await sender.send_messages(ServiceBusMessage("deferred"))
            await sender.send_messages(ServiceBusMessage("active"))
            (number,) = await sender.schedule_messages(ServiceBusMessage("scheduled"), at)
            message = ServiceBusMessage("sent ahead", scheduled_enqueue_time_utc=at)
            await sender.send_messages(message)
        async with client.get_queue_receiver("q") as receiver:
            (first,) = await receiver.receive_messages(1, max_wait_time=60)
            await receiver.defer_message(first)
            messages = await receiver.peek_messages(10, sequence_number=1)
    states = ServiceBusMessageState
    assert [(str(m), m.state, m.scheduled_enqueue_time_utc) for m in messages] == [
        ("deferred", states.DEFERRED, None),
        ("active", states.ACTIVE, None),
        ("scheduled", states.SCHEDULED, at),
        ("sent ahead", states.SCHEDULED, at),
    ]
    assert messages[2].sequence_number == number
    annotations = section(
        encode_message(broker.namespace.queue("q").messages[number]), MESSAGE_ANNOTATIONS
    )
    assert annotations["x-opt-message-state"] == encode.int32(2)
    assert annotations["x-opt-scheduled-enqueue-time"] == encode.timestamp(at.timestamp())


# -- tokens ------------------------------------------------------------------------------------


async def test_a_token_for_an_unknown_queue_is_answered_with_not_found(broker: Broker) -> None:
    statuses = {
        "sb://h:5672/q": 202,
        "amqps://h/Q/$management": 202,
        "sb://h/q/$DeadLetterQueue/$management": 202,
        "sb://h/": 202,
        "sb://h/none": 404,
        "sb://h/none/$management": 404,
    }
    async with peer_of(broker) as peer:
        await peer.open()
        requests = await Requests.attach(peer, "$cbs")
        for address, status in statuses.items():
            answer = await requests.ask("put-token", encode.string("t"), name=address)
            assert answer.status == status, address
            assert (answer.condition == "amqp:not-found") == (status == 404)
