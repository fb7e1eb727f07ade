"""Workflows as an adopter defines them, and the rules that decisions use.

Rules say which step follows which, and how long and how often each one is tried. Of the agents they
hold only the names, and of the business nothing: the Supervisor "shouldn't have knowledge of the
actual business operations".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
from enum import Enum
from typing import Any, get_type_hints

from sas.domain.ids import check_agent, check_name

STEPS_MAX = 30
"""Most steps of a workflow. One transaction takes 100 operations, and a step can need three."""
TIME_ALLOWED_MIN = timedelta(milliseconds=100)
TIME_ALLOWED_MAX = timedelta(days=30)
NO_TIME = timedelta(0)
_SHOWN_MAX = 60


class WorkflowError(ValueError):
    """The definition of a workflow is wrong. The message says where, and what to change."""


class UnknownWorkflowError(LookupError):
    """An order names a workflow or version that is not deployed here."""


class OnFailure(Enum):
    """What happens when a step has failed."""

    HOLD = "hold"
    """The order stays in Error until an operator resubmits or undoes it."""
    UNDO = "undo"
    """Every step that may have had an effect is undone."""


@dataclass(frozen=True, slots=True)
class Undo:
    """How a step is undone: by the same agent, within its own time.

    ``drain_time`` is for a remote service that cannot refuse a do after its undo: the longest time
    after CompleteBy in which a call may still arrive there. The undo waits for that time.
    """

    time_allowed: timedelta = timedelta(seconds=60)
    drain_time: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a step rests after a timeout: growing from ``first``, up to ``most``."""

    first: timedelta = NO_TIME
    factor: float = 2.0
    most: timedelta = timedelta(minutes=15)

    def delay(self, failures: int) -> timedelta:
        """Return the rest after this many failures (from 1)."""
        if not self.first:
            return self.first
        grown = self.first.total_seconds() * self.factor ** min(failures - 1, 64)
        return timedelta(seconds=min(grown, self.most.total_seconds()))


