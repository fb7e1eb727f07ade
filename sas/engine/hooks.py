"""Where features join the core: plain calls at a few named places.

===============================  ==========================================================
Place in the flow                Hooks
===============================  ==========================================================
Around an agent's call           ``CallGuard``, ``LongSteps``, ``CallbackIssuer``
Rules for a claim                ``RuntimeRules``
Expiry of a step                 ``Excuses``
The supervisor's sweep           ``SweepTask``, ``Incidents``
Content of an order              ``ContentStore``
Load and commit of an order      ``VersionCheck``
===============================  ==========================================================

A feature implements an interface of this module, and ``sas.bootstrap`` puts the feature in. The
core knows no feature by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol

from sas.codec.internal import RequestMessage
from sas.domain.change import Incident
from sas.domain.content import Content
from sas.domain.expire import Excuse
from sas.domain.messages import AlertKind
from sas.domain.order import Details, Order, StepRecord
from sas.domain.workflow import Rules, Workflow
from sas.engine.delivery import Delivery
from sas.ports import Callback, Clock, Later

PUT_BACK = "put-back/"
"""The MessageId of a request that was put back begins with this."""
CALLED = "sas_called"
"""The property of a request that was put back after a call may have gone out."""
CLOSE_TO_COMPLETE_BY = timedelta(seconds=5)
"""An agent does not wait for anything that comes later than this before CompleteBy."""
LAST_REPLY = timedelta(seconds=1)
"""So long before CompleteBy an agent stops waiting for the answer to a probe."""


# Around an agent's call


def called_before(delivery: Delivery) -> bool:
    """Return whether a call may have gone out for a request before this delivery."""
    return (delivery.count or 1) > 1 or CALLED in delivery.properties


class SilentError(Exception):
    """CompleteBy has passed: the agent sends no reply."""


class MustWaitError(Exception):
    """No call may go out before ``until``. ``called`` says whether an earlier one went out."""

    def __init__(self, until: datetime, *, called: bool) -> None:
        super().__init__(until)
        self.until = until
        self.called = called


class CallDeadline:
    """The time that one request has.

    ``request`` carries its CompleteBy. ``called`` says that a call went out. ``function_ends_at``
    is when the agent's function must end: a request that is not done by then is put back.
    """

    def __init__(
        self, clock: Clock, request: RequestMessage, function_ends_at: datetime | None = None
    ) -> None:
        self.request = request
        self.called = False
        self.function_ends_at = function_ends_at
        self._clock = clock
        self._allowed = timedelta(seconds=request.time_allowed)

    @property
    def fair_share(self) -> timedelta:
        """The shortest time after which a call without answer counts as a failed service."""
        return self._allowed / 3

    def left(self) -> float:
        """Return the seconds until CompleteBy."""
        return (self.request.complete_by - self._clock.now()).total_seconds()

    def outlasts_function(self, moment: datetime) -> bool:
        """Return whether a moment comes after the end of the function."""
        return self.function_ends_at is not None and moment >= self.function_ends_at

    def is_close(self, moment: datetime) -> bool:
        """Return whether a moment is too close to CompleteBy to wait for it."""
        return moment >= self.request.complete_by - min(CLOSE_TO_COMPLETE_BY, self._allowed / 6)

    @property
    def last_reply(self) -> datetime:
        """The last moment to stop waiting for a call, so that a reply is still sent in time."""
        return self.request.complete_by - min(LAST_REPLY, self._allowed / 30)


@dataclass(eq=False, slots=True)
class CallAttempt:
    """One attempt of a remote call, from its admission to its end.

    Guards set both marks. ``probes``: the call tests a service that may be away, so the agent stops
    waiting for its answer at ``CallDeadline.last_reply``. ``excused``: the call failed because of
    the service alone, so no failure of the step is counted.
    """

    deadline: CallDeadline
    probes: bool = False
    excused: bool = False

    @property
    def request(self) -> RequestMessage:
        """The request that the attempt is made for."""
        return self.deadline.request


class CallEnd(Enum):
    """What the end of an attempt says about its remote service."""

    ANSWERED = "answered"
    FAILED = "failed"
    ERROR_ANSWER = "error answer"
    """The service answered with an error, perhaps because of this one order."""
    UNKNOWN = "unknown"
    """Nothing: no call went out, it was cut off early, or the agent's own code failed."""


