"""A whole system in memory, with every fault that can happen.

The real actors and the real codec run over ports in memory. The world plays the Functions host
around them, and lets faults strike. How it works:

1. **Time is virtual.** Nobody asks the machine for the time. ``World.run`` lets every task run
   until each of them waits. Only then it moves the clock, to the next thing that can happen: a
   sleeper wakes, a message becomes visible, a lock ends, a function reaches its time limit, the
   timer is due. No event is jumped over, and a day of waiting passes within seconds.
2. **An instance is one worker process, and has lives.** ``kill`` ends a life: it counts ``life``
   up, cancels what runs, and lets ``Functions.start`` make new functions with an empty memory.
   Each function runs in a context that says in which life it began. asyncio hands this context
   on to the tasks that the function starts, so these tasks end with the life as well.
3. **The host hands messages out.** It draws a queue that has a visible message, and an instance
   that has room for one more call. It locks the message and renews the lock, but no longer than
   host.json says. A handler that returns completes the message. A handler that raises gives it
   back, and the queue delivers it again, or dead-letters it after the last delivery.
4. **A drawn fault strikes at a port**, because there an actor gives up control. Before each
   operation of the store and each send, ``pause`` lets other tasks run for some turns, so that
   another instance may change the same order first. Then the function may stall, or die: it
   raises ``CrashError``, which is a ``BaseException``, so no ``except Exception`` of an actor
   hides a death. What was committed or sent before stays; what comes after never happens. This is
   a crash between any two steps, such as between commit and send. The message was not completed, so
   it is delivered again. Its handler finds the recorded transition, and sends what is missing.
5. **A port may refuse, or do its work and lose the answer.** The caller sees the same error for
   both, and cannot know which it was. The store may also report a conflict. In an outage the
   attempts take as long as those of the real adapters. So an outage keeps functions busy and
   messages locked as long as it does in Azure.
6. **A delivery may go wrong while its handler goes on.** The message comes twice at once, or again
   some time later, or its lock is lost, or the queue gives it up. Then two functions work on one
   message, and only what the table has recorded keeps them from acting twice.
7. **An instance may die whole**: by its plan, or because a function ran past its time limit. Its
   messages come back at once, because the host lives and sees that its worker died. ``with_host``
   means that the host dies too: then nobody gives the messages back, and each lock ends by itself.
   A task may catch its cancellation, or be shielded from it. It meets ``CrashError`` at its next
   port, because its life is over. So a dead instance begins no write and no send. A shielded write
   that waits for a slow store may still happen, as a request on its way does.
8. **The timer** lets every instance sweep. As on the host, a sweep that fails is not retried,
   because the next tick comes. Ticks that could find no due row are left out. This only saves time.
   It also leaves out ticks while a queue is away and the sweeps send nothing.
9. **The world is done** when the caller says so, no function runs, and no queue with a function
   holds a message. Messages that wait for a person do not count. If the world is not done when the
   time is over, that is an error.

**Why a seed repeats itself to the letter.** All chance of the world comes from one generator with
the seed, and the jitter of the actors from that of ``random``, which ``System`` seeds. All tasks
run in one thread. asyncio runs them first in, first out; sleepers wake in the order of their times,
and at the same time in the order in which they began to sleep. So each draw happens at the same
moment of the same story. The ids of ``uuid4`` differ from run to run, but they are only compared,
never sorted or drawn from. In return, one draw more or less, or one ``await`` more at a port, gives
every seed another story. New faults therefore draw from a generator of their own (see
``sas.testing.plan``).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sas.ports import (
    BusUnavailableError,
    Clock,
    Message,
    MessageBus,
    Peeked,
    StoreUnavailableError,
)
from sas.testing.bus import BusFault, MemoryBus, Queue, Queued
from sas.testing.clock import VirtualClock, others_run
from sas.testing.plan import Faults
from sas.testing.platform import HostRules
from sas.testing.store import MemoryStore, StoreFault

ABANDON_S = 0.02
"""How long the host takes to give a message back, in seconds."""
STORE_WAITS_S = (0.5, 2.5, 7.0)
"""Pauses between attempts while the store is away: ten seconds, as in the real adapter."""
BUSY_S = (0.2, 2.4)
"""A send that the bus refuses takes between these seconds, as measured with the real adapter."""
BUS_WAIT_S = 10.0
"""How long a send takes if the namespace cannot be reached."""
TIMER_EVERY = timedelta(seconds=10)

Handler = Callable[[Queued], Awaitable[object]]
Visible = Sequence[tuple[str, datetime]]
"""Queues that hold a message, and when it can be received."""


class CrashError(BaseException):
    """The process of a handler died here. A handler's ``except Exception`` does not catch it."""