NO_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class ExtendedWait:
    """A long rest past the threshold, "in the expectation that the fault is resolved".

    The step fails after ``times`` such rests.
    """

    time: timedelta
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """The rules of one step. ``after`` are the numbers of the steps that must be Processed first,
    ``agents`` are those that can do it, by route.
    """

    name: str
    after: tuple[int, ...]
    time_allowed: timedelta
    undo_time_allowed: timedelta | None
    failures_max: int
    drain_time: timedelta | None = None
    backoff: Backoff = NO_BACKOFF
    extended_wait: ExtendedWait | None = None
    agents: tuple[str, ...] = ("",)

    @property
    def undo_time(self) -> timedelta:
        """The time allowed for its undo."""
        return self.undo_time_allowed or self.time_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one workflow.

    If no scheduler claims a ready step within ``pickup``, a scheduler is woken again; after
    ``alert_after`` an incident is reported. ``unavailable`` are the routes whose circuit is open,
    as (step, route): it changes at run time.
    """

    steps: tuple[StepRules, ...]
    on_failure: OnFailure
    notify_steps: bool
    pickup: timedelta
    alert_after: timedelta
    deadline: timedelta | None = None
    unavailable: frozenset[tuple[int, int]] = frozenset()

    def predecessors(self, number: int) -> tuple[int, ...]:
        """Return every step that comes before step ``number``, directly or through others."""
        numbers = set(self.steps[number].after)
        for earlier in range(number - 1, -1, -1):
            if earlier in numbers:
                numbers.update(self.steps[earlier].after)
        return tuple(sorted(numbers))

    def dependents(self, number: int) -> tuple[int, ...]:
        """Return every step that comes after step ``number``, directly or through others."""
        numbers = {number}
        for later in range(number + 1, len(self.steps)):
            if numbers.intersection(self.steps[later].after):
                numbers.add(later)
        return tuple(sorted(numbers - {number}))


@dataclass(frozen=True, slots=True)
class Step:
    """One remote action.

    ``after`` names the steps that must be Processed first. None means the step written before this
    one; () means no step, so such steps run in parallel. After ``failures_max`` timeouts the step
    is still tried again; after one more it is past its threshold. A step without ``undo`` has
    nothing to undo. ``alternatives`` are other agents for the same action, in order of preference.
    The first dispatch goes to the first agent whose circuit is closed, and the step stays there.
    """

    name: str
    _: KW_ONLY
    agent: str
    time_allowed: timedelta = timedelta(seconds=60)
    after: tuple[str, ...] | None = None
    undo: Undo | None = None
    failures_max: int = 3
    backoff: Backoff = NO_BACKOFF
    extended_wait: ExtendedWait | None = None
    alternatives: tuple[str, ...] = ()

    @property
    def agents(self) -> tuple[str, ...]:
        """Every agent that can do it, by route."""
        return (self.agent, *self.alternatives)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A named, versioned set of steps that succeed or fail as a whole.

    ``deadline`` is the time allowed for the whole order. An order past it is undone if
    ``on_failure`` says so; otherwise it goes on, and an operator is alerted. With ``notify_steps``
    the application is notified of each step that took effect, and not only of the order's end.

    Raises:
        WorkflowError: the definition is wrong. It is checked here, once, and not for each order.
    """

    name: str
    _: KW_ONLY
    version: int
    steps: tuple[Step, ...]
    on_failure: OnFailure = OnFailure.HOLD
    notify_steps: bool = False
    pickup: timedelta = timedelta(seconds=30)
    alert_after: timedelta = timedelta(minutes=10)
    deadline: timedelta | None = None
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        where = f"workflow {self.name!r}"
        _check_kinds(where, self)
        object.__setattr__(self, "steps", tuple(self.steps))
        self._check_names(where)
        if len(self.steps) > STEPS_MAX:
            raise WorkflowError(
                f"{where} has {len(self.steps)} steps: 1 to {STEPS_MAX} are allowed"
            )
        if self.version < 1:
            raise WorkflowError(f"{where}: versions are counted from 1")
        _check_span(where, "pickup", self.pickup)
        _check_span(where, "alert_after", self.alert_after, NO_TIME)
        if self.deadline is not None:
            _check_span(where, "a deadline", self.deadline)
        object.__setattr__(self, "rules", self._make_rules())

    def _check_names(self, where: str) -> None:
        for number, step in enumerate(self.steps):
            if not isinstance(step, Step):
                raise WorkflowError(f"{where}: steps[{number}] is not a step: give a Step(...)")
            _check_kinds(f"{where} step {step.name!r}", step)
        try:
            check_name(self.name, "workflow")
            for step in self.steps:
                check_name(step.name, "step")
                for agent in step.agents:
                    check_agent(agent)
        except ValueError as error:
            raise WorkflowError(f"{where}: {error}") from None

    def _make_rules(self) -> Rules:
        numbers: dict[str, int] = {}
        rules: list[StepRules] = []
        for number, step in enumerate(self.steps):
            rules.append(self._step_rules(number, step, numbers))
            numbers[step.name] = number
        return Rules(
            steps=tuple(rules),
            on_failure=self.on_failure,
            notify_steps=self.notify_steps,
            pickup=self.pickup,
            alert_after=self.alert_after,
            deadline=self.deadline,
        )

    def _step_rules(self, number: int, step: Step, numbers: Mapping[str, int]) -> StepRules:
        where = f"workflow {self.name!r} step {step.name!r}"
        if step.name in numbers:
            raise WorkflowError(f"{where} is defined twice")
        if len(set(step.agents)) < len(step.agents):
            raise WorkflowError(f"{where} names an agent twice: {', '.join(step.agents)}")
        _check_times(where, step)
        after: tuple[int, ...] = (number - 1,) if number else ()
        if step.after is not None:
            unknown = [name for name in step.after if name not in numbers]
            if unknown:
                raise WorkflowError(
                    f"{where} comes after {unknown[0]!r}, which is not a step written before it"
                )
            after = tuple(sorted({numbers[name] for name in step.after}))
        undo = step.undo
        return StepRules(
            name=step.name,
            after=after,
            time_allowed=step.time_allowed,
            undo_time_allowed=undo.time_allowed if undo else None,
            failures_max=step.failures_max,
            drain_time=undo.drain_time if undo else None,
            backoff=step.backoff,
            extended_wait=step.extended_wait,
            agents=step.agents,
        )


