"""Expire: what the supervisor decides when CompleteBy has passed, and what a failed step means.

"The Supervisor monitors the status of the steps. ... If it detects any that have timed out or
failed, it arranges for the appropriate Agent to recover the step or execute the appropriate
remedial action." A timeout and a crash look the same from here: the only evidence is a step that
is still out after its CompleteBy. The supervisor asks no agent itself: it resets the step and wakes
a scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

from sas.domain.change import Decision, Incident
from sas.domain.claim import (
    ByScheduler,
    BySupervisor,
    carry_on,
    is_cancelled,
    is_ready,
    replace_step,
    update_readiness,
    with_step,
)
from sas.domain.messages import Alert, AlertKind, JournalWord, Notice, Notify, Outgoing, Wake
from sas.domain.order import (
    Direction,
    Dispatched,
    Failures,
    Fault,
    FaultCode,
    Order,
    OrderState,
    Ready,
    Resting,
    StepRecord,
    StepState,
)
from sas.domain.texts import quoted
from sas.domain.undo import begin_step_undo, begin_undo, undo_failed, undone_notice
from sas.domain.workflow import OnFailure, Rules

REWAKE_MAX = timedelta(minutes=15)
"""Longest pause before the supervisor looks again at a step that waits for a scheduler or in a
queue, unless the step's own times are longer.
"""
EXCUSES_MAX = 10
"""How often a dispatch is excused because a message of its step waits in a queue that does not
move. Perhaps no function reads that queue, so the next timeout counts.
"""
DEPLOY_TIME = timedelta(minutes=5)
"""How long a due row is left to instances of another version: longer than a deploy takes."""


class Excuse(Enum):
    """Why a step past its CompleteBy has not failed: its message spent the time in a queue."""

    WAITS = "a message of the step waits, and its queue moves"
    STUCK = "a message of the step waits, and nothing is seen to leave its queue"
    AWAY = "a queue of the step cannot be read"


def expire(
    order: Order,
    number: int,
    epoch: int,
    rules: Rules,
    *,
    now: datetime,
    excuse: Excuse | None = None,
) -> Decision | None:
    """Decide what happens when the CompleteBy of a step has passed. None leaves it alone.

    ``excuse`` is why a dispatched step has not failed. Then nothing is counted, and no second
    request makes its queue longer.
    """
    if order.rejected or not 0 <= number < len(order.steps):
        return None
    step = order.steps[number]
    if step.epoch != epoch or step.complete_by is None or step.complete_by > now:
        return None
    match step.turn:
        case Resting():
            after = replace_step(order, replace(step, turn=None), rules, now)
            return Decision(what=JournalWord.RELEASED, steps=after, messages=(Wake(),))
        case Dispatched() if is_cancelled(step):
            return end_cancelled(order, step, rules=rules, now=now, decided_by=BySupervisor())
        case Dispatched() as turn:
            return _late(order, step, turn=turn, rules=rules, now=now, excuse=excuse)
        case _:
            return _wake_again(order, step, rules, now)


def expire_deadline(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide what happens when the deadline of the whole order has passed.

    By the policy of the workflow the order is undone, or goes on with an alert. An order that is
    finished or being undone has no deadline any more.
    """
    if order.rejected or order.deadline is None or order.deadline > now:
        return None
    if order.direction is Direction.UNDO or order.process_state is OrderState.PROCESSED:
        return None
    text = f"the order is past its deadline ({order.deadline.isoformat()})"
    if rules.on_failure is OnFailure.HOLD:
        state = "is in Error" if order.process_state is OrderState.ERROR else "goes on"
        alert = Alert(AlertKind.OVERDUE, None, f"{text} and {state}. Undo or cancel it if need be.")
        return Decision(
            what=JournalWord.OVERDUE, steps=order.steps, messages=(alert,), overdue=True
        )
    after = update_readiness(begin_undo(order.steps, rules, now=now), rules, now)
    failed = Notify(Notice.FAILED, step=None, fault=Fault(FaultCode.OVERDUE, text), undoing=True)
    messages: tuple[Outgoing, ...] = (Wake(), failed, *undone_notice(after))
    return Decision(what=JournalWord.OVERDUE_UNDO, steps=after, messages=messages, overdue=True)


