"""The state store: orders, journals, index rows, small shared values; and where exports go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from sas.domain.change import Change, Due, OutDue
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, OrderState

T = TypeVar("T")


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


class UnreadableError(Exception):
    """What an order holds cannot be read for now; the text says what to mend. Nothing is lost by
    waiting.
    """


class LostContentError(UnreadableError):
    """Content kept apart from its order is missing, or is not what was written: somebody changed
    rows by hand. Restore the order's ``d|payload`` rows.
    """


@dataclass(frozen=True, slots=True)
class Summary:
    """One order in a list: read from an index row, without loading the order."""

    at: datetime
    order_id: str
    process_state: OrderState
    workflow: str


@dataclass(frozen=True, slots=True)
class SharedValue(Generic[T]):
    """A small named value that all instances share, and the token that guards its change."""

    value: T
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

    async def put_payload(self, order_id: str, data: bytes) -> PayloadRef:
        """Keep content apart from its order; return what stands for it.

        Written before the change that refers to it; the order need not exist yet. Repeating is
        harmless. What no order ever refers to goes when the order is purged.

        Raises:
            TooLargeError: past the bounds of sas.bounds, before any I/O.
        """
        ...

    async def get_payload(self, order_id: str, ref: PayloadRef) -> bytes:
        """Return the content that a reference of this order stands for.

        Raises:
            LostContentError: it is missing, or not what was written.
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

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """Return a named value; None where it was never written."""
        ...

    async def shared_values(self, prefix: str) -> Mapping[str, SharedValue[str]]:
        """Return every named value whose name begins so, by name, in the order of names."""
        ...

    async def write_shared(self, name: str, value: str, token: str | None) -> SharedValue[str]:
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
