"""Leases of steps: claimed, answered, expired, reset, given up, undone; by two of each actor.

The machine holds every message itself. So any message may come late, twice, to either instance, or
never. It also plays the agents, and dies in the middle of writes. No queue excuses a step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import permutations
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from sas.codec import external, internal
from sas.codec.internal import RequestMessage
from sas.domain.change import StepDue
from sas.domain.order import UndoStatus
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Workflow
from sas.ports import Message, UnavailableError
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.simulation.machines.kit import AsyncMachine, sequences
from tests.simulation.machines.lease_model import LeaseModel, Record
from tests.unit.actors_kit import AGENTS, ALLOWED, QUEUES, UNDO, command, delivery, done, kit

FIRST = Step("first", agent="stock", time_allowed=ALLOWED, after=(), undo=UNDO, failures_max=1)
SIDE = replace(FIRST, name="side", agent="payment")
NEXT = replace(SIDE, name="next", after=("first",))
LAST = replace(FIRST, name="last", after=("side", "next"), undo=None)
PATIENT = replace(
    FIRST,
    backoff=Backoff(timedelta(seconds=10)),
    extended_wait=ExtendedWait(timedelta(seconds=60)),
)
SHAPES = {
    "parallel": (FIRST, SIDE),
    "diamond": (FIRST, SIDE, NEXT, LAST),
    "patient": (PATIENT, NEXT),
}
FAULTS = (StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER, StoreFault.CONFLICT, *BusFault)
VERBS = ("resubmit", "resubmit", "resubmit", "resubmit", "skip", "undo", "cancel")
HOSTS = st.sampled_from((0, 1))
NUMBERS = st.sampled_from((0, 0, 0, 1, 1, 2, 3))
"""How old a message is: 0 is the newest."""
OUTCOMES = st.sampled_from(("done", "done", "done", "refused", "waited"))
NAMES = ("host-1", "host-2")
PAIRS = [
    *(("wake", "wake"), ("wake", "reply"), ("reply", "reply"), ("reply", "other reply")),
    *(("reply", "sweep"), ("wake", "sweep"), ("sweep", "sweep"), ("command", "command")),
    *(("command", "reply"), ("command", "sweep")),
]
ROUNDS_MAX = 20
MESSAGE = st.tuples(st.booleans(), NUMBERS, OUTCOMES)
"""A wake, or a reply with an outcome; how old."""
ANY_FAULT = st.sampled_from(FAULTS)


def happens(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


LIFE = st.one_of(
    happens("a_message_comes", st.sampled_from((0, 0, 5, 31)), MESSAGE, HOSTS, st.integers(1, 2)),
    happens("a_message_comes", st.just(0), MESSAGE, HOSTS, st.just(1)),
    happens("an_agent_dies_or_a_rest_ends", HOSTS, st.just(True), st.none()),
    happens("an_agent_dies_or_a_rest_ends", HOSTS, st.booleans(), st.none() | ANY_FAULT),
    happens("an_instance_dies", ANY_FAULT, st.integers(1, 3), MESSAGE, st.tuples(HOSTS, HOSTS)),
    happens("two_instances_act_at_once", MESSAGE, st.sampled_from(VERBS), st.sampled_from(PAIRS)),
    happens("supervisors_take_turns", HOSTS),
    happens("an_operator_acts", st.sampled_from(VERBS), HOSTS, st.sampled_from((0, 0, 0, 1))),
)
"""What may happen. One rule plays all of it, so that Hypothesis leaves out no kind."""
Mean = Callable[[LeaseModel, str, bool], None]
"""What a delivery means for the model: by which instance, and whether it is the first one."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A message for a scheduler, and what it means."""

    message: Message
    mean: Mean

    def first(self, instance: str) -> Callable[[LeaseModel], None]:
        return lambda model: self.mean(model, instance, True)


