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

from sas.domain.change import Decision
from sas.domain.claim import dispatch, is_out, open_steps, with_step
from sas.domain.expire import another_agent, cancelled, fail, waited
from sas.domain.messages import Notice, Notify, Outcome, Outgoing, Progress, Reply
from sas.domain.order import Direction, Fault, Order, StepState
from sas.domain.undo import complete, completed_notice, undo_failed, undone
from sas.domain.workflow import TIME_ALLOWED_MAX, Rules


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
        case Outcome.WAITED:
            other = another_agent(order, step, rules, now, instance)
            return other or waited(order, step, rules, now)


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
    left = with_step(order.steps, complete(done, rules, now))
    steps, requests = dispatch(list(left), rules, now, instance)
    told: list[Outgoing] = []
    if rules.notify_steps:
        told.append(Notify(Notice.STEP_COMPLETED, reply.step))
    told.extend(completed_notice(steps))
    return Decision("step processed", open_steps(steps, rules, now), (*requests, *told))
