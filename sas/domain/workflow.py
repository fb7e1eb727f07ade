"""Workflow definitions as data: what an adopter writes.

The decisions see only the ``Rules`` made of it (``policies.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sas.domain.definitions import (
    WorkflowError,
    check_kinds,
    check_patience,
    check_span,
)
from sas.domain.ids import check_agent, check_name
from sas.domain.policies import (
    NO_BACKOFF,
    Backoff,
    ExtendedWait,
    OnFailure,
    Rules,
    StepRules,
    Undo,
)

__all__ = [
    "STEPS_MAX",
    "Backoff",
    "ExtendedWait",
    "OnFailure",
    "Rules",
    "Step",
    "StepRules",
    "Undo",
    "UnknownWorkflowError",
    "Workflow",
    "WorkflowError",
    "Workflows",
]

STEPS_MAX = 30
"""Two rows and more per parallel step must fit one transaction of 100 operations."""


class UnknownWorkflowError(LookupError):
    """An order names a workflow or version that this deployment does not have."""


@dataclass(frozen=True, slots=True)
class Step:
    """One remote action.

    ``after`` names the steps that must be Processed first; None means the step written
    before it, () means none: such steps run beside each other. ``failures_max`` is how many
    times it may fail and still be retried; ``backoff`` and ``extended_wait`` say how patiently.
    A step without ``undo`` has nothing to undo. ``alternatives`` are other agents that can do the
    same, in order of preference: asked while the ones before them are not to be had.
    """

    name: str
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
    """A named, versioned set of steps that succeed or fail as one.

    ``deadline`` is the time the whole may take: an order past it is undone where ``on_failure``
    says so, and otherwise goes on with an alert.

    Raises:
        WorkflowError: when it could not run as written; checked here, once, not per order.
    """

    name: str
    version: int
    steps: tuple[Step, ...]
    on_failure: OnFailure = OnFailure.HOLD
    notify_steps: bool = True
    pickup: timedelta = timedelta(seconds=30)
    alert_after: timedelta = timedelta(minutes=10)
    deadline: timedelta | None = None
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        where = f"workflow {self.name!r}"
        check_kinds(where, self)
        object.__setattr__(self, "steps", tuple(self.steps))
        self._check_names(where)
        if not 1 <= len(self.steps) <= STEPS_MAX:
            raise WorkflowError(
                f"{where} has {len(self.steps)} steps: 1 to {STEPS_MAX} are possible"
            )
        if self.version < 1:
            raise WorkflowError(f"{where}: versions are counted from 1")
        check_span(where, "pickup", self.pickup)
        check_span(where, "alert_after", self.alert_after, timedelta(0))
        if self.deadline is not None:
            check_span(where, "a deadline", self.deadline)
        object.__setattr__(self, "rules", self._make_rules())

    def _check_names(self, where: str) -> None:
        for number, step in enumerate(self.steps):
            if not isinstance(step, Step):
                raise WorkflowError(f"{where}: steps[{number}] is no step: give a Step(...)")
            check_kinds(f"{where} step {step.name!r}", step)
        try:
            check_name(self.name, "workflow")
            for step in self.steps:
                check_name(step.name, "step")
                for agent in step.agents:
                    check_agent(agent)
        except ValueError as wrong:
            raise WorkflowError(f"{where}: {wrong}") from None

    def _make_rules(self) -> Rules:
        numbers: dict[str, int] = {}
        made: list[StepRules] = []
        for number, step in enumerate(self.steps):
            made.append(self._step_rules(number, step, numbers))
            numbers[step.name] = number
        return Rules(
            tuple(made),
            self.on_failure,
            self.notify_steps,
            self.pickup,
            self.alert_after,
            self.deadline,
        )

    def _step_rules(self, number: int, step: Step, numbers: Mapping[str, int]) -> StepRules:
        where = f"workflow {self.name!r} step {step.name!r}"
        if step.name in numbers:
            raise WorkflowError(f"{where} is defined twice")
        if len(set(step.agents)) < len(step.agents):
            raise WorkflowError(f"{where} names an agent twice: {', '.join(step.agents)}")
        check_patience(where, step)
        if step.after is None:
            after: tuple[int, ...] = (number - 1,) if number else ()
        else:
            unknown = [name for name in step.after if name not in numbers]
            if unknown:
                raise WorkflowError(
                    f"{where} comes after {unknown[0]!r}, which is not a step written before it"
                )
            after = tuple(sorted({numbers[name] for name in step.after}))
        return StepRules(
            step.name,
            after,
            step.time_allowed,
            step.undo.time_allowed if step.undo else None,
            step.failures_max,
            step.undo.call_limit if step.undo else None,
            step.backoff,
            step.extended_wait,
            len(step.agents),
        )


class Workflows:
    """Every workflow this deployment can run, by name and version."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._by_key: dict[tuple[str, int], Workflow] = {}
        if isinstance(workflows, Workflow):
            raise WorkflowError("workflows come in a list: Workflows([Workflow(...)])")
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
        """Return a workflow; the newest version where none is named.

        Raises:
            UnknownWorkflowError: naming what there is.
        """
        versions = sorted(v for n, v in self._by_key if n == name)
        if not versions:
            known = ", ".join(sorted({n for n, _ in self._by_key}))
            raise UnknownWorkflowError(f"unknown workflow {name!r}: there is {known}")
        wanted = versions[-1] if version is None else version
        if wanted not in versions:
            there = ", ".join(map(str, versions))
            raise UnknownWorkflowError(
                f"workflow {name!r} has no version {wanted}: there is {there}"
            )
        return self._by_key[name, wanted]

    def rules(self, name: str, version: int) -> Rules:
        """Return what the supervisor may know of a workflow."""
        return self.find(name, version).rules

    def agents(self) -> frozenset[str]:
        """Return the names of all agents that any step asks for."""
        return frozenset(
            agent for w in self._by_key.values() for step in w.steps for agent in step.agents
        )
