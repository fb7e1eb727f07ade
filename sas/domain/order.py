"""Orders and steps: what is known of them. The moves they may make are in ``moves.py``.

The rules, in the order a reader needs them:

* A step is Pending until a scheduler claims it (LockedBy, CompleteBy, Processing). An
  agent's reply makes it Processed, or Error when the remote service refused for good.
* A step whose CompleteBy passes is reset to Pending by the supervisor, FailureCount + 1;
  past its threshold it becomes Error, or the whole order is undone.
* Undo turns every step that was ever dispatched to Compensating, then Compensated. A
  step that was never dispatched (epoch 0), or that names no undo, is Compensated at once.
  Once undo was decided there is no way back to do.
* The state of an order is a pure function of its steps' states (``roll_up``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from sas.domain.content import Content
from sas.domain.ids import key_time


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

    @property
    def submission(self) -> str:
        """16 hex digits that tell this order from a later one under the same id.

        The id is free again once an order is purged.
        """
        text = f"{key_time(self.submitted_at)}|{self.content_hash}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


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
