"""Every order that the real decisions can reach, and every decision between them.

Times do not matter to what is explored, only whether something is due; so all times of a
state are set to one moment, epochs are cut at two (a stale one needs a smaller one), and
results and faults are forgotten. A decision is made at two moments: soon, and a day later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import product
from typing import TypeVar

from sas.domain import command
from sas.domain.change import Change, Decision, Incident, Trigger, change_of
from sas.domain.claim import claim
from sas.domain.command import resubmit, undo
from sas.domain.expire import Excuse, expire, expire_deadline
from sas.domain.messages import (
    Alert,
    AlertKind,
    Notice,
    Notify,
    Outcome,
    Progress,
    Reply,
    Request,
    Wake,
)
from sas.domain.moves import IllegalMoveError
from sas.domain.order import Direction, Dispatched, Fault, Order, StepRecord, StepState
from sas.domain.reply import answer, progressed
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Rules
from tests.unit.domain_cases import (
    SHAPES,
    T0,
    Shape,
    due_at,
    submitted,
    successors,
    workflow_of,
)

SOON = T0 + timedelta(seconds=31)
LATE = T0 + timedelta(days=1)
EPOCH_MAX = 2
STATES_MAX = 40_000
FAULT = Fault("sold-out", "there is none left")

EXPLORED: list[tuple[str, int]] = []
"""Each scope that was explored whole, and its number of states. The run of the tests prints it."""


def explored_line(scope: str, states: int) -> str:
    """Return the line that a run of the tests prints about a scope."""
    return f"{states:>9,} states  {scope}"


REPLIES = ("done", "refused", "undone", "undo refused")
WAITED = ("waited", "undo waited")
BEHIND = "expire behind"
"""CompleteBy passes while a message of the step waits in a queue."""
REST = Backoff(timedelta(seconds=1))
WAIT = timedelta(hours=1)
DRAIN_TIME = timedelta(minutes=10)
"""A call that is out arrives within it: an undo decided soon waits, one a day later does not."""

Shut = frozenset[tuple[int, int]]
StepKey = tuple[str, str, bool, bool, bool, int, int, int, int, bool, bool]
Key = tuple[bool, tuple[StepKey, ...]]
M = TypeVar("M", Wake, Request, Notify, Alert)
Node = TypeVar("Node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workflow to explore."""

    shape_name: str
    on_failure: OnFailure
    failures_max: int
    without_undo: frozenset[str] = frozenset()
    backoff: bool = False
    waits: int = 0
    drain_time: bool = False
    deadline: bool = False
    routes: int = 1
    routed: frozenset[str] | None = None
    waited: bool = False
    """Whether an agent may say that no call could begin."""

    def __str__(self) -> str:
        lacking = f", no undo of {'+'.join(sorted(self.without_undo))}" if self.without_undo else ""
        options = [
            n for n in ("backoff", "waits", "drain_time", "deadline", "waited") if getattr(self, n)
        ]
        named = "".join(f", {name}" for name in options)
        routes = f", {self.routes} routes" if self.routes > 1 else ""
        return (
            f"{self.shape_name}, {self.on_failure.value}, {self.failures_max}"
            f"{lacking}{named}{routes}"
        )

    @property
    def shape(self) -> Shape:
        return SHAPES[self.shape_name]

    def routes_of(self, name: str) -> int:
        """Return how many agents a step has."""
        return self.routes if self.routed is None or name in self.routed else 1

    @property
    def rules(self) -> Rules:
        return workflow_of(
            self.shape,
            on_failure=self.on_failure,
            failures_max=self.failures_max,
            without_undo=self.without_undo,
            backoff=REST if self.backoff else Backoff(),
            extended_wait=ExtendedWait(WAIT, self.waits) if self.waits else None,
            drain_time=DRAIN_TIME if self.drain_time else None,
            deadline=LATE - T0 if self.deadline else None,
            routes=self.routes,
            routed=self.routed,
        ).rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happens to an order. ``step`` is -1 for the whole order; ``shut`` are the routes whose
    breaker is open at that moment.
    """

    name: str
    step: int = -1
    at: datetime = SOON
    shut: Shut = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One decision, committed: ``change.after`` is as decided, ``to`` the state it leads to."""

    event: Event
    change: Change
    source: Key
    to: Key
    case: Case
    incident: Incident | None = None

    @property
    def before(self) -> Order:
        assert self.change.before is not None
        return self.change.before

    @property
    def after(self) -> Order:
        return self.change.after

    def sent(self, kind: type[M]) -> list[M]:
        return [m for m in self.change.entry.messages if isinstance(m, kind)]

    def notified(self, notice: Notice) -> list[int | None]:
        return [m.step for m in self.sent(Notify) if m.notice is notice]

    def alerted(self, kind: AlertKind) -> list[int | None]:
        return [m.step for m in self.sent(Alert) if m.alert is kind]

    def reports(self, kind: AlertKind) -> bool:
        return self.incident is not None and self.incident.kind is kind

    def pairs(self) -> Iterator[tuple[StepRecord, StepRecord]]:
        """Yield every step before and after."""
        return zip(self.before.steps, self.after.steps, strict=True)

    def __str__(self) -> str:
        was = [(s.process_state.value, s.epoch, s.failure_count) for s in self.before.steps]
        is_ = [(s.process_state.value, s.epoch, s.failure_count) for s in self.after.steps]
        return f"{self.event.name} {self.event.step}: {was} to {is_}"


