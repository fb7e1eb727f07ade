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
from sas.engine.in_flight import InFlightRequest
from sas.ports import Callback, Later

# Around an agent's call


class Admission(Enum):
    """How a guard admits a call."""

    CALL = "call"
    PROBE = "probe"
    """The call tests a service that may be away. If it fails, no failure of the step is counted."""


class CallEnd(Enum):
    """What the end of an attempt says about its remote service."""

    ANSWERED = "answered"
    FAILED = "failed"
    ERROR_ANSWER = "error answer"
    """The service answered with an error, perhaps because of this one order."""
    UNKNOWN = "unknown"
    """Nothing: no call went out, it was cut off early, or the agent's code has a bug."""


class CallGuard(Protocol):
    """Decides whether a call may go out, and learns how it ended."""

    async def admit(self, call: InFlightRequest) -> Admission | datetime:
        """Admit a call, or return the time until which it must wait.

        It may be asked again for the same call before the call goes out.
        """
        ...

    async def ended(self, call: InFlightRequest, end: CallEnd, why: str) -> None:
        """Learn how a call ended. ``why`` explains a failure to people."""
        ...


class LongSteps(Protocol):
    """Steps that outlast a call."""

    async def granted(self, call: InFlightRequest, delivery: Delivery) -> RequestMessage | None:
        """Return the request with the CompleteBy that its call has.

        None: no call may go out now. The request is superseded, or it was received late, asked for
        time, and comes again. The state of ``call`` says which.
        """
        ...

    async def go_on(self, call: InFlightRequest, later: Later) -> None:
        """Ask for the time that a step still needs, and schedule the next check of it."""
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
            StoreUnavailableError: no alert was sent; report it again.
        """
        ...

    async def end(self, kind: AlertKind, scope: str) -> None:
        """Send an alert that an incident is over, if it is active; raises as ``report``.

        An incident of steps that rest stays active while one of them rests.
        """
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
