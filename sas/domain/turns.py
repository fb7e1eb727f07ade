"""Whose turn it is: which steps are ready, and what dispatching them means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sas.domain.messages import Request
from sas.domain.model import Direction, Order, StepRecord, StepState
from sas.domain.policies import Rules


def is_ready(step: StepRecord, steps: Sequence[StepRecord], rules: Rules) -> bool:
    """Return whether it is this step's turn: nobody has it and nothing stands before it.

    No new step starts while another is in Error.
    """
    if step.dispatched:
        return False
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
        own = rules.steps[step.number]
        undoing = step.process_state is StepState.COMPENSATING
        allowed = (own.undo_time_allowed if undoing else None) or own.time_allowed
        claimed = replace(
            step,
            process_state=step.process_state if undoing else StepState.PROCESSING,
            since=step.since if undoing else now,
            locked_by=instance,
            complete_by=now + allowed,
            epoch=step.epoch + 1,
            called_until=step.called_until if undoing else now + allowed,
            note=None,
        )
        steps[step.number] = claimed
        requests.append(
            Request(step.number, step.direction, claimed.epoch, claimed.generation, now + allowed)
        )
    return steps, tuple(requests)


def is_out(order: Order, number: int, direction: Direction, epoch: int) -> bool:
    """Return whether this dispatch of a step is the one that is out right now."""
    if order.rejected or not 0 <= number < len(order.steps):
        return False
    step = order.steps[number]
    expected = StepState.PROCESSING if direction is Direction.DO else StepState.COMPENSATING
    return step.process_state is expected and step.dispatched and step.epoch == epoch


def with_step(steps: Sequence[StepRecord], changed: StepRecord) -> tuple[StepRecord, ...]:
    """Return the steps with one of them replaced by its changed record."""
    return tuple(changed if step.number == changed.number else step for step in steps)
