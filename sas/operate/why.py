"""Explain an order: its story so far, and what it waits for.

These functions are pure. They derive the answers from an order, its journal, the circuits and the
time. ``sas.operate.orders`` puts the answers together for the terminal and the desk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum

from msgspec.structs import replace

from sas.domain.claim import is_cancelled
from sas.domain.messages import JournalEntry, JournalWord, Notify
from sas.domain.order import AttemptError, Fault, Order, OrderState, StepRecord, StepState
from sas.domain.texts import quoted
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.operate.finding import is_failed, since
from sas.operate.record import Record

LATE_AFTER = timedelta(minutes=1)
"""What did not happen so long after its time is late."""
MENDED = (
    "It is called again at least every five minutes, and goes on after the deploy. Nothing is "
    "undone meanwhile, and nothing must be resubmitted."
)
"""What follows for a step whose agent has a bug."""


class Awaited(Enum):
    """What an order waits for. ``AGENT_AGAIN``: the agent goes on, and asks its service again."""

    NOTHING = "nothing"
    YOU = "you"
    SUPERVISOR = "supervisor"
    REST = "rest"
    DEPLOY = "deploy"
    CALLBACK = "callback"
    AGENT = "agent"
    AGENT_AGAIN = "agent-again"
    SERVICE = "service"
    SCHEDULER = "scheduler"
    COMMAND = "command"
    QUEUE = "queue"
    FUNCTION_APP = "function-app"


class Circuit(Record, frozen=True):
    """The circuit of an agent's remote service: closed, open or half-open, and why it opened.

    ``since``: when it closed, or first opened. ``until``: when the next probe may go out (open), or
    when the probe is given up (half-open). ``rounds``: how often it opened since it last closed.
    """

    agent: str
    state: str
    since: datetime | None = None
    until: datetime | None = None
    rounds: int = 0
    why: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is open or half-open, so that calls wait."""
        return self.state != BreakerState.CLOSED.value


class StepError(Record, frozen=True):
    """The error of a step, or of an attempt of its agent: the one at request ``epoch``."""

    code: str
    message: str
    at: datetime | None = None
    epoch: int | None = None
    attempt: int | None = None


class Whereabouts(Enum):
    """Where a message is. ``IN_HAND``: somebody handles it. ``NONE``: nobody has sent it yet."""

    IN_QUEUE = "in-queue"
    IN_HAND = "in-hand"
    NONE = "none"
    UNKNOWN = "unknown"


class AwaitedMessage(Record, frozen=True):
    """The message that an order waits for: what is known of it, also in words, and its place.

    ``before`` is how many messages are in front of it.
    """

    place: Whereabouts
    text: str
    queue: str | None = None
    since: datetime | None = None
    before: int | None = None


class Waits(Record, frozen=True):
    """What an order waits for, and what its step is ``doing`` in a few words.

    ``awaited`` says its ``kind`` in a sentence that is also read after "waits for". ``then`` says
    what happens next, or that the wait is too long. ``at`` is when the supervisor looks at the
    step, ``called_by`` when its agent, which has a bug, is called again at the latest. ``todo`` is
    what the operator must do; it is empty if nobody has to act.
    """

    kind: Awaited
    awaited: str
    doing: str = ""
    then: str = ""
    todo: str = ""
    at: datetime | None = None
    called_by: datetime | None = None
    step: str | None = None
    attempt: int | None = None
    failure_count: int | None = None
    agent: str | None = None
    circuit: Circuit | None = None
    message: AwaitedMessage | None = None
    last_error: StepError | None = None

    @property
    def needs_you(self) -> bool:
        """Whether the order goes on only if an operator acts."""
        return bool(self.todo)


# -- The story --------------------------------------------------------------------------------


def story(order: Order, journal: Sequence[JournalEntry]) -> str:
    """Return in one sentence what has happened to an order so far."""
    match order.process_state:
        case OrderState.REJECTED:
            cause = next(_faults(journal), "its content is wrong")
            return f"It was rejected before any step began: {cause}."
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
    cause = f": {_quoted(step.error.message)}" if step.error else ""
    others = f" ({len(failed_steps) - 1} more failed)" if len(failed_steps) > 1 else ""
    if step.undo_failed:
        return (
            f"It is partly undone: the undo of {step.name} failed{cause}{others}. "
            f"The undo began{_undone_because(journal)}."
        )
    return f"It stopped at {step.name}{cause}{others}."


