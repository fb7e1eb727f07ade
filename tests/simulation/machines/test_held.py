"""Held messages, in sequences: a queue is full, takes again, is full again, is gone.

The reference model is written from the text of ``sas.engine.held``. The limits are small here, so
that a page, the bound and the ages are exceeded more than once in a run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sas.domain.messages import AlertKind
from sas.domain.queues import lane
from sas.engine import held as module
from sas.engine.delivery import FIRST_ID
from sas.engine.held import HELD_FOR, REPORTED_AFTER, ROUND_AFTER
from sas.engine.receiver import SOURCE
from sas.engine.rejections import GIVEN_UP_AGAIN
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import OVER_AFTER
from sas.ports import HeldMessage, Message
from sas.testing.bus import MESSAGE_BYTES_MAX, Queue
from sas.testing.store import StoreFault
from tests.simulation.machines.incidents_kit import noted
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.actors_kit import QUEUES, SHOP, Kit, kit

ORDERS, SCHEDULER, LETTERS = QUEUES.orders, QUEUES.scheduler, QUEUES.dead_letters
LANES = [SCHEDULER, lane(SCHEDULER, urgent=True)]
NAMES = [SHOP, ORDERS, *LANES, LETTERS]
HELD_MAX, PAGE = 3, 2
TAKES, FULL, MISSING, FORBIDDEN = "takes", "full", "missing", "forbidden"
CHANGES = [TAKES, FULL, FULL, MISSING, FORBIDDEN]
PAUSES = [timedelta(seconds=61), timedelta(seconds=250), *[REPORTED_AFTER] * 3, HELD_FOR]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A held message. A copy was put back before; no queue takes a large one."""

    name: str
    since: datetime
    is_copy: bool
    is_large: bool


@dataclass(kw_only=True)
class HeldModel:
    """Where each message must be, by the rules 2 to 5 of ``sas.engine.held``."""

    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, TAKES))
    waiting: dict[str, list[Waiting]] = field(default_factory=lambda: {name: [] for name in NAMES})
    room: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})
    letters: set[tuple[str, str]] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    given_up: Counter[str] = field(default_factory=Counter)
    over_at: dict[str, datetime] = field(default_factory=dict)
    unanswered: dict[str, list[str]] = field(default_factory=dict)
    """What still waits for schedulers when steps are judged."""

    def sweep(self, now: datetime, *, dies: bool) -> None:
        """Give all queues all of their turns. If the process dies, what was sent stays too."""
        self._turns(LANES, now, dies=dies)  # what waits for schedulers goes first too
        self.unanswered = {name: [each.name for each in self.waiting[name]] for name in LANES}
        self._turns([*self.waiting], now, dies=dies)

    def _turns(self, queues: list[str], now: datetime, *, dies: bool) -> None:
        for queue in queues:
            items = self.waiting[queue]
            while items:
                if not self._is_gone(queue, items[0]):
                    if now - items[0].since >= REPORTED_AFTER:
                        self._report(queue, now, 2 * ROUND_AFTER)
                        self._give_up(queue, now, dies=dies)
                    break
                if dies:
                    break
                items.pop(0)

    def _is_gone(self, queue: str, item: Waiting) -> bool:
        """Whether a message need not wait any longer."""
        if self.states[queue] in (MISSING, FORBIDDEN):
            if queue == SHOP:
                return self._is_letter(queue, item)
            return not item.is_copy and self._is_aside(item)
        if item.is_large:
            return self._is_aside(item)
        if self.states[queue] == FULL and not self.room[queue]:
            return False
        self.room[queue] -= self.states[queue] == FULL
        if item.name not in self.accepted[queue]:
            self.accepted[queue].append(item.name)
        return True

    def _is_aside(self, item: Waiting) -> bool:
        self.aside.add(item.name)
        return True

    def _is_letter(self, queue: str, item: Waiting) -> bool:
        if item.is_large and self.states[LETTERS] in (TAKES, FULL):
            return self._is_aside(item)
        if self.states[LETTERS] == TAKES:
            self.letters.add((queue, item.name))
        return self.states[LETTERS] == TAKES

    def _give_up(self, queue: str, now: datetime, *, dies: bool) -> None:
        items = self.waiting[queue]
        surplus = len(items) - HELD_MAX if queue in (SHOP, ORDERS) else 0
        count = sum(n < surplus or each.since <= now - HELD_FOR for n, each in enumerate(items))
        if queue == LETTERS or not count:
            return
        old = items[: min(count, PAGE) if dies else count]
        if queue == SHOP:
            self._report(queue, now, GIVEN_UP_AGAIN)
            self.given_up[queue] += len(old)
        elif not all(self._is_letter(queue, item) for item in old):
            return
        if not dies:
            del items[:count]

    def _report(self, queue: str, now: datetime, time: timedelta) -> None:
        if not self.is_reported(queue, now):
            self.given_up[queue] = 0
        self.over_at[queue] = max(now + time + OVER_AFTER, self.over_at.get(queue, now))

    def is_reported(self, queue: str, now: datetime) -> bool:
        """Whether the operator's incident of a queue goes on."""
        return queue in self.over_at and now <= self.over_at[queue]


