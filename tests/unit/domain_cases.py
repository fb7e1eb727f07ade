"""Orders for tests: shapes of workflows, and a story that makes one decision after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sas.domain import command
from sas.domain.change import Change, Decision, Incident, Trigger, change_of
from sas.domain.claim import claim
from sas.domain.command import resubmit, undo
from sas.domain.expire import expire, expire_deadline
from sas.domain.messages import Alert, Notify, Outcome, Outgoing, Reply, Request, Wake
from sas.domain.order import (
    Details,
    Direction,
    Dispatched,
    Fault,
    Order,
    Ready,
    Resting,
    StepRecord,
    StepState,
    UndoStatus,
)
from sas.domain.reply import answer
from sas.domain.submit import submit
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Rules, Step, Undo, Workflow

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

Shape = Mapping[str, tuple[str, ...]]
"""Every step by name, with the steps that must be Processed before it."""

SHAPES: Mapping[str, Shape] = {
    "one": {"a": ()},
    "two in a row": {"a": (), "b": ("a",)},
    "three in a row": {"a": (), "b": ("a",), "c": ("b",)},
    "two beside each other": {"a": (), "b": ()},
    "three beside each other": {"a": (), "b": (), "c": ()},
    "diamond": {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
}


def workflow_of(
    shape: Shape,
    *,
    on_failure: OnFailure = OnFailure.HOLD,
    failures_max: int = 1,
    without_undo: frozenset[str] = frozenset(),
    notify_steps: bool = True,
    backoff: Backoff = Backoff(),  # noqa: B008  immutable
    extended_wait: ExtendedWait | None = None,
    drain_time: timedelta | None = None,
    deadline: timedelta | None = None,
    routes: int = 1,
    routed: Collection[str] | None = None,
    time_allowed: timedelta = 60 * SECOND,
) -> Workflow:
    """Return a workflow of a shape; every step (or those ``routed``) has so many agents."""
    undo = Undo(time_allowed=90 * SECOND, drain_time=drain_time)
    steps = tuple(
        Step(
            name,
            agent=name,
            time_allowed=time_allowed,
            after=after,
            undo=None if name in without_undo else undo,
            failures_max=failures_max,
            backoff=backoff,
            extended_wait=extended_wait,
            alternatives=tuple(
                f"{name}-{number}"
                for number in range(1, routes)
                if routed is None or name in routed
            ),
        )
        for name, after in shape.items()
    )
    return Workflow(
        "test",
        version=1,
        steps=steps,
        on_failure=on_failure,
        notify_steps=notify_steps,
        deadline=deadline,
    )


def successors(shape: Shape, name: str) -> frozenset[str]:
    """Return all that comes after a step, directly or not; worked out apart from sas."""
    direct = {other for other, after in shape.items() if name in after}
    return frozenset(direct).union(*(successors(shape, other) for other in direct))


def details_of(order_id: str = "order-1") -> Details:
    return Details(
        order_id=order_id,
        workflow="test",
        version=1,
        payload="{}",
        content_hash="hash",
        reply_queue="responses-shop",
        correlation_id=None,
        submitted_at=T0,
    )


def submitted(rules: Rules, order_id: str = "order-1", at: datetime = T0) -> Change:
    decision = submit(replace(details_of(order_id), submitted_at=at), rules)
    trigger = Trigger(by="test", cause="orders:1")
    return change_of(None, decision, trigger, commit_id="c", now=at)


def due_at(step: StepRecord, moment: datetime) -> StepRecord:
    """Return a step with its CompleteBy, if it has one, at this moment."""
    match step.turn:
        case Dispatched():
            return replace(step, turn=replace(step.turn, complete_by=moment))
        case Ready():
            return replace(step, turn=Ready(moment))
        case Resting():
            return replace(step, turn=Resting(moment))
        case None:
            return step


def expected_direction(step: StepRecord) -> Direction:
    """Return the direction of the request that a step has out: a do, if its order is cancelled."""
    return Direction.DO if step.process_state is StepState.PROCESSING else step.direction


@dataclass(kw_only=True)
class Story:
    """One order and its decisions; the clock stands still unless a test moves it."""

    workflow: Workflow
    now: datetime = T0
    shut: frozenset[tuple[int, int]] = frozenset()
    order: Order = field(init=False)
    messages: tuple[Outgoing, ...] = field(init=False)
    incident: Incident | None = None
    ended: str | None = None
    """The scope of the incident that the last decision ends."""

    def __post_init__(self) -> None:
        change = submitted(self.rules, at=self.now)
        self.order, self.messages = change.after, change.entry.messages

    @property
    def rules(self) -> Rules:
        return replace(self.workflow.rules, unavailable=self.shut)

    @property
    def states(self) -> list[str]:
        return [step.process_state.value for step in self.order.steps]

    @property
    def state(self) -> str:
        return self.order.process_state.value

    def step(self, name: str) -> StepRecord:
        return next(step for step in self.order.steps if step.name == name)

    def later(self, seconds: float) -> Story:
        self.now += timedelta(seconds=seconds)
        return self

    def apply(self, decision: Decision | None) -> bool:
        """Commit a decision; return whether there was one."""
        self.incident = decision.incident if decision else None
        self.ended = decision.ended[1] if decision and decision.ended else None
        if decision is None:
            self.messages = ()
            return False
        trigger = Trigger(by="test")
        change = change_of(self.order, decision, trigger, commit_id="c", now=self.now)
        self.order, self.messages = change.after, change.entry.messages
        return True

    def claim(self, instance: str = "scheduler-1") -> bool:
        return self.apply(claim(self.order, self.rules, now=self.now, instance=instance))

    def reply(self, name: str, **changes: object) -> Reply:
        """Return the answer "done" to what a step has out, or with some members changed."""
        step = self.step(name)
        members: dict[str, object] = {
            "step": step.number,
            "direction": expected_direction(step),
            "epoch": step.epoch,
            "outcome": Outcome.DONE,
            "result": '"ok"',
        }
        return Reply(order_id="order-1", **(members | changes))  # type: ignore[arg-type]

    def answer(self, reply: Reply) -> bool:
        return self.apply(
            answer(self.order, reply, self.rules, now=self.now, instance="scheduler-2")
        )

    def done(self, *names: str) -> Story:
        """Let the agents of steps answer: done, or undone."""
        for name in names:
            assert self.answer(self.reply(name)), f"the answer of {name} did not count"
        return self

    def refused(self, name: str, fault: Fault | None = None) -> Story:
        reply = self.reply(name, outcome=Outcome.REFUSED, result=None, fault=fault)
        assert self.answer(reply), f"the refusal of {name} did not count"
        return self

    def waited(self, name: str) -> Story:
        """Let the agent of a step answer that no call could begin."""
        reply = self.reply(name, outcome=Outcome.WAITED, result=None)
        assert self.answer(reply), f"the answer of {name} did not count"
        return self

    def shutting(self, *routes: tuple[str, int]) -> Story:
        """Let the breakers of these routes, and of no others, be open from now on."""
        self.shut = frozenset((self.step(name).number, route) for name, route in routes)
        return self

    def expire(self, name: str) -> bool:
        """Let the supervisor look at a step now, whether or not it is due."""
        step = self.step(name)
        return self.apply(expire(self.order, step.number, step.epoch, self.rules, now=self.now))

    def expired(self, name: str) -> Story:
        """Let a step's CompleteBy pass, and the supervisor look at it."""
        due = self.step(name).complete_by
        assert due is not None, f"{name} has no CompleteBy"
        self.now = max(self.now, due)
        assert self.expire(name), f"nothing followed from the expiry of {name}"
        return self

    def overdue(self) -> bool:
        """Let the order's deadline pass, and the supervisor look at it."""
        if self.order.deadline is not None:
            self.now = max(self.now, self.order.deadline)
        return self.apply(expire_deadline(self.order, self.rules, now=self.now))

    def resubmit(self, step: str | None = None, edited: str | None = None) -> bool:
        return self.apply(resubmit(self.order, self.rules, now=self.now, step=step, edited=edited))

    def skip(self, step: str | None = None, result: str | None = None) -> bool:
        return self.apply(
            command.skip(self.order, self.rules, now=self.now, step=step, result=result)
        )

    def cancel(self) -> bool:
        return self.apply(command.cancel(self.order, self.rules, now=self.now))

    def acknowledge(self, by: str = "ann") -> bool:
        return self.apply(command.acknowledge(self.order, by))

    def undo(self) -> bool:
        return self.apply(undo(self.order, self.rules, now=self.now))

    def rest(self, name: str, *, seconds: float) -> None:
        """Let a Pending step rest, as an extended wait would."""
        until = self.now + timedelta(seconds=seconds)
        resting_step = replace(self.step(name), turn=Resting(until))
        steps = tuple(resting_step if s.name == name else s for s in self.order.steps)
        self.order = replace(self.order, steps=steps)

    @property
    def ledger(self) -> list[str | None]:
        """How the undo of each step stands."""
        records = [step.undo for step in self.order.steps]
        return [None if s is UndoStatus.NOT_DECIDED else s.value for s in records]

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        """What the last decision asked of agents: step, direction, epoch."""
        return [
            (self.order.steps[m.step].name, m.direction.value, m.epoch)
            for m in self.messages
            if isinstance(m, Request)
        ]

    @property
    def routed_requests(self) -> list[tuple[str, str, int]]:
        """What the last decision asked of which agents: step, direction, route."""
        return [
            (step.name, m.direction.value, step.call.route)
            for m in self.messages
            if isinstance(m, Request)
            for step in [self.order.steps[m.step]]
        ]

    @property
    def notices(self) -> list[str]:
        return [m.notice.value for m in self.messages if isinstance(m, Notify)]

    @property
    def alerts(self) -> list[str]:
        return [m.alert.value for m in self.messages if isinstance(m, Alert)]

    @property
    def incident_kind(self) -> str | None:
        """The kind of the incident that the last decision reports."""
        return self.incident.kind.value if self.incident else None

    @property
    def incident_agent(self) -> str | None:
        """The agent at fault in the incident that the last decision reports."""
        return self.incident.agent if self.incident else None

    @property
    def woken(self) -> bool:
        return Wake() in self.messages

    @property
    def undoing(self) -> bool:
        return self.order.direction is Direction.UNDO


def story(shape: str = "two in a row", **policy: object) -> Story:
    return Story(workflow=workflow_of(SHAPES[shape], **policy))  # type: ignore[arg-type]