def _faults(entries: Iterable[JournalEntry]) -> Iterator[str]:
    """Yield the errors of which the application was notified."""
    for entry in entries:
        for message in entry.messages:
            if isinstance(message, Notify) and message.fault:
                yield _quoted(message.fault.message)


def _quoted(text: str) -> str:
    """Return what others wrote, whole, as the end of a sentence."""
    return quoted(text.rstrip("."), Fault.MESSAGE_LENGTH_MAX)


def _undone_because(journal: Sequence[JournalEntry]) -> str:
    """Return why the undo was decided, as the end of a sentence; empty if it is not known."""
    for entry in reversed(journal):
        match entry.what:
            case JournalWord.UNDO_DECIDED | JournalWord.CANCELLED:
                verb = "cancelled it" if entry.what is JournalWord.CANCELLED else "decided it"
                reason = f" ({entry.reason})" if entry.reason else ""
                return f" because {entry.by} {verb}{reason}"
            case JournalWord.STEP_FAILED_UNDO:
                return f" because a step failed: {next(_faults([entry]), 'its service refused')}"
            case JournalWord.OVERDUE_UNDO:
                return " because it was past its deadline"
    return ""


# -- What it waits for ------------------------------------------------------------------------


def waits_for(
    order: Order,
    now: datetime,
    *,
    agents: Mapping[int, str] = {},
    circuits: Mapping[str, Circuit] = {},
) -> Waits:
    """Return what an order waits for. ``agents`` has the agents that are known, by step number.

    If several steps are open, this is the step at which the supervisor looks first.
    """
    match order.process_state:
        case OrderState.REJECTED:
            awaited = "Nothing: the application corrects it and submits it again."
            return Waits(kind=Awaited.NOTHING, awaited=awaited)
        case OrderState.PROCESSED | OrderState.COMPENSATED:
            return Waits(kind=Awaited.NOTHING, awaited="Nothing: it is finished.")
        case OrderState.ERROR:
            step = next(step for step in order.steps if is_failed(step))
        case _:
            open_steps = [step for step in order.steps if step.complete_by is not None]
            if not open_steps:
                return Waits(
                    kind=Awaited.NOTHING,
                    awaited="Nothing: no step is open.",
                    todo="Report this as a bug, with this page.",
                )
            step = min(open_steps, key=lambda step: step.complete_by or now)
    agent = agents.get(step.number)
    waits, circuit = waits_of(step, now), circuits.get(agent or "")
    if circuit is not None and circuit.is_open and step.dispatched and not waits.needs_you:
        waits = replace(
            waits,
            kind=Awaited.SERVICE,
            awaited=f"The service of agent {agent}: its circuit is {circuit.state}.",
            then="A probe that succeeds closes it. Then the call goes out, and no failure counts.",
        )
    return replace(
        waits,
        at=step.complete_by,
        step=step.name,
        attempt=step.epoch,
        failure_count=step.failure_count,
        agent=agent,
        circuit=circuit,
        last_error=error_of(step),
    )


