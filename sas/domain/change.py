"""What a decision is: what to commit, and what to send once that is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sas.domain.messages import AlertKind, JournalEntry, Outgoing
from sas.domain.moves import IllegalMoveError, check_moves
from sas.domain.order import FINISHED, Details, Direction, Order, OrderState, StepRecord, StepState


@dataclass(frozen=True, slots=True)
class Decision:
    """What to commit: a word for the journal, the steps as they will be, what to send.

    ``deadline`` is a new order's; ``overdue`` says that a deadline has been acted upon;
    ``acknowledged_by`` is who has seen an order in Error. ``condition`` is what the order met that
    is wrong with the system rather than with it.
    """

    what: str
    steps: tuple[StepRecord, ...]
    messages: tuple[Outgoing, ...]
    deadline: datetime | None = None
    overdue: bool = False
    acknowledged_by: str | None = None
    condition: Incident | None = None


FENCED = "fenced"


REJECTED = "rejected"
"""The two words of journal rows that only keep a cause from being acted upon."""


@dataclass(frozen=True, slots=True, order=True)
class StepDue:
    """One step whose turn it is: look at it again at ``at``."""

    at: datetime
    order_id: str
    step: int
    epoch: int


@dataclass(frozen=True, slots=True, order=True)
class OutDue:
    """Messages of journal row ``seq`` not yet known to be sent: send them again at ``at``."""

    at: datetime
    order_id: str
    seq: int


@dataclass(frozen=True, slots=True, order=True)
class DeadlineDue:
    """The time the whole order was given ends at ``at``."""

    at: datetime
    order_id: str


Due = StepDue | OutDue | DeadlineDue


@dataclass(frozen=True, slots=True)
class Change:
    """One transition, to be committed whole or not at all.

    ``before`` is None for an order that must not exist yet. ``out_at`` asks for an out row in
    the same transaction (a timer has no redelivery).
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


def due_rows(order: Order | None) -> frozenset[StepDue | DeadlineDue]:
    """Return one row for every step whose turn it is, none for blocked or finished ones; and one
    for the deadline, while there is one.
    """
    if order is None:
        return frozenset()
    steps = {
        StepDue(step.complete_by, order.order_id, step.number, step.epoch)
        for step in order.steps
        if step.complete_by is not None
    }
    if order.deadline is None:
        return frozenset(steps)
    return frozenset({*steps, DeadlineDue(order.deadline, order.order_id)})


def check_finished(order: Order) -> None:
    """Raise IllegalMoveError unless an order has come to its end, so that it may be removed."""
    if not order.rejected and order.process_state not in FINISHED:
        state = order.process_state.value
        raise IllegalMoveError(f"order {order.order_id} is {state}: only a finished one is removed")


def first_change(
    details: Details, decision: Decision, *, by: str, commit_id: str, cause: str, at: datetime
) -> Change:
    """Return the change that writes an order for the first time."""
    order = Order(details, decision.steps, seq=1, deadline=decision.deadline)
    entry = JournalEntry(1, at, decision.what, by, commit_id, cause, decision.messages)
    return Change(None, order, entry)


def next_change(
    order: Order,
    decision: Decision,
    *,
    by: str,
    commit_id: str,
    cause: str | None,
    at: datetime,
    out_at: datetime | None = None,
) -> Change:
    """Return the change that makes a decision upon a stored order.

    Raises:
        IllegalMoveError: when the decision breaks the law of moves.
    """
    after = _after(order, decision, at)
    check_moves(order, after)
    entry = JournalEntry(after.seq, at, decision.what, by, commit_id, cause, decision.messages)
    out_at = out_at if decision.messages else None
    return Change(order, after, entry, out_at, decision.condition)


def fence(order: Order, *, by: str, commit_id: str, cause: str, at: datetime) -> Change:
    """Return the change that only remembers a cause, so that nobody acts upon it any more."""
    after = replace(order, seq=order.seq + 1)
    return Change(order, after, JournalEntry(after.seq, at, FENCED, by, commit_id, cause, ()))


def rejection(details: Details, *, by: str, commit_id: str, cause: str, at: datetime) -> Change:
    """Return the change that keeps a place with a Rejected order, where no order exists."""
    order = Order(details, (), seq=1, settled_at=at, rejected=True)
    entry = JournalEntry(1, at, REJECTED, by, commit_id, cause, ())
    return Change(None, order, entry)


def revival(
    rejected: Order,
    details: Details,
    decision: Decision,
    *,
    by: str,
    commit_id: str,
    cause: str,
    at: datetime,
) -> Change:
    """Return the change that puts an order submitted anew in the place of a Rejected one.

    Raises:
        IllegalMoveError: when the place is an order's that was not rejected.
    """
    if not rejected.rejected:
        raise IllegalMoveError(f"order {rejected.order_id} was not rejected: it keeps its place")
    after = Order(details, decision.steps, seq=rejected.seq + 1, deadline=decision.deadline)
    check_moves(rejected, after)
    entry = JournalEntry(after.seq, at, decision.what, by, commit_id, cause, decision.messages)
    return Change(rejected, after, entry)


def _after(order: Order, decision: Decision, at: datetime) -> Order:
    """Return the order as it will be: numbered, settled or not, with what still matters of it.

    A deadline matters until the order is processed or being undone; that somebody has seen an
    Error, as long as the order stays in it.
    """
    after = replace(order, steps=decision.steps, seq=order.seq + 1)
    state = after.process_state
    same = state is order.process_state
    settled = state in FINISHED or state is OrderState.ERROR
    over = decision.overdue or state in FINISHED or after.direction is Direction.UNDO
    news = _in_error(after) - _in_error(order)
    seen = decision.acknowledged_by or (order.acknowledged_by if same and not news else None)
    return replace(
        after,
        settled_at=(order.settled_at if same else at) if settled else None,
        deadline=None if over else order.deadline,
        acknowledged_by=seen,
    )


def _in_error(order: Order) -> set[int]:
    return {step.number for step in order.steps if step.process_state is StepState.ERROR}


@dataclass(frozen=True, slots=True)
class Incident:
    """What one order met. ``scope`` is what it is about, of which there are few (a workflow's
    version, a lane), ``text`` what is wrong and what to do, naming no order.

    ``since`` is from when on it lasts for this order, ``until`` when the order is looked at again.
    """

    kind: AlertKind
    scope: str
    text: str
    since: datetime
    until: datetime
