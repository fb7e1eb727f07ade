"""The business: workflows, and the agents that call remote services. ``sas.saga`` makes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sas.domain.order import Order
from sas.domain.workflow import (
    TIME_ALLOWED_MAX,
    UnknownWorkflowError,
    Workflow,
    WorkflowError,
    Workflows,
)
from sas.ports.platform import PayloadCodec

LIMIT_MAX = 1000
"""Highest limit of calls in flight. Above it, the search for a free slot takes too long."""


class RefusedError(Exception):
    """A remote service refused the call for good, and the call had no effect.

    ``code`` is for programs, the message for people. Both are stored with the order, and go to its
    application and to operators. So keep personal data and secrets out of them.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TransientError(Exception):
    """A call failed in a way that may pass. Whether it had an effect is unknown.

    ``retry_after`` is the pause that the service asked for. ``kind`` is a short code such as
    http-503 for metrics and logs. They never carry the message, which may quote the order.
    ``answered`` means that the service works and only this call must wait, for example because
    another call with its key is in progress. The circuit breaker counts it as a success.
    ``error_answer`` means that the service answered with an error (HTTP 500), perhaps because of
    this one order. The circuit breaker counts it once for each order.
    """

    def __init__(
        self,
        message: str,
        retry_after: timedelta | None = None,
        kind: str = "transient",
        *,
        answered: bool = False,
        error_answer: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.kind = kind
        self.answered = answered
        self.error_answer = error_answer


class HeldError(Exception):
    """A step cannot go on before a deploy. It waits as for a bug of its agent; nothing is undone.

    The text is the reason, for people.
    """


@dataclass(frozen=True, slots=True)
class StillRunning:
    """Returned instead of a result: the remote work goes on. The agent is called again later.

    The next call comes after ``check_after``, with the same key. No message and no function waits
    meanwhile, so a step may take hours. ``note`` tells people about the progress (200 characters
    are kept).

    Raises:
        ValueError: ``check_after`` is not above 0, or above ``TIME_ALLOWED_MAX``.
    """

    check_after: timedelta
    note: str = ""

    def __post_init__(self) -> None:
        _check_span("check_after", self.check_after)


@dataclass(frozen=True, slots=True)
class AwaitCallback:
    """Returned instead of a result: a callback ends the step ``within`` this time.

    Without a callback in that time a do fails for good. An undo times out, and is called again.

    Raises:
        ValueError: ``within`` is not above 0, or above ``TIME_ALLOWED_MAX``.
    """

    within: timedelta
    note: str = ""

    def __post_init__(self) -> None:
        _check_span("within", self.within)


Later = StillRunning | AwaitCallback
"""What an agent returns for a step that has not ended yet."""


def _check_span(name: str, span: timedelta) -> None:
    if not timedelta(0) < span <= TIME_ALLOWED_MAX:
        raise ValueError(f"{name}={span}: give more than 0, and at most {TIME_ALLOWED_MAX}")


@dataclass(frozen=True, slots=True)
class Callback:
    """What an outside system needs to end a step. Pass it to that system.

    ``token`` allows it to end this step until ``expires``. ``url`` contains the token, for
    systems that can only POST to an address; it is None without SAS_CALLBACK_URL.
    """

    token: str = field(repr=False)
    url: str | None = field(repr=False)
    expires: datetime


class CallbacksOffError(RuntimeError):
    """An agent asked for a callback, but a setting is missing that callbacks need."""

    def __init__(
        self,
        setting: str = "SAS_CALLBACK_KEY",
        advice: str = "random text of 32 characters or more, with which callbacks are signed",
    ) -> None:
        super().__init__(f"the setting {setting} is missing: set {advice}")


def _no_callbacks(_within: timedelta) -> Callback:
    raise CallbacksOffError


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One remote call: an action to do, or to undo.

    ``order`` is the order's payload. ``results`` are the results of the steps before it, by step
    name. ``key`` is the idempotency key: the same for do, undo and every retry. ``own_result`` is
    what the step's ``do`` returned, for its ``undo``.
    """

    order_id: str
    step: str
    key: str
    complete_by: datetime
    workflow: str = ""
    order: Any = field(repr=False)
    results: Mapping[str, Any] = field(repr=False)
    own_result: Any = field(default=None, repr=False)
    callbacks: Callable[[timedelta], Callback] = field(
        default=_no_callbacks, repr=False, compare=False
    )

    def callback(self, within: timedelta) -> Callback:
        """Return what an outside system needs to end this step ``within`` this time.

        Pass it to that system, and return ``AwaitCallback(within)``.

        Raises:
            CallbacksOffError: SAS_CALLBACK_KEY is not set.
            ValueError: ``within`` is not above 0, or above ``TIME_ALLOWED_MAX``.
        """
        _check_span("within", within)
        return self.callbacks(within)


class Agent(Protocol):
    """Calls one remote service. The pattern does the retries."""

    async def do(self, call: AgentCall) -> Any:
        """Make one attempt and return a result that JSON can hold, or a ``Later``.

        Any other result is a bug: the step waits as for any other error, and nothing is undone.

        Raises:
            RefusedError: the service refused for good.
            TransientError: the call may be tried again.
        """

    async def undo(self, call: AgentCall) -> Any:
        """Make one attempt to undo what ``do`` with the same key did or may still do.

        It returns and raises as ``do`` does. Its result is not kept.
        """

    async def close(self) -> None:
        """Close connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """What sagas say, as the engine needs it. It is checked when it is created.

    ``agents`` has an agent for each name that steps use. ``checks`` validate an order's content,
    by workflow and version, and raise ValueError with a sentence. ``limits`` set how many calls of
    an agent's remote service may be in flight, over all instances.

    ``inline`` names the agents whose service answers within milliseconds. Their calls are made at
    once, in the function that runs for the order already (``sas.engine.run_on``). A call that takes
    two seconds is cut off, and made again from the queue of its agent, with the same key. The
    requests to other agents always wait in queues of their own.

    ``results`` validate the results of steps in the same way, by workflow and version, and by step.
    ``settings`` names the settings that have the addresses of services.

    ``codec`` encodes the content of orders and results, in place of the one that SAS_PAYLOAD_KEYS
    makes.

    Raises:
        WorkflowError: an agent is missing, a name is unknown, or the codec is none.
    """

    workflows: Workflows
    agents: Mapping[str, Agent]
    checks: Mapping[tuple[str, int], Callable[[bytes], object]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    inline: Collection[str] = ()
    results: Mapping[tuple[str, int], Mapping[str, Callable[[bytes], object]]] = field(
        default_factory=dict
    )
    settings: Sequence[str] = ()
    codec: PayloadCodec | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        missing = self.workflows.agents() - set(self.agents)
        if missing:
            there = ", ".join(sorted(self.agents)) or "none"
            raise WorkflowError(
                f"no agent is given for {', '.join(sorted(missing))}: the agents given are {there}"
            )
        names = sorted({workflow.name for workflow in self.workflows})
        _check_names("checks", [name for name, _ in self.checks], "workflow", names)
        _check_names("limits", self.limits, "agent", sorted(self.agents))
        _check_names("inline", self.inline, "agent", sorted(self.agents))
        if self.codec is not None and not {"encode", "decode"} <= set(dir(self.codec)):
            raise WorkflowError(
                f"codec is {self.codec!r}: it has the methods encode and decode (class "
                "PayloadCodec in sas.ports)"
            )

    def check_result(self, order: Order, step: str, result: str | None) -> None:
        """Check a step's result that comes from outside: of a callback, or of an operator.

        Raises:
            ValueError: it does not fit; the text names the member. No result is as good as null.
        """
        checks = self.results.get((order.details.workflow, order.details.version), {})
        if step in checks:
            checks[step]((result or "null").encode())

    def workflow_of(self, order: Order) -> Workflow:
        """Return the workflow that an order was submitted with.

        Raises:
            UnknownWorkflowError: this deployment does not have it, or has it with other steps.
                Then a step's record could be taken for another step's.
        """
        details = order.details
        workflow = self.workflows.find(details.workflow, details.version)
        begun = [step.name for step in order.steps]
        defined = [step.name for step in workflow.steps]
        if not order.rejected and begun != defined:
            raise UnknownWorkflowError(
                f"workflow {details.workflow!r} version {details.version} has the steps "
                f"{', '.join(defined)}, but the order began with {', '.join(begun)}"
            )
        return workflow


def _check_names(member: str, keys: Iterable[str], kind: str, names: Sequence[str]) -> None:
    unknown = sorted(set(keys) - set(names))
    if unknown:
        raise WorkflowError(
            f"{member} names the {kind} {unknown[0]!r}: there is {', '.join(names)}"
        )
