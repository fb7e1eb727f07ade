"""Callbacks, pure: the decision when an outside event ends a step.

A callback names no epoch, because the outside system knows none. It names the idempotency key, by
its generation. So it counts for the dispatch with that key that is out now, whichever dispatch
asked for the callback.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sas.domain.change import Decision
from sas.domain.content import Content
from sas.domain.messages import Outcome, Reply
from sas.domain.order import Direction, Fault, Order, StepRecord, StepState
from sas.domain.reply import answer
from sas.domain.workflow import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackResult:
    """What a callback says of a step: done with a result, or refused."""

    order_id: str
    step: int
    direction: Direction
    generation: int
    outcome: Outcome
    result: Content | None = None
    fault: Fault | None = None


class StepStatus(Enum):
    """The status of a step, for a callback."""

    OUT = "out"
    """A request of the step is out: the callback counts."""
    WAITS = "waits"
    """Between two attempts, or in Error: the callback counts once the step is out again."""
    ALREADY = "already"
    """It has ended in this way: nothing is left to do."""
    CLOSED = "closed"
    """The callback is too late: the step is being undone, or has another input now."""


def status_of(order: Order, callback: CallbackResult) -> StepStatus:
    """Return the status of a callback's step."""
    if order.rejected or not 0 <= callback.step < len(order.steps):
        return StepStatus.CLOSED
    step = order.steps[callback.step]
    if step.call.generation != callback.generation or not step.epoch:
        return StepStatus.CLOSED
    if callback.direction is Direction.DO:
        return _doing(step, callback)
    return _undoing(step, callback)


def decide(
    order: Order, callback: CallbackResult, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide as if the callback were the reply to the dispatch that is out; None if none is out."""
    if status_of(order, callback) is not StepStatus.OUT:
        return None
    epoch = order.steps[callback.step].epoch
    reply = Reply(
        order_id=callback.order_id,
        step=callback.step,
        direction=callback.direction,
        epoch=epoch,
        outcome=callback.outcome,
        result=callback.result,
        fault=callback.fault,
    )
    return answer(order, reply, rules, now=now, instance=instance)


def _doing(step: StepRecord, callback: CallbackResult) -> StepStatus:
    match step.process_state:
        case StepState.PROCESSING:
            return StepStatus.OUT
        case StepState.PROCESSED:
            return StepStatus.ALREADY
        case StepState.PENDING:
            return StepStatus.WAITS
        case StepState.ERROR if not step.undo_failed:
            return _failed(step, callback)
        case _:
            return StepStatus.CLOSED


def _undoing(step: StepRecord, callback: CallbackResult) -> StepStatus:
    match step.process_state:
        case StepState.COMPENSATING:
            return StepStatus.OUT if step.dispatched else StepStatus.WAITS
        case StepState.COMPENSATED:
            return StepStatus.ALREADY
        case StepState.ERROR if step.undo_failed:
            return _failed(step, callback)
        case _:
            return StepStatus.CLOSED


def _failed(step: StepRecord, callback: CallbackResult) -> StepStatus:
    again = callback.outcome is Outcome.REFUSED and step.error == callback.fault
    return StepStatus.ALREADY if again else StepStatus.WAITS
