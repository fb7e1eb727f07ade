"""Sessions of a queue in virtual time: one owner each, messages in order."""

import pytest

from devstack.servicebus.core import operations
from devstack.servicebus.core.dispatch import SessionDispatch
from devstack.servicebus.core.errors import (
    NotAllowedError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from devstack.servicebus.core.queue import Queue
from devstack.tests.queue_kit import Receiver, World


@pytest.fixture
def queue(world: World) -> Queue:
    return world.queue(requires_session=True, lock_duration_s=30.0, max_delivery_count=3)


def sessions_of(queue: Queue) -> SessionDispatch:
    assert queue.sessions is not None
    return queue.sessions


def accept(world: World, queue: Queue, session_id: str, credit: int = 0) -> Receiver:
    receiver = Receiver(holder=object())
    sessions_of(queue).accept(receiver, session_id, world.now)
    if credit:
        world.give_credit(queue, receiver, credit)
    return receiver


def accept_next(world: World, queue: Queue, patience_s: float = 10.0) -> Receiver:
    receiver = Receiver(holder=object())
    sessions_of(queue).accept_next(receiver, world.now, patience_s)
    return receiver


def test_a_session_gives_its_own_messages_in_order(world: World, queue: Queue) -> None:
    for body, session in ((b"a1", "a"), (b"b1", "b"), (b"a2", "a")):
        world.send(queue, body, session_id=session)
    assert accept(world, queue, "a", 9).bodies == [b"a1", b"a2"]
    assert accept(world, queue, "b", 9).bodies == [b"b1"]


def test_of_two_receivers_only_one_holds_a_session(world: World, queue: Queue) -> None:
    accept(world, queue, "a")
    with pytest.raises(SessionCannotBeLockedError):
        accept(world, queue, "a")


def test_a_message_without_a_session_is_refused(world: World, queue: Queue) -> None:
    with pytest.raises(NotAllowedError, match="session id"):
        world.send(queue, b"1")


def test_the_next_free_session_is_the_one_that_waited_longest(world: World, queue: Queue) -> None:
    for session in ("b", "a", "c"):
        world.send(queue, b"1", session_id=session)
    sessions = [accept_next(world, queue).session for _ in range(3)]
    assert [session.id for session in sessions if session] == ["b", "a", "c"]


def test_a_receiver_that_waits_for_a_session_gets_the_first_that_comes(
    world: World, queue: Queue
) -> None:
    first, second = accept_next(world, queue), accept_next(world, queue)
    world.send(queue, b"1", session_id="x")
    assert (first.events, second.events) == (["granted x"], [])
    world.wait(11)
    assert second.events == ["refused"]
    world.send(queue, b"1", session_id="y")
    assert second.events == ["refused"]


def test_a_closed_session_is_free_at_once_and_its_messages_are_not_counted(
    world: World, queue: Queue
) -> None:
    world.send(queue, b"1", b"2", session_id="a")
    first = accept(world, queue, "a", 5)
    queue.dispatch.detach(first, world.now)
    second = accept_next(world, queue)
    world.give_credit(queue, second, 5)
    assert second.bodies == [b"1", b"2"]
    assert [message.delivery_count for message, _ in second.deliveries] == [0, 0]


def test_a_session_that_is_given_back_goes_to_one_waiting_receiver(
    world: World, queue: Queue
) -> None:
    world.send(queue, b"1", b"2", b"3", session_id="a")
    owner = accept(world, queue, "a", 9)
    first, second = accept_next(world, queue), accept_next(world, queue)
    queue.dispatch.detach(owner, world.now)
    assert [receiver.session is not None for receiver in (first, second)] == [True, False]
    world.give_credit(queue, first, 9)
    assert (first.bodies, second.bodies) == ([b"1", b"2", b"3"], [])


def test_a_session_whose_lock_ended_goes_to_one_receiver_although_two_want_it(
    world: World, queue: Queue
) -> None:
    """Nothing has looked for ended locks yet, and a receiver waits for any session."""
    world.send(queue, b"1", session_id="a")
    accept(world, queue, "a", 5)
    waiting = accept_next(world, queue, 60.0)
    world.now += 31.0
    with pytest.raises(SessionCannotBeLockedError):
        accept(world, queue, "a")
    assert waiting.session is not None


def test_a_session_whose_lock_ends_is_lost_and_its_messages_are_counted(
    world: World, queue: Queue
) -> None:
    world.send(queue, b"1", session_id="a")
    first = accept(world, queue, "a", 5)
    world.wait(31)
    assert first.events == ["granted a", "lost"]
    with pytest.raises(SessionLockLostError):
        operations.complete(queue, first.deliveries[0][1], world.now)
    second = accept(world, queue, "a", 5)
    assert [message.delivery_count for message, _ in second.deliveries] == [1]


def test_a_renewed_session_lasts_and_so_do_its_messages(world: World, queue: Queue) -> None:
    world.send(queue, b"1", session_id="a")
    receiver = accept(world, queue, "a", 1)
    sessions = sessions_of(queue)
    world.wait(25)
    assert receiver.session is not None
    assert sessions.renew(receiver.session, world.now) == world.now + 30
    world.wait(25)
    operations.complete(queue, receiver.deliveries[0][1], world.now)
    assert not queue.messages


def test_a_session_is_operated_only_by_its_holder(world: World, queue: Queue) -> None:
    receiver = accept(world, queue, "a")
    sessions = sessions_of(queue)
    assert sessions.held_by("a", receiver.holder).id == "a"
    with pytest.raises(SessionLockLostError):
        sessions.held_by("a", object())
    world.wait(31)
    with pytest.raises(SessionLockLostError):
        sessions.held_by("a", receiver.holder)


def test_poison_in_a_session_is_dead_lettered_and_the_next_message_comes(
    world: World, queue: Queue
) -> None:
    world.send(queue, b"poison", b"good", session_id="a")
    receiver = accept(world, queue, "a")
    for _ in range(3):
        world.give_credit(queue, receiver, 1)
        operations.abandon(queue, receiver.deliveries[-1][1], world.now)
    world.give_credit(queue, receiver, 1)
    assert receiver.bodies == [b"poison"] * 3 + [b"good"]
    assert queue.dead_letters is not None
    assert len(queue.dead_letters.messages) == 1


def test_sessions_with_nothing_left_are_forgotten(world: World, queue: Queue) -> None:
    for number in range(100):
        world.send(queue, b"1", session_id=str(number))
        receiver = accept(world, queue, str(number), 1)
        operations.complete(queue, receiver.deliveries[0][1], world.now)
        queue.dispatch.detach(receiver, world.now)
    assert not list(sessions_of(queue))


def test_a_session_with_state_is_kept(world: World, queue: Queue) -> None:
    receiver = accept(world, queue, "a")
    assert receiver.session is not None
    receiver.session.state = b"kept"
    queue.dispatch.detach(receiver, world.now)
    assert [session.state for session in sessions_of(queue)] == [b"kept"]


def test_locks_of_sessions_end_on_demand(world: World, queue: Queue) -> None:
    receiver = accept(world, queue, "a")
    assert queue.expire_locks(world.now) == 1
    world.wait(0)
    assert receiver.events == ["granted a", "lost"]


def test_expired_messages_free_their_session(world: World, queue: Queue) -> None:
    world.send(queue, b"1", session_id="a", ttl_ms=1000)
    world.wait(2)
    waiting = accept_next(world, queue, 5)
    world.wait(1)
    assert waiting.events == []


def test_a_receiver_that_presettled_keeps_its_session_a_moment_longer(
    world: World, queue: Queue
) -> None:
    receiver = Receiver(presettled=True)
    sessions_of(queue).accept(receiver, "a", world.now)
    world.wait(30.5)
    assert receiver.events == ["granted a"]
    world.wait(1)
    assert receiver.events == ["granted a", "lost"]
