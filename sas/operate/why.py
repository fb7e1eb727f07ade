"""Explain an order: its story so far, what it waits for, and the attempts of each step.

These functions are pure. They derive the answers from an order, its journal, the circuits and the
time. ``sas why`` and ``sas show`` print the answers, and ``sas desk`` shows them on a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from sas.domain.claim import is_cancelled
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
from sas.domain.order import (
    Direction,
    Order,
    OrderState,
    StepRecord,
    StepState,
)
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.operate.finding import LATE_AFTER, bug_of, is_failed, since, until_callback

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
MENDED = (
    "It is called again at least every five minutes, and goes on after the deploy. Nothing is "
    "undone meanwhile, and nothing must be resubmitted."
)
"""What follows for a step whose agent has a bug."""
FOLDED_MIN = 4
"""The journal rows of a shorter wait are shown one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What an order waits for. ``then`` says what happens next, or that the wait is too long.

    ``at`` is when the supervisor looks at the step, ``called_by`` when its agent, which has a bug,
    is called again at the latest. ``todo`` is what the operator must do; it is
    empty if nobody has to act.
    """

    awaited: str
    then: str = ""
    at: datetime | None = None
    called_by: datetime | None = None
    todo: str = ""
    step: StepRecord | None = None
    agent: str | None = None
    circuit: Breaker | None = None

    @property
    def needs_you(self) -> bool:
        """Whether the order goes on only if an operator acts."""
        return bool(self.todo)


@dataclass(frozen=True, slots=True)
class Fold:
    """Journal rows that are shown as one row: a single row, or all rows of a long wait."""

    entries: tuple[JournalEntry, ...]

    @property
    def is_run(self) -> bool:
        """Whether the fold stands for several rows."""
        return len(self.entries) > 1

    @property
    def words(self) -> str:
        """The journal words of the rows, each word once."""
        return ", ".join(dict.fromkeys(str(entry.what) for entry in self.entries))


# -- The story --------------------------------------------------------------------------------


def story(order: Order, journal: Sequence[JournalEntry]) -> str:
    """Return in one sentence what has happened to an order so far."""
    match order.process_state:
        case OrderState.REJECTED:
            return f"It was rejected before any step began: {_rejected_because(journal)}."
        case OrderState.PROCESSED:
            duration = spelled(since(order) - order.details.submitted_at)
            return f"It is complete: every step is done, {duration} after it was submitted."
        case OrderState.COMPENSATED:
            return f"It was undone{_undone_because(journal)}. Nothing of it is left."
        case OrderState.ERROR:
            return _stopped(order, journal)
    return _under_way(order, journal)


def _under_way(order: Order, journal: Sequence[JournalEntry]) -> str:
    done = sum(step.process_state is StepState.PROCESSED for step in order.steps)
    if any(is_cancelled(step) for step in order.steps):
        return f"It was cancelled{_undone_because(journal)}, and waits for the calls that are out."
    if order.process_state is OrderState.COMPENSATING:
        return f"It is being undone{_undone_because(journal)}."
    return f"It is under way: {done} of {len(order.steps)} steps done."


def _stopped(order: Order, journal: Sequence[JournalEntry]) -> str:
    failed_steps = [step for step in order.steps if is_failed(step)]
    step = failed_steps[0]
    cause = f": {step.error.message.rstrip('.')}" if step.error else ""
    others_count = len(failed_steps) - 1
    others = f" ({others_count} more {'step' if others_count == 1 else 'steps'} failed)"
    others = others if others_count else ""
    if step.undo_failed:
        return (
            f"It is partly undone{_undone_because(journal)}: the undo of {step.name} failed{cause}."
        )
    return f"It stopped at {step.name}{cause}{others}."


def _rejected_because(journal: Sequence[JournalEntry]) -> str:
    faults = [
        message.fault
        for entry in journal
        for message in entry.messages
        if isinstance(message, Notify)
    ]
    return next((fault.message.rstrip(".") for fault in faults if fault), "its content is wrong")


def _undone_because(journal: Sequence[JournalEntry]) -> str:
    """Return why the undo was decided, as the end of a sentence; empty if it is not known."""
    for entry in reversed(journal):
        faults = [
            message.fault
            for message in entry.messages
            if isinstance(message, Notify) and message.fault
        ]
        match entry.what:
            case JournalWord.UNDO_DECIDED | JournalWord.CANCELLED:
                verb = "cancelled it" if entry.what is JournalWord.CANCELLED else "decided it"
                reason = f" ({entry.reason})" if entry.reason else ""
                return f" because {entry.by} {verb}{reason}"
            case JournalWord.STEP_FAILED_UNDO if faults:
                return f" because a step failed: {faults[0].message.rstrip('.')}"
            case JournalWord.OVERDUE_UNDO:
                return " because it was past its deadline"
    return ""


# -- What it waits for ------------------------------------------------------------------------


def waits_for(
    order: Order,
    now: datetime,
    *,
    agents: Mapping[int, str] | None = None,
    circuits: Mapping[str, Breaker] | None = None,
) -> Waits:
    """Return what an order waits for. ``agents`` has the agents that are known, by step number."""
    match order.process_state:
        case OrderState.REJECTED:
            return Waits(awaited="Nothing: the application corrects it and submits it again.")
        case OrderState.PROCESSED | OrderState.COMPENSATED:
            return Waits(awaited="Nothing: it is finished.")
        case OrderState.ERROR:
            return _waits_for_you(order, agents or {}, circuits or {})
    open_steps = [step for step in order.steps if step.complete_by is not None]
    if not open_steps:
        return Waits(awaited="No step is open.", todo="Report this as a bug, with this page.")
    step = min(open_steps, key=lambda step: step.complete_by or now)
    waits = _waits_for_step(step, now)
    agent = (agents or {}).get(step.number)
    circuit = (circuits or {}).get(agent) if agent else None
    return replace(waits, step=step, agent=agent, circuit=circuit, at=step.complete_by)


def _waits_for_you(
    order: Order, agents: Mapping[int, str], circuits: Mapping[str, Breaker]
) -> Waits:
    step = next(step for step in order.steps if is_failed(step))
    agent = agents.get(step.number)
    circuit = circuits.get(agent) if agent else None
    if step.undo_failed:
        todo = f"Repair it and resubmit, or undo {step.name} by hand and skip it."
    else:
        todo = (
            "Repair the cause and resubmit; if you did the step by hand, skip it with its result, "
            "which later steps read; or undo."
        )
    return Waits(
        awaited="You.",
        then="It goes on only after a command.",
        at=None,
        todo=todo,
        step=step,
        agent=agent,
        circuit=circuit,
    )


def _waits_for_step(step: StepRecord, now: datetime) -> Waits:
    undoing = step.process_state is StepState.COMPENSATING
    operation = "undo" if undoing else "call"
    name = f"{'the undo of ' * undoing}{step.name}"
    if step.complete_by is not None and step.complete_by + LATE_AFTER < now:
        return Waits(
            awaited=f"The supervisor, to look at {step.name}.",
            then="It is late.",
            todo="Check that the function app runs: the supervisor looks within seconds.",
        )
    if step.resting:
        action = "undone" if undoing else "tried again"
        return Waits(awaited=f"{step.name} rests.", then=f"Then it is {action}.")
    if (bug := bug_of(step, now)) is not None:
        return Waits(
            awaited=f"A deploy that mends the agent of {step.name}: its {operation} failed: "
            f"{bug.message.rstrip('.')}.",
            then=MENDED,
            todo="Deploy a mended version of the agent.",
            called_by=bug.again_by,
        )
    if step.awaits_callback:
        return Waits(
            awaited=f"The callback of {name}, {until_callback(step).rstrip('.')}.",
            then="Without it, the undo is tried again."
            if undoing
            else "Without it, the step fails.",
        )
    if step.dispatched:
        awaited = f"The agent of {step.name}: the {operation} is out, request {step.epoch}."
        then = "Without a reply until then, the supervisor resets the step."
        if step.note:
            awaited = f"{name} goes on: {step.note.rstrip('.')}; its agent asks again."
            then = "If its agent does not ask until then, the supervisor resets the step."
        return Waits(
            awaited=awaited,
            then="Then the step is undone." if is_cancelled(step) else then,
        )
    return Waits(
        awaited=f"A scheduler, to claim {step.name}.",
        then="If none does, the supervisor wakes one.",
    )


def left_since(journal: Sequence[JournalEntry]) -> datetime | None:
    """Return since when an order is postponed, because no instance has its workflow; or None."""
    since = None
    for entry in reversed(journal):
        if entry.what is not JournalWord.POSTPONED:
            break
        since = entry.at
    return since


def held(order: Order, waits: Waits, since: datetime | None) -> Waits:
    """Return what an order waits for that is left to an instance with its workflow ``since``.

    If ``since`` is None, it is not, and waits for what it waits for anyway.
    """
    if since is None:
        return waits
    workflow = f"{order.details.workflow} version {order.details.version}"
    return replace(
        waits,
        awaited=f"A deploy that has {workflow}.",
        then="No instance has it. With it, the order goes on by itself.",
        todo=f"Deploy {workflow} again as it was, beside the other versions.",
    )


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


def is_open(circuit: Breaker | None) -> bool:
    """Return whether a circuit is open or half-open, so that calls wait."""
    return circuit is not None and circuit.state is not BreakerState.CLOSED


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
                attempts_so_far[index], ended_at=entry.at, outcome=_outcome(entry.what)
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


def _outcome(word: JournalWord) -> str:
    match word:
        case JournalWord.STEP_PROCESSED | JournalWord.STEP_UNDONE:
            return "done"
        case JournalWord.STEP_FAILED | JournalWord.STEP_FAILED_UNDO | JournalWord.UNDO_FAILED:
            return "failed"
        case JournalWord.STEP_RESET | JournalWord.UNDO_RESET:
            return "timed out"
        case _ if word in _WAITING:
            return "waited"
    return str(word)


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


def change(order: Order, step_change: StepChange) -> str:
    """Return how a step changed, in a few words."""
    edited = " with its input edited" if step_change.edited else ""
    before, after = step_change.before.value, step_change.after.value
    states = after if before == after else f"{before} -> {after}"
    return f"{name_of(order, step_change.step)}: {states}{edited}"


def sent(order: Order, message: Outgoing, *, when: str = "") -> str:
    """Return a message of a journal row in a few words. ``when`` is the CompleteBy of a request."""
    match message:
        case Wake():
            return "wake a scheduler"
        case Request():
            work = f"{message.direction.value} {name_of(order, message.step)}"
            return f"request: {work}, epoch {message.epoch}{when}"
        case Notify():
            step_name = f" {name_of(order, message.step)}" if message.step is not None else ""
            code = f" ({message.fault.code})" if message.fault else ""
            return f"notify the application: {message.notice.value}{step_name}{code}"
        case Alert():
            return f"alert {message.alert.value}: {message.text}"


def folded(journal: Sequence[JournalEntry]) -> list[Fold]:
    """Return the journal with the rows of each long wait folded into one row.

    A long wait has at least ``FOLDED_MIN`` rows one after another, and at least two of these rows
    tell of waiting. The other rows are those that a step writes between two waits.
    """
    folds: list[Fold] = []
    for is_wait, group in groupby(journal, lambda entry: entry.what in _WAITING | _BETWEEN_WAITS):
        entries = tuple(group)
        waits = sum(entry.what in _WAITING for entry in entries)
        if is_wait and len(entries) >= FOLDED_MIN and waits > 1:
            folds.append(Fold(entries))
        else:
            folds += [Fold((entry,)) for entry in entries]
    return folds


def spelled(span: timedelta) -> str:
    """Return a span of time for people, with one or two units: ``4 min 10 s``."""
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds)
    for size, unit, next_size, next_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            remainder = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {remainder} {next_unit}" if remainder else "")
    return f"{whole} s"