class Functions(Protocol):
    """The functions of one instance. ``start`` makes new ones, with an empty memory."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The functions with a queue, by its name."""

    def start(self) -> None:
        """Start with an empty memory."""

    async def sweep(self) -> object:
        """Run the supervisor's timer function."""


@dataclass(slots=True, eq=False)
class Work:
    """One function that runs: since when, and what it handles (None for a timer)."""

    began: datetime
    queued: Queued | None


@dataclass(slots=True, eq=False, kw_only=True)
class Instance:
    """One worker process.

    ``life`` counts how often it was killed and started again. Only an instance that is ``up`` gets
    messages and sweeps. ``running`` holds its functions in the order in which they began, so that
    the first is the one that reaches its time limit first. ``calls`` counts them by queue.
    """

    functions: Functions
    life: int = 0
    up: bool = True
    running: dict[asyncio.Future[Any], Work] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)


_life: ContextVar[tuple[Instance, int] | None] = ContextVar("life", default=None)
"""The instance and the life (step 2) in which the current task runs. None: the task is outside of
every instance, and no crash ends it."""


@dataclass(slots=True, kw_only=True)
class World:
    """Instances, queues, a timer, and faults.

    At most ``at_once`` functions run at the same time over all instances, and at most
    ``rules.calls_max`` of each queue in each instance. The partitions of the store in
    ``store.partitions_away`` do not answer, and neither do the queues that are away (see
    ``MemoryBus.cut``). The timer may pause for up to ``timer_idle`` while no due row can be read,
    or while a queue is away and the sweeps send nothing. This only saves time.

    ``tell`` gets a sentence for each fault, ``on_failed`` gets each error of a function, and
    ``on_sends`` gets each message that an instance is about to send, with the time of its clock.
    ``resting`` says whether a message waits for something outside of the simulation. The world is
    done without such a message.
    """

    seed: int
    clock: VirtualClock
    store: MemoryStore
    memory_bus: MemoryBus
    faults: Faults
    rules: HostRules
    at_once: int | None = None
    timer_idle: timedelta = TIMER_EVERY
    instances: list[Instance] = field(default_factory=list)
    tell: Callable[[str], None] = lambda _text: None
    resting: Callable[[Queued], bool] = lambda _queued: False
    on_failed: Callable[[Queued, BaseException], None] = lambda _queued, _error: None
    on_sends: Callable[[Message, datetime], None] = lambda _message, _now: None
    timer: Callable[[], Awaitable[object]] = field(init=False)
    rng: random.Random = field(init=False)
    busy_s: float = field(init=False)
    end: datetime = field(init=False)
    """When ``run`` gives up. It may be moved while it runs."""
    crashes: int = 0
    timed_out: int = 0
    """How often a function or instance died, and how often of its time limit. Tests read them."""
    _running: int = 0
    """How many functions of queues run, over all instances. Only ``_start`` changes it."""
    _timer_task: asyncio.Task[None] | None = None
    """The sweep that runs, or the last one. Only ``_start_timer`` writes it."""
    _tick: datetime = field(init=False)
    """When the last sweep began. ``_next_tick`` reads it."""
    _pause: timedelta = TIMER_EVERY
    """Pause between sweeps while a queue is away. Doubles with each sweep that changes nothing."""

    def __post_init__(self) -> None:
        """Install the faults in the ports."""
        self.rng = self.memory_bus.rng = random.Random(self.seed)  # noqa: S311  it repeats itself
        shortest, longest = BUSY_S
        self.busy_s = shortest * (longest / shortest) ** self.rng.random()
        self.store.pause = self.store_pause
        self.store.plan = self._store_fault
        self.memory_bus.plan = self._bus_fault
        self.timer = self.sweep
        self._tick = self.clock.now() - TIMER_EVERY

    @property
    def bus(self) -> MessageBus:
        """The bus of people. Before each of its sends other tasks run, and a crash may happen."""
        return PausingBus(self)

    def bus_of(self, clock: Clock) -> MessageBus:
        """Return the bus for the actors of an instance, which has this clock."""
        return PausingBus(self, clock)

    # --- what happens inside a function ---

    async def pause(self) -> None:
        """Let other tasks run; sometimes stall or crash. A task of a killed instance stops here."""
        # 4. Other tasks act now. What this function has read may be out of date when it goes on.
        await others_run(self.rng.randint(0, 3))
        if self._happens("stalls"):
            await self.clock.sleep(self.rng.uniform(0, self.faults.stall_seconds_max))
        if is_killed():  # 7. its life is over
            raise CrashError
        if self._happens("crash"):  # 4. only this function dies; its instance lives on
            self.crashes += 1
            self.tell("a function dies between two of its steps")
            raise CrashError

    async def store_pause(self, operation: str, key: str) -> None:
        """Wait for a store that is away or throttled, for as long as the real adapter does."""
        await self.pause()
        if self._happens("store_throttled"):
            wait = self.rng.uniform(0, 12)
            await self.clock.sleep(min(wait, sum(STORE_WAITS_S)))
            if wait > sum(STORE_WAITS_S):
                raise StoreUnavailableError(f"{operation} of {key}: throttled")
        if not self.store.is_away(operation, key):
            return
        for seconds in STORE_WAITS_S:  # 5. as long as the attempts of the real adapter take
            await self.clock.sleep(seconds)
            if not self.store.is_away(operation, key):
                return
        raise StoreUnavailableError(f"{operation} of {key}: the table is away")

    # --- what happens to instances ---

    def kill(self, instance: Instance, *, with_host: bool = False) -> None:
        """Kill an instance and start it again.

        Its messages come back at once. If it dies ``with_host``, their locks end by themselves.
        """
        self.crashes += 1
        self.tell(f"instance {self.instances.index(instance)} dies{_held_by(instance)}")
        instance.life += 1  # 2. from here on, ``is_killed`` is true for what runs
        for task, work in instance.running.items():
            if work.queued is not None:
                # 7. A host that lives gives the message back. Otherwise its lock ends by itself.
                if with_host:
                    self.memory_bus.let_go(work.queued)
                else:
                    self.memory_bus.abandon(work.queued)
            task.cancel()
        instance.functions.start()  # 2. with an empty memory

    def restart(self) -> None:
        """Kill every instance."""
        for instance in self.instances:
            self.kill(instance)

    # --- the host ---

    async def run(self, finished: Callable[[], bool], hours_max: float = 24.0) -> None:
        """Run in virtual time until ``finished`` returns true and nothing is left to do.

        Raises:
            TimeoutError: that took more than ``hours_max`` virtual hours.
        """
        self.end = self.clock.now() + timedelta(hours=hours_max)
        done = False
        while True:
            self._end_overdue()
            self.memory_bus.end_locks()
            self._hand_out()
            if not done:  # else wait only for the last sweep to end
                self._start_timer()
            await self.clock.settle()  # 1. every task runs until it waits
            done = self._empty() and finished()
            if done and not self._timer_runs():  # 9.
                return
            if self.clock.now() >= self.end:
                raise TimeoutError(f"seed {self.seed}: not finished after {hours_max} hours")
            visible = self._visible()
            if not self._ready_queues(visible):  # 1. nothing can happen before the clock moves
                await self.clock.step(min(self._next_event(visible), self.end))

    async def run_for(self, seconds: float) -> None:
        """Run for some virtual time, even if work is still under way at its end."""
        with suppress(TimeoutError):
            await self.run(lambda: False, seconds / 3600)

    def idle(self) -> bool:
        """Return whether no function runs and no queue with a function holds a message."""
        return self._empty() and not self._timer_runs()

    def _empty(self) -> bool:
        """Return whether no queue's function runs and none of these queues holds a message."""
        if self._running:
            return False
        queues = self.memory_bus.queues
        names = (name for name in self._handled() if queues[name].waiting or queues[name].locked)
        return all(self.memory_bus.is_empty(name) or self._rests(queues[name]) for name in names)

    def _rests(self, queue: Queue) -> bool:
        return not queue.locked and all(map(self.resting, queue.waiting))

    async def close(self) -> None:
        """Stop all running functions."""
        tasks = [task for instance in self.instances for task in instance.running]
        if self._timer_task is not None:
            tasks.append(self._timer_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handled(self) -> Iterable[str]:
        return self.instances[0].functions.handlers

    def _ready_queues(self, visible: Visible) -> list[str]:
        """Return the queues that have a message for a free function."""
        if self.at_once is not None and self._running >= self.at_once:
            return []
        now = self.clock.now()
        return [name for name, at in visible if at <= now and self._free(name)]

    def _visible(self) -> Visible:
        """Return the queues that hold a message, and when it can be received."""
        if self.memory_bus.is_away:
            return []
        queues = self.memory_bus.queues
        return [
            (name, queue.waiting[0].visible_at)
            for name in self._handled()
            if (queue := queues[name]).waiting and not queue.is_away
        ]

    def _free(self, queue: str) -> list[Instance]:
        calls_max = self.rules.calls_max
        return [
            instance
            for instance in self.instances
            if instance.up and instance.calls[queue] < calls_max
        ]

    def _hand_out(self) -> None:
        """Start a function for each visible message, as long as there is room."""
        # 3. The queue and the instance are drawn, so that every order of events comes up.
        while queues := self._ready_queues(self._visible()):
            queue = self.rng.choice(queues)
            queued = self.memory_bus.receive(queue, self._renewed_for)
            if queued is not None:
                self._start(self.rng.choice(self._free(queue)), queue, queued)

    @property
    def _renewed_for(self) -> timedelta | None:
        """How long locks are renewed; None if a function cannot run for longer."""
        renewal_max = self.rules.lock_renewal_max
        return renewal_max if renewal_max < self.rules.function_timeout else None

    def _start(self, instance: Instance, queue: str, queued: Queued) -> None:
        work = Work(self.clock.now(), queued)
        task = asyncio.ensure_future(self._deliver(instance, queue, queued))
        instance.running[task] = work
        instance.calls[queue] += 1
        self._running += 1

        def ended(_task: asyncio.Task[None]) -> None:
            del instance.running[task]
            instance.calls[queue] -= 1
            self._running -= 1

        task.add_done_callback(ended)

    async def _deliver(self, instance: Instance, queue: str, queued: Queued) -> None:
        _life.set((instance, instance.life))  # 2. what this function starts inherits it
        if self.faults.twice and queued.deliveries == 1:
            self.memory_bus.deliver_again(queued)
        if self._happens("duplicate"):  # 6. from here on, the handler is not alone
            self.tell(f"message {queued.message.message_id} of {queue} comes twice")
            self.memory_bus.deliver_again(queued)
        if self._happens("late"):
            self._comes_late(queue, queued)
        if self._happens("given_up"):
            self.tell(f"message {queued.message.message_id} of {queue} is given up meanwhile")
            self.memory_bus.give_up(queued)
        if self._happens("lock_lost"):  # another function gets it
            self.tell(f"the lock of message {queued.message.message_id} of {queue} is lost")
            self.memory_bus.abandon(queued)
        try:
            await instance.functions.handlers[queue](queued)
        except (CrashError, Exception) as error:  # noqa: BLE001  any error means redelivery
            self.on_failed(queued, error)
            await self.clock.sleep(ABANDON_S)
            self.memory_bus.abandon(queued)  # 3. it is delivered again
        else:
            self.memory_bus.complete(queued)

    def _comes_late(self, queue: str, queued: Queued) -> None:
        def redeliver() -> None:
            self.tell(f"message {queued.message.message_id} of {queue} comes again, late")
            self.memory_bus.deliver_again(queued)

        self.clock.call_later(self.rng.uniform(0, self.faults.late_seconds_max), redeliver)

    def _end_overdue(self) -> None:
        """Kill every instance with a function that runs past its time limit."""
        # 7. The host ends the whole worker process, not only the function.
        now = self.clock.now()
        for instance in self.instances:
            oldest = next(iter(instance.running.values()), None)
            if oldest is not None and oldest.began + self.rules.function_timeout <= now:
                self.timed_out += 1
                self.tell("a function runs past its time limit")
                self.kill(instance)

    def _next_event(self, visible: Visible) -> datetime:
        """Return the time of the next event that no sleeping task waits for."""
        # 1. The clock stops at each of these times. It wakes the sleepers by itself.
        now = self.clock.now()
        times = [self._next_tick(), self.memory_bus.next_lock_end]
        times += [at for _, at in visible]
        for instance in self.instances:
            oldest = next(iter(instance.running.values()), None)
            if oldest is not None:
                times.append(oldest.began + self.rules.function_timeout)
        return min((at for at in times if at is not None and at > now), default=now + TIMER_EVERY)

    # --- the timer ---

    async def sweep(self) -> None:
        """Let all instances sweep at once. If one dies, the others go on."""
        sweeps = [self._sweep(instance) for instance in self.instances if instance.up]
        await asyncio.gather(*sweeps, return_exceptions=True)

    async def _sweep(self, instance: Instance) -> object:
        """Run the timer function of an instance."""
        # 8. If it fails, it is not retried, because the next tick comes.
        _life.set((instance, instance.life))
        task = asyncio.ensure_future(instance.functions.sweep())
        instance.running[task] = Work(self.clock.now(), None)
        try:
            return await task
        finally:
            del instance.running[task]

    def _start_timer(self) -> None:
        if self.clock.now() >= self._next_tick() and not self._timer_runs():
            self._tick = self.clock.now()
            self._timer_task = asyncio.ensure_future(self._run_timer())

    async def _run_timer(self) -> None:
        before = self.memory_bus.arrivals, self.store.due_rows
        try:
            await self.timer()
        except (CrashError, Exception):  # noqa: BLE001  the host survives every error
            return
        finally:
            changed_nothing = before == (self.memory_bus.arrivals, self.store.due_rows)
            longest = max(TIMER_EVERY, self.timer_idle)
            self._pause = min(2 * self._pause, longest) if changed_nothing else TIMER_EVERY

    def _timer_runs(self) -> bool:
        return self._timer_task is not None and not self._timer_task.done()

    def _next_tick(self) -> datetime:
        """Return the time of the next tick that can find a due row, at most ``timer_idle`` away."""
        # 8. A tick is left out if it could find no due row, or could send nothing.
        pause = self._pause if self.memory_bus.refuses_any else TIMER_EVERY
        first, latest = self._tick + pause, self._tick + self.timer_idle
        if latest <= max(first, self.clock.now()) or self.store.partitions_away:
            return latest
        return max(first, min(self.store.next_due() or latest, latest))

    # --- faults by chance ---

    # 5. A port refuses, or does its work and loses the answer.

    def _store_fault(self, operation: str, _key: str) -> StoreFault | None:
        if self._happens("store_down"):
            return StoreFault.UNAVAILABLE
        writes = operation in {"commit", "put_payload", "write_shared"}
        if writes and self._happens("store_lost_answer"):
            return StoreFault.LOST_ANSWER
        guarded = operation in {"commit", "write_shared"}
        conflicts = guarded and self._happens("store_conflict")
        return StoreFault.CONFLICT if conflicts else None

    def _bus_fault(self, _message: Message) -> BusFault | None:
        if self._happens("bus_down"):
            return BusFault.UNAVAILABLE
        is_lost = self._happens("bus_lost_answer")
        return BusFault.LOST_ANSWER if is_lost else None

    def _happens(self, fault: str) -> bool:
        return self.faults.happens(fault, self.rng)


def _held_by(instance: Instance) -> str:
    queues = sorted(
        {work.queued.message.queue for work in instance.running.values() if work.queued}
    )
    return f" while it handles messages of {', '.join(queues)}" if queues else ""


def of_no_host() -> None:
    """Mark the current task as outside of every instance, so that no crash ends it."""
    _life.set(None)


def life_here() -> tuple[int, int] | None:
    """Return the instance and the life of the current task; None outside of every instance."""
    life = _life.get()
    return None if life is None else (id(life[0]), life[1])


def is_killed() -> bool:
    """Return whether the instance of the current task was killed since the task began."""
    life = _life.get()
    return life is not None and life[0].life != life[1]


class PausingBus:
    """A bus that lets other tasks run before each message, and takes time for each refusal."""

    def __init__(self, world: World, clock: Clock | None = None) -> None:
        self._world, self._clock = world, clock

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages one by one. See ``MessageBus.send``."""
        for message in messages:
            if self._clock is not None:
                self._world.on_sends(message, self._clock.now())
            await self._world.pause()
            try:
                await self._world.memory_bus.send([message])
            except BusUnavailableError:
                await self._refused()
                raise

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        await self._world.pause()
        try:
            return await self._world.memory_bus.peek(queue, limit, after)
        except BusUnavailableError:
            await self._refused()
            raise

    async def _refused(self) -> None:
        is_away = self._world.memory_bus.is_away
        # 5. A refusal takes as long as it does with the real adapter.
        await self._world.clock.sleep(BUS_WAIT_S if is_away else self._world.busy_s)

    async def close(self) -> None:
        """Do nothing: there are no connections."""
