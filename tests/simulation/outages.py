"""Play an outage of one dependency under a running load, and count what it cost.

An outage of any length costs time and nothing else. ``python -m lab.outages`` makes the table of
docs/failure-modes.md with these functions.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from sas.domain.change import Change
from sas.domain.ids import message_id
from sas.domain.messages import JournalWord, Notify
from sas.domain.order import CLOCK_SKEW, Direction, Order, OrderState
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import AgentCall, BusUnavailableError
from sas.testing.bus import Queue
from sas.testing.clock import START
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.remote import ModelService
from sas.testing.world import of_no_host
from tests.simulation.system import System, build

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
DURATIONS = {
    "5 s": 5.0,
    "3 min": 3 * MINUTE,
    "30 min": 30 * MINUTE,
    "6 h": 6 * HOUR,
    "3 d": 3 * DAY,
}
LOADS = {"light": (3, 2, 2), "busy": (20, 6, 4)}
"""Orders before, during and after the outage."""
BEGINS_S = 20.0
BACK_S_MAX = 60.0
TIMER_IDLE = timedelta(minutes=2)
CLOCK_JUMP_S = CLOCK_SKEW.total_seconds()
"""The largest difference between two clocks."""
MOVES = {JournalWord.SUBMITTED, JournalWord.STEP_PROCESSED, JournalWord.STEP_UNDONE}
"""Transitions that bring an order on. A claim does not: its request may wait for the service."""


@dataclass(frozen=True, slots=True)
class Outage:
    """One dependency is away for so many seconds."""

    dependency: str
    lasts: float


@dataclass(slots=True, kw_only=True)
class Cost:
    """What an outage cost.

    ``failed_untried`` and ``undone_untried`` count steps that failed, or whose order was undone,
    in an epoch without a call to their service. ``parked`` counts messages that no code reads.
    ``back_s``: seconds from its end until every order moved and every application was notified.
    """

    lost: int = 0
    rejected: int = 0
    parked: int = 0
    failed_untried: int = 0
    undone_untried: int = 0
    notified_twice: int = 0
    alerted_twice: int = 0
    never_notified: int = 0
    not_processed: int = 0
    back_s: float = 0.0

    def wrong(self) -> dict[str, float]:
        """Return what is wrong: counters above zero, and a recovery of more than a minute."""
        bounds = {"back_s": BACK_S_MAX}
        values = {member.name: getattr(self, member.name) for member in fields(self)}
        return {name: value for name, value in values.items() if value > bounds.get(name, 0)}


Action = Callable[[System], None]


def _turn(dependency: str) -> tuple[Action, Action]:
    """Return how something goes away and comes back."""
    return (lambda s: s.turn(dependency, is_away=True), lambda s: s.turn(dependency, is_away=False))


QUEUES_HIT = (
    *(QUEUES.orders, QUEUES.scheduler, QUEUES.agent("payment")),
    *(REPLIES_TO, QUEUES.alerts),
)
LAST = QUEUES.rejected, QUEUES.dead_letters
"""Queues of which only the loss of the whole queue is played."""
DEPENDENCIES: dict[str, tuple[Action, Action]] = {
    "table": _turn("table"),
    "one shard of the table": _turn("one shard of the table"),
    "table throttled": _turn("table throttled"),
    "namespace": _turn("namespace"),
    **{
        dependency: _turn(dependency)
        for dependency in (
            *(f"queue {name} disabled" for name in (*QUEUES_HIT, *LAST)),
            *(f"queue {name} takes nothing" for name in QUEUES_HIT),
        )
    },
    "Key Vault, while every instance restarts": _turn("every instance"),
    "service payment": _turn("service payment"),
    f"one clock {CLOCK_JUMP_S:.0f} s ahead": _turn("clock ahead"),
    f"one clock {CLOCK_JUMP_S:.0f} s behind": _turn("clock behind"),
}
"""How each outage begins and ends. A queue takes nothing if it is full, disabled for sending, or
answers ServerBusy.
"""


@dataclass(kw_only=True)
class Watch:
    """Notes which steps were called in which epoch, and when each order moved."""

    system: System
    called: set[tuple[str, str, Direction, int]] = field(default_factory=set)
    committed: dict[tuple[str, int], datetime] = field(default_factory=dict)
    moved: list[tuple[str, datetime]] = field(default_factory=list)
    failed_untried: list[str] = field(default_factory=list)
    undone_untried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for agent in self.system.agents.values():
            self._hear(agent)
        write = self.system.store._write

        def watched(change: Change) -> Order:
            written = write(change)
            self._saw(change)
            return written

        self.system.store._write = watched  # type: ignore[method-assign]

    def _hear(self, agent: ModelService) -> None:
        do, undo = agent.do, agent.undo

        async def done(call: AgentCall) -> Any:
            self._called(call, Direction.DO)
            return await do(call)

        async def undone(call: AgentCall) -> Any:
            self._called(call, Direction.UNDO)
            return await undo(call)

        agent.do, agent.undo = done, undone  # type: ignore[method-assign]

    def _called(self, call: AgentCall, direction: Direction) -> None:
        steps = self.system.store.orders[call.order_id].order.steps
        epoch = next(step.epoch for step in steps if step.name == call.step)
        self.called.add((call.order_id, call.step, direction, epoch))

    def _saw(self, change: Change) -> None:
        before, after, now = change.before, change.after, self.system.world.clock.now()
        self.committed[after.order_id, change.entry.seq] = now
        if change.entry.what in MOVES:
            self.moved.append((after.order_id, now))
        if before is None:
            return
        for old, new in zip(before.steps, after.steps, strict=True):
            failed = new.failure_count > old.failure_count or (
                new.error is not None and old.error is None
            )
            untried = (before.order_id, old.name, before.direction, old.epoch) not in self.called
            if failed and untried:
                where = f"{before.order_id} {old.name} epoch {old.epoch}: {change.entry.what}"
                self.failed_untried.append(where)
                if after.direction is Direction.UNDO and before.direction is Direction.DO:
                    self.undone_untried.append(where)


@dataclass(kw_only=True)
class Story:
    """A system, an outage and the orders around it."""

    seed: int
    outage: Outage
    load: str = "light"
    system: System = field(init=False)
    watch: Watch = field(init=False)
    sent_at: dict[str, datetime] = field(default_factory=dict)
    senders: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.system = build(
            self.seed,
            Faults(),
            failures_max_seconds=30.0,
            clocks_apart=(0.0, 0.0),
            breaker=BreakerPolicy(),
        )
        self.system.world.timer_idle = TIMER_IDLE
        self.system.slow_store(0.02)  # an outage begins in the middle of functions
        self.watch = Watch(system=self.system)

    async def run(self) -> Cost:
        """Play the outage, and return what it cost."""
        begins = START + timedelta(seconds=BEGINS_S)
        ends = begins + timedelta(seconds=self.outage.lasts)
        world, clock = self.system.world, self.system.world.clock
        for number, at in enumerate(self._times()):
            order_id, workflow = f"O-{number}", "order-with-care" if number % 2 else "order"
            self.system.submitted[order_id] = workflow
            self.senders.append(asyncio.ensure_future(self._send(order_id, workflow, at)))
        begin, end = DEPENDENCIES[self.outage.dependency]
        clock.call_later(BEGINS_S, lambda: begin(self.system))
        clock.call_later(BEGINS_S + self.outage.lasts, lambda: end(self.system))
        try:
            await world.run(self._finished, hours_max=self.outage.lasts / HOUR + 12)
        except TimeoutError:
            pass  # an order that is not finished counts as lost
        finally:
            for sender in self.senders:
                sender.cancel()
            await self.system.close()
        return self._cost(ends)

    def _times(self) -> Iterator[float]:
        """Return when orders arrive: while the outage begins, during it, and after its end."""
        before, during, after = LOADS[self.load]
        uniform, lasts = self.system.world.rng.uniform, self.outage.lasts
        yield from (uniform(BEGINS_S - 8, BEGINS_S) for _ in range(before))
        yield from (BEGINS_S + lasts * uniform(0, 1) for _ in range(during))
        yield from (BEGINS_S + lasts + uniform(0, 20) for _ in range(after))

    async def _send(self, order_id: str, workflow: str, at: float) -> None:
        """Send an order as an application does: again and again while its queue takes nothing."""
        of_no_host()
        await self.system.world.clock.sleep(at)
        for _ in range(10_000):
            try:
                self.system.submit(order_id, workflow)
            except BusUnavailableError:
                await self.system.world.clock.sleep(min(self.outage.lasts / 4, 10 * MINUTE))
            else:
                self.sent_at[order_id] = self.system.world.clock.now()
                return
        raise AssertionError(f"{order_id} is never taken")

    def _finished(self) -> bool:
        return all(sender.done() for sender in self.senders) and self.system.at_rest()

    def _cost(self, ends: datetime) -> Cost:
        system = self.system
        orders = {key: stored.order for key, stored in system.store.orders.items()}
        rest = {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.ERROR, OrderState.REJECTED}
        states = [orders[key].process_state if key in orders else None for key in system.submitted]
        notified = Counter(event.id for event in system.events())
        alerts = Counter(message.message_id for message in system.bus.messages(QUEUES.alerts))
        due = list(self._due())
        return Cost(
            lost=sum(state not in rest for state in states),
            rejected=sum(state is OrderState.REJECTED for state in states),
            parked=sum(map(self._parked, system.bus.queues.values())),
            failed_untried=len(self.watch.failed_untried),
            undone_untried=len(self.watch.undone_untried),
            notified_twice=sum(times - 1 for times in notified.values()),
            alerted_twice=sum(times - 1 for times in alerts.values()),
            never_notified=sum(own_id not in notified for own_id, _ in due),
            not_processed=sum(
                state in rest and state is not OrderState.PROCESSED for state in states
            ),
            back_s=self._back_s(ends, due),
        )

    @staticmethod
    def _parked(queue: Queue) -> int:
        """Return how many messages are where no code reads them, or expired unread."""
        if queue.name in {REPLIES_TO, QUEUES.alerts}:  # people and applications read these
            return 0
        unread = 0 if queue.name.startswith(QUEUES.agent_prefix) else len(queue.expired)
        return unread + len(queue.waiting) + len(queue.locked)

    def _due(self) -> Iterator[tuple[str, datetime]]:
        """Return the id of every notification that a journal has, and when it was committed."""
        for order_id, stored in self.system.store.orders.items():
            for entry in stored.journal:
                for index, message in enumerate(entry.messages):
                    if isinstance(message, Notify):
                        own_id = message_id(order_id, entry.seq, index)
                        yield own_id, self.watch.committed[order_id, entry.seq]

    def _back_s(self, ends: datetime, due: list[tuple[str, datetime]]) -> float:
        """Return the seconds from the end until everything that waited for the dependency moved."""
        enqueued_at = {
            q.message.message_id: q.enqueued_at for q in self.system.bus.queues[REPLIES_TO].waiting
        }
        back = [enqueued_at[own_id] for own_id, at in due if own_id in enqueued_at and at <= ends]
        for order_id in [order_id for order_id, at in self.sent_at.items() if at <= ends]:
            after = [at for moved, at in self.watch.moved if moved == order_id and at > ends]
            back += [min(after)] if after else []
        return max([(at - ends).total_seconds() for at in back] + [0.0])


def drawn(seed: int) -> tuple[str, str, str]:
    """Return a dependency, a duration and a load. Long ones are rare, because they take long."""
    rng = random.Random(seed)  # noqa: S311  a simulation repeats itself
    (duration,) = rng.choices(list(DURATIONS), (30, 30, 30, 9, 1))
    load = "busy" if DURATIONS[duration] <= 30 * MINUTE and rng.random() < 0.3 else "light"
    return rng.choice(list(DEPENDENCIES)), duration, load


def cost_of(seed: int, dependency: str, duration: str, load: str = "light") -> Cost:
    """Play one outage under one seed, and return what it cost."""
    return asyncio.run(
        Story(seed=seed, outage=Outage(dependency, DURATIONS[duration]), load=load).run()
    )
