"""Queues whose properties change while messages are locked, and unusual requests."""

from uuid import UUID

import pytest

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.amqp.sections import unbatch
from devstack.servicebus.core import operations
from devstack.servicebus.core.errors import (
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
)
from devstack.servicebus.core.message import MessageState, parse_message
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.wire.requests import Call, Reply, answer
from devstack.tests.queue_kit import (
    START,
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


def test_a_shorter_lock_ends_before_a_longer_one_that_was_taken_earlier(world: World) -> None:
    queue = world.queue(lock_duration_s=60)
    world.send(queue, b"1", b"2")
    world.take(queue)
    change(world, queue, lock_duration_s=1)
    world.take(queue)
    world.wait(1.5)
    assert bodies(world, queue) == [b"2"]
    world.wait(60)
    assert bodies(world, queue) == [b"1", b"2"]


def test_a_renewal_after_the_lock_was_made_shorter_ends_at_the_time_that_it_returned(
    world: World,
) -> None:
    queue = world.queue(lock_duration_s=60)
    world.send(queue, b"1", b"2")
    world.take(queue)
    token = world.take(queue)[1]
    change(world, queue, lock_duration_s=2)
    assert operations.renew(queue, [token], world.now) == [world.now + 2]
    world.wait(2.5)
    assert bodies(world, queue) == [b"2"]


def test_a_lock_put_back_with_a_longer_end_does_not_hold_up_a_shorter_one(world: World) -> None:
    queue = world.queue(lock_duration_s=1)
    for number, until in enumerate((START + 60, START + 90)):
        message = parse_message(raw(b"%d" % number))
        message.sequence, message.locked_until = number + 1, until
        queue.last_sequence = number + 1
        queue.index(message)
        queue.restore_lock(message, bytes([number]) * 16)
    world.send(queue, b"2")
    world.take(queue)
    world.wait(1.5)
    assert bodies(world, queue) == [b"2"]


def deferred_number(world: World, queue: Queue, body: bytes = b"1") -> int:
    (number,) = world.send(queue, body)
    operations.defer(queue, world.take(queue)[1], world.now)
    return number


@pytest.mark.parametrize("mode", [0, 1])
def test_a_deferred_message_asked_for_twice_in_one_request_is_given_once(
    world: World, mode: int
) -> None:
    queue = world.queue()
    number = deferred_number(world, queue)
    reply = ask(
        world,
        queue,
        "receive-by-sequence-number",
        sequence_numbers=[number, number],
        receiver_settle_mode=mode,
    )
    assert reply.status == 200
    assert len(decode.decode(reply.body)[0]["messages"]) == 1
    assert len(queue.locked) == len(queue.messages) == mode


def test_a_scheduled_message_named_twice_is_cancelled_once(world: World) -> None:
    queue = world.queue()
    (number,) = world.send(queue, b"1", scheduled_at=world.now + 60)
    assert ask(world, queue, "cancel-scheduled-message", sequence_numbers=[number] * 2)[0] == 200
    assert (queue.messages, queue.scheduled_count) == ({}, 0)
    with pytest.raises(MessageNotFoundError):
        operations.cancel(queue, [number])


@pytest.mark.parametrize("status", ["completed", "abandoned", "defered", "suspended"])
def test_a_lock_named_twice_is_settled_once(world: World, status: str) -> None:
    queue = world.queue()
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


def test_a_lower_limit_of_deliveries_counts_from_the_next_one_on(world: World) -> None:
    queue = world.queue(max_delivery_count=10)
    world.send(queue, b"1")
    for _ in range(3):
        operations.abandon(queue, world.take(queue)[1], world.now)
    change(world, queue, max_delivery_count=2)
    token = world.take(queue)[1]
    operations.abandon(queue, token, world.now)
    assert not queue.messages
    with pytest.raises(MessageLockLostError):
        operations.complete(queue, token, world.now)


def test_a_batch_entry_that_is_not_bytes_is_refused() -> None:
    for entry in (encode.uint(7), encode.string("x"), encode.list_([encode.uint(0)]), encode.NULL):
        with pytest.raises(DecodeError, match="batch"):
            unbatch(b"\x00\x53\x75" + entry)


def test_a_deferred_message_of_a_lost_lock_stays_deferred(world: World) -> None:
    queue = world.queue(lock_duration_s=1)
    number = deferred_number(world, queue)
    ask(
        world,
        queue,
        "receive-by-sequence-number",
        sequence_numbers=[number],
        receiver_settle_mode=1,
    )
    world.wait(1.5)
    assert queue.messages[number].state is MessageState.DEFERRED
    assert queue.messages[number].delivery_count == 1
    assert not world.receiver(queue, 1).deliveries


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


@pytest.mark.parametrize("message_id", [encode.TRUE, b"\x82" + bytes(8), encode.list_([])])
def test_what_no_sender_may_give_as_message_id_is_refused(message_id: bytes) -> None:
    with pytest.raises(DecodeError, match="message-id must be text, a number, a uuid or bytes"):
        parse_message(encode.composite(0x73, [message_id]))


@pytest.mark.parametrize("first", [0, -5, 1, 40, 60, 99, 100, 101, 1 << 62])
def test_a_page_is_the_same_however_few_messages_are_left(world: World, first: int) -> None:
    queue = world.queue()
    for number in world.send(queue, *[b"x"] * 100):
        if number % 7 and number < 60:
            queue.remove(queue.messages[number])
    expected = [number for number in queue.messages if number >= first][:10]
    assert [
        m.sequence for m in operations.peek(queue, first, count=10, session_id=None, now=world.now)
    ] == expected
