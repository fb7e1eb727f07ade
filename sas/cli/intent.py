"""What a command would do to an order, or why it cannot be: said before it is sent.

The scheduler decides for itself once the command arrives, by the same rules and with the
workflow's definition at hand; this is what an operator is shown first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sas.cli.page import is_failed
from sas.domain.command import can_undo, why_not
from sas.domain.messages import Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState

UNDER_WAY = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})


@dataclass(frozen=True, slots=True)
class Intent:
    """What an operator wants of an order, or of several."""

    verb: Verb
    by: str
    step: str | None = None
    input: str | None = None


def refusal(order: Order, intent: Intent) -> str:
    """Return why an order cannot be put to a command; nothing where it can."""
    if order.rejected:
        return "it was rejected, and nothing of it was begun: submit it again"
    names = [step.name for step in order.steps]
    if intent.step is not None and intent.step not in names:
        return f"it has no step {intent.step!r}, only {', '.join(names)}"
    if _possible(order, intent):
        return ""
    if intent.step is not None and order.process_state is OrderState.ERROR:
        own = order.steps[names.index(intent.step)].process_state.value
        return f"only a step in Error can be, and {intent.step} is {own}"
    return why_not(order, intent.verb)


def outlook(order: Order, intent: Intent) -> str:
    """Return what a command that can be carried out would do."""
    failed = _failed(order, intent)
    match intent.verb:
        case Verb.RESUBMIT:
            with_input = " with the input given" if intent.input is not None else ""
            return f"run again{with_input}: {_each(failed)}"
        case Verb.SKIP:
            return f"{_skipping(failed, intent)}: {_each(failed)}"
        case Verb.UNDO:
            return f"undo the order, for good; {_ledger(order)}"
        case Verb.CANCEL:
            out = [step.name for step in order.steps if step.process_state is StepState.PROCESSING]
            waiting = f"{', '.join(out)} is waited for, " if out else ""
            return f"start no new step, {waiting}then undo the order, for good; {_ledger(order)}"
        case Verb.ACKNOWLEDGE:
            return "note that somebody has seen that it is in Error; nothing else changes"


def _possible(order: Order, intent: Intent) -> bool:
    match intent.verb:
        case Verb.RESUBMIT | Verb.SKIP:
            return bool(_failed(order, intent))
        case Verb.UNDO:
            return can_undo(order)
        case Verb.CANCEL:
            return order.process_state in UNDER_WAY and order.direction is Direction.DO
        case Verb.ACKNOWLEDGE:
            return order.process_state is OrderState.ERROR


def _failed(order: Order, intent: Intent) -> Sequence[StepRecord]:
    return [step for step in order.steps if is_failed(step) and intent.step in {None, step.name}]


def _each(failed: Sequence[StepRecord]) -> str:
    return "; ".join(
        f"{'undo of ' if _undoing(step) else ''}{step.name} "
        f"({step.error.code}: {step.error.message})"
        if step.error
        else step.name
        for step in failed
    )


def _skipping(failed: Sequence[StepRecord], intent: Intent) -> str:
    if any(_undoing(step) for step in failed):
        return "take as undone by hand"
    return f"go on as if done, with the result {intent.input or 'null'}"


def _undoing(step: StepRecord) -> bool:
    """Return whether it was an undo that failed: of the step, or of what another agent did."""
    return step.undo_failed


def _ledger(order: Order) -> str:
    begun = [step.name for step in reversed(order.steps) if step.epoch > 0]
    if not begun:
        return "no step was ever begun"
    return f"steps begun, undone in this order where they name an undo: {', '.join(begun)}"
