"""Messages that are refused, in sequences: while orders-rejected has room, is full, or is missing.

The reference model is written from the text of ``sas.engine.rejections``: who is notified, what is
kept, what waits, and the operator's incidents with their counts. Response queues refuse
notifications, and take them again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sas.domain.messages import AlertKind
from sas.domain.queues import Queues, lane
from sas.engine.delivery import ORDER_ID
from sas.engine.rejections import GIVEN_UP_AGAIN, REFUSED_AGAIN
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import OVER_AFTER
from sas.ports import BusUnavailableError, Message
from sas.testing.bus import MESSAGE_BYTES_MAX
from sas.testing.store import StoreFault
from tests.simulation.machines.incidents_kit import noted
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.actors_kit import Kit, delivery, kit, letter, order

QUEUES = Queues(applications=("web", "desk"))
WEB, WEB_ORDERS, REJECTED = QUEUES.response_of("web"), QUEUES.orders_of("web"), QUEUES.rejected
RESPONSES = [WEB, QUEUES.response_of("desk")]
TAKES, FULL, MISSING = "takes", "full", "missing"
EXPIRES, STORE_AWAY = "expires", "store away"
EVENTS = [TAKES, TAKES, FULL, MISSING, EXPIRES, STORE_AWAY]
PAUSES = [timedelta(minutes=2), timedelta(minutes=20), 2 * REFUSED_AGAIN, GIVEN_UP_AGAIN]
REFUSED, DEAD, ANONYMOUS, INTERNAL, LARGE = "refused", "dead", "anonymous", "internal", "large"
SCOPES = {
    REFUSED: f"queue {WEB_ORDERS}, reason unknown-workflow",
    DEAD: f"queue {WEB_ORDERS}, reason dead-lettered",
    ANONYMOUS: f"queue {QUEUES.orders}, reason not-json",
    LARGE: f"queue {QUEUES.orders}, reason too-large",
}
"""The scope of the incident of each kind of message. One from inside has an alert of its own."""
NOT_KEPT = f"queue {REJECTED}"
ABOUT = {ORDER_ID: "O-1"}
UNREAD = {f"queue {queue}" for queue in RESPONSES}


@dataclass(kw_only=True)
class RejectionModel:
    """Each set has the names of messages."""

    states: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys([*RESPONSES, REJECTED], TAKES)
    )
    notified: set[str] = field(default_factory=set)
    kept_names: set[str] = field(default_factory=set)
    letters: set[str] = field(default_factory=set)
    alerts: set[str] = field(default_factory=set)
    times: Counter[str] = field(default_factory=Counter)
    over_at: dict[str, datetime] = field(default_factory=dict)
    refusing: set[tuple[int, str]] = field(default_factory=set)
    """The response queues that refused each instance, since when they took none."""

    def refused(self, kind: str, name: str, instance: int, now: datetime) -> bool:
        """Return whether a message that is refused is done; otherwise it waits."""
        has_sender = kind in (REFUSED, DEAD)
        is_told = has_sender and self.states[WEB] != MISSING
        if is_told:  # 1. The application first.
            self.notified.add(name)
        place = self.states[REJECTED]  # 2. Keep the message.
        if place == MISSING or (place == FULL and not is_told and kind != LARGE):
            return False
        if place == TAKES:
            self.kept_names.add(name)
        if kind == INTERNAL:  # 3. Inform the operator.
            self.alerts.add(name)
        else:
            self.report(SCOPES[kind] if place == TAKES else NOT_KEPT, now, REFUSED_AGAIN)
        if has_sender and not is_told:
            self.letters.add(name)
            self.refusing.add((instance, WEB))
        return True

    def told(self, names: set[str], instance: int, queue: str, *, store_away: bool) -> None:
        """Have an instance send notifications of an order that goes on."""
        if self.states[queue] == MISSING:
            self.letters |= names
            self.refusing.add((instance, queue))
            return
        self.notified |= names
        is_over = (instance, queue) in self.refusing and self.states[queue] == TAKES
        if is_over and not store_away:
            self.refusing.remove((instance, queue))
            self.over_at.pop(f"queue {queue}", None)

    def report(self, scope: str, now: datetime, time: timedelta) -> None:
        if not self.is_active(scope, now):
            self.times[scope] = 0
        self.times[scope] += 1
        self.over_at[scope] = now + time + OVER_AFTER

    def is_active(self, scope: str, now: datetime) -> bool:
        return scope in self.over_at and now <= self.over_at[scope]


class RefusedMessages(AsyncMachine):
    """Two instances refuse messages of applications and of the system."""

    def __init__(self) -> None:
        super().__init__()
        self.model = RejectionModel()
        self.waiting: list[tuple[str, str]] = []
        self.number = 0

    @initialize()
    def start(self) -> None:
        self.system = kit(queues=QUEUES, duplicate_window=timedelta(days=7))
        self.instances = [self.system, kit(beside=self.system, instance="host-2", queues=QUEUES)]
        self.queues = {name: self.system.bus.queues[name] for name in (*RESPONSES, REJECTED)}
        self.run(self.system.submit())
        self.kept_ids: set[str] = set()

    @rule(kind=st.sampled_from([*SCOPES, INTERNAL]), instance=st.integers(0, 1))
    def refuse(self, kind: str, instance: int) -> None:
        self.number += 1
        self._refuse(kind, f"m-{self.number}", instance)

    @precondition(lambda self: self.waiting)
    @rule(instance=st.integers(0, 1))
    def what_waited_comes_again(self, instance: int) -> None:
        kind, name = self.waiting.pop(0)
        self._refuse(kind, name, instance)

    def _refuse(self, kind: str, name: str, instance: int) -> None:
        self.run(self.system.later(61))
        is_done = self.model.refused(kind, name, instance, self.system.clock.now())
        try:
            self.run(_refused_by(self.instances[instance], kind, name))
        except BusUnavailableError:
            assert not is_done
            self.waiting.append((kind, name))
        else:
            assert is_done
        self._check()

    @rule(
        events=st.lists(
            st.tuples(st.sampled_from(RESPONSES), st.sampled_from(EVENTS)), min_size=1, max_size=8
        ),
        instance=st.integers(0, 1),
    )
    def orders_go_on(self, events: list[tuple[str, str]], instance: int) -> None:
        """Applications of orders that go on are notified, or do not read it."""
        for queue, event in events:
            self.run(self.system.later(61))
            if event == EXPIRES:
                self._expires(queue, instance)
            else:
                self._notify(queue, instance, event)
            self._check()

    def _expires(self, queue: str, instance: int) -> None:
        self.model.report(f"queue {queue}", self.system.clock.now(), GIVEN_UP_AGAIN)
        unread = letter(Message(queue, "n-1", b"{}"))
        self.run(self.instances[instance].dead_letters.handle(unread))

    def _notify(self, queue: str, instance: int, event: str) -> None:
        """Send two notifications. The store may be away while their queue takes them."""
        self.change(queue, TAKES if event == STORE_AWAY else event)
        self.number += 1
        names = {f"m-{self.number}", f"m-{self.number}-b"}
        store, store_away = self.system.store, event == STORE_AWAY
        store.plan = lambda *_: StoreFault.UNAVAILABLE if store_away else None
        self.model.told(names, instance, queue, store_away=store_away)
        outbox = self.instances[instance].context.outbox
        messages = [Message(queue, name, b"{}", properties=ABOUT) for name in sorted(names)]
        self.run(outbox.send_external(messages, self.system.order()))
        store.plan = lambda *_: None

    @precondition(lambda self: self.model.kept_names and self.model.states[REJECTED] == TAKES)
    @rule(instance=st.integers(0, 1))
    def a_kept_message_expires(self, instance: int) -> None:
        expired = self.system.bus.take(REJECTED)
        assert expired is not None
        for _ in range(2):  # it is redelivered
            self.run(self.instances[instance].dead_letters.handle(letter(expired)))
            self.run(self.system.later(61))
        (again,) = [
            message
            for message in self.system.bus.messages(REJECTED)
            if message.body == expired.body
        ]
        assert again.message_id not in self.kept_ids
        self._check()

    @rule(
        name=st.sampled_from([*RESPONSES, REJECTED, REJECTED]),
        state=st.sampled_from([TAKES, FULL, MISSING]),
    )
    def change(self, name: str, state: str) -> None:
        self.model.states[name] = state
        queue, queues = self.queues[name], self.system.bus.queues
        queue.length_max = 0 if state == FULL else None
        queues[name] = queue
        if state == MISSING:
            del queues[name]

    @rule(pause=st.sampled_from(PAUSES))
    def time_passes(self, pause: timedelta) -> None:
        self.run(self.system.later(pause.total_seconds()))
        self._check()

    def _check(self) -> None:
        model, now = self.model, self.system.clock.now()
        for instance in self.instances:
            self.run(noted(instance))
        notices = [queued.message for queue in RESPONSES for queued in self.queues[queue].waiting]
        for item in self.system.store.held_messages.values():
            assert item.order_id
            assert item.message.properties[ORDER_ID] in (item.order_id, "")
            notices.append(item.message)
        assert len({message.message_id for message in notices}) == len(model.notified)
        kept_ids = {queued.message.message_id for queued in self.queues[REJECTED].waiting}
        assert len(kept_ids) == len(model.kept_names)
        self.kept_ids |= kept_ids
        assert len(set(self.system.ids(QUEUES.dead_letters))) == len(model.letters)
        incidents = self.run(active_incidents(self.system.store).all())
        times = {name: value.value.times for name, value in incidents.items() if value.value}
        assert times == {
            name_of(
                AlertKind.UNDELIVERABLE if scope in UNREAD else AlertKind.REJECTED, scope
            ): count
            for scope, count in model.times.items()
            if model.is_active(scope, now)
        }
        alone = {alert.id for alert in self.system.alerts() if not alert.scope}
        assert len(alone) == len(model.alerts)


async def _refused_by(system: Kit, kind: str, name: str) -> None:
    """Have one instance refuse a message."""
    if kind == REFUSED:
        message = Message(WEB_ORDERS, name, order(f"web-{name}", workflow="none", reply_queue=WEB))
        await system.submitter.handle(delivery(message))
    elif kind == DEAD:
        await system.dead_letters.handle(letter(f"junk {name}".encode(), WEB_ORDERS, name))
    elif kind == ANONYMOUS:
        await system.submitter.handle(delivery(Message(QUEUES.orders, name, b"junk")))
    elif kind == INTERNAL:
        queue = lane(QUEUES.scheduler, urgent=name[-1] in "13579")
        await system.scheduler.handle(delivery(Message(queue, name, b"{")))
    else:
        message = Message(QUEUES.orders, name, b"x" * MESSAGE_BYTES_MAX)
        await system.submitter.reject_too_large(delivery(message))


TestRefusedMessages = RefusedMessages.TestCase
TestRefusedMessages.settings = settings(max_examples=40, stateful_step_count=40)
