"""Explain why an order is where it is: its story, what it waits for, what each step went through.

These functions are pure: they derive the answer from an order, its journal, the circuits and the
time. ``sas why`` prints the answer, and ``sas desk`` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

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
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.operate.finding import is_failed, since

_LATE_AFTER = timedelta(minutes=1)
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
_BETWEEN_WAITS = frozenset({JournalWord.RELEASED, JournalWord.CLAIMED, JournalWord.STEP_RESET})
FOLDED_MIN = 4
"""Fewer rows of waiting than this are shown one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One dispatch of a step. ``outcome`` says how it ended; ``ended_at`` None: it is still out."""

    step: int
    epoch: int
    direction: Direction
    began_at: datetime
    complete_by: datetime
    ended_at: datetime | None = None
    outcome: str = "is out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What an order waits for. ``at`` is when the wait ends by itself.

    ``todo`` is what the operator must do; it is empty where nobody has to act.
    """

    what: str
    then: str = ""
    at: datetime | None = None
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
    """Journal rows that are shown as one row: a single entry, or a run of waiting."""

    entries: tuple[JournalEntry, ...]

    @property
    def is_run(self) -> bool:
        """Whether it stands for several rows."""
        return len(self.entries) > 1

    @property
    def words(self) -> str:
        """The words of its rows, each once."""
        return ", ".join(dict.fromkeys(str(entry.what) for entry in self.entries))


# -- The story --------------------------------------------------------------------------------


def story(order: Order, journal: Sequence[JournalEntry]) -> str:
    """Return what became of an order so far, in one sentence."""
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
    if order.process_state is OrderState.COMPENSATING:
        return f"It is being undone{_undone_because(journal)}."
    if order.direction is Direction.UNDO:
        return f"It was cancelled{_undone_because(journal)}, and waits for the calls that are out."
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
    """Return why the undo was decided, as the end of a sentence; empty if that is not known."""
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
    """Return what an order waits for. ``agents`` names the agent of each step, where known."""
    match order.process_state:
        case OrderState.REJECTED:
            return Waits(what="Nothing: the application corrects it and submits it again.")
        case OrderState.PROCESSED | OrderState.COMPENSATED:
            return Waits(what="Nothing: it is finished.")
        case OrderState.ERROR:
            return _waits_for_you(order, agents or {}, circuits or {})
    open_steps = [step for step in order.steps if step.complete_by is not None]
    if not open_steps:
        return Waits(what="No step is open.", todo="Report this as a bug, with this page.")
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
        what="You.",
        then="It goes on only after a command.",
        at=None,
        todo=todo,
        step=step,
        agent=agent,
        circuit=circuit,
    )


def _waits_for_step(step: StepRecord, now: datetime) -> Waits:
    operation = "undo" if step.direction is Direction.UNDO else "call"
    if step.complete_by is not None and step.complete_by + _LATE_AFTER < now:
        return Waits(
            what=f"The supervisor, to look at {step.name}.",
            then="It is late.",
            todo="Check that the function app runs: the supervisor looks within seconds.",
        )
    if step.resting:
        action = "undone" if step.direction is Direction.UNDO else "tried again"
        return Waits(what=f"{step.name} rests.", then=f"Then it is {action}.")
    if step.dispatched:
        return Waits(
            what=f"The agent of {step.name}: the {operation} is out, request {step.epoch}.",
            then="Without a reply until then, the supervisor resets the step.",
        )
    return Waits(
        what=f"A scheduler, to claim {step.name}.", then="If none does, the supervisor wakes one."
    )


def agents_of(
    order: Order, journal: Sequence[JournalEntry], workflows: Workflows | None
) -> dict[int, str]:
    """Return the name of each step's agent, by the number of the step.

    The name comes from the workflow where that is known, otherwise from the replies in the journal.
    """
    agents: dict[int, str] = {}
    for entry in journal:
        number = _replied_step(entry)
        if number is not None and entry.by.startswith("agent "):
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
    """Return whether a circuit keeps calls back."""
    return circuit is not None and circuit.state is not BreakerState.CLOSED


# -- What each step went through --------------------------------------------------------------


def attempts(order: Order, journal: Sequence[JournalEntry]) -> list[Attempt]:
    """Return every dispatch of every step, in the order in which they began.

    The cause of a reply names its step. A transition of the supervisor has no cause; it ends the
    requests whose CompleteBy had passed.
    """
    attempts_so_far: list[Attempt] = []
    for entry in journal:
        for number in _ended(entry, attempts_so_far):
            attempts_so_far[number] = replace(
                attempts_so_far[number], ended_at=entry.at, outcome=_outcome(entry.what)
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
    return [_as_it_stands(attempt, order) for attempt in attempts_so_far]


def _ended(entry: JournalEntry, attempts: Sequence[Attempt]) -> Iterator[int]:
    if entry.what is JournalWord.PROGRESS:
        return
    replied = _replied_step(entry)
    for number, attempt in enumerate(attempts):
        if attempt.ended_at is None and (
            attempt.step == replied
            or (replied is None and entry.cause is None and attempt.complete_by <= entry.at)
        ):
            yield number


def _replied_step(entry: JournalEntry) -> int | None:
    """Return the step whose reply led to a transition. ``reply_id`` gives such a cause its form."""
    parts = (entry.cause or "").rsplit("/", 3)
    directions = {direction.value for direction in Direction}
    if len(parts) != 4 or parts[2] not in directions or not parts[1].isdecimal():
        return None
    return int(parts[1])


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


def _as_it_stands(attempt: Attempt, order: Order) -> Attempt:
    """Return the attempt as the step's own row shows it, where no journal row ended it.

    The step may be out with the same epoch: then its row has the current CompleteBy. Otherwise the
    attempt has ended, and how it ended is not known.
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
    """Return the name of a step, or its number where the order has no such step."""
    return order.steps[step].name if 0 <= step < len(order.steps) else f"step {step}"


def change(order: Order, step_change: StepChange) -> str:
    """Return how a step changed, in a few words."""
    edited = " with its input edited" if step_change.edited else ""
    same = step_change.before is step_change.after
    states = (
        step_change.after.value
        if same
        else f"{step_change.before.value} -> {step_change.after.value}"
    )
    return f"{name_of(order, step_change.step)}: {states}{edited}"


def sent(order: Order, message: Outgoing, *, when: str = "") -> str:
    """Return in a few words which message a journal row sent. ``when`` is text for its time."""
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
    """Return the journal with each long run of waiting folded into one row."""
    folds: list[Fold] = []
    run: list[JournalEntry] = []
    for entry in (*journal, None):
        if entry is not None and entry.what in _WAITING | _BETWEEN_WAITS:
            run.append(entry)
            continue
        if len(run) >= FOLDED_MIN and sum(entry.what in _WAITING for entry in run) > 1:
            folds.append(Fold(tuple(run)))
        else:
            folds += [Fold((entry,)) for entry in run]
        run = []
        if entry is not None:
            folds.append(Fold((entry,)))
    return folds


def spelled(span: timedelta) -> str:
    """Return a span of time for people, with one unit or two: ``4 min 10 s``."""
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
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"
