"""What the actors need of the world: a state store, a message bus, a clock, remote agents.

Each port has two adapters that pass one contract suite: the real one in ``sas.adapters``
and the one in memory in ``sas.simulation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sas.domain.changes import Change, Due, OutDue
from sas.domain.messages import JournalEntry
from sas.domain.model import Order, OrderState
from sas.domain.workflow import Workflow, Workflows


class ConflictError(Exception):
    """A rival's transaction won, or the cause was recorded already. Load again and decide anew."""


class StoreUnavailableError(Exception):
    """The state store did not answer in time. Nothing is known to be lost: let the message
    come again.
    """


class StoreMismatchError(Exception):
    """The table was written with other settings than this start has: its number of shards, or
    the definition of a workflow under the same version.
    """


class BusUnavailableError(Exception):
    """The bus did not take a message in time (busy, throttled, cut off). Send it again later."""


class RefusedError(Exception):
    """A remote service refused for good, and certainly without effect.

    ``code`` is for programs, the message for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TransientError(Exception):
    """A remote service failed in a way that may pass; whether it had an effect is unknown.

    ``retry_after`` is what the service asked for, if it did; ``kind`` a short code, such as
    http-503, for metrics and logs: they never carry the message, which may quote the order.
    """

    def __init__(
        self, message: str, retry_after: timedelta | None = None, kind: str = "transient"
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.kind = kind


class Clock(Protocol):
    """UTC now, and sleeping."""

    def now(self) -> datetime:
        """Return the time in UTC, aware."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


@dataclass(frozen=True, slots=True)
class Summary:
    """One order in a list: read from an index row, without loading the order."""

    at: datetime
    order_id: str
    process_state: OrderState
    workflow: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A small named value that all instances share, with the token that guards its change."""

    value: str
    token: str


class StateStore(Protocol):
    """Orders, their journals and the index rows, in one table, one transaction per transition.

    Every method may raise StoreUnavailableError.
    """

    @property
    def shards(self) -> Sequence[str]:
        """Every shard there is: what a sweep goes through."""
        ...

    async def load(self, order_id: str) -> Order | None:
        """Return an order with its token, without journal; None where there is none."""
        ...

    async def commit(self, change: Change) -> Order:
        """Write a change whole or not at all; return the order with its new token.

        Our own write is never mistaken for a rival's: after a conflict or an unknown
        outcome the journal row of this seq is read, and is ours if it carries our commit id.

        Raises:
            ConflictError: the order changed since it was loaded (or exists already, for a
                first change), or another row remembers this cause. Nothing was written.
            TooLargeError: past the bounds of sas.bounds, before any I/O.
        """
        ...

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """Return the journal row that a cause led to, if it did."""
        ...

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """Return one journal row."""
        ...

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """Return the whole journal of an order, oldest first."""
        ...

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """Return at most ``limit`` due rows of a shard at or before ``until``, oldest first."""
        ...

    async def add_out(self, due: OutDue) -> None:
        """Remember that messages of a journal row must still be sent. Repeating is harmless."""
        ...

    async def remove_out(self, due: OutDue) -> None:
        """Forget an out row: its messages were sent. A missing row is no error."""
        ...

    async def oldest_due(self, shard: str) -> datetime | None:
        """Return when the oldest due row of a shard is due."""
        ...

    async def attention(self, limit: int, *, since: datetime | None = None) -> list[Summary]:
        """Return at most ``limit`` orders in Error, at or after ``since``, longest there first."""
        ...

    async def finished(
        self, limit: int, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Summary]:
        """Return at most ``limit`` finished orders, oldest first, within these moments."""
        ...

    async def purge(self, order: Order) -> bool:
        """Remove a finished order whole; False where it changed (or went) since it was loaded.

        It stays listed as finished until nothing of it is left, so that after a crash at
        any point it is found and removed again. What is removed before an operator's
        transaction wins are the oldest journal rows alone.
        """
        ...

    async def read_cell(self, name: str) -> Cell | None:
        """Return a named value; None where it was never written."""
        ...

    async def write_cell(self, name: str, value: str, token: str | None) -> Cell:
        """Write a named value; ``token`` None where it must not exist yet.

        Raises:
            ConflictError: a rival wrote it since it was read.
        """
        ...

    async def acquire_lease(self, name: str, holder: str, until: datetime, now: datetime) -> bool:
        """Take or renew a named lease; False while another holder's has not run out.

        Only a convenience against doing work twice: correctness never depends on it.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Exporter(Protocol):
    """Where orders are kept when they are removed from the state store."""

    async def export(self, lines: Sequence[str]) -> None:
        """Keep orders, one line of JSON each; they are safe when this returns.

        An order may come again, after a crash between this and its removal.

        Raises:
            OSError: they could not be kept.
        """
        ...


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. ``time_to_live`` None means the queue's own default."""

    queue: str
    message_id: str
    body: bytes
    content_type: str = "application/json"
    correlation_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class UndeliverableError(Exception):
    """The bus will never take this message: no such queue, no right to send, or too large.

    ``undelivered`` is the message; the text says why.
    """

    def __init__(self, reason: str, undelivered: Message) -> None:
        super().__init__(reason)
        self.undelivered = undelivered


class MessageBus(Protocol):
    """Sending. Receiving is the host's: functions are handed their messages."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages in their order; those to one queue may travel as one batch.

        On an error some may have been sent: sending all again is safe, their ids stay.

        Raises:
            BusUnavailableError: after the bus's own retries.
            UndeliverableError: naming the first message that can never be sent.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent is given: one remote action to do or to undo.

    ``order`` is the order's payload, ``results`` the results of the steps before it by
    name, ``key`` the idempotency key (the same for do, undo and every retry), ``own_result``
    what the step's do returned, for its undo.
    """

    order_id: str
    step: str
    key: str
    complete_by: datetime
    order: Any
    results: Mapping[str, Any]
    own_result: Any = None


class Agent(Protocol):
    """One remote service, wrapped. Written by the adopter; retries are the pattern's."""

    async def do(self, call: Call) -> Any:
        """Make one attempt and return a JSON-able result.

        Raises:
            RefusedError: the service refused for good.
            TransientError: try again.
        """
        ...

    async def undo(self, call: Call) -> Any:
        """Make one attempt to undo what ``do`` with the same key did or may yet do."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class Business:
    """What an adopter supplies: workflows, an agent for each name the steps use, and checks
    of the order's content per workflow, which raise ValueError with a sentence.
    """

    workflows: Workflows
    agents: Mapping[str, Agent]
    checks: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)

    def workflow_of(self, order: Order) -> Workflow:
        """Return the workflow an order was submitted with.

        Raises:
            UnknownWorkflowError: this deployment no longer has it.
        """
        return self.workflows.find(order.details.workflow, order.details.version)