def waits_of(step: StepRecord, now: datetime) -> Waits:  # noqa: PLR0911  one for each wait
    """Return what a step waits for that is open or in Error, in words."""
    undoing = step.process_state is StepState.COMPENSATING
    operation = "undo" if undoing else "call"
    name = f"{'the undo of ' * undoing}{step.name}"
    note = f": {_quoted(step.note)}" if step.note else ""
    if is_failed(step):
        return Waits(
            kind=Awaited.YOU,
            doing="waits for you",
            awaited="You.",
            then="It goes on only after a command.",
            todo=_todo_in_error(step),
        )
    if step.complete_by is not None and step.complete_by + LATE_AFTER < now:
        return Waits(
            kind=Awaited.SUPERVISOR,
            doing="is late",
            awaited=f"The supervisor, to look at {step.name}.",
            then="It is late.",
            todo="Check that the function app runs: the supervisor looks within seconds.",
        )
    if step.resting:
        action = "undone" if undoing else "tried again"
        return Waits(
            kind=Awaited.REST,
            doing="rests",
            awaited=f"The next try of {name}, which rests.",
            then=f"Then it is {action}.",
        )
    if (bug := bug_of(step, now)) is not None:
        return Waits(
            kind=Awaited.DEPLOY,
            doing="waits for a deploy",
            awaited=f"A deploy that mends the agent of {step.name}: its {operation} failed: "
            f"{_quoted(bug.message) if bug.kind == AttemptError.HELD else bug.message}.",
            then=MENDED,
            todo="Deploy a mended version of the agent.",
            called_by=bug.again_by,
        )
    if step.awaits_callback:
        return Waits(
            kind=Awaited.CALLBACK,
            doing="waits for the callback",
            awaited=f"The callback of {name}{note}.",
            then=f"Without it, the {'undo is tried again' if undoing else 'step fails'}.",
        )
    if step.dispatched:
        awaited = f"The agent of {step.name}: the {operation} is out, request {step.epoch}."
        then = "Without a reply until then, the supervisor resets the step."
        if note:
            awaited = f"The agent of {name}, which goes on{note}. It asks again."
            then = "If its agent does not ask until then, the supervisor resets the step."
        return Waits(
            kind=Awaited.AGENT_AGAIN if note else Awaited.AGENT,
            doing="goes on" if note else "is out",
            awaited=awaited,
            then="Then the step is undone." if is_cancelled(step) else then,
        )
    return Waits(
        kind=Awaited.SCHEDULER,
        doing="is ready",
        awaited=f"A scheduler, to claim {step.name}.",
        then="If none does, the supervisor wakes one.",
    )


def _todo_in_error(step: StepRecord) -> str:
    if step.undo_failed:
        return f"Repair it and resubmit, or undo {step.name} by hand and skip it."
    return (
        "Repair the cause and resubmit; if you did the step by hand, skip it with its result, "
        "which later steps read; or undo."
    )


def bug_of(step: StepRecord, now: datetime) -> AttemptError | None:
    """Return the bug of its agent that a step waits for; None if it does not wait for one."""
    error = step.last_error
    if not step.dispatched or error is None or error.again_by is None:
        return None
    is_new = error.epoch == step.epoch and now < error.again_by + LATE_AFTER
    return error if is_new else None


def error_of(step: StepRecord) -> StepError | None:
    """Return the error of a step, or else of the last attempt of its agent; None if it is done."""
    error, last = step.error, attempt_error(step)
    if error is None:
        return last
    if last is None:
        return StepError(code=error.code, message=error.message)
    return replace(last, code=error.code, message=error.message)


def attempt_error(step: StepRecord) -> StepError | None:
    """Return the error of the last attempt of a step's agent; None if it is over."""
    error = step.last_error
    if error is None or step.process_state in {StepState.PROCESSED, StepState.COMPENSATED}:
        return None
    return StepError(
        code=error.kind,
        message=error.message,
        at=error.at,
        epoch=error.epoch,
        attempt=error.attempt,
    )


def circuit_of(agent: str, breaker: Breaker) -> Circuit:
    """Return the circuit of an agent."""
    return Circuit(
        agent=agent,
        state=breaker.state.value,
        since=breaker.since,
        until=breaker.until,
        rounds=breaker.rounds,
        why=breaker.why,
    )


def held(order: Order, waits: Waits, since: datetime | None) -> Waits:
    """Return what an order waits for that is left to an instance with its workflow ``since``.

    If ``since`` is None, it is not, and waits for what it waits for anyway.
    """
    if since is None:
        return waits
    workflow = f"{order.details.workflow} version {order.details.version}"
    return replace(
        waits,
        kind=Awaited.DEPLOY,
        awaited=f"A deploy that has {workflow}.",
        then="No instance has it. With it, the order goes on by itself.",
        todo=f"Deploy {workflow} again as it was, beside the other versions.",
    )


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