class Workflows:
    """Every workflow that is deployed, by name and version."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._by_key: dict[tuple[str, int], Workflow] = {}
        if isinstance(workflows, Workflow):
            raise WorkflowError("give the workflows in a list: Workflows([Workflow(...)])")
        for workflow in workflows:
            key = (workflow.name, workflow.version)
            if key in self._by_key:
                raise WorkflowError(f"workflow {key[0]!r} version {key[1]} is defined twice")
            self._by_key[key] = workflow
        if not self._by_key:
            raise WorkflowError("no workflow is defined: give at least one")

    def __iter__(self) -> Iterator[Workflow]:
        """Yield the workflows in the order they were given."""
        return iter(self._by_key.values())

    def find(self, name: str, version: int | None = None) -> Workflow:
        """Return a workflow; the newest version if ``version`` is None.

        Raises:
            UnknownWorkflowError: it is not deployed here.
        """
        versions = sorted(v for n, v in self._by_key if n == name)
        if not versions:
            names = ", ".join(sorted({n for n, _ in self._by_key}))
            raise UnknownWorkflowError(f"unknown workflow {name!r}: known are {names}")
        number = versions[-1] if version is None else version
        if number not in versions:
            numbers = ", ".join(map(str, versions))
            raise UnknownWorkflowError(
                f"workflow {name!r} has no version {number}: known are {numbers}"
            )
        return self._by_key[name, number]

    def rules(self, name: str, version: int) -> Rules:
        """Return the rules of a workflow. The supervisor knows nothing else of it."""
        return self.find(name, version).rules

    def agents(self) -> frozenset[str]:
        """Return the names of the agents of all steps."""
        return frozenset(
            agent for w in self._by_key.values() for step in w.steps for agent in step.agents
        )


_SPAN = "a timedelta, as in timedelta(seconds=30)"
_FIELD_KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "True or False"),
    timedelta: ((timedelta,), _SPAN),
    timedelta | None: ((timedelta, type(None)), f"{_SPAN}, or None"),
    tuple[str, ...]: ((tuple, list), 'names in a tuple, as in ("paypal",)'),
    tuple[str, ...] | None: ((tuple, list, type(None)), 'names in a tuple, as in ("paypal",)'),
    tuple[Step, ...]: ((tuple, list), "a tuple; of one step, with its comma: steps=(Step(...),)"),
    OnFailure: ((OnFailure,), "OnFailure.HOLD or OnFailure.UNDO"),
    Undo | None: ((Undo, type(None)), "Undo() or None"),
    Backoff: ((Backoff,), "a Backoff(...)"),
    ExtendedWait | None: ((ExtendedWait, type(None)), "an ExtendedWait(...) or None"),
}
"""By the type of a field: the types that its value may have, and the same in words."""


def _check_kinds(where: str, definition: Any) -> None:
    """Refuse a value of the wrong type now, and not when an order first needs it."""
    types = get_type_hints(type(definition))
    for member in fields(definition):
        if member.init:
            kinds, advice = _FIELD_KINDS[types[member.name]]
            value = getattr(definition, member.name)
            if not isinstance(value, kinds):
                shown = repr(value)[:_SHOWN_MAX]
                raise WorkflowError(f"{where}: {member.name}={shown}: give {advice}")


def _check_span(
    where: str, what: str, span: timedelta, least: timedelta = TIME_ALLOWED_MIN
) -> None:
    if not least <= span <= TIME_ALLOWED_MAX:
        from_ = "0" if least == NO_TIME else str(least)
        raise WorkflowError(f"{where}: {what} must be between {from_} and {TIME_ALLOWED_MAX}")


def _check_times(where: str, step: Step) -> None:
    """Refuse times, rests and counts of a step that are out of bounds."""
    wait, undo, backoff = step.extended_wait, step.undo, step.backoff
    for part, definition in (("undo", undo), ("extended_wait", wait), ("backoff", backoff)):
        if definition is not None:
            _check_kinds(f"{where} {part}", definition)
    allowed = [undo.time_allowed] if undo else []
    waited = [wait.time] if wait else []
    for time in (step.time_allowed, *allowed, *waited):
        _check_span(where, "a time allowed (or waited)", time)
    drain_time = (undo.drain_time if undo else None) or NO_TIME
    for rest in (drain_time, backoff.first, backoff.most):
        _check_span(where, "a rest or a drain time", rest, NO_TIME)
    if backoff.first > backoff.most:
        raise WorkflowError(
            f"{where}: its backoff begins with first={backoff.first}, longer than "
            f"most={backoff.most}: give a longer most or a shorter first"
        )
    if not 1 <= backoff.factor <= 100:
        raise WorkflowError(f"{where}: the factor of a backoff must be between 1 and 100")
    if not 0 <= step.failures_max <= 1000:
        raise WorkflowError(f"{where}: failures_max must be between 0 and 1000")
    if wait is not None and not 1 <= wait.times <= 1000:
        raise WorkflowError(f"{where}: the times of an extended wait must be between 1 and 1000")


SMOKE = Workflow("smoke", version=1, steps=())
"""The workflow of the test after a deployment (``sas azd smoke``): each function app has it. Its
orders call nothing and are completed at once.
"""
