"""Orders and steps: the record that the scheduler keeps in the state store.

"As each step is performed, the Scheduler records the state of the workflow": OrderID, LockedBy,
CompleteBy, ProcessState, FailureCount. ``moves.py`` says which state may follow which. In short:

* A step is Pending until a scheduler claims it (LockedBy, CompleteBy, Processing). The reply of
  its agent makes it Processed, or Error when the remote service refused.
* The supervisor resets a step whose CompleteBy has passed to Pending and adds 1 to FailureCount.
  Past the threshold the step becomes Error, or the whole order is undone.
* An undo turns every step that was dispatched to Compensating, then to Compensated. A step that
  was never dispatched (epoch 0), or has no undo, is Compensated at once. An undo is final.
* The state of an order is a pure function of the states of its steps (``roll_up``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from types import NoneType

from sas.domain.content import Content
from sas.domain.ids import digest_id, key_time
from sas.domain.texts import shortened

CLOCK_SKEW = timedelta(seconds=5)
"""The largest difference between the clocks of two instances that the rules allow for."""


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


FINISHED = frozenset({OrderState.PROCESSED, OrderState.COMPENSATED})


class Direction(Enum):
    """Whether a step is done or undone."""

    DO = "do"
    UNDO = "undo"


class FaultCode(StrEnum):
    """The codes of faults that this system sets itself. A remote service has codes of its own."""

    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    OVERDUE = "overdue"
    UNKNOWN_ORDER = "unknown-order"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a step failed: a short code for programs and a sentence for people (bounded)."""

    code: str
    message: str

    MESSAGE_LENGTH_MAX = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.code[:100])
        object.__setattr__(self, "message", shortened(self.message, self.MESSAGE_LENGTH_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """The last error of an agent's attempts at one dispatch of a step, bounded.

    The agent writes it beside the order as soon as an attempt fails, so it may be gone or stale. It
    explains a timeout to people. No decision depends on it, and no commit writes it. For a bug of
    the agent, ``attempt`` is the number of failures in a row.
    """

    epoch: int
    attempt: int
    kind: str
    message: str
    at: datetime

    MESSAGE_LENGTH_MAX = 500
    BUG = "agent-bug"
    HELD = "held"
    PAUSE_MAX = timedelta(minutes=5)
    """Longest pause before an agent that has a bug is called again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.kind[:100])
        object.__setattr__(self, "message", shortened(self.message, self.MESSAGE_LENGTH_MAX))

    @property
    def again_by(self) -> datetime | None:
        """When the agent is called again at the latest if it has a bug; None after other errors."""
        if self.kind not in {self.BUG, self.HELD}:
            return None
        return self.at + min(timedelta(seconds=2.0 ** min(self.attempt, 30)), self.PAUSE_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """A request of the step is out. ``note`` is the last progress note of its agent.

    ``excused`` is how often CompleteBy passed while a message of the step lay in a queue that did
    not move. ``awaits`` says that a callback ends the step, so no further call goes out.
    """

    locked_by: str
    complete_by: datetime
    note: str | None = None
    excused: int = 0
    awaits: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A scheduler may claim the step. It is woken again at ``look_again_at``."""

    look_again_at: datetime


@dataclass(frozen=True, slots=True)
class Resting:
    """No scheduler may claim the step before ``not_before``.

    A step rests before it is tried again (back-off, extended wait, no call could begin). Before an
    undo it rests as long as an earlier call to do it may still arrive.
    """

    not_before: datetime


Turn = Dispatched | Ready | Resting | None
"""Which actor must act on a step next. None: the step is blocked or finished."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a step timed out, and how many extended waits it has had since."""

    count: int = 0
    extended_waits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCall:
    """The last request to do the step: which agent (by number), with which input, until when.

    ``route`` is chosen at the first dispatch and never changes: every call of a step goes to one
    agent. ``called_until`` is the last moment at which a call may begin; None before the first
    dispatch.
    ``edited`` is the JSON input that an operator gave in place of the order. ``generation`` counts
    such inputs: it is part of the idempotency key.
    """

    route: int = 0
    called_until: datetime | None = None
    generation: int = 0
    edited: str | None = None


class UndoStatus(Enum):
    """The state of one step's undo."""

    NOT_DECIDED = "-"
    TO_BE_UNDONE = "to be undone"
    """The order was cancelled while the step was out: the undo begins when it has ended."""
    NOT_NEEDED = "not needed"
    UNDOING = "undoing"
    UNDONE = "undone"
    BY_HAND = "undone by hand"
    FAILED = "undo failed"


_S = StepState
STEP_FORMS: Mapping[StepState, tuple[tuple[type, ...], tuple[UndoStatus, ...]]] = {
    _S.PENDING: ((NoneType, Ready, Resting), (UndoStatus.NOT_DECIDED,)),
    _S.PROCESSING: ((Dispatched,), (UndoStatus.NOT_DECIDED, UndoStatus.TO_BE_UNDONE)),
    _S.PROCESSED: ((NoneType,), (UndoStatus.NOT_DECIDED,)),
    _S.ERROR: ((NoneType,), (UndoStatus.NOT_DECIDED, UndoStatus.FAILED)),
    _S.COMPENSATING: ((NoneType, Dispatched, Ready, Resting), (UndoStatus.UNDOING,)),
    _S.COMPENSATED: (
        (NoneType,),
        (UndoStatus.NOT_NEEDED, UndoStatus.UNDONE, UndoStatus.BY_HAND),
    ),
}
"""The turns and the states of the undo that a step may have in each ProcessState."""
_NEVER_DISPATCHED = frozenset({_S.PENDING, _S.COMPENSATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one order as the state store keeps it.

    ``since`` is when ProcessState last changed, or when the step became ready. ``epoch`` counts
    dispatches: a reply counts only for the current one. ``result`` is JSON text, or the reference
    to a large one. ``last_error`` is read with the step and never written with it.

    Raises:
        ValueError: ``STEP_FORMS`` has no such step. Or the step was never dispatched, but is
            neither Pending nor Compensated. Or it is in Error without an error.
    """

    number: int
    name: str
    process_state: StepState
    since: datetime
    turn: Turn = None
    epoch: int = 0
    failures: Failures = Failures()
    call: LastCall = LastCall()
    result: Content | None = None
    error: Fault | None = None
    undo: UndoStatus = UndoStatus.NOT_DECIDED
    last_error: AttemptError | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        state, turn = self.process_state, self.turn
        turns, undos = STEP_FORMS[state]
        if type(turn) not in turns or self.undo not in undos:
            form = "neither" if turn is None else type(turn).__name__
            raise ValueError(
                f"ProcessState {state.value} of step {self.name} does not fit LockedBy and "
                f"CompleteBy ({form}), or Undo ({self.undo.value})"
            )
        if not self.epoch and state not in _NEVER_DISPATCHED:
            raise ValueError(f"step {self.name} is {state.value}, but Epoch is 0")
        if state is StepState.ERROR and self.error is None:
            raise ValueError(f"step {self.name} is in Error, but ErrorCode is missing")

    @property
    def locked_by(self) -> str | None:
        """LockedBy: the scheduler instance that dispatched the request that is out."""
        return self.turn.locked_by if isinstance(self.turn, Dispatched) else None

    @property
    def complete_by(self) -> datetime | None:
        """CompleteBy: when the supervisor looks at the step. A reply must come before."""
        match self.turn:
            case Dispatched():
                return self.turn.complete_by
            case Ready():
                return self.turn.look_again_at
            case Resting():
                return self.turn.not_before
            case None:
                return None

    @property
    def failure_count(self) -> int:
        """FailureCount."""
        return self.failures.count

    @property
    def note(self) -> str | None:
        """The last progress note of its agent."""
        return self.turn.note if isinstance(self.turn, Dispatched) else None

    @property
    def direction(self) -> Direction:
        """Whether the step is to be done or undone."""
        return Direction.DO if self.undo is UndoStatus.NOT_DECIDED else Direction.UNDO

    @property
    def dispatched(self) -> bool:
        """Whether a request of this step may be out right now."""
        return isinstance(self.turn, Dispatched)

    @property
    def awaits_callback(self) -> bool:
        """Whether the step (or its undo) waits for a callback until CompleteBy."""
        return isinstance(self.turn, Dispatched) and self.turn.awaits

    @property
    def resting(self) -> bool:
        """Whether no scheduler may claim the step yet."""
        return isinstance(self.turn, Resting)

    @property
    def undo_failed(self) -> bool:
        """Whether its undo failed."""
        return self.undo is UndoStatus.FAILED

    @property
    def fingerprint(self) -> str:
        """``step/code`` of a step in Error. Steps that failed alike have the same, on one line."""
        code = self.error.code if self.error else "unknown"
        return f"{self.name}/{code}".replace("\n", " ")

    def moved(
        self,
        state: StepState,
        now: datetime,
        *,
        turn: Turn = None,
        undo: UndoStatus | None = None,
        error: Fault | None = None,
    ) -> StepRecord:
        """Return the step in another state. Without ``undo`` and ``error`` its own ones stay."""
        undo, error = undo or self.undo, error or self.error
        return replace(self, process_state=state, since=now, turn=turn, undo=undo, error=error)

    def without_failures(self) -> StepRecord:
        """Return the step with its failures and its error cleared."""
        return replace(self, failures=Failures(), error=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What was ordered and by whom. It is written once and never changes.

    ``payload`` is JSON text, or the reference to a large one. ``traceparent`` (W3C) names the trace
    in which the order was submitted: transitions of a timer belong to that trace. ``urgent`` orders
    have a lane of their own.
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
        """16 hex digits that differ from those of a later order under the same id.

        The id is free again once an order is purged.
        """
        return digest_id(self.order_id, key_time(self.submitted_at))[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything about one order except its journal.

    ``token`` is the ETag of the store; None for an order not yet stored. ``stopped_at`` is when the
    order entered Error or finished; None while it is under way. ``deadline`` is when the whole
    order must be done; None if there is none, and once it was handled, the order is processed or
    its undo is decided. ``acknowledged_by`` names the operator who has seen the Error.
    ``undone_because`` says why its undo was decided.
    """

    details: Details
    steps: tuple[StepRecord, ...]
    seq: int = 0
    stopped_at: datetime | None = None
    rejected: bool = False
    deadline: datetime | None = None
    acknowledged_by: str | None = None
    undone_because: str | None = None
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
        """LockedBy: the scheduler instance that dispatched a step under way, if any."""
        return next((step.locked_by for step in self.steps if step.locked_by), None)

    @property
    def complete_by(self) -> datetime | None:
        """CompleteBy: the earliest of all steps."""
        return min((step.complete_by for step in self.steps if step.complete_by), default=None)

    @property
    def failure_count(self) -> int:
        """FailureCount: the sum over all steps."""
        return sum(step.failure_count for step in self.steps)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint of each step in Error."""
        failed = (step for step in self.steps if step.process_state is StepState.ERROR)
        return tuple(step.fingerprint for step in failed)

    @property
    def error_text(self) -> str:
        """The errors of its steps in Error, as one text; empty if there are none."""
        failed = (step for step in self.steps if step.process_state is StepState.ERROR)
        return "; ".join(
            f"{step.error.code}: {step.error.message}" for step in failed if step.error
        )

    @property
    def direction(self) -> Direction:
        """Undo as soon as the undo of one step is decided. It never goes back to do."""
        undoing = any(step.direction is Direction.UNDO for step in self.steps)
        return Direction.UNDO if undoing else Direction.DO


def roll_up(steps: Iterable[StepRecord]) -> OrderState:
    """Return the state of an order from its steps' states."""
    states = [step.process_state for step in steps]  # no set: it is slow for members of an enum
    if StepState.ERROR in states:
        return OrderState.ERROR
    processed = states.count(StepState.PROCESSED)
    compensated = states.count(StepState.COMPENSATED)
    if processed == len(states):  # also of no step at all
        return OrderState.PROCESSED
    if compensated == len(states):
        return OrderState.COMPENSATED
    if compensated or StepState.COMPENSATING in states:
        return OrderState.COMPENSATING
    if processed or StepState.PROCESSING in states:
        return OrderState.PROCESSING
    return OrderState.PENDING
