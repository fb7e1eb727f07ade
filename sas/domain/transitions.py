"""Decisions: what follows from a message or from time, as pure functions.

Each takes an order as it was loaded and returns a Decision, or None where nothing
follows (a duplicate, a late reply, a stray wake). None of them knows the clock, the
store or the queues; the shell in ``sas.actors`` commits and sends. Undo has a file of
its own, ``undo.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sas.domain.messages import (
    Alert,
    AlertKind,
    Notice,
    Notify,
    Outcome,
    Outgoing,
    Reply,
    Wake,
)
from sas.domain.model import Direction, Fault, Order, StepRecord, StepState
from sas.domain.turns import dispatch, is_ready, open_steps, with_step
from sas.domain.undo import begin_undo
from sas.domain.workflow import OnFailure, Rules

REWAKE_MAX = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to commit: a word for the journal, the steps as they will be, what to send."""

    what: str
    steps: tuple[StepRecord, ...]
    messages: tuple[Outgoing, ...]


def submit(rules: Rules, *, now: datetime) -> Decision:
    """Decide the first rows of an order: every step Pending, the application told, a wake."""
    steps = [
        StepRecord(number, step.name, StepState.PENDING, now)
        for number, step in enumerate(rules.steps)
    ]
    return Decision("submitted", open_steps(steps, rules, now), (Wake(), Notify(Notice.RECEIVED)))


def claim(order: Order, rules: Rules, *, now: datetime, instance: str) -> Decision | None:
    """Decide to claim every step whose turn it is and nobody holds."""
    if order.rejected:
        return None
    steps, requests = dispatch(list(order.steps), rules, now, instance)
    return Decision("claimed", open_steps(steps, rules, now), requests) if requests else None


