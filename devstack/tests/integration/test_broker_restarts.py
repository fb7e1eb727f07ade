"""After random operations and a kill, the disk has what the broker had in memory.

``SAS_BROKER_LIVES`` sets how many lives are lived, ``SAS_BROKER_SEED`` the first one's seed.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.amqp import encode
from devstack.servicebus.core import operations
from devstack.servicebus.core.errors import BrokerError
from devstack.servicebus.core.message import Message, MessageState, parse_message
from devstack.servicebus.core.queue import Queue
from devstack.tests.queue_kit import Receiver, raw

LIVES = int(os.environ.get("SAS_BROKER_LIVES", "25"))
SEED = int(os.environ.get("SAS_BROKER_SEED", "1"))
QUEUES = {
    "plain": QueueProperties(max_delivery_count=3, lock_duration_s=5),
    "mortal": QueueProperties(default_ttl_s=4, dead_letter_on_expiration=True, lock_duration_s=3),
    "unique": QueueProperties(requires_duplicate_detection=True, duplicate_window_s=6),
    "lanes": QueueProperties(requires_session=True, lock_duration_s=5, max_delivery_count=2),
    "chain": QueueProperties(forward_to="plain"),
    "broken": QueueProperties(forward_to="full"),
    "full": QueueProperties(max_size_megabytes=1, forward_dead_letters_to="unique"),
}


class Life:
    """One broker on one directory, with everything that a client may do to it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)  # noqa: S311 (a seed makes a failure repeatable)
        self.now = time.time()
        self.numbers = itertools.count()
        self.open()

    def open(self) -> None:
        self.broker = Broker(QUEUES, data=self.directory, clock=lambda: self.now)
        self.broker.open_data()
        self.taken: list[tuple[Queue, bytes]] = []
        self.owners: list[Receiver] = []

    def kill_and_reopen(self) -> None:
        self.broker.commit()
        assert self.broker.journal is not None
        if self.chance.random() < 0.2:
            self.broker.journal.close()
        else:
            self.broker.journal.abandon()
        self.open()

    # -- what may happen ----------------------------------------------------------------

    def any_queue(self) -> Queue:
        return self.chance.choice(self.broker.namespace.every_queue())

    def send(self) -> None:
        queue = self.chance.choice(list(self.broker.namespace))
        options: dict[str, Any] = {}
        if queue.sessions is not None or self.chance.random() < 0.1:
            options["session_id"] = self.chance.choice("abc")
        if self.chance.random() < 0.4:
            options["message_id"] = f"id{self.chance.randrange(8)}"
        if self.chance.random() < 0.2:
            options["ttl_ms"] = self.chance.randrange(1, 9000)
        if self.chance.random() < 0.2:
            options["scheduled_at"] = self.now + self.chance.uniform(-2, 9)
        size = 200_000 if queue.name in {"broken", "full"} else 20
        body = b"%d" % next(self.numbers) + b"x" * self.chance.randrange(size)
        queue.enqueue([parse_message(raw(body, **options))], self.now)

    def receive(self) -> None:
        queue = self.any_queue()
        receiver = Receiver(presettled=self.chance.random() < 0.2, holder=self)
        if queue.sessions is not None:
            queue.sessions.accept(receiver, self.chance.choice("abc"), self.now)
            self.owners.append(receiver)
        receiver.credit = self.chance.randrange(1, 4)
        queue.dispatch.add_credit(receiver, self.now)
        self.taken += [(queue, token) for _, token in receiver.deliveries]
        if queue.sessions is None:
            queue.dispatch.detach(receiver, self.now)

    def settle(self) -> None:
        if not self.taken:
            return
        queue, token = self.taken[self.chance.randrange(len(self.taken))]
        verb = self.chance.randrange(6)
        if verb == 0:
            operations.complete(queue, token, self.now)
        elif verb == 1:
            operations.abandon(queue, token, self.now, self.changes())
        elif verb == 2:
            operations.defer(queue, token, self.now, self.changes())
        elif verb == 3:
            operations.dead_letter(
                queue, token, now=self.now, reason="why", description="how", changes=self.changes()
            )
        elif verb == 4:
            operations.release(queue, token, self.now)
        else:
            operations.renew(queue, [token], self.now)

    def changes(self) -> dict[str, bytes] | None:
        return {"n": encode.int32(self.chance.randrange(9))} if self.chance.random() < 0.5 else None

    def take_deferred(self) -> None:
        queue = self.any_queue()
        if queue.sessions is not None:
            return
        numbers = [m.sequence for m in queue.messages.values() if m.state is MessageState.DEFERRED]
        for message in operations.deferred_messages(queue, numbers[:1], None):
            token = queue.namespace.new_token()
            queue.lock(message, token, None, self.now)
            self.taken.append((queue, token))

    def cancel(self) -> None:
        queue = self.any_queue()
        numbers = [m.sequence for m in queue.messages.values() if m.state is MessageState.SCHEDULED]
        operations.cancel(queue, numbers[:2])

    def use_session(self) -> None:
        if not self.owners:
            return
        receiver = self.chance.choice(self.owners)
        session, sessions = receiver.session, self.broker.namespace.queue("lanes").sessions
        assert sessions is not None
        if session is None:
            self.owners.remove(receiver)
        elif self.chance.random() < 0.5:
            session.state = self.chance.choice((None, b"state", b""))
            queue = self.broker.namespace.queue("lanes")
            queue.namespace.journal.session_changed(queue, session)
        elif self.chance.random() < 0.5:
            sessions.detach(receiver, self.now)
        else:
            sessions.renew(session, self.now)

    def wait(self) -> None:
        self.now += self.chance.uniform(0, 3)
        self.broker.namespace.tick(self.now)

    def rebuild(self) -> None:
        if self.chance.random() < 0.2:
            queue = self.broker.namespace._queues.get("made")
            if queue is None:
                self.broker.create_queue("made", lock_duration_s=2)
            elif self.chance.random() < 0.5:
                self.broker.update_queue("made", forward_to="plain", lock_duration_s=1)
            else:
                self.broker.delete_queue("made")

    def commit(self) -> None:
        self.broker.commit()

    def step(self) -> None:
        verbs: list[Callable[[], None]] = [self.send, self.receive, self.settle]
        verbs += [*verbs, self.take_deferred, self.cancel, self.use_session, self.wait]
        verbs += [self.rebuild, self.commit]
        try:
            self.chance.choice(verbs)()
        except BrokerError:
            return

    # -- what there is ------------------------------------------------------------------

    def contents(self) -> dict[str, Any]:
        return {queue.name.lower(): _contents(queue, self.now) for queue in self.filled()}

    def last_numbers(self) -> dict[str, int]:
        """Return the last sequence numbers, except of forwarding queues, which store none."""
        queues = [queue for queue in self.filled() if not queue.properties.forward_to]
        return {queue.name.lower(): queue.last_sequence for queue in queues}

    def filled(self) -> list[Queue]:
        """Return the queues; the transfer dead letters only once they have a message."""
        return [
            queue
            for queue in self.broker.namespace.every_queue()
            if queue.messages or "$transfer" not in queue.name.lower()
        ]


