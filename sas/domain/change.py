"""A decision, and the change that commits it.

Every decision is one transition: the order before and after, a journal row, and the messages to
send after the commit. All of it is committed in one transaction, or nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

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

UNDONE_BECAUSE_LENGTH_MAX = 300


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

    ``deadline`` is set for a new order only. ``overdue`` says that the deadline has been handled.
    ``acknowledged_by`` names the operator who has seen the order in Error.
    """

    what: JournalWord
    steps: tuple[StepRecord, ...]
    messages: tuple[Outgoing, ...]
    deadline: datetime | None = None
    overdue: bool = False
    acknowledged_by: str | None = None
    incident: Incident | None = None


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
    """A message that its queue did not take is held: send it at ``at``. ``key`` names it."""

    at: datetime
    order_id: str
    key: str


@dataclass(frozen=True, slots=True)
class OtherDue:
    """A due row of an unknown kind, by its key. A newer version wrote it if it wrote the order too.

    If ``order_id`` is empty, the key cannot be read at all.
    """

    at: datetime
    order_id: str
    row_key: str


Due = StepDue | OutDue | DeferredDue | DeadlineDue | OtherDue


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition, committed as a whole or not at all.

    ``before`` is None for an order that must not exist yet. ``out_at`` asks for an out row in the
    same transaction: a timer has no message that would be redelivered.
    """

    before: Order | None
    after: Order
    entry: JournalEntry
    out_at: datetime | None = None
    incident: Incident | None = None

    def due_added(self) -> frozenset[StepDue | DeadlineDue]:
        """Return the due rows to write."""
        return due_rows(self.after) - due_rows(self.before)

    def due_removed(self) -> frozenset[StepDue | DeadlineDue]:
        """Return the due rows to delete."""
        return due_rows(self.before) - due_rows(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a change comes from, as its journal row keeps it: see ``JournalEntry``."""

    by: str
    commit_id: str
    cause: str | None
    at: datetime
    reason: str = ""

    def entry(
        self, seq: int, what: JournalWord, messages: tuple[Outgoing, ...] = ()
    ) -> JournalEntry:
        """Return a journal row of this origin."""
        return JournalEntry(
            seq=seq,
            at=self.at,
            what=what,
            by=self.by,
            commit_id=self.commit_id,
            cause=self.cause,
            messages=messages,
            reason=self.reason,
        )


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


def first_change(details: Details, decision: Decision, origin: Origin) -> Change:
    """Return the change that writes an order for the first time."""
    order = Order(details=details, steps=decision.steps, seq=1, deadline=decision.deadline)
    return Change(before=None, after=order, entry=origin.entry(1, decision.what, decision.messages))


def next_change(
    order: Order, decision: Decision, origin: Origin, out_at: datetime | None = None
) -> Change:
    """Return the change that commits a decision about a stored order.

    Raises:
        IllegalMoveError: the decision makes a move that ``moves.py`` does not allow.
    """
    after = _after(order, decision, origin)
    check_moves(order, after)
    entry = origin.entry(after.seq, decision.what, decision.messages)
    entry = replace(entry, changes=_changes(order, after))
    out_at = out_at if decision.messages else None
    return Change(before=order, after=after, entry=entry, out_at=out_at, incident=decision.incident)


def fence(order: Order, origin: Origin, what: JournalWord = JournalWord.FENCED) -> Change:
    """Return the change that only records a cause, so that no handler acts on it any more."""
    after = replace(order, seq=order.seq + 1)
    return Change(before=order, after=after, entry=origin.entry(after.seq, what))


def rejection(details: Details, origin: Origin) -> Change:
    """Return the change that records a Rejected order under an id that does not exist yet."""
    order = Order(details=details, steps=(), seq=1, stopped_at=origin.at, rejected=True)
    return Change(before=None, after=order, entry=origin.entry(1, JournalWord.REJECTED))


def revival(rejected: Order, details: Details, decision: Decision, origin: Origin) -> Change:
    """Return the change that submits an order again in place of a Rejected one.

    Raises:
        IllegalMoveError: the stored order is not Rejected.
    """
    if not rejected.rejected:
        raise IllegalMoveError(
            f"order {rejected.order_id} is not Rejected: it cannot be submitted again"
        )
    after = Order(
        details=details, steps=decision.steps, seq=rejected.seq + 1, deadline=decision.deadline
    )
    check_moves(rejected, after)
    return Change(
        before=rejected,
        after=after,
        entry=origin.entry(after.seq, decision.what, decision.messages),
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


def _undone_because(decision: Decision, origin: Origin) -> str:
    """Return why an undo is decided, for people."""
    match decision.what:
        case JournalWord.UNDO_DECIDED | JournalWord.CANCELLED:
            why = f"{origin.by}: {origin.reason}" if origin.reason else origin.by
        case JournalWord.OVERDUE_UNDO:
            why = "it was past its deadline"
        case _:
            notes = (one for one in decision.messages if isinstance(one, Notify) and one.fault)
            first = next(notes, None)
            fault = first.fault if first else None
            name = decision.steps[first.step].name if first and first.step is not None else "a step"
            why = f"{name} failed: {fault.code}: {fault.message}" if fault else decision.what.value
    return why[:UNDONE_BECAUSE_LENGTH_MAX]


def _after(order: Order, decision: Decision, origin: Origin) -> Order:
    """Return the order after a decision.

    A deadline is kept until the order is processed or its undo is decided. An acknowledgement is
    kept while the order stays in the Error that was seen.
    """
    after = replace(order, steps=decision.steps, seq=order.seq + 1)
    state = after.process_state
    same = state is order.process_state
    stopped = state in FINISHED or state is OrderState.ERROR
    over = decision.overdue or state in FINISHED or after.direction is Direction.UNDO
    new_errors = _in_error(after) - _in_error(order)
    kept = order.acknowledged_by if same and not new_errors else None
    begins_undo = order.direction is Direction.DO and after.direction is Direction.UNDO
    return replace(
        after,
        stopped_at=(order.stopped_at if same else origin.at) if stopped else None,
        deadline=None if over else order.deadline,
        acknowledged_by=decision.acknowledged_by or kept,
        undone_because=_undone_because(decision, origin) if begins_undo else order.undone_because,
    )


def _in_error(order: Order) -> set[int]:
    return {step.number for step in order.steps if step.process_state is StepState.ERROR}
