"""Undo: "undo the work that was performed, so the entire operation succeeds or fails as a whole".

Every step that was dispatched is undone, in reverse order, because a step that timed out, failed or
was reset may still have had its effect. A step that several agents may have done is undone at each
of them, the last one asked first.
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
    UndoLedger,
    UndoStatus,
    roll_up,
)
from sas.domain.workflow import Rules


def begin_undo(steps: Sequence[StepRecord], rules: Rules, *, now: datetime) -> list[StepRecord]:
    """Turn every step to its undo. This is final."""
    return [turn_to_undo(step, rules, now) for step in steps]


def turn_to_undo(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step turned to its undo: Compensating, or Compensated at once."""
    if step.epoch == 0 or rules.steps[step.number].undo_time_allowed is None:
        turned = step.moved(StepState.COMPENSATED, now, undo=UndoLedger(UndoStatus.NOT_NEEDED))
        return replace(turned, failures=Failures())
    undo = replace(step.attempted().undo, status=UndoStatus.UNDOING)
    turned = step.moved(StepState.COMPENSATING, now, undo=undo)
    return _wait_out_calls(replace(turned, failures=Failures()), rules, now)


def _wait_out_calls(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step to be undone. It rests while a call of its do can still arrive."""
    drain_time = rules.steps[step.number].drain_time
    if drain_time is None or step.call.called_until is None:
        return step
    until = step.call.called_until + CLOCK_SKEW + drain_time
    return replace(step, turn=Resting(until)) if until > now else step


def complete(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step that its agent (or the operator) has done: Processed.

    It must still be undone at every other agent that may have done it too.
    """
    undo = step.undo.without(step.call.route)
    done = step.moved(StepState.PROCESSED, now, undo=undo).without_failures()
    return _wait_out_calls(done, rules, now) if undo.routes else done


def undone(order: Order, step: StepRecord, rules: Rules, now: datetime, instance: str) -> Decision:
    """Decide about a confirmed undo: the next agent, the next steps, or the end."""
    left = step.undo.first_undone()
    if step.process_state is StepState.COMPENSATING and not left.routes:
        word, done = JournalWord.STEP_UNDONE, _compensated(step, now, UndoStatus.UNDONE)
    else:
        word = JournalWord.UNDONE_AT_ONE_AGENT
        done = replace(step, turn=None, failures=Failures(), undo=left)
    after, requests = dispatch(with_step(order.steps, done), rules, now, instance)
    return Decision(word, after, (*requests, *completed_notice(after), *undone_notice(after)))


def undone_by_hand(order: Order, numbers: Sequence[int], rules: Rules, now: datetime) -> Decision:
    """Decide that an operator has undone these failed steps by hand.

    That covers the agent where the undo failed. The other agents still get an undo request.
    """
    steps = order.steps
    for number in numbers:
        left = steps[number].undo.first_undone()
        if left.routes:
            done = steps[number].moved(StepState.COMPENSATING, now, undo=left).without_failures()
        else:
            done = _compensated(steps[number], now, UndoStatus.BY_HAND)
        steps = with_step(steps, done)
    after = update_readiness(steps, rules, now)
    return Decision(JournalWord.UNDONE_BY_HAND, after, (Wake(), *undone_notice(after)))


def undo_failed(
    order: Order, step: StepRecord, fault: Fault, rules: Rules, now: datetime
) -> Decision:
    """Decide about an undo that failed: Error, and an alert with the state of every undo."""
    failed = step.moved(StepState.ERROR, now, undo=step.undo.failed(), error=fault)
    steps = with_step(order.steps, failed)
    agents, left = rules.steps[step.number].agents, step.undo.routes
    where = f" at agent {agents[left[0]]}" if len(agents) > 1 and left else ""
    text = (
        f"the undo of step {step.name}{where} failed: {fault.message}. {ledger(steps)}. "
        "Resubmit to try the undo again, or skip it once it is undone by hand."
    )
    notice = Notify(Notice.FAILED, step.number, fault)
    alert = Alert(AlertKind.UNDO_FAILED, step.number, text)
    return Decision(JournalWord.UNDO_FAILED, update_readiness(steps, rules, now), (notice, alert))


def ledger(steps: Sequence[StepRecord]) -> str:
    """Return the state of every step's undo, in one line."""
    lines = (
        f"{s.name}: "
        f"{(s.process_state if s.undo.status is UndoStatus.NOT_DECIDED else s.undo.status).value}"
        for s in steps
    )
    return ", ".join(lines)


def completed_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is completed, if it is."""
    return (Notify(Notice.COMPLETED),) if roll_up(steps) is OrderState.PROCESSED else ()


def undone_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is undone, if it is."""
    return (Notify(Notice.UNDONE),) if roll_up(steps) is OrderState.COMPENSATED else ()


def _compensated(step: StepRecord, now: datetime, how: UndoStatus) -> StepRecord:
    return step.moved(StepState.COMPENSATED, now, undo=UndoLedger(how)).without_failures()