class Leases(AsyncMachine):
    """One order of a few steps, two instances, and everything that may happen to a lease."""

    @initialize(shape=st.sampled_from(sorted(SHAPES)), policy=st.sampled_from(OnFailure))
    def submit(self, shape: str, policy: OnFailure) -> None:
        workflow = Workflow("chain", version=1, steps=SHAPES[shape], on_failure=policy)
        first = kit(workflow)
        self.hosts = (first, kit(workflow, beside=first, instance="host-2"))
        for host in self.hosts:
            host.supervisor._excuses = Mock(of=AsyncMock(return_value=None))
        self.store, self.bus = first.store, first.bus
        self.model = LeaseModel(workflow=workflow)
        self.requests: dict[tuple[int, str, int], RequestMessage] = {}
        self.wakes: list[Message] = []
        self.lease = (0, 0.0)
        self.commands = 0
        self.run(first.submit())
        self.collect()
        self.handle(self.wake_event(0), 0)

    # What the machine does with messages and time

    @property
    def now(self) -> float:
        return (self.hosts[0].clock.now() - START).total_seconds()

    @property
    def seq(self) -> int:
        return self.hosts[0].order().seq

    def collect(self) -> None:
        """Take every message out of its queue."""
        self.wakes += self.hosts[0].taken(QUEUES.scheduler)
        for agent in AGENTS:
            for message in self.hosts[0].taken(QUEUES.agent(agent)):
                request = internal.decode(message.body, RequestMessage)
                dispatch = (request.step, request.direction, request.epoch)
                assert self.requests.setdefault(dispatch, request).id == request.id
                assert request.idempotency_key == f"O-1/{request.step_name}"

    def deliver(self, event: Event, host: int, count: int = 1) -> Awaitable[object]:
        return self.hosts[host].scheduler.handle(delivery(event.message, count=count))

    def play(self, *work: Awaitable[object]) -> None:
        """Let one or two instances work, at one moment."""

        async def together() -> None:
            await asyncio.gather(*work)

        with patch("sas.engine.transition.backoff", lambda _attempt: 0.0):
            try:
                self.run(self.hosts[0].run(together()))
            finally:
                self.store._faults.clear()
                self.bus._faults.clear()
                self.bus.plan = lambda _message: None
                self.collect()

    def wake_event(self, number: int) -> Event:
        message, now = self.wakes[-1 - number % len(self.wakes)], self.now

        def mean(model: LeaseModel, instance: str, is_first: bool) -> None:
            model.wake(now, instance, message.message_id, is_first=is_first)

        return Event(message=message, mean=mean)

    def reply_event(self, number: int, outcome: str) -> Event:
        """The newest replies come most often, and the old ones late, or twice."""
        dispatch, now = list(self.requests)[-1 - number % len(self.requests)], self.now
        step, direction, epoch = dispatch
        reply_id = f"O-1/{step:02d}/{direction}/{epoch}"
        message = done(step=step, direction=direction, epoch=epoch, outcome=outcome, id=reply_id)

        def mean(model: LeaseModel, instance: str, _is_first: bool) -> None:
            model.reply(now, instance, dispatch, outcome)

        return Event(message=message, mean=mean)

    def command_event(self, verb: str, behind: int = 0) -> Event:
        """A command for what the operator saw. A stale one changes nothing."""
        self.commands += 1
        message, records = command(verb, self.seq - behind, f"c-{self.commands}"), self.records()

        def mean(model: LeaseModel, _instance: str, _is_first: bool) -> None:
            if not behind and model.records() == records:
                model.command(verb)

        return Event(message=message, mean=mean)

    def leads(self, host: int) -> bool:
        """Return whether a supervisor gets the lease of eight seconds, or has it."""
        holder, until = self.lease
        if holder != host and until > self.now:
            return False
        if holder != host or until - self.now <= 4:
            self.lease = (host, self.now + 8)
        return True

    # What may happen

    @rule(event=LIFE)
    def something_happens(self, event: tuple[Any, ...]) -> None:
        name, *arguments = event
        getattr(self, name)(*arguments)

    def a_message_comes(
        self, seconds: int, event: tuple[bool, int, str], host: int, count: int
    ) -> None:
        """Perhaps late or once more, and perhaps as a redelivery."""
        self.run(self.hosts[0].later(seconds))
        self.handle(self.message_event(*event), host, count)

    def handle(self, event: Event, host: int, count: int = 1) -> None:
        self.play(self.deliver(event, host, count))
        event.mean(self.model, NAMES[host], count == 1)

    def message_event(self, is_wake: bool, number: int, outcome: str) -> Event:
        return self.wake_event(number) if is_wake else self.reply_event(number, outcome)

    def an_agent_dies_or_a_rest_ends(
        self, host: int, claims: bool, fault: StoreFault | BusFault | None
    ) -> None:
        """A supervisor sweeps when the next step is due. If it dies, it sweeps once more."""
        if claims:
            self.handle(self.wake_event(0), host)
        self.time_passes_until_due(0)
        leads = self.leads(host)
        if isinstance(fault, StoreFault):
            self.store.fail_next("commit", fault)
        else:
            self.bus.plan = lambda message: fault if message.queue == QUEUES.scheduler else None
        for _ in range(1 + (fault is not None)):
            self.play(self.hosts[host].supervisor.sweep())
        if leads:
            self.model.sweep(self.now)

    def supervisors_take_turns(self, host: int) -> None:
        """The lease of the first one ends, the other takes it, and the first comes again."""
        for seconds, number in ((12, host), (3, 1 - host), (0, host)):
            self.time_passes_until_due(seconds)
            self.sweep(number)

    def time_passes_until_due(self, seconds: int) -> None:
        """Let time pass until so many seconds before the next step is due."""
        ends = [record.until for record in self.model.records() if record.until is not None]
        later = min(ends, default=self.now + seconds) - seconds - self.now
        self.run(self.hosts[0].later(max(later, 0)))

    def sweep(self, host: int) -> None:
        leads = self.leads(host)
        self.play(self.hosts[host].supervisor.sweep())
        if leads:
            self.model.sweep(self.now)

    def an_operator_acts(self, verb: str, host: int, behind: int) -> None:
        self.handle(self.command_event(verb, behind), host)

    def an_instance_dies(
        self,
        fault: StoreFault | BusFault,
        times: int,
        event: tuple[bool, int, str],
        hosts: tuple[int, int],
    ) -> None:
        """Before or after its write, or in its sends. The message comes again, to any instance."""
        message = self.message_event(*event)
        if isinstance(fault, StoreFault):
            self.store.fail_next("commit", *[fault] * times)
        else:
            self.bus.fail_next(fault)
        seq = self.seq
        try:
            self.play(self.deliver(message, hosts[0]))
        except UnavailableError:
            if self.seq > seq:
                message.mean(self.model, NAMES[hosts[0]], True)
            self.handle(message, hosts[1], 2)
        else:
            message.mean(self.model, NAMES[hosts[0]], True)

    def two_instances_act_at_once(
        self, message: tuple[bool, int, str], verb: str, kinds: tuple[str, str]
    ) -> None:
        """What they leave is what one of them after the other would have left."""
        _, number, outcome = message
        work: list[Awaitable[object]] = []
        means: list[Callable[[LeaseModel], None]] = []
        for host, kind in enumerate(kinds):
            if kind == "sweep":  # the lease only saves work
                self.store.fail_next("acquire_lease", StoreFault.UNAVAILABLE)
                work.append(self.hosts[host].supervisor.sweep())
                continue
            event = {
                "wake": lambda: self.wake_event(number),
                "reply": lambda: self.reply_event(number, outcome),
                "other reply": lambda: self.reply_event(number + 1, "done"),
                "command": lambda: self.command_event(verb),
            }[kind]()
            work.append(self.deliver(event, host))
            means.append(event.first(NAMES[host]))
        if "sweep" in kinds:
            ends = [record.until for record in self.model.records()]
            due = [n for n, until in enumerate(ends) if until is not None and until <= self.now]
            means += [partial(LeaseModel.expire, now=self.now, number=number) for number in due]
        self.play(*work)
        self.model = self.serial(means)
        self.run(self.hosts[0].later(9))  # what any of them holds for its lease has ended

    def serial(self, means: list[Callable[[LeaseModel], None]]) -> LeaseModel:
        """Return the model after some events in that order which gives the steps of the order.

        If a step fails in one such order and not in another, nobody can tell what was said of it.
        """
        models = []
        for order in permutations(means):
            model = deepcopy(self.model)
            for mean in order:
                mean(model)
            if self.records() == model.records() and set(self.requests) == model.dispatches:
                models.append(model)
        assert models, f"no order of the events leads to {self.records()}"
        model = min(models, key=lambda model: model.notices)
        model.unsure += max(other.notices for other in models) - model.notices
        return model

    # What must be true at every moment

    def records(self) -> list[Record]:
        """Return the steps as they are stored."""
        return [
            Record(
                state=step.process_state.value,
                epoch=step.epoch,
                failures=step.failure_count,
                waits=step.failures.extended_waits,
                locked_by=step.locked_by,
                until=(step.complete_by - START).total_seconds()
                if step.complete_by and (step.dispatched or step.resting)
                else None,
                cancelled=step.undo is UndoStatus.TO_BE_UNDONE,
            )
            for step in self.hosts[0].order().steps
        ]

    @invariant()
    def the_steps_are_those_of_the_model(self) -> None:
        assert self.records() == self.model.records()
        assert set(self.requests) == self.model.dispatches

    @invariant()
    def each_step_whose_turn_it_is_has_a_due_row(self) -> None:
        steps = self.hosts[0].order().steps
        turns = {(step.number, step.epoch, step.complete_by) for step in steps if step.turn}
        rows = [row for shard in self.store._due.values() for row in shard.values()]
        due = {(row.step, row.epoch, row.at) for row in rows if isinstance(row, StepDue)}
        assert due == turns

    def teardown(self) -> None:
        """Let all go well from now on. The order must end, and everything must have been said."""
        try:
            if self.records() == self.model.records():
                self.settle()
        finally:
            super().teardown()

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            self.wakes = [w for w in self.wakes if w.message_id not in self.model.causes]
            for number in range(len(self.wakes)):
                self.handle(self.wake_event(number), 0)
            for number, (step, _, epoch) in enumerate(reversed(list(self.requests))):
                record = self.records()[step]
                if record.epoch == epoch and record.locked_by:
                    self.handle(self.reply_event(number, "done"), 1)
            self.an_operator_acts("resubmit", 0, 0)
            self.run(self.hosts[0].later(61))
            self.sweep(0)
            self.the_steps_are_those_of_the_model()
            if self.model.is_over() and not self.hosts[0].outs():
                break
        else:
            raise AssertionError(f"the order never ends: {self.records()}")
        notices = {(event.id, external.notice_of(event.type)) for event in self.hosts[0].events()}
        kinds = Counter(kind for _, kind in notices)
        failures = Counter(kind for kind, _ in {(a.kind, a.id) for a in self.hosts[0].alerts()})
        assert 0 <= kinds["failed"] - self.model.notices <= self.model.unsure
        alerted = failures["step-failed"] + failures["undo-failed"]
        assert 0 <= alerted - self.model.alerted <= self.model.unsure
        assert kinds["undone"] == (self.model.steps[0].state == "Compensated")
        assert kinds["completed"] <= 1


TestLeases = sequences(Leases, examples=60, steps=25)
