"""Reply: what the scheduler decides when an agent answers.

"The Scheduler typically communicates with an Agent using asynchronous request/response messaging."

**Why a late reply changes nothing.** A request carries the step, the direction and the epoch of its
dispatch, and so does its reply. A reply counts only for the dispatch that is out right now
(``is_out``). For example, a reply comes a minute after CompleteBy, and the supervisor has acted on
the timeout. Then the step is in one of four places, and in none of them is that dispatch out:

1. The supervisor reset the step: it is Pending, and no request is out.
2. A scheduler claimed it again: a request is out, but of the next epoch.
3. The step failed for good: it is in Error, or an operator has skipped it since.
4. The undo was decided: the step is Compensating, and only the reply to an undo counts. Or it has
   no undo, and is Compensated.

Until the supervisor acts the dispatch is still out, and the reply counts. The same is true if the
supervisor excused the step, because then it only moved CompleteBy.

A repeated reply finds that the first one ended its dispatch. What the late call did at the remote
service is not lost: the next attempt has the same idempotency key, and an undo undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sas.domain.change import Decision
from sas.domain.claim import ByScheduler, dispatch, is_cancelled, is_out, replace_step, with_step
from sas.domain.expire import end_cancelled, fail, resting_incident, resting_name
from sas.domain.messages import JournalWord, Notice, Notify, Outcome, Progress, Reply
from sas.domain.order import (
    Direction,
    Dispatched,
    Fault,
    FaultCode,
    Order,
    OrderState,
    Resting,
    StepRecord,
    StepState,
    roll_up,
)
from sas.domain.undo import undo_failed, undone
from sas.domain.workflow import TIME_ALLOWED_MAX, Rules


def answer(
    order: Order, reply: Reply, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide about the reply of an agent: record it and start what has become ready."""
    if not counts(order, reply):
        return None
    step = order.steps[reply.step]
    if reply.outcome is Outcome.WAITED and not is_cancelled(step):
        return _waited(order, step, rules, now)
    if reply.direction is Direction.DO and is_cancelled(step):
        ended = replace(step, result=reply.result)
        return end_cancelled(order, ended, rules, now=now, decided_by=ByScheduler(instance))
    over = resting_name(order, step) if _rested(step) else None
    fault = reply.fault or Fault(FaultCode.REFUSED, "the agent gave no reason")
    match reply.direction, reply.outcome:
        case Direction.DO, Outcome.DONE:
            step = replace(step, result=reply.result)
            decision = _done(order, step, rules, now=now, instance=instance)
        case Direction.UNDO, Outcome.DONE:
            decision = undone(order, step, rules, now=now, instance=instance)
        case Direction.UNDO, _:
            decision = undo_failed(order, step, fault, rules, now=now)
        case _:
            by = ByScheduler(instance)
            decision = fail(order, step, fault, rules, now=now, decided_by=by)
    return replace(decision, ended=over)


def counts(order: Order, reply: Reply) -> bool:
    """Return whether a reply is to the dispatch that is out right now."""
    return is_out(order, reply.step, reply.direction, reply.epoch)


def progressed(
    order: Order, progress: Progress, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide about the progress of an agent: grant the CompleteBy that it asks for.

    Like a reply, it counts only for the dispatch that is out now. CompleteBy never becomes earlier,
    and is at most ``TIME_ALLOWED_MAX`` from now. A step of a cancelled order gets no more time. If
    it would wait for a callback now, its call has ended, so it is undone at once. A wait for a
    callback is not ended by what asks for less time: it was sent before, and comes late.
    """
    if not is_out(order, progress.step, progress.direction, progress.epoch):
        return None
    step = order.steps[progress.step]
    doing = progress.direction is Direction.DO
    if not isinstance(step.turn, Dispatched):
        return None
    if doing and is_cancelled(step):
        if not progress.awaits:
            return None
        return end_cancelled(order, step, rules, now=now, decided_by=ByScheduler(instance))
    asks_less = progress.complete_by < step.turn.complete_by
    until = max(step.turn.complete_by, min(progress.complete_by, now + TIME_ALLOWED_MAX))
    note = progress.note or step.note
    turn = replace(step.turn, complete_by=until, note=note, awaits=progress.awaits)
    if turn == step.turn or (step.turn.awaits and not progress.awaits and asks_less):
        return None
    may_call = doing and not progress.awaits
    call = replace(step.call, called_until=until) if may_call else step.call
    steps = with_step(order.steps, replace(step, turn=turn, call=call))
    return Decision(what=JournalWord.PROGRESS, steps=steps, messages=())


def completed_notice(steps: Sequence[StepRecord]) -> tuple[Notify, ...]:
    """Return the notification that an order is completed, if it is."""
    return (Notify(Notice.COMPLETED),) if roll_up(steps) is OrderState.PROCESSED else ()


def _rested(step: StepRecord) -> bool:
    """Return whether a step that is answered now had to rest: the reason for it may be over.

    It rested past its threshold, or it was dispatched before and nothing failed.
    """
    doing = step.process_state is StepState.PROCESSING
    could_not_begin = doing and step.epoch > 1 and not step.failure_count
    return step.failures.extended_waits > 0 or could_not_begin


def _done(
    order: Order, step: StepRecord, rules: Rules, *, now: datetime, instance: str
) -> Decision:
    done = step.moved(StepState.PROCESSED, now).without_failures()
    steps, requests = dispatch(with_step(order.steps, done), rules, now, instance)
    notice = (Notify(Notice.STEP_COMPLETED, step=step.number),) if rules.notify_steps else ()
    messages = (*requests, *notice, *completed_notice(steps))
    return Decision(what=JournalWord.STEP_PROCESSED, steps=steps, messages=messages)


def _waited(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    """Decide about a step (or its undo) of which no call could begin before CompleteBy.

    Nothing ran, so no failure counts. The step rests until its CompleteBy. Then a new request goes
    to the same agent.
    """
    doing = step.process_state is StepState.PROCESSING
    back = step.moved(StepState.PENDING, now) if doing else step
    until = step.complete_by or now
    after = replace_step(order, replace(back, turn=Resting(until)), rules, now)
    incident = resting_incident(
        order,
        step,
        rules=rules,
        text="cannot begin: the circuit of its service is open, all call slots are taken, or its "
        "content cannot be read (another alert says so). "
        "No failure is counted, and it is tried again automatically. Check that service; cancel "
        "orders that cannot wait.",
        now=now,
        until=until,
    )
    return Decision(what=JournalWord.WAITING, steps=after, messages=(), incident=incident)
