"""Callbacks: what follows when an external event says that a step has ended.

An event knows nothing of epochs: whichever dispatch asked for it, its effect is that of the
step's key. So it counts for the key (a generation, at one agent), and for whatever dispatch of
it is out just then.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import Enum

from sas.domain.ids import key_time
from sas.domain.messages import Outcome, Reply, Returned
from sas.domain.model import Details, Direction, Order, StepRecord, StepState, UndoRecord
from sas.domain.policies import Rules
from sas.domain.transitions import Decision, answer


class Standing(Enum):
    """How a step stands to a callback."""

    OUT = "out"
    """It is with its agent: the callback counts."""
    WAITS = "waits"
    """Between two attempts, or in Error: the callback counts once the step is out again."""
    ALREADY = "already"
    """It has ended in this way: nothing is left to do."""
    CLOSED = "closed"
    """It comes too late: the step is being undone, or has another input or agent by now."""


def submission_of(details: Details) -> str:
    """Return 16 hex digits that tell an order from a later one under the same id, which is free
    again once the first is purged.
    """
    text = f"{key_time(details.submitted_at)}|{details.content_hash}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def standing(order: Order, said: Returned) -> Standing:
    """Return how an order's step stands to a callback."""
    if order.rejected or not 0 <= said.step < len(order.steps):
        return Standing.CLOSED
    step = order.steps[said.step]
    if step.generation != said.generation or not step.epoch:
        return Standing.CLOSED
    if said.direction is Direction.DO:
        return _doing(step, said)
    return _undoing(step, said)


def returned(
    order: Order, said: Returned, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide upon a callback: as upon the reply to the dispatch that is out; else nothing."""
    if standing(order, said) is not Standing.OUT:
        return None
    epoch = order.steps[said.step].epoch
    reply = Reply(
        said.order_id, said.step, said.direction, epoch, said.outcome, said.result, said.fault
    )
    return answer(order, reply, rules, now=now, instance=instance)


def _doing(step: StepRecord, said: Returned) -> Standing:
    same = said.route == step.route
    asked = same or said.route in step.tried
    match step.process_state:
        case StepState.PROCESSING:
            return Standing.OUT if same else Standing.CLOSED
        case StepState.PROCESSED:
            return Standing.ALREADY if same else Standing.CLOSED
        case StepState.PENDING:
            return Standing.WAITS if asked else Standing.CLOSED
        case StepState.ERROR if step.undo is UndoRecord.FAILED or not asked:
            return Standing.CLOSED
        case StepState.ERROR:
            return _failed(step, said) if same else Standing.WAITS
        case _:
            return Standing.CLOSED


def _undoing(step: StepRecord, said: Returned) -> Standing:
    """It is undone at one agent after another: first the first of ``tried``."""
    failed = step.process_state is StepState.ERROR and step.undo is UndoRecord.FAILED
    if step.process_state is StepState.COMPENSATED:
        return Standing.ALREADY
    if not failed and step.process_state not in {StepState.COMPENSATING, StepState.PROCESSED}:
        return Standing.CLOSED
    processed = step.process_state is StepState.PROCESSED
    left = step.tried or (() if processed else (step.route,))
    if said.route not in left:
        return Standing.ALREADY
    if said.route != left[0]:
        return Standing.WAITS
    if failed:
        return _failed(step, said)
    return Standing.OUT if step.dispatched else Standing.WAITS


def _failed(step: StepRecord, said: Returned) -> Standing:
    again = said.outcome is Outcome.REFUSED and step.error == said.fault
    return Standing.ALREADY if again else Standing.WAITS