@dataclass(repr=False, kw_only=True)
class Graph:
    """What was found for one case."""

    case: Case
    rules: Rules
    start: Key
    states: dict[Key, Order] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    illegal: list[str] = field(default_factory=list)

    def successors(self, allowed: Callable[[Edge], bool]) -> Mapping[Key, list[Key]]:
        """Return for every state where the allowed decisions lead, itself left out."""
        targets: dict[Key, list[Key]] = {key: [] for key in self.states}
        for edge in self.edges:
            if edge.source != edge.to and allowed(edge):
                targets[edge.source].append(edge.to)
        return targets


def key_of(order: Order) -> Key:
    steps = tuple(
        (
            s.process_state.value,
            s.direction.value,
            s.locked_by is not None,
            s.complete_by is not None,
            s.resting,
            s.failure_count,
            s.failures.extended_waits,
            min(s.epoch, EPOCH_MAX),
            s.call.route,
            s.undo_failed,
            s.awaits_callback,
        )
        for s in order.steps
    )
    return order.deadline is not None, steps


def noted(step: StepRecord) -> StepRecord:
    """Return a step whose agent, if a request is out, has sent progress."""
    turn = step.turn
    return replace(
        step, turn=replace(turn, note="on its way") if isinstance(turn, Dispatched) else turn
    )


SAME = Fault("same", "")


def normal(order: Order) -> Order:
    steps = tuple(
        replace(
            noted(due_at(s, T0)),
            since=T0,
            call=replace(s.call, called_until=T0 if s.call.called_until else None),
            epoch=min(s.epoch, EPOCH_MAX),
            result=None,
            error=SAME if s.process_state is StepState.ERROR else None,
        )
        for s in order.steps
    )
    return replace(
        order,
        steps=steps,
        seq=1,
        stopped_at=T0 if order.stopped_at else None,
        deadline=T0 if order.deadline else None,
        acknowledged_by=None,
    )


