"""Excuses of an expired step as a sequence: queues move, stop, go away, and two instances look.

The model follows ``sas.features.queue_delay.excuses``. It knows the queues, and for each instance
what that one remembers of its last looks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sas.domain import expire as domain
from sas.domain.change import Incident
from sas.domain.expire import Excuse
from sas.domain.order import StepState
from sas.domain.queues import Queues
from sas.domain.workflow import Workflows
from sas.engine.receiver import TIMES
from sas.features.queue_delay import front
from sas.features.queue_delay.excuses import QueueExcuses
from sas.ports import Message, Peeked
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.domain_cases import story

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
QUEUES = Queues()
AGENT, SCHEDULER = QUEUES.agent("b"), QUEUES.scheduler
ALL = (AGENT, AGENT, SCHEDULER, QUEUES.orders, QUEUES.agent("a"))
ARRIVALS = [
    *((AGENT, whose) for whose in ("mine", "older", "other", "other")),
    *((queue, whose) for queue in ALL[2:] for whose in ("mine", "mine", "other")),
]
READ_MAX, EXCUSES_MAX, DELAY_MIN = 4, 2, 3 * MINUTE
ORDER = "order-1"


@dataclass(kw_only=True)
class Look:
    """What an instance of the model saw in one queue: the messages that it read, in their order."""

    at: datetime
    messages: list[Peeked] = field(default_factory=list)
    moved_at: datetime | None = None
    away_since: datetime | None = None

    @property
    def ids(self) -> set[str]:
        """Those that a function may take now."""
        waiting = [message for message in self.messages if waits(message, self.at)]
        return {message.message_id for message in waiting if message.enqueued_at <= self.at}


def is_much_later(message: Peeked, now: datetime) -> bool:
    return message.enqueued_at > now + (HOUR if TIMES in message.properties else MINUTE)


def waits(message: Peeked, now: datetime) -> bool:
    return not is_much_later(message, now) and message.body != b"junk"


@dataclass
class Model:
    """What one instance remembers, and the excuse that follows from it."""

    looks: dict[str, Look] = field(default_factory=dict)
    before: dict[str, Look] = field(default_factory=dict)
    passed: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    reported: dict[str, datetime] = field(default_factory=dict)
    reports: list[tuple[str, datetime]] = field(default_factory=list)

    def look(self, queue: str, messages: list[Peeked] | None, now: datetime) -> Look:
        """Each queue is read once a sweep, from behind what comes much later."""
        if queue in self.looks:
            return self.looks[queue]
        before = self.before.get(queue)
        after, until = self.passed.pop(queue, (0, now))
        if messages is None:
            look = Look(at=now, away_since=(before and before.away_since) or now)
        else:
            if until <= now:
                after, until = 0, now + HOUR
            look = Look(at=now, messages=[m for m in messages if m.sequence > after][:READ_MAX])
            for message in look.messages:
                if not is_much_later(message, now):
                    break
                after = message.sequence
            self.passed[queue] = after, until
            if before:
                look.moved_at = now if before.ids - look.ids else before.moved_at
        self.looks[queue] = look
        return look

    def excuse(
        self, queue: str, owner: tuple[Any, ...], sent_at: datetime | None = None
    ) -> Excuse | None:
        """Return what a queue says of a message, and note a long delay."""
        look = self.looks[queue]
        if look.away_since:
            self._report(queue, look.away_since, MINUTE)
            return Excuse.AWAY
        waiting = [message for message in look.messages if waits(message, look.at)]
        mine = [message for message in waiting if owner_of(message) == owner]
        is_full = len(look.messages) >= READ_MAX
        is_long = is_full and 2 * len(waiting) >= len(look.messages)
        last_at = max((m.enqueued_at for m in waiting if m.message_id in look.ids), default=None)
        is_older = not is_long and sent_at and last_at and sent_at <= last_at
        if not mine and (not is_full or is_older):
            return None
        since = min((message.enqueued_at for message in mine or waiting), default=look.at)
        self._report(queue, since, DELAY_MIN)
        if any(TIMES in message.properties for message in (mine or (waiting if is_long else []))):
            return Excuse.AWAY
        moves = look.moved_at is not None and look.at - look.moved_at <= 5 * MINUTE
        is_known = bool(mine) or is_long
        return Excuse.WAITS if is_known and moves and since < look.at else Excuse.STUCK

    def is_received(self, queue: str, owner: tuple[Any, ...]) -> bool:
        """Return whether a message is not seen to wait: then other queues matter too."""
        look = self.looks[queue]
        mine = [m for m in look.messages if waits(m, look.at) and owner_of(m) == owner]
        return all(message.enqueued_at >= look.at for message in mine)

    def is_short(self, queue: str) -> bool:
        look = self.looks[queue]
        waiting = [m for m in look.messages if waits(m, look.at)]
        is_full = len(look.messages) >= READ_MAX
        is_long = is_full and 2 * len(waiting) >= len(look.messages)
        since = min((m.enqueued_at for m in waiting), default=look.at)
        return not look.away_since and not is_long and look.at - since < DELAY_MIN

    def _report(self, queue: str, since: datetime, delay_min: timedelta) -> None:
        look, at = self.looks[queue], self.reported.get(queue)
        if look.at - since >= delay_min and not (at and look.at - at < MINUTE):
            self.reported[queue] = look.at
            self.reports.append((f"queue {queue}", since))


def owner_of(message: Peeked) -> tuple[Any, ...] | None:
    if message.body == b"junk":
        return None
    body = json.loads(message.body)
    return body["order_id"], body.get("step"), body.get("epoch")


class Reports:
    """The incidents that an instance reported."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, datetime]] = []

    async def report(self, incident: Incident, *_order_ids: str) -> None:
        self.entries.append((incident.scope, incident.since))


