"""The operator's hand: decisions that follow from a command, once the seq it saw is checked.

Each returns None where the order is in no state to be put to it; ``WHEN`` says when it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sas.domain.change import Decision
from sas.domain.claim import open_steps
from sas.domain.messages import Command, Verb, Wake
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState, UndoRecord
from sas.domain.undo import (
    begin_undo,
    complete,
    completed_notice,
    turn_to_undo,
    undone_by_hand,
    undone_notice,
)
from sas.domain.workflow import Rules

WHEN = {
    Verb.RESUBMIT: "only an order in Error can be resubmitted",
    Verb.SKIP: "only a step in Error can be skipped",
    Verb.UNDO: "only an order that was begun can be undone",
    Verb.CANCEL: "only an order under way can be cancelled",
    Verb.ACKNOWLEDGE: "only an order in Error needs to be acknowledged",
}
"""Why a command changed nothing, by verb."""

EFFECT_POSSIBLE = frozenset({"timed-out", "result-too-large", "result-too-deep", "result-no-json"})
"""Codes of a fault after which the remote action may have been done, or was: no refusal."""


def why_not(order: Order, verb: Verb) -> str:
    """Return why an order cannot be put to a command: what state it is in, and what can be done."""
    state = order.process_state.value
    if verb not in {Verb.UNDO, Verb.CANCEL} or order.direction is Direction.DO:
        return f"{WHEN[verb]}, and this is {state}"
    if order.process_state is OrderState.ERROR:
        return (
            "its undo was decided and has failed in part: resubmit tries that again, skip says "
            "that it was done by hand"
        )
    return f"its undo was decided already: it is {state}"


def decide(order: Order, command: Command, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide upon a command; None where ``WHEN`` says that it cannot be."""
    match command.verb:
        case Verb.RESUBMIT:
            return resubmit(order, rules, now=now, step=command.step, edited=command.input)
        case Verb.SKIP:
            return skip(order, rules, now=now, step=command.step, result=command.input)
        case Verb.UNDO:
            return undo(order, rules, now=now)
        case Verb.CANCEL:
            return cancel(order, rules, now=now)
        case Verb.ACKNOWLEDGE:
            return acknowledge(order, command.by)


def resubmit(
    order: Order,
    rules: Rules,
    *,
    now: datetime,
    step: str | None = None,
    edited: str | None = None,
) -> Decision | None:
    """Decide to run again what failed: failed steps to Pending, failed undos to Compensating.

    The count of failures starts again; the idempotency key stays. With ``edited`` input the
    key gets a new generation where the step was definitely refused: a step that timed out, if
    only before it was refused, may have an effect yet, and must meet it under the old key.
    """
    failed = _failed(order, step)
    if not failed:
        return None
    steps = list(order.steps)
    for one in failed:
        doing = one.direction is Direction.DO
        elsewhere = doing and one.undo is UndoRecord.FAILED
        again = replace(
            one,
            process_state=_again(one),
            since=now,
            failure_count=0,
            error=None,
            hold=False,
            waits=0,
            undo=None if doing else UndoRecord.UNDOING,
        )
        if edited is not None and doing and not elsewhere:
            told = one.error is not None and one.error.code not in EFFECT_POSSIBLE
            refused = told and one.failure_count == 0
            again = replace(again, edited=edited, generation=one.generation + refused)
        steps[one.number] = again
    return Decision("resubmitted", open_steps(steps, rules, now), (Wake(),))


def _again(step: StepRecord) -> StepState:
    """Return where a failed step goes on: at its do, at its undo, or at its undo elsewhere."""
    if step.direction is Direction.UNDO:
        return StepState.COMPENSATING
    return StepState.PROCESSED if step.undo is UndoRecord.FAILED else StepState.PENDING


def takes_input(step: StepRecord, rules: Rules) -> bool:
    """Return whether a step can be resubmitted with edited input.

    Only if it can be undone, at once (a remote without tombstones has to be waited out).
    """
    own = rules.steps[step.number]
    done = step.undo is UndoRecord.FAILED
    return own.undo_time_allowed is not None and own.call_limit is None and not done


def skip(
    order: Order,
    rules: Rules,
    *,
    now: datetime,
    step: str | None = None,
    result: str | None = None,
) -> Decision | None:
    """Decide to go on as if a failed step (or its undo) were done, by the operator's word."""
    failed = _failed(order, step)
    if not failed:
        return None
    undoing = [one.number for one in failed if one.direction is Direction.UNDO]
    if undoing:
        return undone_by_hand(order, undoing, rules, now)
    steps = list(order.steps)
    for one in failed:
        elsewhere = one.undo is UndoRecord.FAILED
        done = replace(
            one,
            process_state=StepState.PROCESSED,
            since=now,
            failure_count=0,
            waits=0,
            error=None,
            result=one.result if elsewhere else result or "null",
            undo=None,
        )
        by_hand = replace(done, tried=one.tried[1:])
        steps[one.number] = by_hand if elsewhere else complete(done, rules, now)
    after = open_steps(steps, rules, now)
    return Decision("skipped", after, completed_notice(after) or (Wake(),))


def can_undo(order: Order) -> bool:
    """Return whether there is anything left to decide to undo."""
    out = any(step.process_state is StepState.PROCESSING for step in order.steps)
    return not order.rejected and (order.direction is Direction.DO or out)


def undo(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to undo the order, at once; None where that was decided before.

    Of a cancelled order, what is out is not waited for any longer.
    """
    if not can_undo(order):
        return None
    cancelled = order.direction is Direction.UNDO
    waited_for = [step for step in order.steps if step.process_state is StepState.PROCESSING]
    steps = begin_undo(waited_for if cancelled else order.steps, rules, now=now)
    turned = {step.number: step for step in steps}
    after = open_steps([turned.get(step.number, step) for step in order.steps], rules, now)
    return Decision("undo decided", after, (Wake(), *undone_notice(after)))


def cancel(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to cancel an order under way: no new step starts, what is out is waited for (or
    expires), then all is undone.
    """
    under_way = {OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR}
    if order.process_state not in under_way or order.direction is Direction.UNDO:
        return None
    steps = [_cancelled(step, rules, now) for step in order.steps]
    after = open_steps(steps, rules, now)
    return Decision("cancelled", after, (Wake(), *undone_notice(after)))


def acknowledge(order: Order, by: str) -> Decision | None:
    """Decide that somebody has seen that the order is in Error."""
    if order.process_state is not OrderState.ERROR:
        return None
    return Decision("acknowledged", order.steps, (), acknowledged_by=by)


def _cancelled(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """What is out goes on until it is back, but will be undone then."""
    if step.process_state is StepState.PROCESSING:
        return replace(step, direction=Direction.UNDO)
    return turn_to_undo(step, rules, now)


def _failed(order: Order, name: str | None) -> Sequence[StepRecord]:
    return [
        step
        for step in order.steps
        if step.process_state is StepState.ERROR and name in {None, step.name}
    ]
