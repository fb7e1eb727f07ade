"""Orders for the contract suites: changes made by the domain's own decisions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sas.domain.change import Change, Decision, Trigger, change_of, fence, rejection
from sas.domain.claim import ByScheduler, claim
from sas.domain.command import resubmit, undo
from sas.domain.content import Content
from sas.domain.expire import fail
from sas.domain.messages import JournalWord, Outcome, Reply
from sas.domain.order import (
    AttemptError,
    Details,
    Direction,
    Dispatched,
    Failures,
    Fault,
    LastCall,
    Order,
    StepState,
    UndoStatus,
)
from sas.domain.reply import answer
from sas.domain.submit import submit
from sas.domain.workflow import Rules, Step, Undo, Workflow

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BY = "a test"

_counter = itertools.count(1)


def attempt_error(message: str = "stock answered 500", **changes: Any) -> AttemptError:
    return replace(
        AttemptError(epoch=1, attempt=3, kind="http-500", message=message, at=NOW + SECOND),
        **changes,
    )


def fresh(kind: str) -> str:
    return f"{kind}-{next(_counter)}"


def rules_of(steps: int = 3, *, parallel: bool = False) -> Rules:
    """A workflow of so many steps, in a row or beside each other."""
    after = () if parallel else None
    workflow_steps = tuple(
        Step(f"step-{n}", agent="inventory", time_allowed=60 * SECOND, after=after, undo=Undo())
        for n in range(steps)
    )
    return Workflow("order", version=2, steps=workflow_steps).rules


ROW = rules_of()


def details_of(order_id: str, *, payload: str = '{"lines":[]}', at: datetime = NOW) -> Details:
    return Details(
        order_id=order_id,
        workflow="order",
        version=2,
        payload=payload,
        content_hash="hash-1",
        reply_queue="responses-shop",
        correlation_id="corr-1",
        submitted_at=at,
    )


def submitted(
    order_id: str,
    rules: Rules = ROW,
    *,
    payload: str = '{"lines":[]}',
    cause: str | None = None,
    at: datetime = NOW,
) -> Change:
    details = details_of(order_id, payload=payload, at=at)
    return changed(None, submit(details, rules), cause or fresh("orders:envelope"))


def changed(
    order: Order | None, decision: Decision, cause: str | None, *, at: datetime = NOW
) -> Change:
    trigger = Trigger(by=BY, cause=cause)
    return change_of(order, decision, trigger, commit_id=fresh("commit"), now=at)


def upon(
    order: Order,
    decision: Decision | None,
    *,
    cause: str | None = None,
    at: datetime = NOW,
    out_at: datetime | None = None,
) -> Change:
    assert decision is not None
    change = changed(order, decision, cause or fresh("scheduler:envelope"), at=at)
    return replace(change, out_at=out_at if decision.messages else None)


def claimed(order: Order, rules: Rules = ROW, *, cause: str | None = None) -> Change:
    decision = claim(order, rules, now=NOW, instance="scheduler-1")
    return upon(order, decision, cause=cause)


def answered(
    order: Order,
    step: int,
    rules: Rules = ROW,
    *,
    result: Content | None = '{"ok":true}',
    at: datetime = NOW,
) -> Change:
    epoch = order.steps[step].epoch
    reply = Reply(
        order_id=order.order_id,
        step=step,
        direction=Direction.DO,
        epoch=epoch,
        outcome=Outcome.DONE,
        result=result,
    )
    decision = answer(order, reply, rules, now=at, instance="scheduler-1")
    return upon(order, decision, at=at)


def refused(order: Order, step: int, rules: Rules = ROW, *, at: datetime = NOW) -> Change:
    fault = Fault("out-of-stock", "none left of article 11")
    decision = fail(
        order, order.steps[step], fault, rules, now=at, decided_by=ByScheduler("scheduler-1")
    )
    return upon(order, decision, at=at)


def resubmitted(order: Order, rules: Rules = ROW, *, at: datetime = NOW) -> Change:
    return upon(order, resubmit(order, rules, now=at), at=at)


def undone(
    order: Order, rules: Rules = ROW, *, at: datetime = NOW, out_at: datetime | None = None
) -> Change:
    return upon(order, undo(order, rules, now=at), at=at, out_at=out_at)


def compensated(order: Order) -> Change:
    """Every step undone at once, as where none names an undo."""
    steps = tuple(
        replace(
            step,
            process_state=StepState.COMPENSATED,
            undo=UndoStatus.NOT_NEEDED,
        )
        for step in order.steps
    )
    return upon(order, Decision(what=JournalWord.UNDO_DECIDED, steps=steps, messages=()))


def with_deadline(change: Change, deadline: datetime | None) -> Change:
    return replace(change, after=replace(change.after, deadline=deadline))


def edited(order: Order, text: str) -> Change:
    """Every step with an operator's input instead of the order."""
    steps = tuple(replace(step, call=replace(step.call, edited=text)) for step in order.steps)
    return upon(order, Decision(what=JournalWord.RESUBMITTED, steps=steps, messages=()))


def with_result(order: Order, number: int, result: Content | None) -> Change:
    steps = list(order.steps)
    steps[number] = replace(steps[number], result=result)
    return upon(order, Decision(what=JournalWord.SKIPPED, steps=tuple(steps), messages=()))


def fenced(order: Order, cause: str) -> Change:
    return changed(order, fence(order), cause)


def rejected(order_id: str, *, at: datetime = NOW) -> Change:
    details = details_of(order_id, payload="what came", at=at)
    return changed(None, rejection(details), fresh("dead-letters:envelope"))


def revived(order: Order, rules: Rules = ROW, *, at: datetime = NOW) -> Change:
    details = details_of(order.order_id, payload="submitted anew", at=at)
    return changed(order, submit(details, rules), fresh("orders:envelope"))


def every_field_set(order: Order) -> Order:
    """The same order with no field of it and of its first step at its default."""
    step = replace(
        order.steps[0],
        process_state=StepState.PROCESSING,
        since=NOW + 7 * SECOND,
        turn=Dispatched(
            locked_by="scheduler-9",
            complete_by=NOW + 90 * SECOND,
            note="the van is at stop 3",
            awaits=True,
        ),
        epoch=12,
        failures=Failures(4, 3),
        call=LastCall(
            route=2, called_until=NOW + 91 * SECOND, generation=1, edited='{"article":"é"}'
        ),
        result='"done"',
        error=Fault("code", "a sentence with 'quotes' and an é"),
        undo=UndoStatus.TO_BE_UNDONE,
    )
    return replace(
        order,
        details=replace(order.details, urgent=True),
        steps=(step, *order.steps[1:]),
        stopped_at=NOW + SECOND,
        deadline=NOW + 3600 * SECOND,
        acknowledged_by="an operator",
        undone_because="an operator: the customer asked",
    )
