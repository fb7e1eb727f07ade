"""A whole system in memory, with every fault that can happen.

The real actors and the real codec run over ports in memory. The world plays the Functions host:
it delivers messages under a lock, redelivers them when a handler crashes or its lock is lost, and
dead-letters those that fail too often. One seed decides everything.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sas.domain.ids import key_time
from sas.ports import Message, MessageBus, Peeked
from sas.simulation.bus import BusFault, MemoryBus
from sas.simulation.clock import VirtualClock
from sas.simulation.store import MemoryStore, StoreFault

F = TypeVar("F")
DELIVERY_COUNT = "delivery-count"
"""The property with a message's delivery count."""
ENQUEUED_AT = "enqueued-at"
"""The property with the time at which a message was queued, or became visible."""
Handler = Callable[[Message], Awaitable[object]]


class CrashError(BaseException):
    """The process of a handler died here. A handler's ``except Exception`` does not catch it."""


@dataclass(slots=True)
class Faults:
    """Shares of operations or deliveries, from 0 to 1.

    A handler that ``stalls`` waits for up to ``stall_seconds_max``, and then goes on.
    """

    crash: float = 0.0
    stalls: float = 0.0
    stall_seconds_max: float = 180.0
    lease_lost: float = 0.0
    duplicate: float = 0.0
    store_down: float = 0.0
    store_lost_answer: float = 0.0
    store_conflict: float = 0.0
    bus_down: float = 0.0
    bus_lost_answer: float = 0.0


@dataclass(slots=True)
class Delivery:
    """One message and its delivery count."""

    queue: str
    message: Message
    count: int = 1
    enqueued_at: datetime | None = None


_life: ContextVar[int] = ContextVar("life", default=0)
"""Number of the host process that a handler runs in. 0 means outside: no crash ends it."""
OUTAGE_WAIT_S = 30.0
"""Longest wait for a store that is down, as in the real adapter."""


