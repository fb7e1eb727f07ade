"""Where features join the core: plain calls, at four named places.

* Around an agent's call: ``CallGuard``, ``CallDeadline``, ``LongSteps``, ``CallbackIssuer``.
* Where the rules for a claim are made: ``RuleSource``.
* Where an expiry is judged: ``ExpiryGrace``.
* At the supervisor's sweep: ``SweepTask``.

Content and secrets of an order pass through ``ContentStore`` and ``Encryption``. Each class here is
an interface whose own methods do nothing special, so the core runs without any feature. A feature
overrides them, and ``sas.bootstrap`` puts it in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol

from sas.codec.internal import RequestMessage
from sas.codec.orders import Submission
from sas.domain.change import Incident
from sas.domain.content import Content
from sas.domain.messages import AlertKind
from sas.domain.order import Details, Order
from sas.domain.workflow import Rules, Workflow
from sas.engine.delivery import Delivery
from sas.ports import Callback, CallbacksOffError, Clock, Later, LostContentError
from sas.telemetry.tracing import logger

log = logger(__name__)
CLOSE_TO_COMPLETE_BY = timedelta(seconds=5)
"""An agent waits for nothing that comes later than this before CompleteBy."""


class SilentError(Exception):
    """CompleteBy has passed, or the step is no longer this request's: the agent says nothing."""


class MustWaitError(Exception):
    """No call may go out before ``until``. ``called`` says whether an earlier one went out."""

    def __init__(self, until: datetime, *, called: bool) -> None:
        super().__init__(until)
        self.until = until
        self.called = called


# Around an agent's call


class CallDeadline:
    """The time that one request has: until its CompleteBy.

    ``request`` carries the CompleteBy that holds. ``extended`` says whether that is later than
    the one it came with. ``superseded`` says that the step is no longer this request's.
    """

    def __init__(self, clock: Clock, request: RequestMessage) -> None:
        self.request = request
        self.extended = False
        self.superseded = False
        self.on_extended: Callable[[], Awaitable[None]] | None = None
        self._clock = clock
        self._allowed = timedelta(seconds=request.time_allowed)

    @property
    def fair_share(self) -> timedelta:
        """The time a call must have had before its silence says anything about its service."""
        return self._allowed / 3

    def left(self) -> float:
        """Return the seconds until CompleteBy."""
        if self.superseded:
            return 0.0
        return (self.request.complete_by - self._clock.now()).total_seconds()

    def is_close(self, moment: datetime) -> bool:
        """Return whether a moment is too close to CompleteBy to wait for it."""
        return moment >= self.request.complete_by - min(CLOSE_TO_COMPLETE_BY, self._allowed / 6)

    async def begin(self) -> None:
        """Take note that the first call begins."""

    async def heartbeat(self, note: str = "") -> None:
        """Take note that the call goes on."""

    async def passed(self) -> None:
        """Return when the time is over."""
        await self._clock.sleep(self.left())


@dataclass(eq=False, slots=True)
class CallAttempt:
    """One attempt of a remote call, from its admission to its end."""

    deadline: CallDeadline

    @property
    def request(self) -> RequestMessage:
        """The request that the attempt is made for."""
        return self.deadline.request


class CallEnd(Enum):
    """What an attempt says about its remote service."""

    ANSWERED = "answered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Nothing: no call went out, it was cut off early, or the agent's own code failed."""


class CallGuard(Protocol):
    """Holds calls of one agent back, and learns how they end."""

    async def admit(self, attempt: CallAttempt) -> datetime | None:
        """Return until when the call must wait; None where it may go out.

        The same attempt may be asked for again before its call goes out.
        """
        ...

    async def extend(self, attempt: CallAttempt) -> None:
        """Take note that the deadline of a running call moved on."""
        ...

    async def ended(self, attempt: CallAttempt, end: CallEnd, why: str) -> None:
        """Take note of how an attempt ended. ``why`` says it to people, for FAILED."""
        ...


class LongSteps:
    """Steps that last longer than a call. This default has none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def deadline(self, request: RequestMessage, *, first: bool) -> CallDeadline:  # noqa: ARG002
        """Return the deadline of a request. ``first``: it was not put back before."""
        return CallDeadline(self._clock, request)

    async def granted(self, request: RequestMessage) -> RequestMessage | None:
        """Return a request with the CompleteBy that holds; None where it must fall silent."""
        return request

    async def go_on(self, request: RequestMessage, later: Later) -> None:
        """Have a step that goes on looked at again."""
        raise TypeError(
            f"agent of step {request.step_name} returned {type(later).__name__}: "
            "put the feature long_steps in (sas.bootstrap)"
        )


CallbackIssuer = Callable[[RequestMessage, int], Callable[[timedelta], Callback]]
"""Given a request and a generation of its key: what issues callbacks for it."""


def no_callbacks(_request: RequestMessage, _generation: int) -> Callable[[timedelta], Callback]:
    """Issue no callback."""

    def refuse(_within: timedelta) -> Callback:
        raise CallbacksOffError

    return refuse


# Where the rules for a claim are made


class RuleSource(Protocol):
    """Changes the rules of a workflow at run time."""

    async def refresh(self) -> None:
        """Read what the rules depend on; seldom, however often it is called.

        Raises:
            StoreUnavailableError: let the message come again.
        """
        ...

    def adjust(self, rules: Rules, workflow: Workflow, now: datetime, *, urgent: bool) -> Rules:
        """Return the rules as they are now."""
        ...


class RuntimeRules:
    """Rules that change at run time: open circuits and queue delays."""

    def __init__(self, *sources: RuleSource) -> None:
        self._sources = sources

    async def refresh(self) -> None:
        """Read what the rules depend on. Call it before the order is loaded."""
        for source in self._sources:
            await source.refresh()

    def of(self, workflow: Workflow, now: datetime, *, urgent: bool) -> Rules:
        """Return a workflow's rules as they are now."""
        rules = workflow.rules
        for source in self._sources:
            rules = source.adjust(rules, workflow, now, urgent=urgent)
        return rules


