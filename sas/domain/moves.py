"""The legal moves: which state may follow which, for steps and for orders, and why.

``check_moves`` refuses a commit that makes any other move. The diagrams in docs/states.md are drawn
from ``STEP_MOVES`` and ``ORDER_MOVES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sas.domain.order import (
    Direction,
    Order,
    OrderState,
    StepRecord,
    StepState,
)


class IllegalMoveError(Exception):
    """A decision makes a move that the tables do not allow. It is a bug; nothing is written."""


@dataclass(frozen=True, slots=True)
class Move:
    """One legal move: from, to, and when."""

    before: Enum
    after: Enum
    when: str


_S = StepState
STEP_MOVES: tuple[Move, ...] = (
    Move(_S.PENDING, _S.PROCESSING, "a scheduler claims it"),
    Move(_S.PROCESSING, _S.PROCESSED, "its agent replied: done"),
    Move(_S.PROCESSING, _S.ERROR, "refused, or past the threshold"),
    Move(_S.PROCESSING, _S.PENDING, "CompleteBy passed: FailureCount + 1; or no call could begin"),
    Move(_S.ERROR, _S.PENDING, "resubmitted, only while the direction is do"),
    Move(_S.ERROR, _S.PROCESSED, "skipped by the operator"),
    Move(_S.PENDING, _S.COMPENSATING, "undo decided, dispatched before"),
    Move(_S.PROCESSING, _S.COMPENSATING, "undo decided"),
    Move(_S.PROCESSED, _S.COMPENSATING, "undo decided"),
    Move(_S.ERROR, _S.COMPENSATING, "undo decided, or a failed undo retried"),
    Move(_S.COMPENSATING, _S.COMPENSATED, "its agent replied: undone"),
    Move(_S.COMPENSATING, _S.ERROR, "the undo was refused, or past the threshold"),
    Move(_S.PENDING, _S.COMPENSATED, "undo decided, never dispatched or nothing to undo"),
    Move(_S.PROCESSING, _S.COMPENSATED, "undo decided, the step has no undo"),
    Move(_S.PROCESSED, _S.COMPENSATED, "undo decided, the step has no undo"),
    Move(_S.ERROR, _S.COMPENSATED, "undo decided, the step has no undo; or undone by hand"),
)

_O = OrderState
ORDER_MOVES: tuple[Move, ...] = (
    Move(_O.REJECTED, _O.PENDING, "submitted again after a rejection"),
    Move(_O.REJECTED, _O.PROCESSED, "the same, of an order without steps"),
    Move(_O.PENDING, _O.PROCESSING, "its first step was claimed"),
    Move(_O.PENDING, _O.COMPENSATING, "undo decided before a step was done"),
    Move(_O.PENDING, _O.COMPENSATED, "undo decided before anything was dispatched"),
    Move(_O.PROCESSING, _O.PENDING, "its first step was reset"),
    Move(_O.PROCESSING, _O.PROCESSED, "its last step was processed"),
    Move(_O.PROCESSING, _O.ERROR, "a step failed"),
    Move(_O.PROCESSING, _O.COMPENSATING, "undo decided"),
    Move(_O.PROCESSING, _O.COMPENSATED, "undo decided, no step has an undo"),
    Move(_O.PROCESSED, _O.COMPENSATING, "undo decided by the operator"),
    Move(_O.PROCESSED, _O.COMPENSATED, "undo decided by the operator, no step has an undo"),
    Move(_O.ERROR, _O.PENDING, "resubmitted, nothing done yet"),
    Move(_O.ERROR, _O.PROCESSING, "resubmitted"),
    Move(_O.ERROR, _O.PROCESSED, "its last step was skipped by the operator"),
    Move(_O.ERROR, _O.COMPENSATING, "undo decided; or a failed undo retried, or done by hand"),
    Move(
        _O.ERROR,
        _O.COMPENSATED,
        "undo decided, no step has an undo; or the last one undone by hand",
    ),
    Move(_O.COMPENSATING, _O.COMPENSATED, "the last undo was confirmed"),
    Move(_O.COMPENSATING, _O.ERROR, "an undo failed"),
)

_STEP_LEGAL = frozenset((move.before, move.after) for move in STEP_MOVES)
_ORDER_LEGAL = frozenset((move.before, move.after) for move in ORDER_MOVES)


def check_moves(before: Order, after: Order) -> None:
    """Raise IllegalMoveError unless the tables allow the move of every step and of the order."""
    if not before.rejected:
        _check_steps(before.order_id, before.steps, after.steps)
    states = (before.process_state, after.process_state)
    if states[0] is not states[1] and states not in _ORDER_LEGAL:
        raise IllegalMoveError(f"order {before.order_id}: {states[0].value} to {states[1].value}")


def _check_steps(order_id: str, before: Sequence[StepRecord], after: Sequence[StepRecord]) -> None:
    if len(before) != len(after):
        raise IllegalMoveError(f"order {order_id}: {len(before)} steps became {len(after)}")
    for old, new in zip(before, after, strict=True):
        if new is old:
            continue
        states = (old.process_state, new.process_state)
        where = f"order {order_id} step {new.name}: {states[0].value} to {states[1].value}"
        if states[0] is not states[1] and states not in _STEP_LEGAL:
            raise IllegalMoveError(where)
        if new.epoch < old.epoch:
            raise IllegalMoveError(f"{where}: epoch {old.epoch} became {new.epoch}")
        if new.epoch > old.epoch and old.dispatched and states[0] is states[1]:
            raise IllegalMoveError(f"{where}: its request is out and would be sent twice")
        if old.epoch and new.call.route != old.call.route:
            raise IllegalMoveError(f"{where}: it would go to another agent")
        if old.direction is Direction.UNDO and new.direction is Direction.DO:
            raise IllegalMoveError(f"{where}: an undo is final")