def postpone(order: Order, number: int, why: str, *, now: datetime) -> Decision | None:
    """Decide to look at a due step again later, because its workflow is not deployed here.

    No other decision is possible without the rules of the workflow. The row has been due for
    ``DEPLOY_TIME``, so no instance seems to have them. An unchanged due row would stay the oldest,
    and every sweep would begin with it.
    """
    step = order.steps[number] if 0 <= number < len(order.steps) else None
    if step is None or step.complete_by is None or step.complete_by > now:
        return None
    later = now + REWAKE_MAX
    match step.turn:
        case Dispatched():
            postponed = replace(step, turn=replace(step.turn, complete_by=later))
        case Resting():
            postponed = replace(step, turn=Resting(later))
        case _:
            postponed = replace(step, turn=Ready(later))
    text = f"{why}. Deploy that version again."
    until = later + DEPLOY_TIME
    incident = Incident(
        kind=AlertKind.NOT_RUNNABLE, scope=_workflow_of(order), text=text, since=now, until=until
    )
    return Decision(
        what=JournalWord.POSTPONED,
        steps=with_step(order.steps, postponed),
        messages=(),
        incident=incident,
    )


def postpone_deadline(order: Order, why: str, *, now: datetime) -> Decision | None:
    """Decide to alert once about a passed deadline, if the workflow is not deployed here."""
    if order.deadline is None or order.deadline > now:
        return None
    text = f"the order is past its deadline, and {why}. Deploy that version again."
    alert = Alert(AlertKind.OVERDUE, None, text)
    return Decision(what=JournalWord.POSTPONED, steps=order.steps, messages=(alert,), overdue=True)


def fail(
    order: Order,
    step: StepRecord,
    fault: Fault,
    rules: Rules,
    *,
    now: datetime,
    decided_by: ByScheduler | BySupervisor,
) -> Decision:
    """Decide what a failed step means: Error and an alert, or the undo of the whole order."""
    failed = step.moved(StepState.ERROR, now, error=fault)
    steps = with_step(order.steps, failed)
    undo_all = rules.on_failure is OnFailure.UNDO
    notice = Notify(Notice.FAILED, step=step.number, fault=fault, undoing=undo_all)
    if not undo_all:
        why = quoted(fault.message.rstrip("."))
        text = f"step {step.name} failed: {why}. Resubmit it, skip it or undo the order."
        alert = Alert(AlertKind.STEP_FAILED, step.number, text)
        after = update_readiness(steps, rules, now)
        return Decision(what=JournalWord.STEP_FAILED, steps=after, messages=(notice, alert))
    after, messages = carry_on(begin_undo(steps, rules, now=now), rules, now, decided_by)
    return Decision(
        what=JournalWord.STEP_FAILED_UNDO,
        steps=after,
        messages=(*messages, notice, *undone_notice(after)),
    )


def end_cancelled(
    order: Order,
    step: StepRecord,
    rules: Rules,
    *,
    now: datetime,
    decided_by: ByScheduler | BySupervisor,
) -> Decision:
    """Decide about a step of a cancelled order whose call ended or timed out: it is undone."""
    steps = with_step(order.steps, begin_step_undo(step, rules, now))
    after, messages = carry_on(steps, rules, now, decided_by)
    return Decision(
        what=JournalWord.CANCELLED_STEP, steps=after, messages=(*messages, *undone_notice(after))
    )


def _late(
    order: Order,
    step: StepRecord,
    turn: Dispatched,
    rules: Rules,
    now: datetime,
    excuse: Excuse | None,
) -> Decision:
    """Decide about a step (or its undo) past its CompleteBy: it timed out, or has an excuse.

    An excused step keeps its epoch and gets more time: its time allowed. If its queue moves or is
    away, it gets as much as it has waited so far (at most ``REWAKE_MAX``), if that is longer. So a
    long queue does not fill the journal.
    """
    if excuse is None or (excuse is Excuse.STUCK and turn.excused >= EXCUSES_MAX):
        return _timed_out(order, step, rules, now)
    rule = rules.steps[step.number]
    doing = step.process_state is StepState.PROCESSING
    extension = rule.time_allowed if doing else rule.undo_time
    if excuse is Excuse.STUCK:
        turn = replace(turn, excused=turn.excused + 1)
    else:
        extension = max(extension, min(now - step.since, REWAKE_MAX))
    until = now + extension
    may_call = doing and not turn.awaits
    call = replace(step.call, called_until=until) if may_call else step.call
    excused = replace(step, turn=replace(turn, complete_by=until), call=call)
    word = JournalWord.QUEUE_AWAY if excuse is Excuse.AWAY else JournalWord.WAITS_IN_QUEUE
    return Decision(what=word, steps=with_step(order.steps, excused), messages=())


