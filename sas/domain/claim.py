"""Whose turn it is: which steps are ready, and what dispatching them means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sas.domain.change import Decision
from sas.domain.messages import Request
from sas.domain.order import Direction, Order, StepRecord, StepState
from sas.domain.workflow import Rules
from sas.features.queue_delay.rules import NONE


def is_ready(step: StepRecord, steps: Sequence[StepRecord], rules: Rules) -> bool:
    """Return whether it is this step's turn: nobody has it and nothing stands before it.

    No new step starts while another is in Error. A step that is Processed has its turn again
    while another agent, asked before, may have done it as well: that is undone.
    """
    if step.dispatched:
        return False
    if step.process_state is StepState.PROCESSED:
        return bool(step.tried)
    if step.process_state is StepState.COMPENSATING:
        return undo_ready(step.number, steps, rules)
    if step.process_state is not StepState.PENDING:
        return False
    before = rules.steps[step.number].after
    return all(steps[n].process_state is StepState.PROCESSED for n in before) and not any(
        other.process_state is StepState.ERROR for other in steps
    )


def undo_ready(number: int, steps: Sequence[StepRecord], rules: Rules) -> bool:
    """Return whether everything that came after step ``number`` is undone already.

    A failed undo (Error) blocks what came before it, so the reverse order holds.
    """
    return all(
        steps[later].process_state is StepState.COMPENSATED for later in rules.dependents(number)
    )


def open_steps(steps: Sequence[StepRecord], rules: Rules, now: datetime) -> tuple[StepRecord, ...]:
    """Give CompleteBy to steps whose turn has come and take it from those whose has not.

    So exactly the steps whose turn it is have one, and a due row. A step's age counts from
    when its turn came, not from when it began to wait for others. What was said of the
    progress of a step that is no longer out is forgotten.
    """
    made: list[StepRecord] = []
    for one in steps:
        step = replace(one, note=None) if one.note is not None and not one.dispatched else one
        if step.dispatched or (step.hold and step.complete_by):
            made.append(step)
        elif is_ready(step, steps, rules):
            came = step.complete_by is None
            made.append(replace(step, complete_by=now + rules.pickup, since=now) if came else step)
        else:
            made.append(replace(step, complete_by=None) if step.complete_by else step)
    return tuple(made)


def dispatch(
    steps: list[StepRecord], rules: Rules, now: datetime, instance: str
) -> tuple[list[StepRecord], tuple[Request, ...]]:
    """Lock every ready step to ``instance`` with a new epoch; return the requests to send."""
    requests: list[Request] = []
    ready = [step for step in steps if not step.hold and is_ready(step, steps, rules)]
    for step in ready:
        doing = step.process_state is StepState.PENDING
        claimed, request = (_do if doing else _undo)(step, rules, now)
        steps[step.number] = replace(claimed, locked_by=instance)
        requests.append(request)
    return steps, tuple(requests)


def _do(step: StepRecord, rules: Rules, now: datetime) -> tuple[StepRecord, Request]:
    route = _route(step, rules)
    until = now + rules.steps[step.number].time_allowed + _slack(step, route, rules)
    claimed = replace(
        step,
        process_state=StepState.PROCESSING,
        since=now,
        complete_by=until,
        epoch=step.epoch + 1,
        called_until=until,
        route=route,
        note=None,
    )
    return claimed, Request(step.number, Direction.DO, claimed.epoch, step.generation, until, route)


def _undo(step: StepRecord, rules: Rules, now: datetime) -> tuple[StepRecord, Request]:
    own = rules.steps[step.number]
    route = step.tried[0] if step.tried else step.route
    until = now + (own.undo_time_allowed or own.time_allowed) + _slack(step, route, rules)
    claimed = replace(step, complete_by=until, epoch=step.epoch + 1, note=None)
    return claimed, Request(
        step.number, Direction.UNDO, claimed.epoch, step.generation, until, route
    )


def _slack(step: StepRecord, route: int, rules: Rules) -> timedelta:
    return rules.slack.get((step.number, route), NONE)


def _route(step: StepRecord, rules: Rules) -> int:
    """Return the first agent that is open; the last agent asked where none is.

    A pinned step stays with the agent that may have done it: its effect cannot be undone.
    """
    own = rules.steps[step.number]
    if is_pinned(step, rules):
        return step.route
    there = (route for route in range(own.routes) if (step.number, route) not in rules.shut)
    return next(there, step.route)


def is_pinned(step: StepRecord, rules: Rules) -> bool:
    """Return whether a step may go to no other agent any more."""
    return bool(step.tried) and rules.steps[step.number].undo_time_allowed is None


def mark_attempted(step: StepRecord) -> StepRecord:
    """Return a step that is no longer out with what it was asked as one of those to be undone."""
    return replace(step, tried=(step.route, *(one for one in step.tried if one != step.route)))


def is_out(order: Order, number: int, direction: Direction, epoch: int) -> bool:
    """Return whether this dispatch of a step is the one that is out right now."""
    if order.rejected or not 0 <= number < len(order.steps):
        return False
    step = order.steps[number]
    expected = {StepState.PROCESSING}
    if direction is Direction.UNDO:
        expected = {StepState.COMPENSATING, StepState.PROCESSED}
    return step.process_state in expected and step.dispatched and step.epoch == epoch


def calls_until(step: StepRecord, direction: Direction) -> datetime | None:
    """Return until when calls of the dispatch that is out may be made: CompleteBy, unless it waits
    for an event outside, which no call of its own can bring about.
    """
    if direction is Direction.UNDO or step.complete_by is None or step.called_until is None:
        return step.complete_by
    return min(step.complete_by, step.called_until)


def with_step(steps: Sequence[StepRecord], changed: StepRecord) -> tuple[StepRecord, ...]:
    """Return the steps with one of them replaced by its changed record."""
    return tuple(changed if step.number == changed.number else step for step in steps)


def claim(order: Order, rules: Rules, *, now: datetime, instance: str) -> Decision | None:
    """Decide to claim every step whose turn it is and nobody holds."""
    if order.rejected:
        return None
    steps, requests = dispatch(list(order.steps), rules, now, instance)
    return Decision("claimed", open_steps(steps, rules, now), requests) if requests else None
