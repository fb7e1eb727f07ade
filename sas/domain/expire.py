"""Recovery: what follows from time having passed, and from a step that failed for good.

Timed out and failed look the same from here, as the pattern intends: the only evidence
is a step still out after its CompleteBy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sas.domain.change import Decision, Incident
from sas.domain.claim import dispatch, is_ready, mark_attempted, open_steps, with_step
from sas.domain.messages import Alert, AlertKind, Notice, Notify, Outgoing, Wake
from sas.domain.order import Direction, Fault, Order, OrderState, StepRecord, StepState
from sas.domain.undo import begin_undo, turn_to_undo, undo_failed, undone_notice
from sas.domain.workflow import OnFailure, Rules
from sas.features.queue_delay.rules import NONE, excuses

REWAKE_MAX = timedelta(minutes=15)


def expire(
    order: Order,
    number: int,
    epoch: int,
    rules: Rules,
    *,
    now: datetime,
    behind: timedelta = NONE,
) -> Decision | None:
    """Decide what follows once a step's CompleteBy has passed; None leaves it alone.

    ``behind`` is how far queues are behind right now: where that alone may have cost the step its
    time, no failure is counted.
    """
    if order.rejected or not 0 <= number < len(order.steps):
        return None
    step = order.steps[number]
    if step.epoch != epoch or step.complete_by is None or step.complete_by > now:
        return None
    if step.dispatched and _excused(step, rules, behind):
        return _not_counted(order, step, rules, now)
    return _expired(order, step, rules, now)


def _excused(step: StepRecord, rules: Rules, behind: timedelta) -> bool:
    if step.process_state is StepState.PROCESSING and step.direction is Direction.UNDO:
        return False  # cancelled: it is undone, whatever came of it
    own = rules.steps[step.number]
    doing = step.process_state is StepState.PROCESSING
    allowed = own.time_allowed if doing else own.undo_time_allowed or own.time_allowed
    return excuses(behind, allowed)


def _not_counted(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    """Decide to ask anew for a step (or its undo) that a long queue may have cost its time."""
    free = replace(step, locked_by=None, complete_by=None)
    if step.process_state is StepState.PROCESSING:
        free = replace(mark_attempted(free), process_state=StepState.PENDING, since=now)
    after = open_steps(with_step(order.steps, free), rules, now)
    return Decision("reset, not counted", after, (Wake(),))


def _expired(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision | None:
    match step.process_state:
        case StepState.PROCESSING if step.direction is Direction.UNDO:
            return cancelled(order, step, rules, now, None)
        case StepState.PROCESSING:
            return _unanswered(order, step, rules, now)
        case _ if step.hold:
            freed = with_step(order.steps, replace(step, hold=False, complete_by=None))
            return Decision("released", open_steps(freed, rules, now), (Wake(),))
        case StepState.COMPENSATING | StepState.PROCESSED if step.dispatched:
            return _expire_undo(order, step, rules, now)
        case _:
            return _wake_again(order, step, rules, now)


def expire_deadline(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide what follows once the whole order's deadline has passed.

    By the workflow's policy it is undone, or goes on (or stays in Error) with an alert. An order
    being undone or finished has no deadline any more.
    """
    if order.rejected or order.deadline is None or order.deadline > now:
        return None
    if order.direction is Direction.UNDO or order.process_state is OrderState.PROCESSED:
        return None
    text = f"the order is past its deadline ({order.deadline.isoformat()})"
    if rules.on_failure is OnFailure.HOLD:
        stands = "is in Error" if order.process_state is OrderState.ERROR else "goes on"
        text = f"{text} and {stands}. Undo or cancel it if need be."
        alert = Alert(AlertKind.OVERDUE, None, text)
        return Decision("overdue", order.steps, (alert,), overdue=True)
    after = open_steps(begin_undo(order.steps, rules, now=now), rules, now)
    failed = Notify(Notice.FAILED, None, Fault("overdue", text), undoing=True)
    messages: tuple[Outgoing, ...] = (Wake(), failed, *undone_notice(after))
    return Decision("overdue, undo decided", after, messages, overdue=True)