class HeldMessages(AsyncMachine):
    """Two instances send what is held, while queues change and processes end."""

    def __init__(self) -> None:
        super().__init__()
        limits = mock.patch.multiple(module, HELD_MAX=HELD_MAX, PAGE=PAGE, QUEUES_AT_ONCE=2)
        limits.start()
        self.stop_limits = limits.stop
        self.model = HeldModel()
        self.number = 0

    def teardown(self) -> None:
        self.stop_limits()
        super().teardown()

    @initialize()
    def start(self) -> None:
        self.system = kit()
        self.other = kit(beside=self.system, instance="host-2")
        self.queues: dict[str, Queue] = {name: self.system.bus.queues[name] for name in NAMES}

    @rule(queue=st.sampled_from(NAMES), count=st.integers(1, 2 * HELD_MAX), is_copy=st.booleans())
    def hold(self, queue: str, count: int, *, is_copy: bool) -> None:
        room = 2 * HELD_MAX - len(self.model.waiting[queue])
        for _ in range(min(count, room)):
            self._hold(queue, is_copy=(is_copy or queue == LETTERS) and queue != SHOP)

    @rule(queue=st.sampled_from([ORDERS, *LANES, LETTERS]))
    def hold_a_large_copy(self, queue: str) -> None:
        if not any(item.is_large for item in self.model.waiting[queue]):
            self._hold(queue, is_copy=True, is_large=True)

    def _hold(self, queue: str, *, is_copy: bool, is_large: bool = False) -> None:
        self.number += 1
        name = f"m-{self.number}"
        item = Waiting(name=name, since=self.system.clock.now(), is_copy=is_copy, is_large=is_large)
        body = b"x" * MESSAGE_BYTES_MAX if is_large else b"{}"
        own_id, properties = (f"again/{name}", {FIRST_ID: name}) if is_copy else (name, {})
        message = Message(queue, own_id, body, properties=properties)
        row = HeldMessage(message=message, since=item.since, order_id="O-1")
        self.run(self.system.store.hold(row))
        self.run(self.system.later(0.001))
        self.model.waiting[queue].append(item)

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from(CHANGES))
    def change(self, name: str, state: str) -> None:
        self.model.states[name], self.model.room[name] = state, 0
        queue, queues = self.queues[name], self.system.bus.queues
        queue.length_max = 0 if state == FULL else None
        queue.forbids = state == FORBIDDEN
        queues[name] = queue
        if state == MISSING:
            del queues[name]

    @rule(name=st.sampled_from([SHOP, ORDERS, *LANES]), room=st.integers(0, PAGE))
    def fill(self, name: str, room: int) -> None:
        """A queue fills: it takes ``room`` more messages at most."""
        self.change(name, FULL)
        self.model.room[name] = room
        self.queues[name].length_max = len(self.queues[name].waiting) + room

    @rule(pause=st.sampled_from(PAUSES), dies=st.booleans())
    def sweep(self, pause: timedelta, *, dies: bool) -> None:
        """One instance gives all turns; it may die between a send and its release."""
        self.run(self.system.later(pause.total_seconds()))
        self.system.store.plan = lambda operation, _key: (
            StoreFault.UNAVAILABLE if dies and operation == "release" else None
        )
        self.model.sweep(self.system.clock.now(), dies=dies)
        self._sweep(self.system)
        self.system.store.plan = lambda _operation, _key: None

    @precondition(lambda self: set(self.model.states.values()) == {TAKES})
    @rule()
    def sweep_twice_at_once(self) -> None:
        self.run(self.system.later(PAUSES[0].total_seconds()))
        self.model.sweep(self.system.clock.now(), dies=False)
        self._sweep(self.system, self.other)

    def _sweep(self, *instances: Kit) -> None:
        async def turns(instance: Kit) -> None:
            await instance.supervisor._held.send_answers()
            waiting = {name: await self._waiting(name) for name in LANES}
            assert waiting == self.model.unanswered  # steps are judged now
            await instance.supervisor._held.send()

        async def all_turns() -> None:
            await asyncio.gather(*map(turns, instances))
            await self.system.clock.sleep(61)
            for instance in instances:
                await noted(instance)

        self.run(self.system.run(all_turns()))
        self._check_places()
        self._check_incidents()

    def _check_places(self) -> None:
        model = self.model
        letters = set()
        for name, queue in self.queues.items():
            names = self.run(self._waiting(name))
            assert names == [each.name for each in model.waiting[name]]
            messages = [queued.message for queued in queue.waiting]
            plain = [_first_id(each) for each in messages if SOURCE not in each.properties]
            assert list(dict.fromkeys(plain)) == model.accepted[name]
            letters |= {
                (each.properties[SOURCE], _first_id(each))
                for each in messages
                if SOURCE in each.properties
            }
        assert letters == model.letters
        assert {part.message_id for part in self.system.rejected()} == model.aside

    async def _waiting(self, name: str) -> list[str]:
        items = await self.system.store.held(name, 100)
        return [_first_id(each.message) for each in items]

    def _check_incidents(self) -> None:
        now = self.system.clock.now()
        incidents = self.run(active_incidents(self.system.store).all())
        for name in NAMES:
            kind = AlertKind.UNDELIVERABLE if name == SHOP else AlertKind.QUEUE_DELAY
            value = incidents.get(name_of(kind, f"queue {name}"))
            active = value.value if value else None
            assert (active is not None) == self.model.is_reported(name, now), name
            if active is not None:
                assert active.times == self.model.given_up[name]


def _first_id(message: Message) -> str:
    return message.properties.get(FIRST_ID, message.message_id)


TestHeldMessages = HeldMessages.TestCase
TestHeldMessages.settings = settings(max_examples=70, stateful_step_count=40)
