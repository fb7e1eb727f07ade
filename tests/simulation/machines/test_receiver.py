"""Messages that are put back, in sequences: outages, failures, a copy of a copy, a crash.

The reference model is written from the text of ``sas.engine.receiver``. Pauses have no jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import key_time
from sas.engine import receiver as module
from sas.engine.delivery import AGAIN, EXTERNAL_SENT, FIRST_ID, LEFT_SINCE, Delivery
from sas.engine.receiver import FAILURES, FIRST_AT, SOURCE, TIMES
from sas.engine.rejections import FULL_DELAY_MAX_S
from sas.ports import (
    Message,
    OtherVersionError,
    QueueFullError,
    StoreUnavailableError,
    UnavailableError,
)
from sas.testing.bus import MESSAGE_BYTES_MAX, BusFault
from sas.testing.store import StoreFault
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.receiver_kit import LETTERS, MINUTES, QUEUE, Door, delivered

OK, AWAY, NO_ROOM, OTHER_VERSION, BUG = "ok", "away", "no room", "other version", "bug"
NOTIFIED = "notified"
"""An outage after the alerts and notifications were sent: they must not be sent again."""
OUTCOMES = st.sampled_from([OK, AWAY, NOTIFIED, NO_ROOM, OTHER_VERSION, BUG, BUG])
DELIVERIES = st.tuples(st.integers(0, 1), st.tuples(OUTCOMES, OUTCOMES), st.booleans())
QUEUED, HELD, DONE, REJECTED = "queued", "held", "done", "rejected"
MESSAGES_MAX, FAILURES_MAX = 2, 2


@dataclass(frozen=True, kw_only=True)
class Travelling:
    """One message: what its next delivery must be like, and where it is until then."""

    queue: str = QUEUE
    source: str | None = None
    place: str = QUEUED
    times: int = 0
    failures: int = 0
    first_at: datetime | None = None
    left_since: datetime | None = None
    due_at: datetime | None = None
    external_sent: bool = False
    is_large: bool = False


@dataclass
class ReceiverModel:
    """What becomes of a delivery, by the rules 2 to 7 of ``sas.engine.receiver``."""

    full: set[str] = field(default_factory=set)
    cut: bool = False
    store_away: bool = False
    reports: int = 0

    def delivered(self, item: Travelling, outcomes: tuple[str, str], now: datetime) -> Travelling:
        """Return what a message is after a delivery: the second outcome is that of all retries."""
        outcome, then = outcomes
        before, ends_at = item, now + MINUTES
        first_at = item.first_at or now
        while True:
            if outcome == OK:
                return replace(item, place=DONE)
            if outcome == BUG:
                return self._failed(before, replace(before, first_at=first_at), now)
            if outcome == OTHER_VERSION:
                is_late = before.first_at is not None and before.first_at < now - DEPLOY_TIME
                self.reports += is_late
                item = replace(item, left_since=item.left_since or now)
            if outcome == NOTIFIED:
                item = replace(item, external_sent=True)
            pause_max = FULL_DELAY_MAX_S if outcome == NO_ROOM else 30
            pause = timedelta(seconds=min(2**item.times, pause_max))
            item = replace(item, times=item.times + 1, first_at=first_at, due_at=now + pause)
            if (place := self._place(item)) is not None:
                return replace(item, place=place)
            now += min(pause, timedelta(seconds=30))  # it waits here
            if now >= ends_at:
                return before if self.store_away else replace(item, place=HELD)
            outcome = then

    def _failed(self, before: Travelling, item: Travelling, now: datetime) -> Travelling:
        failures = item.failures + 1
        if failures >= FAILURES_MAX and item.queue == QUEUE:
            item = replace(item, queue=LETTERS, source=QUEUE, failures=0, due_at=None)
        else:
            pause = min(4**failures, 300 if item.queue == QUEUE else 3600)
            due_at = now + timedelta(seconds=pause)
            item = replace(item, failures=failures, times=item.times + 1, due_at=due_at)
        if (place := self._place(item)) is None:
            return before if self.store_away else replace(item, place=HELD)
        return replace(item, place=place)

    def _place(self, item: Travelling) -> str | None:
        """Return where a copy goes; None if nothing takes it now."""
        if self.cut:
            return None
        if item.is_large:
            return REJECTED
        if item.queue not in self.full:
            return QUEUED
        return None if self.store_away else HELD


class PutBack(AsyncMachine):
    """Two instances receive the same messages."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Any] = [
            mock.patch.object(module, "FAILURES_MAX", FAILURES_MAX),
            mock.patch("sas.engine.receiver.random.uniform", lambda _low, high: high),
        ]
        for patch in self.patches:
            patch.start()
        self.model = ReceiverModel()
        self.items: dict[str, Travelling] = {}

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        super().teardown()

    @initialize()
    def start(self) -> None:
        self.door = Door()
        self.doors = [self.door, Door(beside=self.door)]
        self.ids_seen: set[str] = set()

    def _open(self) -> int:
        return sum(item.place in (QUEUED, HELD) for item in self.items.values())

    @precondition(lambda self: self._open() < MESSAGES_MAX and not self.model.cut)
    @rule(is_large=st.sampled_from([False, False, False, True]), times=st.sampled_from([0, 0, 9]))
    def send(self, times: int, *, is_large: bool) -> None:
        """A message comes, or a small one that was put back so often before."""
        first_id, now = f"m-{len(self.items)}", self.door.clock.now()
        times = 0 if is_large else times
        first_at = now if times else None
        before = {TIMES: str(times), FIRST_AT: key_time(now), AGAIN: "yes"} if times else {}
        body = b"x" * (MESSAGE_BYTES_MAX - 520) if is_large else b"{}"
        self._room(QUEUE, has_room=True)
        self.run(self.door.bus.send([Message(QUEUE, first_id, body, properties=before)]))
        self.items[first_id] = Travelling(is_large=is_large, times=times, first_at=first_at)

    @rule(queue=st.sampled_from([QUEUE, QUEUE, LETTERS]), has_room=st.booleans())
    def _room(self, queue: str, *, has_room: bool) -> None:
        (self.model.full.discard if has_room else self.model.full.add)(queue)
        self.door.bus.queues[queue].length_max = None if has_room else 0

    @rule(cut=st.sampled_from([False, False, True]), store_away=st.booleans())
    def outage(self, *, cut: bool, store_away: bool) -> None:
        """The bus or the store goes away, or comes back. What was received stays received."""
        self.model.cut, self.model.store_away = cut, store_away
        fault = StoreFault.UNAVAILABLE if store_away else None
        self.door.store.plan = lambda _operation, _key: fault
        self.door.bus.plan = lambda _: BusFault.UNAVAILABLE if cut else None

    @precondition(lambda self: not (self.model.cut or self.model.store_away))
    @rule()
    def supervisor_sends_what_is_held(self) -> None:
        for queue in (QUEUE, LETTERS):
            self._room(queue, has_room=True)
            for item in self.run(self.door.store.held(queue, 100)):
                self.run(self.door.bus.send([item.message]))
                self.run(self.door.store.release(item))
        for first_id, travelling in self.items.items():
            if travelling.place == HELD:
                self.items[first_id] = replace(travelling, place=QUEUED)

    @precondition(lambda self: self._open())
    @rule(deliveries=st.lists(DELIVERIES, min_size=1, max_size=8))
    def deliver(self, deliveries: list[tuple[int, tuple[str, str], bool]]) -> None:
        """Functions receive the next messages, one after the other."""
        for instance, outcomes, dies in deliveries:
            if any(item.place == QUEUED for item in self.items.values()):
                self._deliver(instance, outcomes, dies=dies)

    def _deliver(self, instance: int, outcomes: tuple[str, str], *, dies: bool) -> None:
        """One function receives a message; it may die before it completes the message."""
        bus, clock = self.door.bus, self.door.clock
        name = min(
            (queue for queue in (QUEUE, LETTERS) if bus.queues[queue].waiting),
            key=lambda queue: bus.queues[queue].waiting[0].visible_at,
        )
        self.run(clock.advance_to(bus.queues[name].waiting[0].visible_at))
        queued = bus.receive(name)
        assert queued is not None
        message = queued.message
        first_id = _first_id(message)
        item = self.items[first_id]
        reports = self.model.reports
        after = self.model.delivered(item, outcomes, clock.now())
        self.items[first_id] = after
        is_back = after is item
        # The host did not hear that the message was put back, and delivers it once more.
        is_repeated = dies and not is_back and name == after.queue == QUEUE and not self.model.cut
        self.door.reports.clear()
        self.doors[1].reports.clear()
        for door in self.doors[: 2 if is_repeated else 1]:
            assert self._receive(door, message, outcomes, item.source) == is_back
            assert len(door.reports) == self.model.reports - reports
        (bus.abandon if is_back else bus.complete)(queued)
        self._check_places()

    def _receive(
        self, door: Door, message: Message, outcomes: tuple[str, str], source: str | None
    ) -> bool:
        """Have a message received; return whether it is given back to the host."""
        attempts = iter(outcomes)
        times = [int(message.properties.get(TIMES, 0))]
        ends_at = door.clock.now() + MINUTES

        async def handler(received: Delivery) -> str:
            outcome = next(attempts, outcomes[1])
            assert (received.message_id, received.source_queue) == (_first_id(message), source)
            assert received.is_first == (times[0] == 0)  # only then it runs on
            assert received.ends_at == ends_at > door.clock.now()
            times[0] += 1
            if outcome != OK:
                raise _error(outcome)
            return "handled"

        delivery = replace(delivered(message), enqueued_at=door.clock.now())
        try:
            self.run(door.clock.run(door.receiver.receive(handler, delivery)))
        except UnavailableError:
            return True
        return False

    def _check_places(self) -> None:
        queues, store = self.door.bus.queues, self.door.store
        travelling = [
            *((QUEUED, each.message) for name in (QUEUE, LETTERS) for each in queues[name].waiting),
            *((HELD, each.message) for each in store.held_messages.values()),
        ]
        travelling = [pair for pair in travelling if pair[1].queue in (QUEUE, LETTERS)]
        for _, message in travelling:
            self._check_message(self.items[_first_id(message)], message)
        places = [(place, _first_id(message), message.queue) for place, message in travelling]
        open_items = {
            (item.place, first_id, item.queue)
            for first_id, item in self.items.items()
            if item.place in (QUEUED, HELD)
        }
        assert sorted(places) == sorted(open_items)
        kept_ids = {delivery.message_id for door in self.doors for delivery in door.kept}
        assert kept_ids == {name for name, item in self.items.items() if item.place == REJECTED}

    def _check_message(self, item: Travelling, message: Message) -> None:
        """Check what a message carries, by its model."""
        properties = message.properties
        assert message.scheduled_at == item.due_at
        assert int(properties.get(TIMES, 0)) == item.times
        assert int(properties.get(FAILURES, 0)) == item.failures
        assert properties.get(FIRST_AT) == (item.first_at and key_time(item.first_at))
        assert properties.get(LEFT_SINCE) == (item.left_since and key_time(item.left_since))
        assert properties.get(SOURCE) == item.source
        assert (AGAIN in properties) == (item.times > 0)
        assert (EXTERNAL_SENT in properties) == item.external_sent


def _error(outcome: str) -> Exception:
    if outcome == NO_ROOM:
        no_room = QueueFullError("orders-rejected is full")
        no_room.delay_max_s = FULL_DELAY_MAX_S
        return no_room
    if outcome == OTHER_VERSION:
        return OtherVersionError("format 2")
    outage = StoreUnavailableError("away")
    if outcome == NOTIFIED:
        outage.put_back_with[EXTERNAL_SENT] = "yes"
    return KeyError("amount") if outcome == BUG else outage


def _first_id(message: Message) -> str:
    return message.properties.get(FIRST_ID, message.message_id)


TestPutBack = PutBack.TestCase
TestPutBack.settings = settings(max_examples=100, stateful_step_count=30)
