"""Orders, steps and the moves they may make.

The rules, in the order a reader needs them:

* A step is Pending until a scheduler claims it (LockedBy, CompleteBy, Processing). An
  agent's reply makes it Processed, or Error when the remote service refused for good.
* A step whose CompleteBy passes is reset to Pending by the supervisor, FailureCount + 1;
  past its threshold it becomes Error, or the whole order is undone.
* Undo turns every step that was ever dispatched to Compensating, then Compensated. A
  step that was never dispatched (epoch 0), or that names no undo, is Compensated at once.
  Once undo was decided there is no way back to do.
* The state of an order is a pure function of its steps' states (``roll_up``).

``STEP_MOVES`` and ``ORDER_MOVES`` are the law: ``check_moves`` refuses a commit that
breaks them, and the diagram in the docs is drawn from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from sas.domain.blobs import Content


class StepState(Enum):
    """ProcessState of a step, with the pattern's own names."""

    PENDING = "Pending"
    PROCESSING = "Processing"
    PROCESSED = "Processed"
    ERROR = "Error"
    COMPENSATING = "Compensating"
    COMPENSATED = "Compensated"


class OrderState(Enum):
    """ProcessState of an order: its steps' states rolled up, or Rejected (never begun)."""

    PENDING = "Pending"
    PROCESSING = "Processing"
    PROCESSED = "Processed"
    ERROR = "Error"
    COMPENSATING = "Compensating"
    COMPENSATED = "Compensated"
    REJECTED = "Rejected"


class Direction(Enum):
    """Which way a step goes: forward, or being undone."""

    DO = "do"
    UNDO = "undo"


class UndoRecord(Enum):
    """How the undo of one step stands: the ledger of a compensation."""

    NOT_NEEDED = "not needed"
    UNDOING = "undoing"
    UNDONE = "undone"
    FAILED = "undo failed"
    BY_HAND = "undone by hand"


FINISHED = frozenset({OrderState.PROCESSED, OrderState.COMPENSATED})