@dataclass(slots=True)
class World:
    """Queues with their handlers, a timer, and faults.

    At most ``at_once`` handlers run at once, and ``at_once_each`` of each queue. While
    ``store_out`` is set, every operation of the store waits and then fails.
    """

    seed: int
    clock: VirtualClock
    store: MemoryStore
    memory_bus: MemoryBus
    faults: Faults
    dead_letters: str = "dead-letters"
    deliveries_max: int = 3
    at_once: int = 4
    at_once_each: int | None = None
    rng: random.Random = field(init=False)
    handlers: dict[str, Handler] = field(default_factory=dict)
    timer: Callable[[], Awaitable[object]] | None = None
    calm: bool = False
    store_out: bool = False
    crashes: int = 0
    lives: int = 1
    reborn: Callable[[], None] | None = None
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _at_work: Counter[str] = field(default_factory=Counter)
    _returned: list[Delivery] = field(default_factory=list)
    _timer_task: asyncio.Task[None] | None = None
    _closing: bool = False

    def __post_init__(self) -> None:
        """Install the faults in the ports."""
        self.rng = random.Random(self.seed)  # noqa: S311  a simulation repeats itself
        self.store.pause = self._pause_of_store
        self.store.plan = self._store_fault
        self.memory_bus.plan = self._bus_fault

    @property
    def bus(self) -> MessageBus:
        """The bus for the actors. Other tasks and crashes come between its sends."""
        return PausingBus(self.memory_bus, self.pause)

    async def pause(self) -> None:
        """Let other tasks run; sometimes stall or crash. A task of a crashed host stops here."""
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        if self._happens(self.faults.stalls):
            await self.clock.sleep(self.rng.uniform(0, self.faults.stall_seconds_max))
        if _life.get() not in {0, self.lives}:
            raise CrashError
        if self._happens(self.faults.crash):
            self.crashes += 1
            raise CrashError

    async def _pause_of_store(self) -> None:
        await self.pause()
        waits = self.rng.uniform(0, OUTAGE_WAIT_S) if self.store_out else 0.0
        if waits:
            await self.clock.sleep(waits)

    def restart(self) -> None:
        """Kill the host and all its handlers, then restart it: this calls ``reborn``."""
        self.crashes += 1
        self.lives += 1
        for task in (*self._running, *([self._timer_task] if self._timer_task else [])):
            task.cancel()
        if self.reborn is not None:
            self.reborn()

    async def run(self, finished: Callable[[], bool], hours_max: float = 24.0) -> None:
        """Run in virtual time until ``finished`` returns true and nothing is left to do.

        Raises:
            TimeoutError: that took more than ``hours_max`` virtual hours.
        """
        end = self.clock.now() + timedelta(hours=hours_max)
        tick = self.clock.now()
        while not (finished() and self.idle()):
            if self.clock.now() > end:
                raise TimeoutError(f"seed {self.seed}: not finished after {hours_max} hours")
            self._hand_out()
            if self.clock.now() >= tick and self._timer_free():
                tick = self.clock.now() + timedelta(seconds=10)
                self._timer_task = asyncio.ensure_future(self._tick())
            await asyncio.sleep(0)
            if not self._work_waits():
                await self.clock.advance(0.5)

    def idle(self) -> bool:
        """Return whether no handler runs and no queue with a handler holds a message."""
        waiting = any(self.memory_bus.messages(queue) for queue in self.handlers)
        return not self._running and not self._returned and not waiting and self._timer_free()

    async def close(self) -> None:
        """Stop all running handlers."""
        self._closing = True
        tasks = [*self._running, *([self._timer_task] if self._timer_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _timer_free(self) -> bool:
        return self._timer_task is None or self._timer_task.done()

    async def _tick(self) -> None:
        _life.set(self.lives)
        if self.timer is not None:
            try:
                await self.timer()
            except (CrashError, Exception):  # noqa: BLE001  the host survives every error
                return  # timers are not retried; the next tick comes anyway

    def _work_waits(self) -> bool:
        if len(self._running) >= self.at_once:
            return False
        return bool(self._returned) or any(map(self._ready, self.handlers))

    def _ready(self, queue: str) -> bool:
        """Return whether a queue has a message and a free handler."""
        most = self.at_once_each
        free = most is None or self._at_work[queue] < most
        return free and bool(self.memory_bus.messages(queue))

    def _hand_out(self) -> None:
        while len(self._running) < self.at_once:
            delivery = self._next()
            if delivery is None:
                return
            task = asyncio.ensure_future(self._deliver(delivery))
            self._running.add(task)
            self._at_work[delivery.queue] += 1
            task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._at_work[delivery.queue] -= 1
        if task.cancelled() and not self._closing:  # its host crashed before it began
            self._give_back(delivery)

    def _next(self) -> Delivery | None:
        queues = [queue for queue in self.handlers if self._ready(queue)]
        choices: Sequence[int] = range(len(self._returned) + len(queues))
        if not choices:
            return None
        chosen = self.rng.choice(choices)
        if chosen < len(self._returned):
            return self._returned.pop(chosen)
        queue = queues[chosen - len(self._returned)]
        found = self.memory_bus.take_queued(queue)
        if found is None:
            return None
        return Delivery(queue, found.message, enqueued_at=max(found.enqueued_at, found.visible_at))

    async def _deliver(self, delivery: Delivery) -> None:
        if self._happens(self.faults.duplicate):
            self._returned.append(replace(delivery, count=delivery.count + 1))
        lost = self._happens(self.faults.lease_lost)
        if lost:  # another handler gets it while this one goes on
            self._give_back(delivery)
        _life.set(self.lives)
        try:
            await self.handlers[delivery.queue](_counted(delivery))
        except (CrashError, asyncio.CancelledError, Exception):  # any error means redelivery
            if self._closing:
                raise
            if not lost:
                self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        if delivery.count < self.deliveries_max or delivery.queue == self.dead_letters:
            self._returned.append(replace(delivery, count=delivery.count + 1))
            return
        dead_letter = replace(
            delivery.message, queue=self.dead_letters, properties={"source": delivery.queue}
        )
        self._returned.append(Delivery(self.dead_letters, dead_letter))

    def _store_fault(self, operation: str, _key: str) -> StoreFault | None:
        if self.store_out:
            return StoreFault.UNAVAILABLE
        faults = {StoreFault.UNAVAILABLE: self.faults.store_down}
        if operation == "put_payload":
            faults[StoreFault.LOST_ANSWER] = self.faults.store_lost_answer
        if operation == "commit":
            faults[StoreFault.LOST_ANSWER] = self.faults.store_lost_answer
            faults[StoreFault.CONFLICT] = self.faults.store_conflict
        return self._drawn(faults)

    def _bus_fault(self, _message: Message) -> BusFault | None:
        return self._drawn(
            {
                BusFault.UNAVAILABLE: self.faults.bus_down,
                BusFault.LOST_ANSWER: self.faults.bus_lost_answer,
            }
        )

    def _drawn(self, shares: Mapping[F, float]) -> F | None:
        return next((fault for fault, share in shares.items() if self._happens(share)), None)

    def _happens(self, share: float) -> bool:
        return not self.calm and self.rng.random() < share


def _counted(delivery: Delivery) -> Message:
    """Return a message with its delivery count and its enqueued time, as the host passes them."""
    counted = {**delivery.message.properties, DELIVERY_COUNT: str(delivery.count)}
    if delivery.enqueued_at is not None:
        counted[ENQUEUED_AT] = key_time(delivery.enqueued_at)
    return replace(delivery.message, properties=counted)


def of_no_host() -> None:
    """Mark the current task as outside of every host, so that no crash ends it."""
    _life.set(0)


class PausingBus:
    """A bus that lets other tasks run before each message."""

    def __init__(self, bus: MemoryBus, pause: Callable[[], Awaitable[None]]) -> None:
        self._bus = bus
        self._pause = pause

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages one by one. See ``MessageBus.send``."""
        for message in messages:
            await self._pause()
            await self._bus.send([message])

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        await self._pause()
        return await self._bus.peek(queue, limit)

    async def close(self) -> None:
        """Do nothing: there are no connections."""
