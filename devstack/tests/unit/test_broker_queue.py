"""Queues in virtual time, without sockets."""

from unittest.mock import Mock
from uuid import UUID

import pytest

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.sections import MESSAGE_ANNOTATIONS, sections
from devstack.servicebus.core import operations
from devstack.servicebus.core.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
)
from devstack.servicebus.core.message import MessageState, encode_message
from devstack.servicebus.core.properties import EntityStatus, QueueProperties
from devstack.tests.queue_kit import (
    START,
    World,
    application_properties,
    body_of,
    dead_letter_of,
)


def test_receivers_with_credit_take_turns(world: World) -> None:
    queue = world.queue()
    first, second = world.receiver(queue, 2), world.receiver(queue, 2)
    world.send(queue, b"1", b"2", b"3", b"4")
    assert (first.bodies, second.bodies) == ([b"1", b"3"], [b"2", b"4"])


def test_an_abandoned_message_comes_again_before_later_ones_with_its_count(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1", b"2")
    message, token = world.take(queue)
    operations.abandon(queue, token, world.now, {"why": encode.string("busy")})
    again, _ = world.take(queue)
    assert again is message
    assert again.delivery_count == 1
    assert application_properties(again) == {"why": "busy"}


def test_a_lower_maximum_holds_for_a_message_that_came_more_often_before(world: World) -> None:
    queue = world.queue(max_delivery_count=5)
    world.send(queue, b"1")
    for maximum in (5, 5, 5, 2):
        world.namespace.update("q", QueueProperties(max_delivery_count=maximum), world.now)
        operations.abandon(queue, world.take(queue)[1], world.now)
    assert dead_letter_of(queue).delivery_count == 4


def test_a_lock_ends_and_the_message_comes_again_with_its_count(world: World) -> None:
    queue = world.queue(lock_duration_s=30.0)
    world.send(queue, b"1")
    _, token = world.take(queue)
    world.wait(29.9)
    assert queue.locked
    world.wait(0.2)
    assert not queue.locked
    with pytest.raises(MessageLockLostError):
        operations.complete(queue, token, world.now)
    assert world.take(queue)[0].delivery_count == 1


def test_a_dead_letter_carries_reason_and_description_beside_the_senders_own(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1")
    _, token = world.take(queue)
    operations.dead_letter(
        queue,
        token,
        now=world.now,
        reason="Bad",
        description="very",
        changes={"kept": encode.int32(1)},
    )
    assert application_properties(dead_letter_of(queue)) == {
        "kept": 1,
        "DeadLetterReason": "Bad",
        "DeadLetterErrorDescription": "very",
    }


def test_a_dead_letter_keeps_its_number_and_a_forwarded_one_carries_it(world: World) -> None:
    world.queue("graves")
    plain, forwards = world.queue("plain"), world.queue("f", forward_dead_letters_to="graves")
    for queue in (plain, forwards):
        first, second = world.send(queue, b"1", b"2")
        receiver = world.receiver(queue, 2)
        for message, token in reversed(receiver.deliveries):
            operations.dead_letter(queue, token, world.now)
            assert message.enqueued_sequence in {first, second}
    dead = plain.dead_letters
    assert dead is not None
    assert [
        m.sequence for m in operations.peek(dead, 0, count=9, session_id=None, now=world.now)
    ] == [1, 2]
    assert [
        m.sequence for m in operations.peek(dead, 2, count=9, session_id=None, now=world.now)
    ] == [2]
    assert world.receiver(dead, 2).bodies == [b"1", b"2"]
    moved = operations.peek(
        world.namespace.queue("graves"), 0, count=9, session_id=None, now=world.now
    )
    assert [(m.sequence, m.enqueued_sequence) for m in moved] == [(1, 2), (2, 1)]


def test_a_message_past_its_time_to_live_is_dead_lettered_if_the_queue_is_configured_so(
    world: World,
) -> None:
    queue = world.queue(dead_letter_on_expiration=True, default_ttl_s=10.0)
    world.send(queue, b"1")
    world.wait(10.1)
    assert application_properties(dead_letter_of(queue))["DeadLetterReason"] == (
        "TTLExpiredException"
    )
    world.wait(100)
    assert dead_letter_of(queue) is not None


def test_the_queues_default_lowers_a_longer_time_to_live_and_the_header_shows_it(
    world: World,
) -> None:
    queue = world.queue(default_ttl_s=10.0)
    world.send(queue, b"1", ttl_ms=60_000)
    message, _ = world.take(queue)
    header = decode.decode(encode_message(message), 3)[0]
    assert header[2] == 10_000
    assert header[4] == 0


def test_of_several_scheduled_messages_all_are_cancelled_or_none(world: World) -> None:
    queue = world.queue()
    (number,) = world.send(queue, b"later", scheduled_at=START + 60)
    with pytest.raises(MessageNotFoundError):
        operations.cancel(queue, [number, number + 1])
    operations.cancel(queue, [number])
    assert not queue.messages


def test_a_scheduled_message_waits_and_then_gets_a_new_number(world: World) -> None:
    queue = world.queue()
    (number,) = world.send(queue, b"later", scheduled_at=START + 60)
    receiver = world.receiver(queue, 1)
    assert queue.messages[number].state is MessageState.SCHEDULED
    world.wait(59)
    assert receiver.deliveries == []
    world.wait(1.1)
    assert receiver.bodies == [b"later"]
    (message, _) = receiver.deliveries[0]
    assert (message.sequence > number, message.enqueued_at) == (True, world.now)


def test_a_duplicate_within_the_window_is_dropped_and_answered_with_the_first_number(
    world: World,
) -> None:
    queue = world.queue(requires_duplicate_detection=True, duplicate_window_s=60.0)
    first = world.send(queue, b"1", message_id="same")
    operations.complete(queue, world.take(queue)[1], world.now)
    world.wait(59)
    assert world.send(queue, b"2", message_id="same") == first
    assert not queue.messages
    world.wait(2)
    assert world.send(queue, b"3", message_id="same") != first
    assert len(queue.messages) == 1


def test_without_duplicate_detection_one_id_may_come_twice(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1", b"2", message_id="same")
    assert len(queue.messages) == 2


def test_forwarding_brings_a_message_to_the_other_queue_with_its_first_number(
    world: World,
) -> None:
    target = world.queue("target", default_ttl_s=60.0)
    world.queue("between", forward_to="target")
    source = world.queue("source", forward_to="between")
    world.send(target, b"0")
    world.send(source, b"1")
    second, first = world.send(source, b"2", scheduled_at=world.now + 1), world.take(target)
    world.wait(1)
    assert not source.messages
    later = world.receiver(target, 2).deliveries
    assert [body_of(message) for message, _ in (first, *later)] == [b"0", b"1", b"2"]
    facts = [(m.sequence, m.enqueued_sequence, m.enqueued_at) for m, _ in later]
    assert facts == [(2, 1, START), (3, second[0] + 1, START + 1)]
    assert [m.expires_at for m, _ in later] == [START + 60, START + 61]
    operations.dead_letter(target, later[0][1], world.now)
    assert dead_letter_of(target).enqueued_sequence == 1


def test_a_message_that_was_locked_when_its_queue_began_to_forward_counts_anew(
    world: World,
) -> None:
    """Its time to live begins anew as well, and ends where it is."""
    target, source = world.queue("target"), world.queue("source", dead_letter_on_expiration=True)
    world.send(source, b"1", ttl_ms=3000)
    _, token = world.take(source)
    world.wait(2)
    world.namespace.update("source", QueueProperties(forward_to="target"), world.now)
    operations.abandon(source, token, world.now)
    message, _ = world.take(target)
    assert (message.delivery_count, message.expires_at) == (0, world.now + 3)


def test_locks_are_renewed_all_or_none(world: World) -> None:
    queue = world.queue(lock_duration_s=3)
    world.send(queue, b"1", b"2")
    (message, token), (_, ended) = world.receiver(queue, 2).deliveries
    operations.complete(queue, ended, world.now)
    world.now += 1
    with pytest.raises(MessageLockLostError):
        operations.renew(queue, [token, ended], world.now)
    assert message.locked_until == START + 3


def test_what_cannot_be_forwarded_is_kept_with_the_reason(world: World) -> None:
    source = world.queue("source", forward_to="nowhere")
    world.send(source, b"1", ttl_ms=1000)
    world.wait(2)
    transfer = world.namespace.find("source/$Transfer/$DeadLetterQueue")
    (message,) = transfer.messages.values()
    assert "nowhere" in application_properties(message)["DeadLetterErrorDescription"]


def test_a_ring_of_forwarding_queues_ends_and_keeps_the_message(world: World) -> None:
    first = world.queue("a", forward_to="b")
    world.queue("b", forward_to="a")
    world.send(first, b"1")
    queues = [q for q in world.namespace.every_queue() if q.messages]
    assert [len(queue.messages) for queue in queues] == [1]
    assert queues[0].name.endswith("/$Transfer/$DeadLetterQueue")


def test_forwarded_dead_letters_name_their_source_and_keep_their_reason(world: World) -> None:
    target = world.queue("graves")
    queue = world.queue("orders", forward_dead_letters_to="Graves")
    world.send(queue, b"1", ttl_ms=1000)
    operations.dead_letter(
        queue, world.take(queue)[1], now=world.now, reason="Bad", description="very"
    )
    message, _ = world.take(target)
    assert application_properties(message)["DeadLetterReason"] == "Bad"
    annotations = [
        decode.decode(encode_message(message), section.value_at)[0]
        for section in sections(encode_message(message))
        if section.code == MESSAGE_ANNOTATIONS
    ]
    assert annotations[0]["x-opt-deadletter-source"] == "orders"
    assert (message.delivery_count, message.expires_at) == (0, None)


def test_a_dead_letter_stays_where_its_forward_target_is_missing(world: World) -> None:
    queue = world.queue("orders", forward_dead_letters_to="nowhere")
    world.send(queue, b"1")
    operations.dead_letter(
        queue, world.take(queue)[1], now=world.now, reason="Bad", description="very"
    )
    message = dead_letter_of(queue)
    assert application_properties(message)["DeadLetterReason"] == "Bad"
    assert message.dead_letter_source is None


def test_a_deleted_queue_records_nothing_of_what_its_receivers_still_do(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1", b"2")
    operations.dead_letter(queue, world.take(queue)[1], world.now)
    assert queue.dead_letters is not None
    locks = [(part, world.take(part)[1]) for part in (queue, queue.dead_letters)]
    world.namespace.delete("q")
    world.namespace.journal = journal = Mock()
    for part, token in locks:
        operations.release(part, token, world.now)
    assert journal.mock_calls == []


def test_a_batch_goes_in_whole_or_not_at_all(world: World) -> None:
    queue = world.queue(max_message_kilobytes=1)
    with pytest.raises(MessageSizeExceededError):
        world.send(queue, b"small", b"x" * 2000)
    assert not queue.messages


def test_a_queues_status_decides_what_it_takes_and_gives(world: World) -> None:
    for status, expected in {
        EntityStatus.ACTIVE: [True, True],
        EntityStatus.DISABLED: [False, False],
        EntityStatus.SEND_DISABLED: [False, True],
        EntityStatus.RECEIVE_DISABLED: [True, False],
    }.items():
        queue = world.queue(status.value, status=status)
        outcomes = []
        for attempt in (queue.check_sendable, queue.check_receivable):
            try:
                attempt()
                outcomes.append(True)
            except EntityDisabledError:
                outcomes.append(False)
        assert outcomes == expected, status


def test_peek_shows_ready_locked_deferred_and_scheduled_messages_in_order(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1", b"2", b"3")
    world.send(queue, b"4", scheduled_at=START + 60)
    world.take(queue)
    operations.defer(queue, world.take(queue)[1], world.now)
    messages = operations.peek(queue, 1, count=10, session_id=None, now=world.now)
    assert [body_of(message) for message in messages] == [b"1", b"2", b"3", b"4"]
    assert [message.state.value for message in messages] == [0, 1, 0, 2]
    assert operations.peek(queue, 3, count=1, session_id=None, now=world.now) == [messages[2]]


def test_peek_gives_no_more_than_a_reply_can_hold_but_always_one(world: World) -> None:
    queue = world.queue(max_message_kilobytes=102400)
    world.send(queue, *[b"x" * (3 << 20)] * 3)
    assert len(operations.peek(queue, 1, count=10, session_id=None, now=world.now)) == 1


def test_names_are_found_whatever_their_case_and_near_ones_are_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.queue("Orders")
    assert world.namespace.find("orders") is queue
    assert world.namespace.find("ORDERS/$deadletterqueue") is queue.dead_letters
    with pytest.raises(EntityNotFoundError, match="'order'"):
        world.namespace.find("order")
    assert "Orders" in caplog.text


def test_expired_traffic_leaves_no_numbers_behind(world: World) -> None:
    queue = world.queue(default_ttl_s=3600.0)
    for _ in range(5000):
        world.send(queue, b"1")
        operations.complete(queue, world.take(queue)[1], world.now)
        world.wait(0.5)
    assert len(queue._due) < 3000
    assert not queue.locked


def test_the_lock_token_is_a_uuid_in_the_order_the_sdks_read_it(world: World) -> None:
    queue = world.queue()
    world.send(queue, b"1")
    message, token = world.take(queue)
    encoded = encode_message(message)
    annotations = [
        decode.decode(encoded, s.value_at)[0] for s in sections(encoded) if s.code == 0x71
    ]
    assert annotations == [{"x-opt-lock-token": UUID(bytes_le=token)}]
