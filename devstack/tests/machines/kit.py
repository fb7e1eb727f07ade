"""What the machines of the broker share: a broker with data, a clock, and the ends of its life.

A machine plays a *sequence* of steps against the code and against a small reference model, and
compares both after each step. The model is written from the rules (the docstrings of
devstack/servicebus/core and docs/devstack.md), never from the code.
"""

import copy
import operator
from collections import Counter
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar
from unittest import mock
from uuid import UUID

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine

from devstack.servicebus import Broker, storage
from devstack.servicebus.core import queue as queues
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.wire.requests import Call, Reply, answer

START = 1_000_000.0
SHORT_RUNS, STEPS = 50, 60
RUNS = SHORT_RUNS * (settings().max_examples // 25)
"""So many runs of a machine: with the profile `long`, ten times as many."""
PROFILE = settings(max_examples=RUNS, stateful_step_count=STEPS)
SETTINGS = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF")
"""Nothing waits for the disk: these kills end a process, and not the machine."""
Model = TypeVar("Model")

_LOCK = {"token", "locked_until"}
_content = operator.attrgetter(*(x.name for x in fields(Message) if x.name not in _LOCK))

REACHED: Counter[str] = Counter()
"""How often the second steps were reached, for the author of a machine."""


class BrokerMachine(RuleBasedStateMachine, Generic[Model]):
    """One broker with one queue `q`, which keeps its data in a directory, without its listener.

    ``model`` is what must be in the queue. ``durable`` is what it was at the last commit.
    """

    def __init__(self, model: Model, **properties: Any) -> None:
        super().__init__()
        self.now = START
        self.model = model
        self._properties = properties
        self._folder = TemporaryDirectory(prefix="broker-")
        self._outdated = mock.patch.object(queues, "_DUE_MAX", -1_000)  # each one drops them
        self._outdated.start()
        self._open()
        self.broker.create_queue("q", **properties)
        self.commit_all()

    def teardown(self) -> None:
        """Close the data and remove it."""
        self._outdated.stop()
        self.broker.close_data()
        self._folder.cleanup()

    @property
    def queue(self) -> Queue:
        return self.broker.namespace.queue("q")

    @property
    def dead(self) -> Queue:
        """The dead letters of the queue."""
        return self.queue.parts[0]

    def commit_all(self) -> None:
        """Make durable what has happened."""
        self.broker.commit()
        assert self.broker.failure is None
        self.durable = copy.deepcopy(self.model)
        self._kept, self._kept_at = self._content(self.now), self.now

    def end_life(self, *, commits: bool, cleanly: bool) -> None:
        """End the broker and open another one on its data; a kill may lose what is not durable."""
        if commits or cleanly:
            self.commit_all()
        assert self.broker.journal is not None
        if cleanly:
            self.broker.close_data()
        else:
            self.broker.journal.abandon()
        self.model = copy.deepcopy(self.durable)
        self._open()
        assert self._content(self._kept_at) == self._kept

    def create_again(self) -> None:
        """Delete the queue with its messages, and create it again."""
        self.broker.delete_queue("q")
        self.broker.create_queue("q", **self._properties)

    def sweep(self) -> None:
        """Do what is due, as the broker's timer does: only where a sweep was planned."""
        for _ in range(10):
            due = self.broker.namespace.next_due()
            if due is None or due > self.now:
                return
            self.broker.namespace.tick(self.now)
        raise AssertionError("the sweep does not come to an end")

    def ask(self, queue: Queue, operation: str, *, holder: Any = None, **body: Any) -> Reply:
        """Send a request to the queue's `$management`, as the SDKs do."""
        arguments = {name.replace("_", "-"): value for name, value in body.items()}
        return answer(f"com.microsoft:{operation}", Call(queue, arguments, self.now, holder))

    def _content(self, now: float) -> dict[str, Any]:
        """Return all that a restart must keep but the locks, which are in the models."""
        return {
            queue.name: (
                queue.properties,
                queue.created_at,
                [_content(message) for _, message in sorted(queue.messages.items())],
                [
                    (message_id, entry)
                    for message_id, entry in queue.history._entries.items()
                    if entry[0] > now - queue.properties.duplicate_window_s
                ],
                {
                    x.id: (x.state, x.updated_at)
                    for x in queue.sessions or ()
                    if x.state is not None
                },
            )
            for queue in self.broker.namespace.every_queue()
        }

    def _open(self) -> None:
        self.broker = Broker(data=Path(self._folder.name), clock=lambda: self.now)
        with mock.patch.object(storage, "_SETTINGS", SETTINGS):
            self.broker.open_data()


def lock_token(token: bytes) -> UUID:
    """Return a lock token as the requests name it."""
    return UUID(bytes_le=token)
