"""Command: what an operator's command changes. The caller has checked the seq of the command.

Each function returns None if the state of the order does not allow the command. ``WHEN`` says which
states allow it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sas.domain.change import Decision
from sas.domain.claim import update_readiness
from sas.domain.messages import Command, JournalWord, Outcome, Reply, Verb, Wake
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState, UndoStatus
from sas.domain.reply import answer, completed_notice
from sas.domain.undo import (
    begin_step_undo,
    begin_undo,
    undone_by_hand,
    undone_notice,
)
from sas.domain.workflow import Rules

WHEN = {
    Verb.RESUBMIT: "only an order in Error can be resubmitted",
    Verb.SKIP: "only a step in Error can be skipped",
    Verb.UNDO: "only an order that has begun can be undone",
    Verb.CANCEL: "only an order under way can be cancelled",
    Verb.ACKNOWLEDGE: "only an order in Error needs to be acknowledged",
    Verb.CALLBACK: "only a step that waits for a callback can be ended by one",
}
"""Why a command changed nothing, by verb."""


def why_not(order: Order, verb: Verb) -> str:
    """Return why a command cannot be carried out: the state of the order, and what to do."""
    state = order.process_state.value
    waiting = [step.name for step in order.steps if step.awaits_callback]
    if verb is Verb.CALLBACK and len(waiting) > 1:
        return f"its steps {', '.join(waiting)} wait for callbacks: name one of them"
    if verb is Verb.CALLBACK:
        which = f"only {waiting[0]} waits" if waiting else f"no step of this {state} order waits"
        return f"{WHEN[verb]}, and {which} for one"
    if verb not in {Verb.UNDO, Verb.CANCEL} or order.direction is Direction.DO:
        return f"{WHEN[verb]}, and this is {state}"
    if order.process_state is OrderState.ERROR:
        return (
            "its undo is decided and failed in part: resubmit to try it again, or skip it once it "
            "is undone by hand"
        )
    return f"its undo is decided already: it is {state}"


def decide(
    order: Order, command: Command, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide about a command; None if ``WHEN`` does not allow it."""
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
        case Verb.CALLBACK:
            return end_wait(order, command, rules, now=now, instance=instance)


def resubmit(
    order: Order,
    rules: Rules,
    *,
    now: datetime,
    step: str | None = None,
    edited: str | None = None,
) -> Decision | None:
    """Decide to run failed steps, or failed undos, again.

    The failures are cleared; the idempotency key stays. ``edited`` input gets a key of its own, a
    new generation: under the old key an idempotent service would repeat the result of the old
    input. The agent undoes the older generations before it calls with the new one.
    """
    failed = _failed(order, step)
    if not failed:
        return None
    steps = list(order.steps)
    for record in failed:
        steps[record.number] = _resubmitted(record, now, edited)
    return Decision(
        what=JournalWord.RESUBMITTED, steps=update_readiness(steps, rules, now), messages=(Wake(),)
    )


def _resubmitted(step: StepRecord, now: datetime, edited: str | None) -> StepRecord:
    """Return a failed step that goes on with its do, or with its undo."""
    if step.undo_failed:
        undoing = step.moved(StepState.COMPENSATING, now, undo=UndoStatus.UNDOING)
        return undoing.without_failures()
    pending = step.moved(StepState.PENDING, now).without_failures()
    if edited is None:
        return pending
    call = replace(step.call, edited=edited, generation=step.call.generation + 1)
    return replace(pending, call=call)


def takes_input(step: StepRecord, rules: Rules) -> bool:
    """Return whether a step can be resubmitted with edited input.

    It must have an undo that can run at once, without waiting for calls that may still arrive.
    """
    rule = rules.steps[step.number]
    return rule.undo_time_allowed is not None and rule.drain_time is None and not step.undo_failed


