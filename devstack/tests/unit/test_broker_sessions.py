"""Sessions of a queue in virtual time: one owner each, messages in order."""

import pytest

from devstack.servicebus.core.dispatch import GRACE_S, SessionDispatch
from devstack.servicebus.core.errors import (
    NotAllowedError,
    SessionCannotBeLockedError,
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


def test_a_message_without_a_session_is_refused(world: World, queue: Queue) -> None:
    with pytest.raises(NotAllowedError, match="session id"):
        world.send(queue, b"1")


def test_the_next_free_session_is_the_one_that_waited_longest(world: World, queue: Queue) -> None:
    for session in ("b", "a", "c"):
        world.send(queue, b"1", session_id=session)
    sessions = [accept_next(world, queue).session for _ in range(3)]
    assert [session.id for session in sessions if session] == ["b", "a", "c"]


def test_a_receiver_without_message_locks_keeps_its_session_a_moment_longer(
    world: World, queue: Queue
) -> None:
    """Whatever else is due later in the queue."""
    world.send(queue, b"1", session_id="a", scheduled_at=world.now + 1000)
    receivers = {session_id: Receiver(presettled=session_id == "b") for session_id in ("a", "b")}
    for session_id, receiver in receivers.items():
        sessions_of(queue).accept(receiver, session_id, world.now)
    for seconds, lost in ((queue.properties.lock_duration_s, ["a"]), (GRACE_S, ["a", "b"])):
        world.wait(seconds)
        assert [name for name, receiver in receivers.items() if "lost" in receiver.events] == lost


def test_each_receiver_waits_for_a_session_as_long_as_it_says(world: World, queue: Queue) -> None:
    receivers = [Receiver(), Receiver()]
    for receiver, patience_s in zip(receivers, (60, 5), strict=True):
        sessions_of(queue).accept_next(receiver, world.now, patience_s)
    world.wait(6)
    assert [receiver.events for receiver in receivers] == [[], ["refused"]]


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


def test_expired_messages_free_their_session(world: World, queue: Queue) -> None:
    world.send(queue, b"1", session_id="a", ttl_ms=1000)
    world.wait(2)
    waiting = accept_next(world, queue, 5)
    world.wait(1)
    assert waiting.events == []
