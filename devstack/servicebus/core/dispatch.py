"""Who gets the next message: any receiver with credit, in turn.

`PlainDispatch` serves queues without sessions; `SessionDispatch` (sessions.py) those with.
Both answer the same questions of `QueueCore`.
"""

import heapq
from collections import deque
from typing import Protocol

from devstack.servicebus.core.message import Message
from devstack.servicebus.core.ports import Consumer


class Store(Protocol):
    """The part of a queue that a dispatch works on."""

    messages: dict[int, Message]
    locked: dict[bytes, Message]

    def take_ready(self, ready: list[int], now: float) -> Message | None:
        """Pop the next message that can be given."""

    def deliver(self, consumer: Consumer, message: Message, now: float) -> None:
        """Lock a message (or remove it) and give it to the consumer."""

    def unlock(self, message: Message, now: float, *, count: bool) -> None:
        """Take a message's lock off."""

    def lock_ends_at(self, now: float) -> float:
        """Say until when a lock taken now lasts."""

    def wake(self, at: float) -> None:
        """Ask for a sweep at ``at``."""


class Dispatch(Protocol):
    """What a queue asks of its dispatch."""

    def offer(self, message: Message, now: float) -> None:
        """A message is ready to be given."""

    def want(self, consumer: Consumer, now: float) -> None:
        """A consumer has credit."""

    def leave(self, consumer: Consumer, now: float) -> None:
        """A consumer is gone."""

    def unordered_until(self, moment: float) -> None:
        """Until ``moment`` a lock may end before one that was taken earlier."""

    def sweep(self, now: float) -> None:
        """End what has lasted long enough."""

    def next_due(self) -> float | None:
        """Say when to sweep next."""

    def compact(self) -> None:
        """Let go of numbers of messages that are gone."""

    def expire_locks(self, now: float) -> int:
        """Let every lock end at ``now``; return how many there were."""


class PlainDispatch:
    """Messages by sequence number, receivers with credit in turn, each lock by itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ready: list[int] = []
        self._hungry: deque[Consumer] = deque()
        self._unordered_until: float | None = None

    def offer(self, message: Message, now: float) -> None:
        """Give the message to the next receiver with credit, or keep it for one."""
        heapq.heappush(self._ready, message.sequence)
        if self._hungry:
            self._pump(now)

    def want(self, consumer: Consumer, now: float) -> None:
        """Serve a receiver with what there is, and put it in line for what comes."""
        if consumer.credit > 0 and consumer not in self._hungry:
            self._hungry.append(consumer)
        self._pump(now)

    def leave(self, consumer: Consumer, now: float) -> None:  # noqa: ARG002 (one signature)
        """Take a receiver out of the line. Its locks stay until they end."""
        if consumer in self._hungry:
            self._hungry.remove(consumer)

    def _pump(self, now: float) -> None:
        hungry = self._hungry
        while hungry and self._ready:
            consumer = hungry[0]
            if consumer.credit <= 0:
                hungry.popleft()
                continue
            message = self._store.take_ready(self._ready, now)
            if message is None:
                return
            self._store.deliver(consumer, message, now)
            hungry.rotate(-1)

    def unordered_until(self, moment: float) -> None:
        """Look at every lock until ``moment``: later ones may end before earlier ones."""
        self._unordered_until = max(self._unordered_until or 0.0, moment)

    def sweep(self, now: float) -> None:
        """End the locks that have lasted long enough; as a rule in the order of their ends."""
        ended = []
        for message in self._store.locked.values():
            if message.locked_until <= now:
                ended.append(message)
            elif self._unordered_until is None:
                break
        if self._unordered_until is not None and self._unordered_until <= now:
            self._unordered_until = None
        for message in ended:
            self._store.unlock(message, now, count=True)

    def next_due(self) -> float | None:
        """Say when the first lock ends."""
        ends = (message.locked_until for message in self._store.locked.values())
        return min(ends, default=None) if self._unordered_until is not None else next(ends, None)

    def compact(self) -> None:
        """Rebuild the line of messages where most of it is dead."""
        if len(self._ready) > 2 * len(self._store.messages) + 1024:
            self._ready = [number for number in self._ready if number in self._store.messages]
            heapq.heapify(self._ready)

    def expire_locks(self, now: float) -> int:
        """Let every lock end at ``now``; return how many there were."""
        for message in self._store.locked.values():
            message.locked_until = now
        return len(self._store.locked)
