"""What the journal of an order tells: the attempts of each step, its rows in words, long waits.

These functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby

from msgspec.structs import replace

from sas.domain.messages import (
    Alert,
    JournalEntry,
    JournalWord,
    Notify,
    Outgoing,
    Request,
    StepChange,
    Wake,
)
from sas.domain.order import Direction, Order
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.operate.record import Record

_WAITING = frozenset(
    {
        JournalWord.WAITING,
        JournalWord.EXTENDED_WAIT,
        JournalWord.WAITS_IN_QUEUE,
        JournalWord.QUEUE_AWAY,
        JournalWord.WOKEN_AGAIN,
        JournalWord.POSTPONED,
        JournalWord.PROGRESS,
    }
)
_OUTCOMES = {
    **dict.fromkeys(_WAITING, "waited"),
    JournalWord.STEP_PROCESSED: "done",
    JournalWord.STEP_UNDONE: "done",
    JournalWord.STEP_FAILED: "failed",
    JournalWord.STEP_FAILED_UNDO: "failed",
    JournalWord.UNDO_FAILED: "failed",
    JournalWord.STEP_RESET: "timed out",
    JournalWord.UNDO_RESET: "timed out",
}
"""How an attempt ended, by the journal row that ended it."""
_ENDS_NO_ATTEMPT = frozenset(
    {
        JournalWord.PROGRESS,
        JournalWord.WAITS_IN_QUEUE,
        JournalWord.QUEUE_AWAY,
        JournalWord.POSTPONED,
        JournalWord.RELEASED,
        JournalWord.WOKEN_AGAIN,
        JournalWord.OVERDUE,
    }
)
"""After these transitions all requests that were out are still out."""
_BETWEEN_WAITS = frozenset({JournalWord.RELEASED, JournalWord.CLAIMED, JournalWord.STEP_RESET})
FOLDED_MIN = 4
"""The journal rows of a shorter wait are shown one by one."""


class Attempt(Record, frozen=True):
    """One dispatch of a step. ``outcome`` says how it ended.

    ``ended_at`` is None while the request is out.
    """

    step: int
    epoch: int
    direction: Direction
    began_at: datetime
    complete_by: datetime
    ended_at: datetime | None = None
    outcome: str = "is out"


class JournalRow(Record, frozen=True):
    """One row of the journal. ``changes`` has how each step changed, in words.

    ``messages`` has the messages of the transition, in words.
    """

    seq: int
    at: datetime
    what: str
    by: str
    reason: str = ""
    changes: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


class Fold(Record, frozen=True):
    """Journal rows that are shown as one row: a single row, or all rows of a long wait.

    ``words`` has the journal words of the rows, each word once.
    """

    rows: tuple[JournalRow, ...]
    words: str

    @property
    def is_run(self) -> bool:
        """Whether the fold stands for several rows."""
        return len(self.rows) > 1


def agents_of(
    order: Order, journal: Sequence[JournalEntry], workflows: Workflows | None
) -> dict[int, str]:
    """Return the name of each step's agent, by the number of the step.

    The name comes from the workflow if that is known, otherwise from the replies in the journal.
    """
    agents: dict[int, str] = {}
    for entry in journal:
        request = _answered_request(entry)
        if request is not None and entry.by.startswith("agent "):
            number, _ = request
            agents[number] = entry.by.removeprefix("agent ")
    try:
        details = order.details
        steps = workflows.find(details.workflow, details.version).steps if workflows else ()
    except UnknownWorkflowError:
        return agents
    for definition, step in zip(steps, order.steps, strict=False):
        if step.call.route < len(definition.agents):
            agents[step.number] = definition.agents[step.call.route]
    return agents


def left_since(journal: Sequence[JournalEntry]) -> datetime | None:
    """Return since when an order is postponed, because no instance has its workflow; or None."""
    since = None
    for entry in reversed(journal):
        if entry.what is not JournalWord.POSTPONED:
            break
        since = entry.at
    return since


# -- The attempts of each step ----------------------------------------------------------------


def attempts(order: Order, journal: Sequence[JournalEntry]) -> list[Attempt]:
    """Return every dispatch of every step, in the order in which they began.

    Each request in a journal row begins an attempt. Two kinds of row end attempts:

    - The cause of the row is a reply, whose id names the step and the epoch of the request.
    - The row has no cause, because the supervisor wrote it. Such a row names no request. It ends
      every attempt whose first CompleteBy had passed.

    A callback or a command may end an attempt too, and its row names no request. For such an
    attempt see ``_with_current_state``.
    """
    attempts_so_far: list[Attempt] = []
    for entry in journal:
        for index in _ended(entry, attempts_so_far):
            attempts_so_far[index] = replace(
                attempts_so_far[index],
                ended_at=entry.at,
                outcome=_OUTCOMES.get(entry.what, str(entry.what)),
            )
        for message in entry.messages:
            if isinstance(message, Request):
                attempt = Attempt(
                    step=message.step,
                    epoch=message.epoch,
                    direction=message.direction,
                    began_at=entry.at,
                    complete_by=message.complete_by,
                )
                attempts_so_far.append(attempt)
    return [_with_current_state(attempt, order) for attempt in attempts_so_far]


def _ended(entry: JournalEntry, attempts: Sequence[Attempt]) -> Iterator[int]:
    """Yield the index of each attempt that a transition ended."""
    if entry.what in _ENDS_NO_ATTEMPT:
        return
    request = _answered_request(entry)
    for index, attempt in enumerate(attempts):
        if attempt.ended_at is None and (
            (attempt.step, attempt.epoch) == request
            or (entry.cause is None and attempt.complete_by <= entry.at)
        ):
            yield index


def _answered_request(entry: JournalEntry) -> tuple[int, int] | None:
    """Return the step and the epoch of the request whose reply led to a transition.

    ``reply_id`` of `sas/domain/ids.py` gives such a cause its form.
    """
    parts = (entry.cause or "").rsplit("/", 3)
    directions = {direction.value for direction in Direction}
    if len(parts) != 4 or parts[2] not in directions:
        return None
    step, epoch = parts[1], parts[3]
    return (int(step), int(epoch)) if step.isdecimal() and epoch.isdecimal() else None


def _with_current_state(attempt: Attempt, order: Order) -> Attempt:
    """If no journal row ended an attempt, complete it from the current state of its step.

    If the step is out with the same epoch, the attempt is still out. The step then has the current
    CompleteBy of the attempt. Otherwise the attempt has ended, and how it ended is not known.
    """
    step = order.steps[attempt.step] if attempt.step < len(order.steps) else None
    if attempt.ended_at is not None or step is None:
        return attempt
    if step.epoch == attempt.epoch and step.dispatched:
        return replace(attempt, complete_by=step.complete_by or attempt.complete_by)
    return replace(
        attempt, ended_at=min(attempt.complete_by, max(step.since, attempt.began_at)), outcome="?"
    )


def name_of(order: Order, step: int) -> str:
    """Return the name of a step, or its number if the order has no such step."""
    return order.steps[step].name if 0 <= step < len(order.steps) else f"step {step}"


def _change(order: Order, step_change: StepChange) -> str:
    """Return how a step changed, in a few words."""
    edited = " with its input edited" if step_change.edited else ""
    before, after = step_change.before.value, step_change.after.value
    states = after if before == after else f"{before} -> {after}"
    return f"{name_of(order, step_change.step)}: {states}{edited}"


def _words_of(order: Order, message: Outgoing) -> str:
    """Return a message of a journal row in a few words."""
    match message:
        case Wake():
            return "wake a scheduler"
        case Request():
            work = f"{message.direction.value} {name_of(order, message.step)}"
            return f"request: {work}, epoch {message.epoch}"
        case Notify():
            step_name = f" {name_of(order, message.step)}" if message.step is not None else ""
            code = f" ({message.fault.code})" if message.fault else ""
            return f"notify the application: {message.notice.value}{step_name}{code}"
        case Alert():
            return f"alert {message.alert.value}: {message.text}"


def folded(order: Order, journal: Sequence[JournalEntry]) -> list[Fold]:
    """Return the journal with the rows of each long wait folded into one row.

    A long wait has at least ``FOLDED_MIN`` rows one after another, and at least two of these rows
    tell of waiting. The other rows are those that a step writes between two waits.
    """
    folds: list[Fold] = []
    for is_wait, group in groupby(journal, lambda entry: entry.what in _WAITING | _BETWEEN_WAITS):
        entries = tuple(group)
        waits = sum(entry.what in _WAITING for entry in entries)
        is_run = is_wait and len(entries) >= FOLDED_MIN and waits > 1
        parts = [entries] if is_run else [(entry,) for entry in entries]
        folds += [
            Fold(
                rows=tuple(_row(order, entry) for entry in part),
                words=", ".join(dict.fromkeys(str(entry.what) for entry in part)),
            )
            for part in parts
        ]
    return folds


def _row(order: Order, entry: JournalEntry) -> JournalRow:
    return JournalRow(
        seq=entry.seq,
        at=entry.at,
        what=str(entry.what),
        by=entry.by,
        reason=entry.reason,
        changes=tuple(_change(order, step_change) for step_change in entry.changes),
        messages=tuple(_words_of(order, message) for message in entry.messages),
    )