def answer(
    order: Order, reply: Reply, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide upon an agent's reply: record it and start what has become possible.

    It counts only if its epoch is the step's and the step is still out; any other
    (late, repeated, of an older epoch) changes nothing.
    """
    if not counts(order, reply):
        return None
    match reply.direction, reply.outcome:
        case Direction.DO, Outcome.DONE:
            return _done(order, reply, rules, now, instance)
        case Direction.DO, _:
            fault = reply.fault or Fault("refused", "the agent gave no reason")
            return fail(order, reply.step, fault, rules, now=now, instance=instance)
        case _, Outcome.DONE:
            return _undone(order, reply, rules, now, instance)
        case _:
            fault = reply.fault or Fault("refused", "the agent gave no reason")
            return _undo_failed(order, reply.step, fault, now)


def counts(order: Order, reply: Reply) -> bool:
    """Return whether a reply is to the dispatch that is out right now."""
    if order.rejected or not 0 <= reply.step < len(order.steps):
        return False
    step = order.steps[reply.step]
    expected = StepState.PROCESSING if reply.direction is Direction.DO else StepState.COMPENSATING
    return step.process_state is expected and step.dispatched and step.epoch == reply.epoch


def expire(
    order: Order, number: int, epoch: int, rules: Rules, *, now: datetime
) -> Decision | None:
    """Decide what follows once CompleteBy has passed; None leaves the step alone.

    Timed out and failed look the same from here, as the pattern intends: the only
    evidence is a step still out after its CompleteBy.
    """
    if order.rejected or not 0 <= number < len(order.steps):
        return None
    step = order.steps[number]
    if step.epoch != epoch or step.complete_by is None or step.complete_by > now:
        return None
    match step.process_state:
        case StepState.PROCESSING:
            return _expire_processing(order, step, rules, now)
        case StepState.PENDING if step.hold:
            freed = with_step(order.steps, replace(step, hold=False, complete_by=None))
            return Decision("released", open_steps(freed, rules, now), (Wake(),))
        case StepState.COMPENSATING if step.dispatched:
            return _expire_undo(order, step, rules, now)
        case _:
            return _wake_again(order, step, rules, now)


def postpone(order: Order, number: int, why: str, *, now: datetime) -> Decision | None:
    """Decide to look at a due step again later, where its workflow is not known here.

    Without its rules nothing can be decided; without this its due row would stand before
    all others for ever.
    """
    step = order.steps[number] if 0 <= number < len(order.steps) else None
    if step is None or step.complete_by is None or step.complete_by > now:
        return None
    later = replace(step, complete_by=now + REWAKE_MAX)
    alert = Alert(AlertKind.NOT_RUNNABLE, number, f"{why}. Deploy it, or undo the order.")
    return Decision("postponed", with_step(order.steps, later), (alert,))


def resubmit(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to run again what failed: failed steps to Pending, failed undos to Compensating.

    The count of failures starts again; the idempotency key stays.
    """
    failed = [step for step in order.steps if step.process_state is StepState.ERROR]
    if not failed:
        return None
    steps = list(order.steps)
    for step in failed:
        back = StepState.PENDING if step.direction is Direction.DO else StepState.COMPENSATING
        steps[step.number] = replace(
            step, process_state=back, since=now, failure_count=0, error=None, hold=False
        )
    return Decision("resubmitted", open_steps(steps, rules, now), (Wake(),))


def undo(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to undo the order; None where that was decided before."""
    if order.rejected or order.direction is Direction.UNDO:
        return None
    steps = begin_undo(order.steps, rules, now=now)
    after = open_steps(steps, rules, now)
    return Decision("undo decided", after, (Wake(), *_undone_notice(after)))


def fail(
    order: Order, number: int, fault: Fault, rules: Rules, *, now: datetime, instance: str | None
) -> Decision:
    """Decide what a step's failure for good means: Error and an alert, or the undo of all.

    With an ``instance`` (a scheduler decides) undo requests go out at once; without one
    (the supervisor decides) a scheduler is woken to send them.
    """
    step = replace(
        order.steps[number],
        process_state=StepState.ERROR,
        since=now,
        locked_by=None,
        complete_by=None,
        error=fault,
    )
    undo_all = rules.on_failure is OnFailure.UNDO
    failed = Notify(Notice.FAILED, number, fault, undoing=undo_all)
    if not undo_all:
        text = f"step {step.name} failed: {fault.message}. Resubmit it or undo the order."
        steps = open_steps(list(with_step(order.steps, step)), rules, now)
        return Decision("step failed", steps, (failed, Alert(AlertKind.STEP_FAILED, number, text)))
    undoing = begin_undo(with_step(order.steps, step), rules, now=now)
    requests: Sequence[Outgoing] = (Wake(),)
    if instance is not None:
        undoing, requests = dispatch(undoing, rules, now, instance)
    after = open_steps(undoing, rules, now)
    return Decision("step failed, undo decided", after, (*requests, failed, *_undone_notice(after)))


def _done(order: Order, reply: Reply, rules: Rules, now: datetime, instance: str) -> Decision:
    done = replace(
        order.steps[reply.step],
        process_state=StepState.PROCESSED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        result=reply.result,
        error=None,
    )
    steps, requests = dispatch(list(with_step(order.steps, done)), rules, now, instance)
    told: list[Outgoing] = []
    if rules.notify_steps:
        told.append(Notify(Notice.STEP_COMPLETED, reply.step))
    if all(step.process_state is StepState.PROCESSED for step in steps):
        told.append(Notify(Notice.COMPLETED))
    return Decision("step processed", open_steps(steps, rules, now), (*requests, *told))


def _undone(order: Order, reply: Reply, rules: Rules, now: datetime, instance: str) -> Decision:
    undone = replace(
        order.steps[reply.step],
        process_state=StepState.COMPENSATED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        error=None,
    )
    steps, requests = dispatch(list(with_step(order.steps, undone)), rules, now, instance)
    after = open_steps(steps, rules, now)
    return Decision("step undone", after, (*requests, *_undone_notice(after)))


def _undo_failed(order: Order, number: int, fault: Fault, now: datetime) -> Decision:
    step = replace(
        order.steps[number],
        process_state=StepState.ERROR,
        since=now,
        locked_by=None,
        complete_by=None,
        error=fault,
    )
    steps = with_step(order.steps, step)
    left = [s.name for s in steps if s.process_state is not StepState.COMPENSATED]
    text = (
        f"the undo of step {step.name} failed: {fault.message}. "
        f"Not undone: {', '.join(left)}. Resubmit to try the undo again."
    )
    alert = Alert(AlertKind.UNDO_FAILED, number, text)
    return Decision("undo failed", steps, (Notify(Notice.FAILED, number, fault), alert))


def _expire_processing(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    failures = step.failure_count + 1
    threshold = rules.steps[step.number].failures_max
    if failures <= threshold:
        reset = replace(
            step,
            process_state=StepState.PENDING,
            since=now,
            locked_by=None,
            complete_by=now + rules.pickup,
            failure_count=failures,
        )
        after = open_steps(list(with_step(order.steps, reset)), rules, now)
        return Decision("step reset", after, (Wake(),))
    counted = replace(order, steps=with_step(order.steps, replace(step, failure_count=failures)))
    fault = Fault(
        "timed-out", f"no answer within CompleteBy, {failures} times; its outcome is unknown"
    )
    return fail(counted, step.number, fault, rules, now=now, instance=None)


def _expire_undo(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    failures = step.failure_count + 1
    counted = replace(step, failure_count=failures)
    if failures <= rules.steps[step.number].failures_max:
        again = with_step(order.steps, replace(counted, locked_by=None, complete_by=None))
        return Decision("undo reset", open_steps(again, rules, now), (Wake(),))
    fault = Fault("timed-out", f"no answer to the undo within CompleteBy, {failures} times")
    return _undo_failed(
        replace(order, steps=with_step(order.steps, counted)), step.number, fault, now
    )


def _wake_again(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision | None:
    """A ready step that nobody picked up is woken, at growing intervals; never failed for it."""
    if not is_ready(step, order.steps, rules):
        return None
    age = now - step.since
    again = replace(step, complete_by=now + max(rules.pickup, min(age, REWAKE_MAX)))
    messages: tuple[Outgoing, ...] = (Wake(),)
    if age >= rules.alert_after:
        text = (
            f"step {step.name} has been ready for {int(age.total_seconds())} s and no scheduler "
            "has picked it up. Look whether the scheduler function runs."
        )
        messages = (Wake(), Alert(AlertKind.NOT_PICKED_UP, step.number, text))
    return Decision("woken again", with_step(order.steps, again), messages)


def _undone_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    if all(step.process_state is StepState.COMPENSATED for step in steps):
        return (Notify(Notice.UNDONE),)
    return ()
