"""A decision, and the change that commits it.

A transition has two forms. A pure function returns a ``Decision``: what is to be done, the steps as
they become, and the messages to send. ``change_of`` makes a ``Change`` of it: the order before and
after, and the journal row. The change is committed in one transaction, or nothing is. A
``Trigger`` says why it happens and who makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sas.domain.messages import (
    AlertKind,
    JournalEntry,
    JournalWord,
    Notify,
    Outgoing,
    StepChange,
)
from sas.domain.moves import IllegalMoveError, check_moves
from sas.domain.order import FINISHED, Details, Direction, Order, OrderState, StepRecord, StepState
from sas.domain.texts import quoted, shortened

UNDONE_BECAUSE_LENGTH_MAX = 300
FAULT_SHOWN_MAX = 200
"""Longest part of a fault in it. With the name of its step, it ends with its mark."""
OUT_AGAIN_AFTER = timedelta(seconds=30)
"""Pause before the messages of an out row are sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something wrong with the system, not with one order.

    ``scope`` names the part at fault: a workflow version, a lane, a queue. ``text`` says what is
    wrong and what to do; it names no order. ``since`` is when it began for this order, ``until`` is
    when the supervisor looks at the order again. ``workflow`` and ``agent`` are those at fault.
    """

    kind: AlertKind
    scope: str
    text: str
    since: datetime
    until: datetime
    workflow: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to commit: the journal word, the changed steps, and the messages to send.

    ``details`` and ``deadline`` are set for a new order only, and for one that takes the place of a
    Rejected one. ``overdue`` says that the deadline has been handled. ``acknowledged_by`` names the
    operator who has seen the order in Error. ``incident`` is reported before the commit. ``ended``
    names the kind and scope of an incident whose cause is over for this order: it is ended after
    the commit.
    """

    what: JournalWord
    steps: tuple[StepRecord, ...]
    messages: tuple[Outgoing, ...]
    details: Details | None = None
    deadline: datetime | None = None
    overdue: bool = False
    acknowledged_by: str | None = None
    incident: Incident | None = None
    ended: tuple[AlertKind, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Why a transition happens and who makes it, for its journal row.

    ``cause`` is the message that led to it; None for a timer. ``by`` names the actor, or says how
    its name follows from the order. ``reason`` is given by an operator.

    Two members are for the runner alone. ``seq`` is the journal seq at which the message was sent:
    an order that this process kept since then needs no read. None: the order is always read.
    ``external_sent`` says that the alerts and notifications of the transition were sent before.
    """

    by: str | Callable[[Order], str]
    cause: str | None = None
    reason: str = ""
    seq: int | None = None
    external_sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDue:
    """The CompleteBy of one step: the supervisor looks at it at ``at``."""

    at: datetime
    order_id: str
    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class OutDue:
    """The messages of journal row ``seq`` may not be sent yet: send them again at ``at``."""

    at: datetime
    order_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """The deadline of the whole order."""

    at: datetime
    order_id: str


@dataclass(frozen=True, slots=True)
class DeferredDue:
    """A message that its queue did not take, as the version before wrote it: move it."""

    at: datetime
    order_id: str
    key: str


@dataclass(frozen=True, slots=True)
class OtherDue:
    """A due row of an unknown kind, by its key.

    If the rows of its order have a newer format, a newer version wrote this one too. Otherwise it
    was made by hand. If ``order_id`` is empty, the key cannot be read at all.
    """

    at: datetime
    order_id: str
    row_key: str


Due = StepDue | OutDue | DeferredDue | DeadlineDue | OtherDue


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition, committed as a whole or not at all. ``change_of`` makes it.

    ``before`` is None for an order that must not exist yet. ``out_at`` asks for an out row in the
    same transaction: a timer has no message that would be redelivered.
    """

    before: Order | None
    after: Order
    entry: JournalEntry
    out_at: datetime | None = None
    incident: Incident | None = None
    ended: tuple[AlertKind, str] | None = None

    def due_added(self) -> frozenset[StepDue | DeadlineDue]:
        """Return the due rows to write."""
        return due_rows(self.after) - due_rows(self.before)

    def due_removed(self) -> frozenset[StepDue | DeadlineDue]:
        """Return the due rows to delete."""
        return due_rows(self.before) - due_rows(self.after)


def due_rows(order: Order | None) -> frozenset[StepDue | DeadlineDue]:
    """Return one row for every step with a CompleteBy, and one for the deadline."""
    if order is None:
        return frozenset()
    steps = {
        StepDue(at=complete_by, order_id=order.order_id, step=step.number, epoch=step.epoch)
        for step in order.steps
        if (complete_by := step.complete_by) is not None
    }
    if order.deadline is None:
        return frozenset(steps)
    return frozenset({*steps, DeadlineDue(order.deadline, order.order_id)})


def check_finished(order: Order) -> None:
    """Raise IllegalMoveError unless an order is finished, so that it may be removed."""
    if not order.rejected and order.process_state not in FINISHED:
        state = order.process_state.value
        raise IllegalMoveError(
            f"order {order.order_id} is {state}: only a finished order can be removed"
        )


def change_of(
    order: Order | None, decision: Decision, trigger: Trigger, *, commit_id: str, now: datetime
) -> Change:
    """Return the change that commits a decision. There is no other way to make one.

    ``order`` is None if it is not stored yet: then the decision brings its details. A timer has no
    message that would be redelivered, so its change leaves an out row if it sends messages.

    Raises:
        IllegalMoveError: the decision makes a move that ``moves.py`` does not allow, or brings
            details for an order that exists and was not rejected.
    """
    by = trigger.by(order) if order is not None and callable(trigger.by) else str(trigger.by)
    if decision.details is not None:
        at = decision.details.submitted_at
        after = _written(order, decision, decision.details)
    elif order is not None:
        at = now
        because = f"{by}: {trigger.reason}" if trigger.reason else by
        after = _after(order, decision, because, now)
    else:
        raise IllegalMoveError("there is no order to decide about, and no details of a new one")
    if order is not None:
        check_moves(order, after)
    entry = JournalEntry(
        seq=after.seq,
        at=at,
        what=decision.what,
        by=by,
        commit_id=commit_id,
        cause=trigger.cause,
        messages=decision.messages,
        reason=trigger.reason,
        changes=_changes(order, after) if order is not None else (),
    )
    leaves_out_row = trigger.cause is None and decision.messages
    return Change(
        before=order,
        after=after,
        entry=entry,
        out_at=at + OUT_AGAIN_AFTER if leaves_out_row else None,
        incident=decision.incident,
        ended=decision.ended,
    )


def fence(order: Order, what: JournalWord = JournalWord.FENCED) -> Decision:
    """Decide only to record the cause, so that no handler acts on it any more."""
    return Decision(what=what, steps=order.steps, messages=())


def rejection(details: Details) -> Decision:
    """Decide to record a Rejected order under an id that does not exist yet."""
    return Decision(what=JournalWord.REJECTED, steps=(), messages=(), details=details)


def _written(order: Order | None, decision: Decision, details: Details) -> Order:
    """Return an order as it is written first, or in place of a Rejected one."""
    if order is not None and not order.rejected:
        raise IllegalMoveError(
            f"order {order.order_id} is not Rejected: it cannot be submitted again"
        )
    rejected = decision.what is JournalWord.REJECTED
    return Order(
        details=details,
        steps=decision.steps,
        seq=1 if order is None else order.seq + 1,
        deadline=decision.deadline,
        rejected=rejected,
        stopped_at=None if decision.steps else details.submitted_at,
    )


def _changes(before: Order, after: Order) -> tuple[StepChange, ...]:
    """Return what a transition did to each step, for the journal."""
    return tuple(
        StepChange(
            step=new.number,
            before=old.process_state,
            after=new.process_state,
            edited=_is_edited(old, new),
        )
        for old, new in zip(before.steps, after.steps, strict=False)
        if old.process_state is not new.process_state or _is_edited(old, new)
    )


def _is_edited(old: StepRecord, new: StepRecord) -> bool:
    return old.call.generation != new.call.generation


def _undone_because(decision: Decision, because: str) -> str:
    """Return why an undo is decided, for people. ``because`` names the operator, if one did it."""
    match decision.what:
        case JournalWord.UNDO_DECIDED | JournalWord.CANCELLED:
            why = because
        case JournalWord.OVERDUE_UNDO:
            why = "it was past its deadline"
        case _:
            notices = (
                message
                for message in decision.messages
                if isinstance(message, Notify) and message.fault
            )
            notice = next(notices, None)
            if notice is None or notice.fault is None:
                why = decision.what.value
            else:
                name = "a step" if notice.step is None else decision.steps[notice.step].name
                fault = f"{notice.fault.code}: {notice.fault.message}"
                why = f"{name} failed: {quoted(fault, FAULT_SHOWN_MAX)}"
    return shortened(why, UNDONE_BECAUSE_LENGTH_MAX)


def _after(order: Order, decision: Decision, because: str, now: datetime) -> Order:
    """Return the order after a decision.

    A deadline is kept until it was handled, the order is processed, or its undo is decided. An
    acknowledgement is kept while the order stays in Error and no other step fails.
    """
    after = replace(order, steps=decision.steps, seq=order.seq + 1)
    state = after.process_state
    same_state = state is order.process_state
    stopped = order.rejected or state in FINISHED or state is OrderState.ERROR
    ends_deadline = decision.overdue or state in FINISHED or after.direction is Direction.UNDO
    new_errors = _in_error(after) - _in_error(order)
    acknowledged_by = order.acknowledged_by if same_state and not new_errors else None
    begins_undo = order.direction is Direction.DO and after.direction is Direction.UNDO
    return replace(
        after,
        stopped_at=(order.stopped_at if same_state else now) if stopped else None,
        deadline=None if ends_deadline else order.deadline,
        acknowledged_by=decision.acknowledged_by or acknowledged_by,
        undone_because=_undone_because(decision, because) if begins_undo else order.undone_because,
    )


def _in_error(order: Order) -> set[int]:
    return {step.number for step in order.steps if step.process_state is StepState.ERROR}
