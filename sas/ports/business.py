"""What an adopter supplies, checked as it is put together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sas.domain.order import Order
from sas.domain.workflow import UnknownWorkflowError, Workflow, WorkflowError, Workflows
from sas.ports.agents import Agent

LIMIT_MAX = 1000
"""Most calls in flight that a limit can be: beyond, finding a free slot takes too long."""


@dataclass(frozen=True, slots=True)
class Business:
    """What an adopter supplies: workflows, an agent for each name the steps use, and checks
    of the order's content per workflow, which raise ValueError with a sentence. ``limits`` says
    of an agent how many calls of its remote service may be in flight, over all instances.

    ``secret_fields`` names, by workflow, the fields of an order that are encrypted at rest, as
    paths: member names with dots between them, ``[]`` after a list's name for each element
    (``customer.card``, ``lines[].note``). Stop naming one only once no order holds it encrypted any
    more: ``()`` encrypts nothing and still opens what was.

    Raises:
        WorkflowError: what does not fit together: an agent that is missing or is none, a name
            that is not there, a limit out of bounds.
    """

    workflows: Workflows
    agents: Mapping[str, Agent]
    checks: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    secret_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = self.workflows.agents() - set(self.agents)
        if missing:
            there = ", ".join(sorted(self.agents)) or "none"
            raise WorkflowError(
                f"no agent is given for {', '.join(sorted(missing))}: the agents given are {there}"
            )
        for name, agent in self.agents.items():
            _check_agent(name, agent)
        known = sorted({workflow.name for workflow in self.workflows})
        _check_names("checks", self.checks, "workflow", known)
        _check_names("secret_fields", self.secret_fields, "workflow", known)
        for name, paths in self.secret_fields.items():
            if isinstance(paths, str):
                raise WorkflowError(
                    f"secret_fields of {name!r} is the text {paths!r}: give paths in a tuple, "
                    f"({paths!r},)"
                )
        _check_names("limits", self.limits, "agent", sorted(self.agents))
        for name, limit in self.limits.items():
            if not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
                raise WorkflowError(
                    f"limits of {name!r} is {limit!r}: give a whole number from 0 to {LIMIT_MAX}"
                )

    def workflow_of(self, order: Order) -> Workflow:
        """Return the workflow an order was submitted with.

        Raises:
            UnknownWorkflowError: this deployment no longer has it, or with other steps: no record
                of the order must be taken for another step's.
        """
        details = order.details
        found = self.workflows.find(details.workflow, details.version)
        begun, defined = [one.name for one in order.steps], [one.name for one in found.steps]
        if not order.rejected and begun != defined:
            raise UnknownWorkflowError(
                f"workflow {details.workflow!r} version {details.version} has the steps "
                f"{', '.join(defined)}, and was begun with {', '.join(begun)}"
            )
        return found


def _check_names(what: str, named: Iterable[str], kind: str, known: Sequence[str]) -> None:
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise WorkflowError(f"{what} names the {kind} {unknown[0]!r}: there is {', '.join(known)}")


def _check_agent(name: str, agent: object) -> None:
    """Refuse what could not be called: found out later, it would be by an order that fails."""
    if isinstance(agent, type):
        raise WorkflowError(
            f"agent {name!r} is the class {agent.__name__}: give an instance, {agent.__name__}(...)"
        )
    for method in ("do", "undo", "close"):
        found = getattr(agent, method, None)
        if not callable(found):
            raise WorkflowError(
                f"agent {name!r} has no {method}: an agent has the methods do, undo and close "
                "(class Agent in sas.ports)"
            )
        if not inspect.iscoroutinefunction(found):
            raise WorkflowError(
                f"agent {name!r}: its {method} is not `async def`: make it so, or give "
                f"Blocking(...) of it, from sas.ports, which runs each call in a thread"
            )
