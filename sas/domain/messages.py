"""What the actors say to each other, and what a journal row remembers of it.

``Outgoing`` values are descriptors: small, recorded in the journal by the commit that
causes them, and enough to build the very same message again after any crash. The bodies
(which carry the order) are built from them when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import ClassVar

from sas.domain.content import Content
from sas.domain.order import Direction, Fault


class Notice(Enum):
    """The kinds of notification an application reads from its response queue."""

    RECEIVED = "received"
    STEP_COMPLETED = "step-completed"
    COMPLETED = "completed"
    FAILED = "failed"
    UNDONE = "undone"
    REJECTED = "rejected"


class AlertKind(Enum):
    """What an operator is told of."""

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
    UNREADABLE = "unreadable"
    KEY_MISSING = "key-missing"
    BEHIND = "behind"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Wake:
    """Ask a scheduler to look at the order."""


@dataclass(frozen=True, slots=True)
class Request:
    """Ask one of a step's agents (``route``) to do or undo it. The epoch fences its reply."""

    step: int
    direction: Direction
    epoch: int
    generation: int
    complete_by: datetime
    route: int = 0


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the application, on its own response queue.

    ``undoing`` says of a failure that the order is being undone, so more is to come.
    """

    notice: Notice
    step: int | None = None
    fault: Fault | None = None
    undoing: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """Tell the operator."""

    alert: AlertKind
    step: int | None
    text: str


Outgoing = Wake | Request | Notify | Alert


class Outcome(Enum):
    """How an agent's attempt ended. What is unknown is silence."""

    DONE = "done"
    REFUSED = "refused"
    WAITED = "waited"
    """This delivery called nothing: no call could begin before CompleteBy."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's answer to one Request. ``result`` is for DONE only."""

    order_id: str
    step: int
    direction: Direction
    epoch: int
    outcome: Outcome
    result: Content | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """An agent's word that a step goes on, and until when it asks to be given time.

    ``note`` says how far it is, for people; a longer one is cut. ``awaits``: an event outside
    ends the step, so no call goes out any more.
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
        object.__setattr__(self, "note", self.note[: self.NOTE_LENGTH_MAX])


class Verb(Enum):
    """What an operator may ask for."""

    RESUBMIT = "resubmit"
    SKIP = "skip"
    UNDO = "undo"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge"


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's wish.

    ``command_id`` is unique to it; ``seq`` is the journal seq the operator saw: a stale one is
    refused (None, whatever it is now, only to cancel); ``by`` says who, for the journal. ``step``
    (by name) limits resubmit and skip to one failed step; ``input`` is JSON text: what a
    resubmitted step gets instead of the order, or what stands in for a skipped step's result.
    """

    command_id: str
    order_id: str
    verb: Verb
    seq: int | None
    by: str
    step: str | None = None
    input: str | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One transition as the journal keeps it, immutable.

    ``cause`` is the message that led to it (None for a timer's), ``commit_id`` tells our own
    write from a rival's, ``messages`` is what must be sent because of it, in order.
    """

    seq: int
    at: datetime
    what: str
    by: str
    commit_id: str
    cause: str | None
    messages: tuple[Outgoing, ...]
