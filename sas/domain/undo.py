"""Undo: "undo the work that was performed, so the entire operation succeeds or fails as a whole".

Every step that was dispatched and has an undo is undone, because a step that timed out, failed or
was reset may still have had its effect. Later steps are undone first. The agent that was asked to
do a step also undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sas.domain.change import Decision
from sas.domain.claim import dispatch, update_readiness, with_step
from sas.domain.messages import Alert, AlertKind, JournalWord, Notice, Notify, Wake
from sas.domain.order import (
    CLOCK_SKEW,
    Failures,
    Fault,
    Order,
    OrderState,
    Resting,
    StepRecord,
    StepState,
    UndoStatus,
    roll_up,
)
from sas.domain.texts import quoted
from sas.domain.workflow import Rules


def begin_undo(steps: Sequence[StepRecord], rules: Rules, *, now: datetime) -> list[StepRecord]:
    """Turn every step to its undo. This is final."""
    return [begin_step_undo(step, rules, now) for step in steps]


def begin_step_undo(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step turned to its undo: Compensating, or Compensated at once."""
    if step.epoch == 0 or rules.steps[step.number].undo_time_allowed is None:
        turned = step.moved(StepState.COMPENSATED, now, undo=UndoStatus.NOT_NEEDED)
        return replace(turned, failures=Failures())
    turned = step.moved(StepState.COMPENSATING, now, undo=UndoStatus.UNDOING)
    return _wait_out_calls(replace(turned, failures=Failures()), rules, now)


def _wait_out_calls(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step to be undone. It rests while a call of its do can still arrive."""
    drain_time = rules.steps[step.number].drain_time
    if drain_time is None or step.call.called_until is None:
        return step
    until = step.call.called_until + CLOCK_SKEW + drain_time
    return replace(step, turn=Resting(until)) if until > now else step


def undone(
    order: Order, step: StepRecord, rules: Rules, *, now: datetime, instance: str
) -> Decision:
    """Decide about a confirmed undo: the undo of the steps before it, or the end."""
    done = with_step(order.steps, _compensated(step, now, UndoStatus.UNDONE))
    after, requests = dispatch(done, rules, now, instance)
    return Decision(
        what=JournalWord.STEP_UNDONE, steps=after, messages=(*requests, *undone_notice(after))
    )


def undone_by_hand(order: Order, numbers: Sequence[int], rules: Rules, now: datetime) -> Decision:
    """Decide that an operator has undone these failed steps by hand."""
    steps = order.steps
    for number in numbers:
        steps = with_step(steps, _compensated(steps[number], now, UndoStatus.BY_HAND))
    after = update_readiness(steps, rules, now)
    return Decision(
        what=JournalWord.UNDONE_BY_HAND, steps=after, messages=(Wake(), *undone_notice(after))
    )


def undo_failed(
    order: Order, step: StepRecord, fault: Fault, rules: Rules, *, now: datetime
) -> Decision:
    """Decide about an undo that failed: Error, and an alert with the state of every undo."""
    failed = step.moved(StepState.ERROR, now, undo=UndoStatus.FAILED, error=fault)
    steps = with_step(order.steps, failed)
    why = quoted(fault.message.rstrip("."))
    text = (
        f"the undo of step {step.name} failed: {why}. {ledger(steps)}. "
        "Resubmit to try the undo again, or skip it once it is undone by hand."
    )
    notice = Notify(Notice.FAILED, step=step.number, fault=fault)
    alert = Alert(AlertKind.UNDO_FAILED, step.number, text)
    return Decision(
        what=JournalWord.UNDO_FAILED,
        steps=update_readiness(steps, rules, now),
        messages=(notice, alert),
    )


def ledger(steps: Sequence[StepRecord]) -> str:
    """Return the state of every step's undo, in one line."""
    states = (
        step.process_state if step.undo is UndoStatus.NOT_DECIDED else step.undo for step in steps
    )
    return ", ".join(
        f"{step.name}: {state.value}" for step, state in zip(steps, states, strict=True)
    )


def undone_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is undone, if it is."""
    return (Notify(Notice.UNDONE),) if roll_up(steps) is OrderState.COMPENSATED else ()


def _compensated(step: StepRecord, now: datetime, status: UndoStatus) -> StepRecord:
    return step.moved(StepState.COMPENSATED, now, undo=status).without_failures()