def _contents(queue: Queue, now: float) -> dict[str, Any]:
    sessions = queue.sessions or ()
    return {
        "messages": {m.sequence: _facts(queue, m) for m in queue.messages.values()},
        "bytes": queue.bytes,
        "scheduled": queue.scheduled_count,
        "states": {s.id: s.state for s in sessions if s.state is not None},
        "counts": {s.id: s.count for s in sessions if s.count},
        "history": {
            message_id: (at, number)
            for message_id, (at, number) in queue.history._entries.items()
            if at > now - queue.properties.duplicate_window_s
        },
        "properties": queue.properties,
    }


def _facts(queue: Queue, message: Message) -> dict[str, Any]:
    facts = {name: getattr(message, name) for name in Message.__slots__}
    if message.token is None or queue.sessions is not None:  # a session ends with its connection
        facts["token"] = facts["locked_until"] = None
    return facts


@pytest.fixture(params=range(SEED, SEED + LIVES))
def life(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Life]:
    life = Life(tmp_path, request.param)
    yield life
    life.broker.close_data()


def test_what_is_on_disk_is_what_the_broker_held(life: Life) -> None:
    for _ in range(life.chance.randrange(2, 5)):
        for _ in range(life.chance.randrange(20, 200)):
            life.step()
        before = life.contents()
        last = life.last_numbers()
        life.kill_and_reopen()
        after = life.contents()
        for name in before:
            assert after[name] == before[name], name
        assert after.keys() == before.keys()
        assert all(life.broker.namespace.find(name).last_sequence >= last[name] for name in last)
    life.broker.namespace.tick(life.now)
    for queue in life.broker.namespace.every_queue():
        ready = _ready(queue)
        assert _received(queue, life.now) == ready, queue.name


def _ready(queue: Queue) -> list[int]:
    unlocked = [m for m in queue.messages.values() if m.token is None]
    return sorted(m.sequence for m in unlocked if m.state is MessageState.ACTIVE)


def _received(queue: Queue, now: float) -> list[int]:
    receivers = [Receiver()]
    if queue.sessions is not None:
        receivers = [Receiver() for _ in "abc"]
        for receiver, session_id in zip(receivers, "abc", strict=True):
            queue.sessions.accept(receiver, session_id, now)
    for receiver in receivers:
        receiver.credit = len(queue.messages)
        queue.dispatch.add_credit(receiver, now)
    return sorted(message.sequence for receiver in receivers for message, _ in receiver.deliveries)
