"""Decisions: what follows from a message, as pure functions.

Each takes an order as it was loaded and returns a Decision, or None where nothing
follows (a duplicate, a late reply, a stray wake). None of them knows the clock, the
store or the queues; the shell in ``sas.actors`` commits and sends. What follows from
time is in ``recovery.py``, from an undo in ``undo.py``, from an operator in ``commands.py``;
all are named here, so that an actor needs this module only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sas.domain import commands
from sas.domain.commands import resubmit, undo
from sas.domain.decisions import Decision
from sas.domain.messages import Notice, Notify, Outcome, Outgoing, Progress, Reply, Wake
from sas.domain.model import Direction, Fault, Order, StepRecord, StepState
from sas.domain.policies import TIME_ALLOWED_MAX, Rules
from sas.domain.recovery import (
    REWAKE_MAX,
    cancelled,
    expire,
    expire_deadline,
    fail,
    postpone,
    postpone_deadline,
    unanswered,
    waited,
)
from sas.domain.turns import dispatch, is_out, open_steps, stays, with_step
from sas.domain.undo import completed_notice, leave, undo_failed, undone

__all__ = [
    "REWAKE_MAX",
    "Decision",
    "answer",
    "claim",
    "commands",
    "counts",
    "expire",
    "expire_deadline",
    "fail",
    "postpone",
    "postpone_deadline",
    "progressed",
    "resubmit",
    "submit",
    "undo",
]


def submit(rules: Rules, *, now: datetime) -> Decision:
    """Decide the first rows of an order: every step Pending, the application told, a wake."""
    steps = [
        StepRecord(number, step.name, StepState.PENDING, now)
        for number, step in enumerate(rules.steps)
    ]
    return Decision(
        "submitted",
        open_steps(steps, rules, now),
        (Wake(), Notify(Notice.RECEIVED)),
        deadline=now + rules.deadline if rules.deadline else None,
    )


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
    if reply.direction is Direction.DO:
        return _answer_do(order, reply, rules, now, instance)
    match reply.outcome:
        case Outcome.DONE:
            return undone(order, reply, rules, now, instance)
        case Outcome.REFUSED:
            return undo_failed(order, reply.step, _fault(reply), rules, now)
        case Outcome.WAITED:
            return waited(order, order.steps[reply.step], rules, now)
        case _:  # an undo belongs to the agent that did: its request waits there
            return None


def _answer_do(
    order: Order, reply: Reply, rules: Rules, now: datetime, instance: str
) -> Decision | None:
    step = order.steps[reply.step]
    if step.direction is Direction.UNDO:
        back = replace(step, result=reply.result) if reply.result is not None else step
        return cancelled(order, back, rules, now, instance)
    match reply.outcome:
        case Outcome.DONE:
            return _done(order, reply, rules, now, instance)
        case Outcome.REFUSED:
            return fail(order, reply.step, _fault(reply), rules, now=now, instance=instance)
        case Outcome.UNAVAILABLE:
            return _elsewhere(order, step, rules, now, instance)
        case Outcome.INTERRUPTED:
            return unanswered(order, step, rules, now)
        case Outcome.WAITED:
            return waited(order, step, rules, now)


def _fault(reply: Reply) -> Fault:
    return reply.fault or Fault("refused", "the agent gave no reason")


def progressed(order: Order, progress: Progress, *, now: datetime) -> Decision | None:
    """Decide upon an agent's word that a step goes on: give it the time it asks for.

    It counts as a reply does. CompleteBy only ever moves on, to ``TIME_ALLOWED_MAX`` from now at
    most. A step that was cancelled is given no more time: it is waited for no longer than before.
    """
    if not is_out(order, progress.step, progress.direction, progress.epoch):
        return None
    step = order.steps[progress.step]
    cancelled_step = step.direction is Direction.UNDO and progress.direction is Direction.DO
    if step.complete_by is None or cancelled_step:
        return None
    until = max(step.complete_by, min(progress.complete_by, now + TIME_ALLOWED_MAX))
    note = progress.note or step.note
    if (until, note) == (step.complete_by, step.note):
        return None
    calls = progress.direction is Direction.DO and not progress.awaits
    called_until = until if calls else step.called_until
    goes_on = replace(step, complete_by=until, note=note, called_until=called_until)
    return Decision("progress", with_step(order.steps, goes_on), ())


def counts(order: Order, reply: Reply) -> bool:
    """Return whether a reply is to the dispatch that is out right now."""
    return is_out(order, reply.step, reply.direction, reply.epoch)


def _done(order: Order, reply: Reply, rules: Rules, now: datetime, instance: str) -> Decision:
    done = replace(
        order.steps[reply.step],
        process_state=StepState.PROCESSED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        waits=0,
        result=reply.result,
        error=None,
    )
    left = with_step(order.steps, leave(done, rules, now))
    steps, requests = dispatch(list(left), rules, now, instance)
    told: list[Outgoing] = []
    if rules.notify_steps:
        told.append(Notify(Notice.STEP_COMPLETED, reply.step))
    told.extend(completed_notice(steps))
    return Decision("step processed", open_steps(steps, rules, now), (*requests, *told))


def _elsewhere(
    order: Order, step: StepRecord, rules: Rules, now: datetime, instance: str
) -> Decision:
    """Nothing was called: ask the agents after this one; where none is left, begin again.

    No failure is counted. Only agents further down are asked at once, so this comes to an end.
    """
    back = replace(
        step, process_state=StepState.PENDING, since=now, locked_by=None, complete_by=None
    )
    steps = list(with_step(order.steps, back))
    asked = {(step.number, route) for route in range(step.route + 1)}
    onward = replace(rules, shut=rules.shut | asked)
    left = range(step.route + 1, rules.steps[step.number].routes)
    if stays(step, rules) or all((step.number, route) in onward.shut for route in left):
        return Decision("agent not to be had", open_steps(steps, rules, now), (Wake(),))
    steps, requests = dispatch(steps, onward, now, instance)
    return Decision("another agent asked", open_steps(steps, rules, now), requests)