class QueueDelayMachine(AsyncMachine):
    """The second step of an order is out; its CompleteBy passes again and again."""

    @initialize(
        is_taken=st.booleans(),
        others=st.lists(
            st.tuples(
                st.sampled_from(["other", "other", "junk"]),
                st.sampled_from([False, False, True]),
                st.sampled_from([0, 0, 1000, 7300]),
            ),
            max_size=5,
        ),
    )
    def begin(self, is_taken: bool, others: list[tuple[str, bool, int]]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(front, "SCAN_MAX", READ_MAX)
        self.patch.setattr(domain, "EXCUSES_MAX", EXCUSES_MAX)
        self.clock = VirtualClock()
        self.bus = MemoryBus(self.clock)
        self.bus.declare(*ALL)
        self.count = 0
        self.story = story(failures_max=1000)
        assert self.story.claim()
        self.story.done("a")  # its reply claims the next step
        self.instances: dict[int, tuple[QueueExcuses, Reports, Model]] = {}
        for number in (0, 1):
            self.restarts(number)
        for whose, put_back, seconds in others:
            self.arrives(AGENT, whose, put_back=put_back, seconds=seconds)
        self.is_asked(is_taken=is_taken)

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()

    def is_asked(self, *, is_taken: bool) -> None:
        """The request of this dispatch is in its queue, or was taken by an agent that died."""
        if not is_taken:
            self.arrives(AGENT, "mine", put_back=False, seconds=0)

    def step(self) -> Any:
        return self.story.order.steps[1]

    def restarts(self, instance: int) -> None:
        reports = Reports()
        context: Any = SimpleNamespace(
            bus=self.bus, clock=self.clock, queues=QUEUES, incidents=reports
        )
        excuses = QueueExcuses(context, Workflows([self.story.workflow]), DELAY_MIN)
        self.instances[instance] = excuses, reports, Model()

    @rule(
        queue=st.sampled_from(ALL),
        whose=st.sampled_from(["mine", "mine", "older", "other", "other", "junk"]),
        put_back=st.sampled_from([False, False, True]),
        seconds=st.sampled_from([0, 0, 0, 30, 61, 1000, 7300]),
    )
    def arrives(self, queue: str, whose: str, put_back: bool, seconds: int) -> None:
        """A message comes into a queue, perhaps for later."""
        self.count += 1
        members: dict[str, Any] = {"order_id": ORDER if whose in {"mine", "older"} else "order-2"}
        if queue in {AGENT, QUEUES.agent("a")}:
            epoch = self.step().epoch if queue == AGENT else 1
            number = 1 if queue == AGENT else 0
            epoch -= whose == "older"
            members |= {"kind": "request", "step": number, "epoch": epoch}
        body = b"junk" if whose == "junk" else json.dumps(members).encode()
        at = self.clock.now() + seconds * SECOND if seconds else None
        properties = {TIMES: "1"} if put_back else {}
        message = Message(queue, f"m-{self.count}", body, scheduled_at=at, properties=properties)
        if not self.bus.queues[queue].is_away:
            self.bus._enqueue(message)

    @rule(queue=st.sampled_from(ALL), index=st.integers(0, 5))
    def leaves(self, queue: str, index: int) -> None:
        """A function takes a message, mostly not the one of this step."""
        waiting = self.bus.queues[queue].waiting
        if index < len(waiting):
            del waiting[index]

    @rule(
        seconds=st.sampled_from([1, 20, 61, 301, 3700]),
        restarted=st.sampled_from([None, None, None, 0, 1]),
        queue=st.sampled_from([None, None, None, "none", *ALL]),
        is_undone=st.sampled_from([False] * 7 + [True]),
    )
    def passes(
        self, seconds: int, restarted: int | None, queue: str | None, *, is_undone: bool
    ) -> None:
        """Time passes, an instance starts anew, a queue goes or comes, the order is undone."""
        self.clock.set(self.clock.now() + seconds * SECOND)
        if restarted is not None:
            self.restarts(restarted)
        if queue is not None:
            self.bus.mend(*dict.fromkeys(ALL))
        if queue in ALL:
            self.bus.cut(queue)
        if is_undone and self.step().process_state is StepState.PROCESSING:
            self.story.now = self.clock.now()
            assert self.story.undo()
            self.story.claim()
            self.is_asked(is_taken=seconds == 1)

    @precondition(lambda self: self.step().dispatched)
    @rule(
        instance=st.sampled_from([0, 0, 0, 1]),
        course=st.lists(
            st.tuples(
                st.none() | st.sampled_from(ARRIVALS),
                st.sampled_from([None, None, 0, 1, 2]),
                st.sampled_from([False, False, False, True]),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def expires(
        self, instance: int, course: list[tuple[tuple[str, str] | None, int | None, bool]]
    ) -> None:
        """CompleteBy passes, and a sweep looks; between sweeps its queue may move."""
        for arrival, index, is_stale in course:
            if not self.step().dispatched:
                return
            self.clock.set(max(self.clock.now(), self.step().complete_by))
            self.sweeps(instance, is_stale=is_stale)
            queue, whose = arrival or (AGENT, None)
            if whose:
                self.arrives(queue, whose, put_back=False, seconds=0)
            if index is not None:
                self.leaves(queue, index)

    def sweeps(self, instance: int, *, is_stale: bool = False) -> None:
        excuses, reports, model = self.instances[instance]
        order, step, now = self.story.order, self.step(), self.clock.now()
        excuses.begin_sweep()
        model.before, model.looks = model.before | model.looks, {}
        excuse = self.run(excuses.of(order, step))
        assert excuse is self.expected(model)
        if is_stale:  # meanwhile the other one decided
            self.sweeps(1 - instance)
        before = self.step()
        self.story.now = now
        decision = domain.expire(
            self.story.order, 1, step.epoch, self.story.rules, now=now, excuse=excuse
        )
        self.story.apply(decision)
        self.decided(before, excuse, now, is_stale=is_stale)
        _, ended = self.run(excuses.incidents())
        over = [queue for queue in model.reported if self.look(model, queue)]
        over = [queue for queue in over if model.is_short(queue)]
        for queue in over:
            del model.reported[queue]
        assert [scope for _, scope in ended] == [f"queue {queue}" for queue in over]
        assert reports.entries == model.reports

    def decided(self, before: Any, excuse: Excuse | None, now: datetime, *, is_stale: bool) -> None:
        """Compare what was decided with the rule: STUCK excuses a dispatch so many times."""
        after, allowed = self.step(), (60 if before.process_state is StepState.PROCESSING else 90)
        if is_stale:
            assert after == before
        elif excuse is None or (excuse is Excuse.STUCK and before.turn.excused == EXCUSES_MAX):
            assert (after.failure_count, after.dispatched) == (before.failure_count + 1, False)
            assert self.story.claim()
            assert self.step().epoch == before.epoch + 1
            assert self.step().turn.excused == 0
            self.is_asked(is_taken=now.second % 2 == 0)
        else:
            stuck = excuse is Excuse.STUCK
            waited = min(now - before.since, 15 * MINUTE)
            until = now + (allowed * SECOND if stuck else max(allowed * SECOND, waited))
            assert after.turn.excused == before.turn.excused + stuck
            assert (after.complete_by, after.epoch) == (until, before.epoch)
            assert after.failure_count == before.failure_count

    def expected(self, model: Model) -> Excuse | None:
        """The best excuse of the queues of this step wins."""
        step = self.step()
        doing = step.process_state is StepState.PROCESSING
        request = (ORDER, 1, step.epoch)
        sent_at = max(step.since, step.complete_by - (60 if doing else 90) * SECOND) + MINUTE
        self.look(model, AGENT)
        excuses = [model.excuse(AGENT, request, sent_at)]
        if excuses != [Excuse.AWAY] and model.is_received(AGENT, request):
            self.look(model, SCHEDULER)
            excuses.append(model.excuse(SCHEDULER, (ORDER, None, None)))
            roots = [(QUEUES.orders, (ORDER, None, None)), (QUEUES.agent("a"), (ORDER, 0, 1))]
            roots += [] if doing else [(AGENT, (ORDER, 1, step.epoch - 1))]
            for queue, root in roots:
                look = self.look(model, queue)
                if root in [owner_of(m) for m in look.messages if waits(m, look.at)]:
                    excuse = model.excuse(queue, root)
                    excuses.append(Excuse.STUCK if queue == QUEUES.orders else excuse)
        ranking = (Excuse.WAITS, Excuse.AWAY, Excuse.STUCK)
        return next((excuse for excuse in ranking if excuse in excuses), None)

    def look(self, model: Model, queue: str) -> Look:
        is_away = self.bus.queues[queue].is_away
        messages = None if is_away else self.run(self.bus.peek(queue, 10_000))
        return model.look(queue, messages, self.clock.now())


QueueDelayMachine.TestCase.settings = settings(stateful_step_count=40)
TestQueueDelay = QueueDelayMachine.TestCase