def _timed_out(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    """Decide about a step (or its undo) whose outcome is unknown: ask again, or give up."""
    doing = step.process_state is StepState.PROCESSING
    times = step.failure_count + 1
    counted = replace(step, failures=replace(step.failures, count=times))
    if doing and step.awaits_callback:
        # Whoever was asked had the whole time. Asked again, they would have it once more.
        fault = Fault(FaultCode.TIMED_OUT, "no callback came within the time given for it")
        return fail(order, counted, fault, rules, now=now, decided_by=BySupervisor())
    decision = _again(order, counted, rules, now)
    if decision is not None:
        return decision
    missing, cause = _missing(step)
    if not doing:
        text = f"no {missing} to the undo within CompleteBy, {times} times{cause}"
        return undo_failed(order, counted, Fault(FaultCode.TIMED_OUT, text), rules, now=now)
    text = f"no {missing} within CompleteBy, {times} times; its outcome is unknown{cause}"
    fault = Fault(FaultCode.TIMED_OUT, text)
    return fail(order, counted, fault, rules, now=now, decided_by=BySupervisor())


def _missing(step: StepRecord) -> tuple[str, str]:
    """Return what was missing, and the last error of this dispatch as the end of a sentence."""
    error = step.last_error
    if error is None or error.epoch != step.epoch:
        return "answer", ""
    last_error = f"{error.kind}: {error.message}"
    return "success", f". Last error: {quoted(last_error.rstrip('.'))}"


def _again(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision | None:
    """Decide to try a step (or its undo) again, now or after a rest; None past the threshold.

    Past the threshold a step may first have extended waits, "in the expectation that the fault is
    resolved".
    """
    rule = rules.steps[step.number]
    doing = step.process_state is StepState.PROCESSING
    free = step.moved(StepState.PENDING, now) if doing else replace(step, turn=None)
    if step.failure_count <= rule.failures_max:
        rest = rule.backoff.delay(step.failure_count)
        reset = replace(free, turn=Resting(now + rest) if rest else None)
        after = replace_step(order, reset, rules, now)
        word = JournalWord.STEP_RESET if doing else JournalWord.UNDO_RESET
        return Decision(what=word, steps=after, messages=() if rest else (Wake(),))
    wait = rule.extended_wait
    waits = step.failures.extended_waits
    if wait is None or waits >= wait.times:
        return None
    until = now + wait.time
    failures = Failures(step.failure_count, waits + 1)
    resting = replace(free, turn=Resting(until), failures=failures)
    incident = resting_incident(
        order,
        step,
        rules=rules,
        text="timed out past its threshold. It rests, in the expectation that the fault is "
        "resolved, and is tried again automatically. Check its service; cancel orders that cannot "
        "wait.",
        now=now,
        until=until,
    )
    after = replace_step(order, resting, rules, now)
    return Decision(what=JournalWord.EXTENDED_WAIT, steps=after, messages=(), incident=incident)


def _wake_again(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision | None:
    """Decide to wake a scheduler again for a ready step that no scheduler has claimed.

    The intervals grow. The step never fails for this.
    """
    if not is_ready(step, order.steps, rules):
        return None
    age = now - step.since
    later = now + max(rules.pickup, min(age, REWAKE_MAX))
    steps = with_step(order.steps, replace(step, turn=Ready(later)))
    incident = None
    if age >= rules.alert_after:
        scope = "urgent orders" if order.details.urgent else "ordinary orders"
        text = (
            f"Steps of {scope} are ready and no scheduler claims them. Check that the scheduler's "
            "function runs; the steps go on automatically as soon as it does."
        )
        incident = Incident(
            kind=AlertKind.NOT_PICKED_UP, scope=scope, text=text, since=step.since, until=later
        )
    return Decision(
        what=JournalWord.WOKEN_AGAIN, steps=steps, messages=(Wake(),), incident=incident
    )


def resting_incident(
    order: Order, step: StepRecord, rules: Rules, text: str, now: datetime, until: datetime
) -> Incident:
    """Return the incident of a step, or its undo, that rests. ``text`` says why."""
    kind, scope = resting_name(order, step)
    return Incident(
        kind=kind,
        scope=scope,
        text=f"In {scope} {text}",
        since=now,
        until=until,
        workflow=order.details.workflow,
        agent=rules.steps[step.number].agents[step.call.route],
    )


def resting_name(order: Order, step: StepRecord) -> tuple[AlertKind, str]:
    """Return the kind and the scope of the incident of a step, or its undo, that rests."""
    doing = step.process_state is StepState.PROCESSING
    name = f"step {step.name}" if doing else f"the undo of step {step.name}"
    return AlertKind.WAITING, f"{_workflow_of(order)}, {name}"


def _workflow_of(order: Order) -> str:
    return f"{order.details.workflow} version {order.details.version}"