class IllegalMoveError(Exception):
    """A decision would make a move that no row of the tables allows: a bug, nothing was written."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a step failed: a short code for programs and a sentence for people (bounded)."""

    code: str
    message: str

    MESSAGE_LENGTH_MAX = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.code[:100])
        object.__setattr__(self, "message", self.message[: self.MESSAGE_LENGTH_MAX])


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one order as the state store keeps it.

    ``since`` is when process_state last changed, or since when it is the step's turn.
    ``epoch`` counts dispatches: a reply counts only for the current one. ``hold`` keeps a
    Pending step from being claimed until complete_by (the pattern's extended wait), and a
    Compensating one until no call of its do can still land. ``waits`` counts extended waits;
    ``called_until`` is the CompleteBy of its last do; ``undo`` is its line in the ledger of a
    compensation. ``result`` is JSON text, or what stands for it where it is large; ``edited``
    (an operator's input instead of the order's) is JSON text. Direction UNDO while Processing:
    cancelled, to be undone once it is back. ``note`` is what its agent last said of its
    progress; None once it is no longer out.
    ``route`` is the agent (by number) that the last do went to; ``tried`` are the routes to be
    undone: while do goes on, those where an earlier do may have had its effect as well.
    """

    number: int
    name: str
    process_state: StepState
    since: datetime
    locked_by: str | None = None
    complete_by: datetime | None = None
    failure_count: int = 0
    direction: Direction = Direction.DO
    epoch: int = 0
    generation: int = 0
    hold: bool = False
    result: Content | None = None
    error: Fault | None = None
    waits: int = 0
    called_until: datetime | None = None
    undo: UndoRecord | None = None
    edited: str | None = None
    note: str | None = None
    route: int = 0
    tried: tuple[int, ...] = ()

    @property
    def dispatched(self) -> bool:
        """Whether a request of this step may be out right now."""
        return self.locked_by is not None


@dataclass(frozen=True, slots=True)
class Details:
    """What was ordered and by whom. Written once, never changed. ``payload`` is JSON text,
    or what stands for it where it is large.

    ``traceparent`` (W3C) names the trace it was submitted in, so that what happens to the order
    by time alone goes on in that trace; None where it came without one, or before there was any.
    ``urgent`` orders travel in lanes of their own.
    """

    order_id: str
    workflow: str
    version: int
    payload: Content
    content_hash: str
    reply_queue: str
    correlation_id: str | None
    submitted_at: datetime
    traceparent: str | None = None
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """Everything about one order but its journal: what is loaded, decided upon and committed.

    ``token`` is the store's own (an ETag); None for an order not yet stored. ``settled_at``
    is when the order entered Error or finished, None while it is under way. ``deadline`` is
    when the whole must be done, None once it no longer matters; ``acknowledged_by`` is who
    has seen that the order is in Error.
    """

    details: Details
    steps: tuple[StepRecord, ...]
    seq: int = 0
    settled_at: datetime | None = None
    rejected: bool = False
    deadline: datetime | None = None
    acknowledged_by: str | None = None
    token: str | None = field(default=None, compare=False)

    @property
    def order_id(self) -> str:
        """OrderID."""
        return self.details.order_id

    @property
    def process_state(self) -> OrderState:
        """ProcessState, rolled up from the steps."""
        return OrderState.REJECTED if self.rejected else roll_up(self.steps)

    @property
    def locked_by(self) -> str | None:
        """LockedBy: the scheduler instance holding the steps under way, if any."""
        return next((step.locked_by for step in self.steps if step.locked_by), None)

    @property
    def complete_by(self) -> datetime | None:
        """CompleteBy: the earliest of the steps whose turn it is."""
        return min((step.complete_by for step in self.steps if step.complete_by), default=None)

    @property
    def failure_count(self) -> int:
        """FailureCount: of all steps together."""
        return sum(step.failure_count for step in self.steps)

    @property
    def direction(self) -> Direction:
        """Undo once undo was decided, for good."""
        undoing = any(step.direction is Direction.UNDO for step in self.steps)
        return Direction.UNDO if undoing else Direction.DO


def roll_up(steps: Iterable[StepRecord]) -> OrderState:
    """Return the state of an order from its steps' states.

    It is not Processed before what other agents may have done besides is undone.
    """
    whole = tuple(steps)
    states = {step.process_state for step in whole}
    if StepState.ERROR in states:
        return OrderState.ERROR
    if states == {StepState.PROCESSED} and not any(step.tried for step in whole):
        return OrderState.PROCESSED
    if states == {StepState.COMPENSATED}:
        return OrderState.COMPENSATED
    if states & {StepState.COMPENSATING, StepState.COMPENSATED}:
        return OrderState.COMPENSATING
    if states & {StepState.PROCESSING, StepState.PROCESSED}:
        return OrderState.PROCESSING
    return OrderState.PENDING


@dataclass(frozen=True, slots=True)
class Move:
    """One row of the law: from, to, on what condition, and whose sentence it is."""

    before: Enum
    after: Enum
    when: str


_S = StepState
STEP_MOVES: tuple[Move, ...] = (
    Move(_S.PENDING, _S.PROCESSING, "a scheduler claims it"),
    Move(_S.PROCESSING, _S.PROCESSED, "its agent replied: done"),
    Move(_S.PROCESSING, _S.ERROR, "refused for good, or past the threshold"),
    Move(_S.PROCESSING, _S.PENDING, "CompleteBy passed: FailureCount + 1; or agent not to be had"),
    Move(_S.PROCESSED, _S.ERROR, "the undo at an agent tried before failed for good"),
    Move(_S.ERROR, _S.PENDING, "resubmitted, only while the direction is do"),
    Move(_S.ERROR, _S.PROCESSED, "skipped by the operator; or that undo is tried again"),
    Move(_S.PENDING, _S.COMPENSATING, "undo decided, dispatched before"),
    Move(_S.PROCESSING, _S.COMPENSATING, "undo decided"),
    Move(_S.PROCESSED, _S.COMPENSATING, "undo decided"),
    Move(_S.ERROR, _S.COMPENSATING, "undo decided, or a failed undo retried"),
    Move(_S.COMPENSATING, _S.COMPENSATED, "its agent replied: undone"),
    Move(_S.COMPENSATING, _S.ERROR, "the undo was refused, or past the threshold"),
    Move(_S.PENDING, _S.COMPENSATED, "undo decided, never dispatched or nothing to undo"),
    Move(_S.PROCESSING, _S.COMPENSATED, "undo decided, the step names no undo"),
    Move(_S.PROCESSED, _S.COMPENSATED, "undo decided, the step names no undo"),
    Move(_S.ERROR, _S.COMPENSATED, "undo decided, no undo named; or undone by hand"),
)

_O = OrderState
ORDER_MOVES: tuple[Move, ...] = (
    Move(_O.REJECTED, _O.PENDING, "submitted anew after a rejection"),
    Move(_O.PENDING, _O.PROCESSING, "its first step was claimed"),
    Move(_O.PENDING, _O.COMPENSATING, "undo decided before a step was done"),
    Move(_O.PENDING, _O.COMPENSATED, "undo decided before anything was dispatched"),
    Move(_O.PROCESSING, _O.PENDING, "its first step was reset"),
    Move(_O.PROCESSING, _O.PROCESSED, "its last step was processed"),
    Move(_O.PROCESSING, _O.ERROR, "a step failed for good"),
    Move(_O.PROCESSING, _O.COMPENSATING, "undo decided"),
    Move(_O.PROCESSING, _O.COMPENSATED, "undo decided, no step names an undo"),
    Move(_O.PROCESSED, _O.COMPENSATING, "undo decided by the operator"),
    Move(_O.PROCESSED, _O.COMPENSATED, "undo decided by the operator, no step names an undo"),
    Move(_O.ERROR, _O.PENDING, "resubmitted, nothing done yet"),
    Move(_O.ERROR, _O.PROCESSING, "resubmitted"),
    Move(_O.ERROR, _O.PROCESSED, "its last step was skipped by the operator"),
    Move(_O.ERROR, _O.COMPENSATING, "undo decided, or a failed undo retried or done by hand"),
    Move(_O.ERROR, _O.COMPENSATED, "undo decided, no undo named; or the last done by hand"),
    Move(_O.COMPENSATING, _O.COMPENSATED, "the last undo was confirmed"),
    Move(_O.COMPENSATING, _O.ERROR, "an undo failed for good"),
)

_STEP_LAW = frozenset((move.before, move.after) for move in STEP_MOVES)
_ORDER_LAW = frozenset((move.before, move.after) for move in ORDER_MOVES)


def check_moves(before: Order, after: Order) -> None:
    """Raise IllegalMoveError unless every step's move, and the order's, is in the law."""
    if not before.rejected:
        _check_steps(before.order_id, before.steps, after.steps)
    states = (before.process_state, after.process_state)
    if states[0] is not states[1] and states not in _ORDER_LAW:
        raise IllegalMoveError(f"order {before.order_id}: {states[0].value} to {states[1].value}")


def _check_steps(order_id: str, before: Sequence[StepRecord], after: Sequence[StepRecord]) -> None:
    if len(before) != len(after):
        raise IllegalMoveError(f"order {order_id}: {len(before)} steps became {len(after)}")
    for old, new in zip(before, after, strict=True):
        states = (old.process_state, new.process_state)
        where = f"order {order_id} step {new.name}: {states[0].value} to {states[1].value}"
        if states[0] is not states[1] and states not in _STEP_LAW:
            raise IllegalMoveError(where)
        if new.epoch < old.epoch:
            raise IllegalMoveError(f"{where}: epoch {old.epoch} became {new.epoch}")
        again = new.epoch > old.epoch and old.dispatched and states[0] is states[1]
        if again and (new.route, new.tried) == (old.route, old.tried):  # at the same agent
            raise IllegalMoveError(f"{where}: it is out already and would be claimed twice")
        if old.direction is Direction.UNDO and new.direction is Direction.DO:
            raise IllegalMoveError(f"{where}: there is no way back from undo")
