"""Compensation: which steps are undone, in which order, and how each one's undo stands.

Undo every step except those never dispatched: "a compensating transaction" must assume
that a reset, timed out or failed step may have had its effect all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sas.domain.change import Decision
from sas.domain.claim import dispatch, mark_attempted, open_steps, with_step
from sas.domain.messages import Alert, AlertKind, Notice, Notify, Reply, Wake
from sas.domain.order import (
    Direction,
    Fault,
    Order,
    OrderState,
    StepRecord,
    StepState,
    UndoRecord,
    roll_up,
)
from sas.domain.workflow import Rules

SKEW = timedelta(seconds=5)
"""How far clocks may be apart: an undo that waits out a call waits so much longer."""


def begin_undo(steps: Sequence[StepRecord], rules: Rules, *, now: datetime) -> list[StepRecord]:
    """Turn every step round. There is no way back from here."""
    return [turn_to_undo(step, rules, now) for step in steps]


def turn_to_undo(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step as it is once it is to be undone: Compensating, or Compensated at once."""
    own = rules.steps[step.number]
    needed = step.epoch > 0 and own.undo_time_allowed is not None
    turned = replace(
        mark_attempted(step) if needed else replace(step, tried=()),
        process_state=StepState.COMPENSATING if needed else StepState.COMPENSATED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        waits=0,
        direction=Direction.UNDO,
        hold=False,
        undo=UndoRecord.UNDOING if needed else UndoRecord.NOT_NEEDED,
    )
    return _wait_out_calls(turned, rules, now) if needed else turned


def _wait_out_calls(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step to be undone, held for as long as a call of its do can still land."""
    limit = rules.steps[step.number].call_limit
    if limit is None or step.called_until is None or step.called_until + SKEW + limit <= now:
        return step
    return replace(step, hold=True, complete_by=step.called_until + SKEW + limit)


def complete(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step just Processed, to be undone wherever else it may have been done."""
    elsewhere = tuple(route for route in step.tried if route != step.route)
    left = replace(step, tried=elsewhere)
    return _wait_out_calls(left, rules, now) if elsewhere else left


def undone(order: Order, reply: Reply, rules: Rules, now: datetime, instance: str) -> Decision:
    """Decide upon a confirmed undo: at the next agent, of the next steps, or the end."""
    step = order.steps[reply.step]
    rest = step.tried[1:]
    if rest or step.process_state is StepState.PROCESSED:
        done = replace(step, locked_by=None, complete_by=None, failure_count=0, waits=0, tried=rest)
        what = "undone at one agent"
    else:
        done = _compensated(step, now, UndoRecord.UNDONE)
        what = "step undone"
    steps, requests = dispatch(list(with_step(order.steps, done)), rules, now, instance)
    after = open_steps(steps, rules, now)
    return Decision(what, after, (*requests, *completed_notice(after), *undone_notice(after)))


def undone_by_hand(order: Order, numbers: Sequence[int], rules: Rules, now: datetime) -> Decision:
    """Decide that an operator has undone these steps outside of the system.

    What has been undone is what failed: at one agent. The others that were asked are asked still.
    """
    steps: tuple[StepRecord, ...] = order.steps
    for number in numbers:
        done = _compensated(steps[number], now, UndoRecord.BY_HAND)
        rest = steps[number].tried[1:]
        if rest:
            going_on = StepState.COMPENSATING
            done = replace(done, process_state=going_on, undo=UndoRecord.UNDOING, tried=rest)
        steps = with_step(steps, done)
    after = open_steps(steps, rules, now)
    return Decision("undone by hand", after, (Wake(), *undone_notice(after)))


def undo_failed(order: Order, number: int, fault: Fault, rules: Rules, now: datetime) -> Decision:
    """Decide upon an undo that failed for good: Error, saying what is and is not undone."""
    step = replace(
        order.steps[number],
        process_state=StepState.ERROR,
        since=now,
        locked_by=None,
        complete_by=None,
        error=fault,
        undo=UndoRecord.FAILED,
    )
    steps = with_step(order.steps, step)
    routes = rules.steps[number].routes
    where = f" at agent {step.tried[0] + 1} of {routes}" if routes > 1 and step.tried else ""
    text = (
        f"the undo of step {step.name}{where} failed: {fault.message}. {ledger(steps)}. "
        "Resubmit to try the undo again, or skip it once it is undone by hand."
    )
    told = (Notify(Notice.FAILED, number, fault), Alert(AlertKind.UNDO_FAILED, number, text))
    return Decision("undo failed", open_steps(steps, rules, now), told)


def ledger(steps: Sequence[StepRecord]) -> str:
    """Return how each step's undo stands, in one line."""
    lines = (f"{s.name}: {s.undo.value if s.undo else s.process_state.value}" for s in steps)
    return ", ".join(lines)


def completed_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is completed, if all of it is."""
    return (Notify(Notice.COMPLETED),) if roll_up(steps) is OrderState.PROCESSED else ()


def undone_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is undone, if all of it is."""
    if all(step.process_state is StepState.COMPENSATED for step in steps):
        return (Notify(Notice.UNDONE),)
    return ()


def _compensated(step: StepRecord, now: datetime, how: UndoRecord) -> StepRecord:
    return replace(
        step,
        process_state=StepState.COMPENSATED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        error=None,
        undo=how,
        tried=(),
    )