class CallGuard(Protocol):
    """Decides whether a call may go out, and learns how it ended."""

    async def admit(self, attempt: CallAttempt) -> datetime | None:
        """Return the time until which the call must wait; None if it may go out now.

        It may be called again for the same attempt before the call goes out.
        """
        ...

    async def ended(self, attempt: CallAttempt, end: CallEnd, why: str) -> None:
        """Learn how an attempt ended. ``why`` explains a failure to people."""
        ...


class LongSteps(Protocol):
    """Steps that outlast a call."""

    async def granted(self, request: RequestMessage, delivery: Delivery) -> RequestMessage | None:
        """Return a request with the CompleteBy that its call has.

        None: no call may go out now. The request is superseded, or it was received late, asked for
        time, and was put back.
        """
        ...

    async def go_on(self, request: RequestMessage, later: Later) -> None:
        """Ask for the time that a step still needs, and schedule the next look at it."""
        ...


CallbackIssuer = Callable[[RequestMessage, int], Callable[[timedelta], Callback]]
"""Given a request and a generation of its key, returns a function that issues its callbacks."""


# Rules for a claim


class RuntimeRules(Protocol):
    """Rules that change at run time: unavailable routes."""

    async def refresh(self) -> None:
        """Read the state that the rules depend on, at most every second or so.

        Call it before the order is loaded.

        Raises:
            StoreUnavailableError: put the message back.
        """
        ...

    def of(self, workflow: Workflow, now: datetime) -> Rules:
        """Return the current rules of a workflow."""
        ...


# Expiry of a step


class Excuses(Protocol):
    """Knows why a step past its CompleteBy has not failed."""

    def begin_sweep(self) -> None:
        """Forget what the last sweep saw."""
        ...

    async def of(self, order: Order, step: StepRecord) -> Excuse | None:
        """Return why a dispatched step has not failed; None if its timeout counts."""
        ...


# The supervisor's sweep

SweepTask = Callable[[], Awaitable[None]]
"""Runs at the end of every sweep."""


class Incidents(Protocol):
    """Reports incidents to operators."""

    async def report(self, incident: Incident, *order_ids: str) -> None:
        """Report an incident. This happens before the commit of the order that meets it.

        Raises:
            StoreUnavailableError, BusUnavailableError: no alert was sent; report it again.
        """
        ...

    async def end(self, kind: AlertKind, scope: str) -> None:
        """Send an alert that an incident is over, if it was reported; raises as ``report``."""
        ...


# Content of an order


class ContentStore(Protocol):
    """Stores the content of orders."""

    def is_large(self, details: Details) -> bool:
        """Return whether the payload of an order is to be offloaded."""
        ...

    async def offload_payload(self, details: Details) -> Details:
        """Return an order's details, with a reference in place of a large payload."""
        ...

    async def offload_result(self, order_id: str, text: str) -> Content:
        """Return a result, or a reference to it if it is large."""
        ...

    async def fetch(self, order_id: str, content: Content) -> str:
        """Return the text of content.

        Raises:
            LostContentError: it is missing, or was changed.
        """
        ...

    async def fetch_all(self, order: Order) -> Order:
        """Return an order with all its content in place. Lost content stays a reference."""
        ...


# Load and commit of an order


class VersionCheck(Protocol):
    """Refuses orders whose workflow version was redefined."""

    async def check(self, order: Order) -> None:
        """Compare an order's workflow with the stored definition of its version.

        Raises:
            StoreMismatchError: they differ.
        """
        ...