def events(order: Order, rules: Rules, *, waited: bool = False) -> Iterator[Event]:
    """Yield everything that may happen to an order, decisions or not."""
    for name in ("claim", "resubmit", "undo", "skip", "cancel", "acknowledge"):
        yield Event(name=name)
    if rules.deadline is not None:
        yield Event(name="deadline")
    for step in order.steps:
        for name in (*REPLIES, *WAITED * waited):
            yield Event(name=name, step=step.number)
        yield from (
            Event(name="progress", step=step.number),
            Event(name="undo progress", step=step.number),
            Event(name="awaits", step=step.number),
            Event(name="undo awaits", step=step.number),
        )
        yield Event(name="expire", step=step.number)
        if not is_out(step):  # the same whenever it comes
            yield Event(name="expire", step=step.number, at=LATE)
        elif waited:
            yield Event(name=BEHIND, step=step.number)
        if step.process_state is StepState.ERROR:
            yield from (
                Event(name="resubmit", step=step.number),
                Event(name="skip", step=step.number),
            )
    if any(step.drain_time for step in rules.steps):
        yield from (Event(name="undo", at=LATE), Event(name="cancel", at=LATE))
        yield from (
            Event(name=name, step=s.number, at=LATE)
            for s in order.steps
            for name in ("done", "refused")
        )


def shut_variations(rules: Rules) -> Iterator[Shut]:
    """Yield every choice of routes that may be shut, the same for all steps."""
    routes_max = max(len(step.agents) for step in rules.steps)
    for choice in product((False, True), repeat=routes_max if routes_max > 1 else 0):
        closed = {route for route, shut in enumerate(choice) if shut}
        yield frozenset(product(range(len(rules.steps)), closed))


def decide(order: Order, event: Event, rules: Rules) -> Decision | None:  # noqa: PLR0911  a table
    rules = replace(rules, unavailable=event.shut) if event.shut else rules
    match event.name:
        case "claim":
            return claim(order, rules, now=event.at, instance="scheduler")
        case "resubmit":
            return resubmit(order, rules, now=event.at, step=named(order, event))
        case "skip":
            return command.skip(order, rules, now=event.at, step=named(order, event))
        case "undo":
            return undo(order, rules, now=event.at)
        case "cancel":
            return command.cancel(order, rules, now=event.at)
        case "acknowledge":
            return command.acknowledge(order, "ann")
        case "deadline":
            return expire_deadline(order, rules, now=event.at)
        case "expire" | "expire behind" as name:
            epoch = order.steps[event.step].epoch
            excuse = Excuse.WAITS if name == BEHIND else None
            return expire(order, event.step, epoch, rules, now=event.at, excuse=excuse)
        case "progress" | "undo progress" | "awaits" | "undo awaits":
            progress = progress_of(order, event)
            return progressed(order, progress, rules, now=event.at, instance="scheduler")
        case _:
            reply = reply_to(order, event.step, event.name)
            return answer(order, reply, rules, now=event.at, instance="scheduler")


def named(order: Order, event: Event) -> str | None:
    return order.steps[event.step].name if event.step >= 0 else None


def reply_to(order: Order, step: int, name: str, *, epoch_off: int = 0) -> Reply:
    direction = Direction.UNDO if name.startswith("undo") else Direction.DO
    outcome_name = name.rpartition(" ")[2]
    outcome = Outcome(outcome_name) if outcome_name in {"refused", "waited"} else Outcome.DONE
    fault = FAULT if outcome is Outcome.REFUSED else None
    epoch = order.steps[step].epoch + epoch_off
    return Reply(
        order_id=order.order_id,
        step=step,
        direction=direction,
        epoch=epoch,
        outcome=outcome,
        result=None,
        fault=fault,
    )


def progress_of(order: Order, event: Event, *, epoch_off: int = 0) -> Progress:
    direction = Direction.UNDO if event.name.startswith("undo") else Direction.DO
    epoch = order.steps[event.step].epoch + epoch_off
    return Progress(
        order_id=order.order_id,
        step=event.step,
        direction=direction,
        epoch=epoch,
        complete_by=event.at + WAIT,
        note="on its way",
        awaits=event.name.endswith("awaits"),
    )


