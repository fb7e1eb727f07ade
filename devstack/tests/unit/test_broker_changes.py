"""Queues whose properties change while messages are locked, and unusual requests."""

from uuid import UUID

import pytest

from devstack.servicebus.amqp import encode
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.amqp.sections import unbatch
from devstack.servicebus.core import operations
from devstack.servicebus.core.errors import (
    NotAllowedError,
)
from devstack.servicebus.core.message import parse_message
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.wire.requests import Call, Reply, answer
from devstack.tests.queue_kit import (
    Receiver,
    World,
    application_properties,
    raw,
)


def change(world: World, queue: Queue, **properties: object) -> None:
    world.namespace.update(queue.name, QueueProperties(**properties), world.now)  # type: ignore[arg-type]


def bodies(world: World, queue: Queue) -> list[bytes]:
    """Receive the messages that are ready now."""
    receiver = world.receiver(queue, 5)
    queue.dispatch.detach(receiver, world.now)
    return receiver.bodies


def ask(world: World, queue: Queue, operation: str, **body: object) -> Reply:
    arguments = {name.replace("_", "-"): value for name, value in body.items()}
    return answer(f"com.microsoft:{operation}", Call(queue, arguments, world.now, None))


def test_a_lock_named_twice_is_settled_once(world: World) -> None:
    for status in ("completed", "abandoned", "defered", "suspended"):
        queue = world.queue(status)
        world.send(queue, b"1", b"2")
        tokens = [UUID(bytes_le=world.take(queue)[1]) for _ in range(2)]
        reply = ask(
            world,
            queue,
            "update-disposition",
            disposition_status=status,
            lock_tokens=[tokens[0], tokens[0], tokens[1]],
        )
        assert reply.status == 200
        assert not queue.locked


def test_a_settlement_of_dead_letters_by_request_changes_nothing_where_one_is_refused(
    world: World,
) -> None:
    queue = world.queue()
    world.send(queue, b"1")
    operations.dead_letter(queue, world.take(queue)[1], world.now)
    assert queue.dead_letters is not None
    token = UUID(bytes_le=world.take(queue.dead_letters)[1])
    reply = ask(
        world,
        queue.dead_letters,
        "update-disposition",
        disposition_status="suspended",
        lock_tokens=[token],
    )
    assert (reply.status, reply.condition) == (400, "amqp:not-allowed")
    assert token.bytes_le in queue.dead_letters.locked


def test_nothing_is_sent_to_dead_letters_so_that_no_number_is_given_twice(world: World) -> None:
    queue = world.queue()
    assert queue.dead_letters is not None
    with pytest.raises(NotAllowedError, match="dead letters"):
        world.send(queue.dead_letters, b"1")
    (number,) = world.send(queue, b"1")
    operations.dead_letter(queue, world.take(queue)[1], world.now)
    assert list(queue.dead_letters.messages) == [number]
    entry = {"message": raw(b"2", scheduled_at=world.now + 9)}
    reply = ask(world, queue.dead_letters, "schedule-message", messages=[entry])
    assert (reply.status, reply.condition) == (400, "amqp:not-allowed")


def test_messages_that_wait_follow_once_a_queue_begins_to_forward(world: World) -> None:
    source, target = world.queue("source"), world.queue("target", lock_duration_s=300)
    world.send(source, b"1", b"2", b"3")
    number = world.send(source, b"9", scheduled_at=world.now + 60)
    token = world.take(source)[1]
    change(world, source, forward_to="target")
    assert bodies(world, target) == [b"2", b"3"]
    assert sorted(source.messages) == [1, *number]
    operations.abandon(source, token, world.now)
    assert bodies(world, target) == [b"1"]
    world.wait(61)
    assert bodies(world, target) == [b"9"]
    assert (source.messages, source.bytes) == ({}, 0)


def test_a_message_forwarded_too_often_has_the_reason_of_the_service(world: World) -> None:
    queues = [world.queue("q0")]
    queues += [world.queue(f"q{n}", forward_to=f"q{n - 1}") for n in range(1, 6)]
    world.send(queues[4], b"within four hops")
    assert len(queues[0].messages) == 1
    world.send(queues[5], b"one hop more")
    (message,) = world.namespace.find("q1/$Transfer/$DeadLetterQueue").messages.values()
    assert application_properties(message)["DeadLetterReason"] == "MaxTransferHopCountExceeded"


def test_a_batch_entry_that_is_not_bytes_is_refused() -> None:
    for entry in (encode.uint(7), encode.string("x"), encode.list_([encode.uint(0)]), encode.NULL):
        with pytest.raises(DecodeError, match="batch"):
            unbatch(b"\x00\x53\x75" + entry)


def test_a_session_renewed_after_its_lock_was_made_shorter_ends_at_the_returned_time(
    world: World,
) -> None:
    queue = world.queue(requires_session=True, lock_duration_s=60)
    assert queue.sessions is not None
    receiver = Receiver(holder=world)
    queue.sessions.accept(receiver, "a", world.now)
    change(world, queue, lock_duration_s=2, requires_session=True)
    until = queue.sessions.renew(queue.sessions.held_by("a", world), world.now)
    assert until == world.now + 2
    world.wait(2.5)
    assert receiver.events == ["granted a", "lost"]


def test_what_no_sender_may_give_as_message_id_is_refused() -> None:
    for message_id in (encode.TRUE, b"\x82" + bytes(8), encode.list_([])):
        with pytest.raises(DecodeError, match="message-id must be text, a number, a uuid or bytes"):
            parse_message(encode.composite(0x73, [message_id]))


def test_a_page_is_the_same_however_few_messages_are_left(world: World) -> None:
    queue = world.queue()
    for number in world.send(queue, *[b"x"] * 100):
        if number % 7 and number < 60:
            queue.remove(queue.messages[number])
    for first in (0, -5, 1, 40, 60, 99, 100, 101, 1 << 62):
        expected = [number for number in queue.messages if number >= first][:10]
        page = operations.peek(queue, first, count=10, session_id=None, now=world.now)
        assert [message.sequence for message in page] == expected, first