def postpone(order: Order, number: int, why: str, *, now: datetime) -> Decision | None:
    """Decide to look at a due step again later, where its workflow is not known here.

    Without its rules nothing can be decided; without this its due row would stand before
    all others for ever.
    """
    step = order.steps[number] if 0 <= number < len(order.steps) else None
    if step is None or step.complete_by is None or step.complete_by > now:
        return None
    later = now + REWAKE_MAX
    steps = with_step(order.steps, replace(step, complete_by=later))
    text = f"{why}. Deploy that version again."
    condition = Incident(AlertKind.NOT_RUNNABLE, _workflow_of(order), text, now, later)
    return Decision("postponed", steps, (), condition=condition)


def postpone_deadline(order: Order, why: str, *, now: datetime) -> Decision | None:
    """Decide that a deadline has been seen, where the order's workflow is not known here."""
    if order.deadline is None or order.deadline > now:
        return None
    text = f"the order is past its deadline, and {why}. Deploy that version again."
    return Decision("postponed", order.steps, (Alert(AlertKind.OVERDUE, None, text),), overdue=True)


def fail(
    order: Order, number: int, fault: Fault, rules: Rules, *, now: datetime, instance: str | None
) -> Decision:
    """Decide what a step's failure for good means: Error and an alert, or the undo of all.

    With an ``instance`` (a scheduler decides) undo requests go out at once; without one
    (the supervisor decides) a scheduler is woken to send them.
    """
    step = replace(
        mark_attempted(order.steps[number]),
        process_state=StepState.ERROR,
        since=now,
        locked_by=None,
        complete_by=None,
        error=fault,
    )
    undo_all = rules.on_failure is OnFailure.UNDO
    failed = Notify(Notice.FAILED, number, fault, undoing=undo_all)
    if not undo_all:
        text = f"step {step.name} failed: {fault.message}. Resubmit it, skip it or undo the order."
        steps = open_steps(with_step(order.steps, step), rules, now)
        return Decision("step failed", steps, (failed, Alert(AlertKind.STEP_FAILED, number, text)))
    undoing = begin_undo(with_step(order.steps, step), rules, now=now)
    after, requests = _going_on(undoing, rules, now, instance)
    messages = (*requests, failed, *undone_notice(after))
    return Decision("step failed, undo decided", after, messages)


def cancelled(
    order: Order, step: StepRecord, rules: Rules, now: datetime, instance: str | None
) -> Decision:
    """Decide upon a step of a cancelled order that is back, or late: it is undone like the rest."""
    turned = turn_to_undo(step, rules, now)
    after, requests = _going_on(list(with_step(order.steps, turned)), rules, now, instance)
    return Decision("cancelled step turned", after, (*requests, *undone_notice(after)))


def _going_on(
    steps: list[StepRecord], rules: Rules, now: datetime, instance: str | None
) -> tuple[tuple[StepRecord, ...], Sequence[Outgoing]]:
    """Dispatch what is ready, or have a scheduler woken to do so."""
    requests: Sequence[Outgoing] = (Wake(),)
    if instance is not None:
        steps, requests = dispatch(steps, rules, now, instance)
    return open_steps(steps, rules, now), requests


