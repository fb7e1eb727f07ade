"""Queues of the broker in virtual time, without sockets: messages, receivers and a clock."""

from typing import Any

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.sections import APPLICATION_PROPERTIES, sections
from devstack.servicebus.core.dispatch import Session
from devstack.servicebus.core.message import Message, parse_message
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Queue

START = 1_000_000.0


def raw(
    body: bytes = b"x",
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    ttl_ms: int | None = None,
    scheduled_at: float | None = None,
) -> bytes:
    header = encode.composite(
        0x70, [encode.NULL, encode.NULL, encode.NULL if ttl_ms is None else encode.uint(ttl_ms)]
    )
    annotations = b""
    if scheduled_at is not None:
        key = encode.symbol("x-opt-scheduled-enqueue-time")
        annotations = b"\x00\x53\x72" + encode.map_([(key, encode.timestamp(scheduled_at))])
    fields = [encode.NULL] * 11
    fields[0] = encode.scalar(message_id)
    fields[10] = encode.scalar(session_id)
    properties = encode.composite(0x73, fields)
    return header + annotations + properties + b"\x00\x53\x75" + encode.binary(body)


class Receiver:
    """A consumer that records its messages and events."""

    def __init__(self, *, presettled: bool = False, holder: object = None) -> None:
        self.credit = 0
        self.presettled = presettled
        self.session: Session | None = None
        self.holder = holder
        self.deliveries: list[tuple[Message, bytes]] = []
        self.events: list[str] = []

    def deliver(self, message: Message, token: bytes) -> None:
        self.credit -= 1
        self.deliveries.append((message, token))

    def session_granted(self, session: Session) -> None:
        self.events.append(f"granted {session.id}")

    def session_refused(self) -> None:
        self.events.append("refused")

    def session_lost(self) -> None:
        self.events.append("lost")

    @property
    def bodies(self) -> list[bytes]:
        return [body_of(message) for message, _ in self.deliveries]


def body_of(message: Message) -> bytes:
    section = next(s for s in sections(message.bare) if s.code == 0x75)
    return bytes(decode.decode(message.bare, section.value_at)[0])


def application_properties(message: Message) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for section in sections(message.bare):
        if section.code == APPLICATION_PROPERTIES:
            properties = decode.decode(message.bare, section.value_at)[0]
    return properties


class World:
    """A namespace with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = START
        self.namespace = Namespace()

    def queue(self, name: str = "q", **properties: Any) -> Queue:
        return self.namespace.create(name, QueueProperties(**properties), self.now)

    def send(self, queue: Queue, *bodies: bytes, **options: Any) -> list[int]:
        messages = [parse_message(raw(body, **options)) for body in bodies]
        return queue.enqueue(messages, self.now)

    def receiver(self, queue: Queue, credit: int, **options: Any) -> Receiver:
        receiver = Receiver(**options)
        self.give_credit(queue, receiver, credit)
        return receiver

    def give_credit(self, queue: Queue, receiver: Receiver, credit: int) -> None:
        receiver.credit += credit
        queue.dispatch.add_credit(receiver, self.now)

    def take(self, queue: Queue) -> tuple[Message, bytes]:
        receiver = self.receiver(queue, 1)
        queue.dispatch.detach(receiver, self.now)
        (delivery,) = receiver.deliveries
        return delivery

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.namespace.tick(self.now)


def dead_letter_of(queue: Queue) -> Message:
    """The only message among the dead letters of a queue."""
    assert queue.dead_letters is not None
    (message,) = queue.dead_letters.messages.values()
    return message
