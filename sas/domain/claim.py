"""Claim: the scheduler takes every step that is ready and asks an agent for it.

"If a step requires access to a remote service or resource, the Scheduler invokes the appropriate
Agent." A claim sets LockedBy to the instance and CompleteBy to the time by which the agent must
reply ("an upper limit of the time allowed for the step to finish"), and sends a request with a new
epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sas.domain.change import Decision
from sas.domain.messages import JournalWord, Request, Wake
from sas.domain.order import (
    Direction,
    Dispatched,
    Order,
    Ready,
    Resting,
    StepRecord,
    StepState,
    UndoStatus,
)
from sas.domain.workflow import Rules


@dataclass(frozen=True, slots=True)
class ByScheduler:
    """A scheduler decides. It claims at once what becomes ready, for its ``instance``."""

    instance: str


@dataclass(frozen=True, slots=True)
class BySupervisor:
    """The supervisor decides. It knows no agents, so it sends no request: it wakes a scheduler."""


def claim(order: Order, rules: Rules, *, now: datetime, instance: str) -> Decision | None:
    """Decide to claim every step that is ready and not resting; None if no step is."""
    if order.rejected:
        return None
    steps, requests = dispatch(order.steps, rules, now, instance)
    return Decision(what=JournalWord.CLAIMED, steps=steps, messages=requests) if requests else None


def is_ready(step: StepRecord, steps: Sequence[StepRecord], rules: Rules) -> bool:
    """Return whether no request of a step is out and no other step blocks it.

    No step starts while another one is in Error. Steps are undone in reverse order, so a failed
    undo (Error) blocks the steps before it.
    """
    if step.dispatched:
        return False
    states = [other.process_state for other in steps]
    match step.process_state:
        case StepState.PENDING:
            before = rules.steps[step.number].after
            all_done = all(states[number] is StepState.PROCESSED for number in before)
            return all_done and StepState.ERROR not in states
        case StepState.COMPENSATING:
            later = rules.dependents(step.number)
            return all(states[number] is StepState.COMPENSATED for number in later)
        case _:
            return False


def update_readiness(
    steps: Sequence[StepRecord], rules: Rules, now: datetime
) -> tuple[StepRecord, ...]:
    """Make each step Ready that became ready, and no longer Ready each that is blocked.

    A blocked or finished step has no CompleteBy and no due row, because nobody must act on it. The
    age of a ready step counts from the moment at which it became ready.
    """
    after: list[StepRecord] = []
    for step in steps:
        if isinstance(step.turn, Dispatched | Resting):
            after.append(step)
        elif not is_ready(step, steps, rules):
            after.append(step if step.turn is None else replace(step, turn=None))
        elif step.turn is None:
            after.append(replace(step, turn=Ready(now + rules.pickup), since=now))
        else:
            after.append(step)
    return tuple(after)


def dispatch(
    steps: Sequence[StepRecord], rules: Rules, now: datetime, instance: str
) -> tuple[tuple[StepRecord, ...], tuple[Request, ...]]:
    """Claim every ready step for ``instance``; return all steps and the requests to send."""
    after = list(steps)
    requests: list[Request] = []
    for step in steps:
        if not step.resting and is_ready(step, steps, rules):
            after[step.number], request = _claimed(step, rules, now, instance)
            requests.append(request)
    return update_readiness(after, rules, now), tuple(requests)


def carry_on(
    steps: Sequence[StepRecord],
    rules: Rules,
    now: datetime,
    decided_by: ByScheduler | BySupervisor,
) -> tuple[tuple[StepRecord, ...], Sequence[Wake | Request]]:
    """Have the ready steps begin: return all steps, and the messages to send."""
    match decided_by:
        case ByScheduler(instance):
            return dispatch(steps, rules, now, instance)
        case BySupervisor():
            return update_readiness(steps, rules, now), (Wake(),)


def _claimed(
    step: StepRecord, rules: Rules, now: datetime, instance: str
) -> tuple[StepRecord, Request]:
    rule = rules.steps[step.number]
    doing = step.process_state is StepState.PENDING
    until = now + (rule.time_allowed if doing else rule.undo_time)
    state, since, call = step.process_state, step.since, step.call
    if doing:
        state, since = StepState.PROCESSING, now
        call = replace(step.call, route=_route(step, rules), called_until=until)
    claimed = replace(
        step,
        process_state=state,
        since=since,
        turn=Dispatched(locked_by=instance, complete_by=until),
        epoch=step.epoch + 1,
        call=call,
    )
    direction = Direction.DO if doing else Direction.UNDO
    request = Request(
        step=step.number,
        direction=direction,
        epoch=claimed.epoch,
        generation=step.call.generation,
        complete_by=until,
    )
    return claimed, request


def _route(step: StepRecord, rules: Rules) -> int:
    """Return the first available route. A step that was dispatched before keeps its route."""
    if step.epoch:
        return step.call.route
    routes = range(len(rules.steps[step.number].agents))
    return next((route for route in routes if (step.number, route) not in rules.unavailable), 0)


def is_out(order: Order, number: int, direction: Direction, epoch: int) -> bool:
    """Return whether this dispatch of a step is the one that is out right now."""
    if order.rejected or not 0 <= number < len(order.steps):
        return False
    step = order.steps[number]
    doing = direction is Direction.DO
    expected = StepState.PROCESSING if doing else StepState.COMPENSATING
    return step.process_state is expected and step.dispatched and step.epoch == epoch


def is_cancelled(step: StepRecord) -> bool:
    """Return whether a do of the step is out although its order was cancelled."""
    return step.undo is UndoStatus.TO_BE_UNDONE


def calls_until(step: StepRecord, direction: Direction) -> datetime | None:
    """Return the time until which the dispatch that is out may call its remote service.

    That is CompleteBy. A step that waits for a callback has a later CompleteBy, but gets no further
    call: for it the time is that of its last call.
    """
    if direction is Direction.UNDO or step.complete_by is None or step.call.called_until is None:
        return step.complete_by
    return min(step.complete_by, step.call.called_until)


def replace_step(
    order: Order, changed: StepRecord, rules: Rules, now: datetime
) -> tuple[StepRecord, ...]:
    """Return the steps of an order with one of them replaced, and their readiness updated."""
    return update_readiness(with_step(order.steps, changed), rules, now)


def with_step(steps: Sequence[StepRecord], changed: StepRecord) -> tuple[StepRecord, ...]:
    """Return the steps with one of them replaced."""
    return tuple(changed if step.number == changed.number else step for step in steps)
