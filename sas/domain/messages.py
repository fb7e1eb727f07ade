"""What the actors send to each other, and what the journal keeps of each transition.

``Outgoing`` values are descriptors of some 100 bytes. A commit records them in the journal, and the
messages are built from them and from data that no longer changes. So after any crash the same
messages are sent, with the same ids.

The journal keeps no bodies, because one transaction may send 30 requests with an order of 256 KB
each, and Table Storage takes 4 MiB.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import ClassVar

from sas.domain.content import Content
from sas.domain.order import Direction, Fault, StepState
from sas.domain.texts import shortened


class JournalWord(StrEnum):
    """What a transition did: the word that people read in the journal."""

    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    PROGRESS = "progress"
    STEP_PROCESSED = "step processed"
    STEP_FAILED = "step failed"
    STEP_FAILED_UNDO = "step failed, undo decided"
    STEP_RESET = "step reset"
    UNDO_RESET = "undo reset"
    WAITS_IN_QUEUE = "waits in its queue"
    """CompleteBy passed while a message of the step lay in a queue: no failure, and more time."""
    QUEUE_AWAY = "its queue is away"
    """CompleteBy passed while a queue of the step could not be read: no failure, and more time."""
    WAITING = "waiting: no call could begin"
    """This word is also used if the probe of an open circuit failed."""
    EXTENDED_WAIT = "extended wait"
    RELEASED = "released"
    """The rest is over: a scheduler may claim the step again."""
    WOKEN_AGAIN = "woken again"
    POSTPONED = "postponed"
    """The workflow of the order is not deployed here."""
    OVERDUE = "overdue"
    OVERDUE_UNDO = "overdue, undo decided"
    CALLBACK_ACCEPTED = "callback accepted"
    CALLBACK_SENT = "callback sent"
    """Its result waits on the queue. No other result of its token is accepted meanwhile."""
    STEP_UNDONE = "step undone"
    UNDO_FAILED = "undo failed"
    RESUBMITTED = "resubmitted"
    SKIPPED = "skipped"
    UNDONE_BY_HAND = "undone by hand"
    UNDO_DECIDED = "undo decided"
    CANCELLED = "cancelled"
    CANCELLED_STEP = "cancelled step ended"
    ACKNOWLEDGED = "acknowledged"
    FENCED = "fenced"
    """Nothing was done: the cause is recorded so that no slow handler can act on it later."""
    REJECTED = "rejected"

    @property
    def acts(self) -> bool:
        """Whether the transition acted on its cause, rather than only recorded it."""
        return self not in {JournalWord.FENCED, JournalWord.REJECTED}


class Notice(Enum):
    """The kinds of notification that an application reads from its response queue."""

    RECEIVED = "received"
    STEP_COMPLETED = "step-completed"
    COMPLETED = "completed"
    FAILED = "failed"
    UNDONE = "undone"
    REJECTED = "rejected"


class AlertKind(Enum):
    """The kinds of alert that an operator reads."""

    STEP_FAILED = "step-failed"
    UNDO_FAILED = "undo-failed"
    NOT_PICKED_UP = "not-picked-up"
    REJECTED = "rejected"
    DEAD_LETTERED = "dead-lettered"
    UNDELIVERABLE = "undeliverable"
    COMMAND_REFUSED = "command-refused"
    NOT_RUNNABLE = "not-runnable"
    WAITING = "waiting"
    OVERDUE = "overdue"
    BREAKER_OPEN = "breaker-open"
    AGENT_FAILING = "agent-failing"
    UNREADABLE = "unreadable"
    QUEUE_DELAY = "queue-delay"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Wake:
    """Ask a scheduler to look at the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask the agent of a step to do or undo it. The epoch fences its reply."""

    step: int
    direction: Direction
    epoch: int
    generation: int
    complete_by: datetime


@dataclass(frozen=True, slots=True)
class Notify:
    """Notify the application, on its own response queue.

    ``undoing`` says that the order of a failed step is being undone: another notification follows.
    """

    notice: Notice
    _: KW_ONLY
    step: int | None = None
    fault: Fault | None = None
    undoing: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """Alert the operator."""

    alert: AlertKind
    step: int | None
    text: str


Outgoing = Wake | Request | Notify | Alert


class Outcome(Enum):
    """How a request ended at its agent. An agent that does not know sends no reply."""

    DONE = "done"
    REFUSED = "refused"
    WAITED = "waited"
    """No call could begin before CompleteBy, or one only that tested a service that is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply of an agent to one request. Only DONE has a ``result``."""

    order_id: str
    step: int
    direction: Direction
    epoch: int
    outcome: Outcome
    result: Content | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An agent says that a step is still going on, and asks for a later CompleteBy.

    ``note`` tells people how far it is; it is cut to its maximum length. ``awaits`` says that a
    callback ends the step, so no further call goes out.
    """

    order_id: str
    step: int
    direction: Direction
    epoch: int
    complete_by: datetime
    note: str = ""
    awaits: bool = False

    NOTE_LENGTH_MAX: ClassVar[int] = 200

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", shortened(self.note, self.NOTE_LENGTH_MAX))


class Verb(Enum):
    """The commands of an operator."""

    RESUBMIT = "resubmit"
    SKIP = "skip"
    UNDO = "undo"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge"
    CALLBACK = "callback"
    """The operator ends a step that waits for a callback, as the callback would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of an operator.

    ``command_id`` is unique. ``seq`` is the journal seq that the operator saw: a command with an
    older one is refused. Only cancel may leave it out (None). ``by`` names the operator. ``step``
    limits resubmit and skip to one failed step, and names the step that a callback ends. ``input``
    is JSON text: what a resubmitted step gets in place of the order, or the result of a step that
    is skipped or ended. ``fault`` is why a callback refuses its step. ``reason`` goes into the
    journal.
    """

    command_id: str
    order_id: str
    verb: Verb
    seq: int | None
    by: str
    step: str | None = None
    input: str | None = None
    fault: Fault | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """What a transition did to one step. ``edited``: an operator gave it another input."""

    step: int
    before: StepState
    after: StepState
    edited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One transition as the journal keeps it. It never changes.

    ``cause`` is the message that led to it; None for a timer. ``commit_id`` lets a writer recognise
    its own write. ``messages`` are those to send, in this order. ``reason`` is
    what an operator gave with a command. ``changes`` tells people which steps changed.
    """

    seq: int
    at: datetime
    what: JournalWord
    by: str
    commit_id: str
    cause: str | None
    messages: tuple[Outgoing, ...]
    reason: str = ""
    changes: tuple[StepChange, ...] = ()