@cache
def explore(case: Case) -> Graph:
    """Return every reachable state of a case and every decision, breadth first."""
    rules = case.rules
    first = normal(submitted(rules).after)
    graph = Graph(case=case, rules=rules, start=key_of(first), states={key_of(first): first})
    waiting = deque([first])
    while waiting:
        assert len(graph.states) <= STATES_MAX, f"{case}: states without end"
        order = waiting.popleft()
        for edge in _edges(graph, order):
            graph.edges.append(edge)
            if edge.to not in graph.states:
                graph.states[edge.to] = normal(edge.after)
                waiting.append(graph.states[edge.to])
    EXPLORED.append((f"decisions: {case}", len(graph.states)))
    return graph


def _edges(graph: Graph, order: Order) -> Iterator[Edge]:
    """Yield every decision about an order; those that ask an agent to do, for every ``shut``."""
    source = key_of(order)
    for event in events(order, graph.rules, waited=graph.case.waited):
        edge = _follow(graph, order, source, event)
        if edge is None:
            continue
        yield edge
        if any(request.direction is Direction.DO for request in edge.sent(Request)):
            for shut in shut_variations(graph.rules):
                other = _follow(graph, order, source, replace(event, shut=shut)) if shut else None
                if other is not None:
                    yield other


def _follow(graph: Graph, order: Order, source: Key, event: Event) -> Edge | None:
    decision = decide(order, event, graph.rules)
    if decision is None:
        return None
    try:
        change = change_of(order, decision, Trigger(by="test"), commit_id="c", now=event.at)
    except IllegalMoveError as error:
        graph.illegal.append(f"{event}: {error}")
        return None
    return Edge(
        event=event,
        change=change,
        source=source,
        to=key_of(change.after),
        case=graph.case,
        incident=decision.incident,
    )


def find_cycle(successors: Mapping[Node, list[Node]]) -> Node | None:
    """Return a state on a cycle, or None where there is no way back to any state."""
    missing = dict.fromkeys(successors, 0)
    for targets in successors.values():
        for target in targets:
            missing[target] += 1
    free = [key for key, count in missing.items() if count == 0]
    remaining = set(successors)
    while free:
        key = free.pop()
        remaining.discard(key)
        for target in successors[key]:
            missing[target] -= 1
            if missing[target] == 0:
                free.append(target)
    return next(iter(remaining), None)


def reaching(successors: Mapping[Node, list[Node]], goals: set[Node]) -> set[Node]:
    """Return every state from which a goal can be reached."""
    before: dict[Node, list[Node]] = {key: [] for key in successors}
    for key, targets in successors.items():
        for target in targets:
            before[target].append(key)
    reached, waiting = set(goals), list(goals)
    while waiting:
        for key in before[waiting.pop()]:
            if key not in reached:
                reached.add(key)
                waiting.append(key)
    return reached


def is_out(step: StepRecord) -> bool:
    """Return whether an agent may be at work on a step; by its state alone."""
    undoing = step.process_state is StepState.COMPENSATING
    return step.process_state is StepState.PROCESSING or (undoing and step.locked_by is not None)


@cache
def all_after(shape_name: str) -> Mapping[str, frozenset[str]]:
    """Return for every step of a shape all that come after it, directly or not."""
    return {name: successors(SHAPES[shape_name], name) for name in SHAPES[shape_name]}


def whose_turn(order: Order, shape_name: str) -> set[int]:
    """Return the steps that are ready or out, and do not rest; worked out apart from ``sas``."""
    shape = SHAPES[shape_name]
    state = {step.name: step.process_state for step in order.steps}
    failed = StepState.ERROR in state.values()
    numbers = set()
    for step in order.steps:
        earlier = {state[name] for name in shape[step.name]}
        later = {state[name] for name in all_after(shape_name)[step.name]}
        ready = (
            step.process_state is StepState.PENDING
            and not failed
            and earlier <= {StepState.PROCESSED}
        ) or (step.process_state is StepState.COMPENSATING and later <= {StepState.COMPENSATED})
        if (ready and not step.resting) or is_out(step):
            numbers.add(step.number)
    return numbers


def resting(order: Order) -> set[int]:
    """Return the steps that rest, ready or not."""
    return {step.number for step in order.steps if step.resting}