def skip(
    order: Order,
    rules: Rules,
    *,
    now: datetime,
    step: str | None = None,
    result: str | None = None,
) -> Decision | None:
    """Decide to go on as if a failed step (or its undo) were done, because the operator says so."""
    failed = _failed(order, step)
    if not failed:
        return None
    undoing = [record.number for record in failed if record.direction is Direction.UNDO]
    if undoing:
        return undone_by_hand(order, undoing, rules, now)
    steps = list(order.steps)
    for record in failed:
        done = replace(record, result=result or "null").moved(StepState.PROCESSED, now)
        steps[record.number] = done.without_failures()
    after = update_readiness(steps, rules, now)
    return Decision(
        what=JournalWord.SKIPPED, steps=after, messages=completed_notice(after) or (Wake(),)
    )


def can_undo(order: Order) -> bool:
    """Return whether an undo can still be decided. An order without steps has nothing to undo."""
    out = any(step.process_state is StepState.PROCESSING for step in order.steps)
    return bool(order.steps) and not order.rejected and (order.direction is Direction.DO or out)


def undo(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to undo the order at once; None if that is decided already.

    If the order was cancelled before, this no longer waits for the steps that are out.
    """
    if not can_undo(order):
        return None
    cancelled = order.direction is Direction.UNDO
    out = [step for step in order.steps if step.process_state is StepState.PROCESSING]
    steps = begin_undo(out if cancelled else order.steps, rules, now=now)
    turned = {step.number: step for step in steps}
    after = update_readiness([turned.get(step.number, step) for step in order.steps], rules, now)
    return Decision(
        what=JournalWord.UNDO_DECIDED, steps=after, messages=(Wake(), *undone_notice(after))
    )


def cancel(order: Order, rules: Rules, *, now: datetime) -> Decision | None:
    """Decide to cancel an order under way.

    No new step starts. The steps that are out reply or time out; then everything is undone. A step
    that waits for a callback has no call out, so it is undone at once.
    """
    under_way = {OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR}
    if order.process_state not in under_way or order.direction is Direction.UNDO:
        return None
    steps = [_cancelled(step, rules, now) for step in order.steps]
    after = update_readiness(steps, rules, now)
    return Decision(
        what=JournalWord.CANCELLED, steps=after, messages=(Wake(), *undone_notice(after))
    )


def acknowledge(order: Order, by: str) -> Decision | None:
    """Decide that an operator has seen that the order is in Error."""
    if order.process_state is not OrderState.ERROR:
        return None
    return Decision(
        what=JournalWord.ACKNOWLEDGED, steps=order.steps, messages=(), acknowledged_by=by
    )


def awaiting(order: Order, name: str | None) -> StepRecord | None:
    """Return the step that waits for a callback; None if none does, or several without a name."""
    steps = [step for step in order.steps if step.awaits_callback and name in {None, step.name}]
    return steps[0] if len(steps) == 1 else None


def end_wait(
    order: Order, command: Command, rules: Rules, *, now: datetime, instance: str
) -> Decision | None:
    """Decide as if the callback that a step (or its undo) waits for had come."""
    step = awaiting(order, command.step)
    if step is None:
        return None
    reply = Reply(
        order_id=order.order_id,
        step=step.number,
        direction=step.direction,
        epoch=step.epoch,
        outcome=Outcome.REFUSED if command.fault else Outcome.DONE,
        result=None if command.fault else command.input or "null",
        fault=command.fault,
    )
    return answer(order, reply, rules, now=now, instance=instance)


def _cancelled(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    """Return a step of a cancelled order: a call that is out goes on until its reply or its end."""
    if step.process_state is StepState.PROCESSING and not step.awaits_callback:
        return replace(step, undo=UndoStatus.TO_BE_UNDONE)
    return begin_step_undo(step, rules, now)


def _failed(order: Order, name: str | None) -> list[StepRecord]:
    return [
        step
        for step in order.steps
        if step.process_state is StepState.ERROR and name in {None, step.name}
    ]