# Where an expiry is judged


class ExpiryGrace:
    """Knows how late messages are received: that alone must fail no step."""

    @property
    def delay(self) -> timedelta:
        """The delay of the slowest queue, as far as is known."""
        return timedelta(0)

    async def record(self, delivery: Delivery) -> None:
        """Take note of how late a message was received."""

    async def refresh(self) -> None:
        """Read the delays that other instances noted."""


# At the supervisor's sweep, and where a decision meets what is wrong with the system

SweepTask = Callable[[], Awaitable[None]]
"""Runs at the end of every sweep."""


class Incidents:
    """Tells the operator what is wrong with the system rather than with one order."""

    async def report(self, incident: Incident, *order_ids: str) -> None:
        """Report an incident, before the commit that has the order looked at later.

        Raises:
            StoreUnavailableError, BusUnavailableError: nobody was told; report it again.
        """
        log.warning("%s %s: %s (%s)", incident.kind.value, incident.scope, incident.text, order_ids)

    async def end(self, kind: AlertKind, scope: str) -> None:
        """Tell the operator that an incident is over, if it was reported; raises as ``report``."""


# What an order holds


class ContentStore:
    """Keeps the content of orders: here all of it in the order's own rows and messages."""

    def is_large(self, details: Details) -> bool:  # noqa: ARG002
        """Return whether the payload of an order is to be offloaded."""
        return False

    async def offload_payload(self, details: Details) -> Details:
        """Return an order's details, with a reference in place of a large payload."""
        return details

    async def offload_result(self, order_id: str, text: str) -> Content:  # noqa: ARG002
        """Return a result, or the reference to it where it is large."""
        return text

    async def fetch(self, order_id: str, content: Content) -> str:
        """Return the text of content.

        Raises:
            LostContentError: it is missing, or was changed.
        """
        if isinstance(content, str):
            return content
        raise LostContentError(
            f"order {order_id} refers to content of {content.size:,} bytes: put the feature "
            "claim_check in (sas.bootstrap)"
        )

    async def fetch_all(self, order: Order) -> Order:
        """Return an order with all its content in place; what is lost stays a reference."""
        payload = await self._found(order.order_id, order.details.payload)
        steps = [
            step
            if step.result is None
            else replace(step, result=await self._found(order.order_id, step.result))
            for step in order.steps
        ]
        return replace(order, details=replace(order.details, payload=payload), steps=tuple(steps))

    async def _found(self, order_id: str, content: Content) -> Content:
        try:
            return await self.fetch(order_id, content)
        except LostContentError as lost:
            log.error("%s", lost)  # noqa: TRY400  the place of reading says nothing more
            return content


class Encryption:
    """Keeps named fields of an order secret at rest: here none."""

    def has_secrets(self, workflow: str) -> bool:  # noqa: ARG002
        """Return whether orders of a workflow have, or once had, secret fields."""
        return False

    def protect(self, submission: Submission, workflow: str) -> tuple[str, str]:  # noqa: ARG002
        """Return the payload and the content hash that are stored of a submission.

        Raises:
            MalformedError: a secret field is not where it should be, or comes encrypted.
        """
        return submission.payload, submission.content_hash

    def is_same(self, details: Details, submission: Submission) -> bool:
        """Return whether a stored order is the one submitted.

        Raises:
            MalformedError: the key that signed its hash is gone.
        """
        return details.content_hash == submission.content_hash

    def encrypt_input(self, workflow: str, order_id: str, text: str) -> str:  # noqa: ARG002
        """Return an operator's input as it is stored.

        Raises:
            ValueError: a secret field is not where it should be, or is another order's.
        """
        return text

    def decrypt(self, workflow: str, order_id: str, value: Any) -> tuple[Any, tuple[str, ...]]:  # noqa: ARG002
        """Return an order's content in plain, and the texts in it that are secret.

        Raises:
            DecryptionError: a field cannot be decrypted.
        """
        return value, ()


class VersionCheck:
    """Refuses orders whose workflow was redefined under the same version: here none."""

    async def check(self, order: Order) -> None:
        """Compare an order's workflow with the definition that its version began with.

        Raises:
            StoreMismatchError: they differ.
        """


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return a text with ``(secret)`` in place of every secret that it quotes."""
    for secret in secrets:
        text = text.replace(secret, "(secret)")
    return text