def _unanswered(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    """Decide upon a step that was asked for, and of whose outcome nothing is known."""
    failures = step.failure_count + 1
    counted = replace(step, failure_count=failures)
    pending = replace(mark_attempted(counted), process_state=StepState.PENDING, since=now)
    again = _again(order, pending, "step", rules, now)
    if again is not None:
        return again
    fault = Fault(
        "timed-out", f"no answer within CompleteBy, {failures} times; its outcome is unknown"
    )
    failed = replace(order, steps=with_step(order.steps, counted))
    return fail(failed, step.number, fault, rules, now=now, instance=None)


def another_agent(
    order: Order, step: StepRecord, rules: Rules, now: datetime, instance: str
) -> Decision | None:
    """Decide to ask an agent further down for a step that waited; None if none of them is open.

    Only agents further down are asked at once, so this ends. The agent that waited counts as
    attempted: another delivery of the same request may have called it.
    """
    pending = replace(
        mark_attempted(step),
        process_state=StepState.PENDING,
        since=now,
        locked_by=None,
        complete_by=None,
    )
    asked = {(step.number, route) for route in range(step.route + 1)}
    further = replace(rules, shut=rules.shut | asked)
    steps, requests = dispatch(list(with_step(order.steps, pending)), further, now, instance)
    if steps[step.number].route == step.route:
        return None
    return Decision("another agent asked", open_steps(steps, rules, now), requests)


def waited(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    """Decide upon a step (or its undo) that its agent could not begin in the time it had.

    No failure is counted, for nothing ran. It is asked for anew once that time is over. That
    nothing was called is true of the delivery that says so: it is to be undone all the same.
    """
    doing = step.process_state is StepState.PROCESSING
    back = (
        replace(mark_attempted(step), process_state=StepState.PENDING, since=now) if doing else step
    )
    held = replace(back, locked_by=None, hold=True)
    after = open_steps(with_step(order.steps, held), rules, now)
    name = _named(step, "step" if doing else "undo")
    text = (
        f"In {_workflow_of(order)} {name} cannot be begun: its service is cut off by its breaker, "
        "or as many calls are out as may be. No failure is counted, and it is tried again by "
        "itself. Look at that service; cancel orders that must not wait."
    )
    condition = _resting(order, name, text, now, step.complete_by or now)
    return Decision("waited in vain", after, (), condition=condition)


def _expire_undo(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision:
    failures = step.failure_count + 1
    counted = replace(step, failure_count=failures)
    again = _again(order, counted, "undo", rules, now)
    if again is not None:
        return again
    fault = Fault("timed-out", f"no answer to the undo within CompleteBy, {failures} times")
    failed = replace(order, steps=with_step(order.steps, counted))
    return undo_failed(failed, step.number, fault, rules, now)


def _again(
    order: Order, step: StepRecord, what: str, rules: Rules, now: datetime
) -> Decision | None:
    """Decide to try a step (or its undo) again, now or after a rest; None past all patience."""
    own = rules.steps[step.number]
    free = replace(step, locked_by=None, complete_by=None)
    if step.failure_count <= own.failures_max:
        rest = own.backoff.delay(step.failure_count)
        reset = replace(free, hold=True, complete_by=now + rest) if rest else free
        after = open_steps(with_step(order.steps, reset), rules, now)
        return Decision(f"{what} reset", after, () if rest else (Wake(),))
    wait = own.extended_wait
    if wait is None or step.waits >= wait.times:
        return None
    until = now + wait.time
    held = replace(free, waits=step.waits + 1, hold=True, complete_by=until)
    name = _named(step, what)
    text = (
        f"In {_workflow_of(order)} {name} timed out past its threshold. It rests, in the "
        "expectation that the fault is resolved, and is tried again by itself. Look at the "
        "service behind it; cancel orders that must not wait."
    )
    condition = _resting(order, name, text, now, until)
    after = open_steps(with_step(order.steps, held), rules, now)
    return Decision("extended wait", after, (), condition=condition)


def _wake_again(order: Order, step: StepRecord, rules: Rules, now: datetime) -> Decision | None:
    """A ready step that nobody picked up is woken, at growing intervals; never failed for it."""
    if not is_ready(step, order.steps, rules):
        return None
    age = now - step.since
    later = now + max(rules.pickup, min(age, REWAKE_MAX))
    steps = with_step(order.steps, replace(step, complete_by=later))
    condition = None
    if age >= rules.alert_after:
        scope = "urgent orders" if order.details.urgent else "ordinary orders"
        text = (
            f"Steps of {scope} are ready and no scheduler picks them up. Look whether the "
            "scheduler's function runs; they go on by themselves once it does."
        )
        condition = Incident(AlertKind.NOT_PICKED_UP, scope, text, step.since, later)
    return Decision("woken again", steps, (Wake(),), condition=condition)


def _named(step: StepRecord, what: str) -> str:
    return f"step {step.name}" if what == "step" else f"the undo of step {step.name}"


def _resting(order: Order, name: str, text: str, now: datetime, until: datetime) -> Incident:
    scope = f"{_workflow_of(order)}, {name}"
    return Incident(AlertKind.WAITING, scope, text, now, until)


def _workflow_of(order: Order) -> str:
    return f"{order.details.workflow} version {order.details.version}"
