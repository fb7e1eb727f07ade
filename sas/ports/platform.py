"""What the engine needs of the platform: a state store, a message bus, a clock, a payload codec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from sas.domain.change import Change, DeferredDue, Due, OutDue
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry
from sas.domain.order import AttemptError, Order, OrderState
from sas.domain.queues import scope_of
from sas.domain.texts import quoted

T = TypeVar("T")


class ConflictError(Exception):
    """Another instance changed the row first, or the cause was recorded already. Load it again."""


class UnavailableError(Exception):
    """A dependency of a message is away. The message is put back: nothing is lost.

    ``put_back_with`` are properties that the message carries when it comes again. ``delay_max_s``
    is the longest pause in seconds before it comes again.
    """

    delay_max_s: float = 30.0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.put_back_with: dict[str, str] = {}


class StoreUnavailableError(UnavailableError):
    """The state store did not answer in time."""


FORMAT = 1
"""The format number of the rows and internal messages that this version writes.

A later version raises the number if this version cannot read what it writes. Each version reads its
own format and all lower ones, by exact rules.
"""


class OtherVersionError(UnavailableError):
    """Only an instance of another version can act on this message or due row.

    That instance has the order's workflow, or knows the format of a row or message. While a deploy
    goes on, such an instance runs too, and takes the message. ``scope`` names what is missing: the
    incidents of one version that is missing are one.
    """

    def __init__(self, text: str, scope: str = "newer version") -> None:
        super().__init__(text)
        self.scope = scope


def check_format(number: object, name: str, newest: int = FORMAT) -> None:
    """Check the format number of a row or message. ``name`` says which one.

    Raises:
        OtherVersionError: it is newer than ``newest``.
        ValueError: it is no format number.
    """
    if type(number) is not int or number < 1:
        raise ValueError(f"the format number is {str(number)[:40]!r}: it must be 1 or more")
    if number > newest:
        raise OtherVersionError(
            f"{name} has format {number}, and this version knows up to {newest}: it is left to an "
            "instance of a newer version"
        )


class StoreMismatchError(UnavailableError):
    """The table was written with another number of shards, or with another definition of a workflow
    under the same version; or a shared value cannot be read. Messages are put back until an
    operator corrects it.

    ``scope`` names what does not fit.
    """

    def __init__(self, text: str, scope: str = "state store") -> None:
        super().__init__(text)
        self.scope = scope


class CorruptOrderError(StoreMismatchError):
    """Rows of an order were changed or deleted by hand, and cannot be read. The text names the row.
    Its messages are put back until an operator repairs the rows, or removes the whole order.
    """

    def __init__(self, order_id: str, why: str) -> None:
        text = f"order {quoted(order_id)}: {why}. Repair it, or restore it from a backup"
        super().__init__(text, "rows changed by hand")


class UnreadableError(Exception):
    """Content of an order cannot be read for now. The text says what to fix.

    The step waits meanwhile, and nothing is lost.
    """


class LostContentError(UnreadableError):
    """A payload is missing, or differs from what was written: its rows were changed by hand.
    Restore the order's ``d|payload`` rows.
    """


class DecodingError(UnreadableError):
    """Encoded content cannot be decoded: its key is not among SAS_PAYLOAD_KEYS, or it was changed.
    Add the key again; the step then goes on by itself.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One order in a list, read from an index row without loading the order.

    ``undone_because`` says why the undo was decided. ``fingerprints`` has ``step/code`` of each
    step in Error, and ``error_text`` their errors; they are empty, and ``version`` is None, if an
    older version wrote the row. ``acknowledged_by`` names the operator who has seen the Error.
    """

    at: datetime
    order_id: str
    process_state: OrderState
    workflow: str
    submitted_at: datetime
    undone_because: str | None = None
    version: int | None = None
    fingerprints: tuple[str, ...] = ()
    error_text: str = ""
    acknowledged_by: str | None = None


@dataclass(frozen=True, slots=True)
class SharedValue(Generic[T]):
    """A small named value that all instances share, and the token that guards its change."""

    value: T
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that its queue did not take, and since when it waits in the state store.

    ``order_id`` names the order that it is about, or another subject.
    """

    message: Message
    since: datetime
    order_id: str


class StateStore(Protocol):
    """Orders, their journals and the index rows, in one table, one transaction per transition.

    Every method may raise StoreUnavailableError.
    """

    @property
    def shards(self) -> Sequence[str]:
        """All shards. A sweep visits each of them."""

    async def load(self, order_id: str) -> Order | None:
        """Return an order with its token, without its journal; None if there is no such order."""

    async def commit(self, change: Change) -> Order:
        """Write all of a change or nothing; return the order with its new token.

        Our own write is never taken for another instance's. After a conflict or an unknown
        outcome the store reads the journal row of this seq: it is ours if it has our commit id.

        Raises:
            ConflictError: the order changed since it was loaded (or exists already, for a first
                change), or this cause is recorded already. Nothing was written.
            TooLargeError: a limit of sas.bounds is exceeded. Raised before any I/O.
        """

    async def keep_error(self, order_id: str, step: int, error: AttemptError) -> None:
        """Keep the last error of a step beside its order, in place of the one before.

        No token guards it. ``load`` returns it with the step, ``purge`` removes it.
        """

    async def put_payload(self, order_id: str, data: bytes) -> PayloadRef:
        """Store a payload outside its order's own rows; return the reference to it.

        The payload is written before the change that refers to it, and the order need not exist
        yet. Repeating is harmless. The order's purge also removes payloads without a reference.

        Raises:
            TooLargeError: a limit of sas.bounds is exceeded. Raised before any I/O.
        """

    async def get_payload(self, order_id: str, ref: PayloadRef) -> bytes:
        """Return the payload that a reference of this order names.

        Raises:
            LostContentError: it is missing, or differs from what was written.
        """

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """Return the journal row that a cause led to, if there is one."""

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """Return one journal row."""

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """Return all journal rows of an order, oldest first."""

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """Return at most ``limit`` due rows of a shard at or before ``until``, oldest first."""

    async def remove_due(self, due: OutDue) -> None:
        """Remove a due row, because its messages were sent. A missing row is not an error."""

    async def oldest_due(self, shard: str) -> datetime | None:
        """Return the time of the oldest due row of a shard; None if there is no due row."""

    async def hold(self, item: HeldMessage) -> None:
        """Keep a message until ``release`` removes it. Repeating is harmless."""

    async def held_queue(self, behind: str) -> str | None:
        """Return the first queue behind ``behind`` that has held messages; None after the last one.

        ``behind`` is the name of a queue, or empty: then the first queue of all is returned.
        """

    async def held(self, queue: str, limit: int) -> list[HeldMessage]:
        """Return at most ``limit`` messages that are held for a queue, oldest first.

        Raises:
            CorruptOrderError: the row of one of them was changed by hand.
        """

    async def held_count(self, queue: str, limit: int) -> int:
        """Return how many messages are held for a queue, counted up to ``limit``."""

    async def release(self, item: HeldMessage) -> None:
        """Remove a message that was held. A missing one is not an error."""

    async def hold_deferred(self, due: DeferredDue) -> None:
        """Hold the message of a due row, since the row's time, and remove the row.

        The version before held messages had a place of their own wrote such rows.
        """

    async def attention(self, limit: int, *, since: datetime | None = None) -> list[Summary]:
        """Return at most ``limit`` orders in Error since ``since`` or later, oldest first."""

    async def finished(
        self,
        limit: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        shard: str | None = None,
    ) -> list[Summary]:
        """Return at most ``limit`` orders that finished within these times, oldest first.

        ``shard`` leaves out the orders of all others.
        """

    async def purge(self, *orders: Order) -> set[str]:
        """Remove finished orders completely; return the ids of those that are removed.

        An order that changed (or was removed) since it was loaded is left. Then other orders of the
        same call may be left too: try them again, one by one.

        An order stays listed as finished until none of its rows is left. So after a crash at any
        point it is found and removed again. If an operator changes it meanwhile, only rows of its
        past are gone: last errors, journal rows, causes, and payloads that nothing refers to.
        """

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """Return a shared value; None if it was never written."""

    async def shared_values(self, prefix: str) -> Mapping[str, SharedValue[str]]:
        """Return the shared values whose names begin with ``prefix``, sorted by name."""

    async def write_shared(self, name: str, value: str, token: str | None) -> SharedValue[str]:
        """Write a shared value. ``token`` is None if it must not exist yet.

        Raises:
            ConflictError: another instance wrote it since it was read.
        """

    async def acquire_lease(self, name: str, holder: str, until: datetime, now: datetime) -> bool:
        """Take or renew a lease; False while another holder has it.

        A lease only saves double work. Correctness never depends on it.
        """

    async def close(self) -> None:
        """Close connections."""


class BusUnavailableError(UnavailableError):
    """The bus did not accept a message in time (busy, throttled, disconnected). Send it later."""


class QueueFullError(BusUnavailableError):
    """A queue is full or disabled. It takes messages once people read, empty or enable it."""


class QueueRefusesError(BusUnavailableError):
    """A queue of this system does not exist, or this app may not send to it. A deploy creates it,
    or a right reaches it some minutes after it was granted. Until then messages are put back.
    """

    def __init__(self, refused: UndeliverableError) -> None:
        super().__init__(str(refused))
        self.scope = scope_of(refused.undelivered.queue)


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. ``time_to_live`` None means the queue's own default."""

    queue: str
    message_id: str
    body: bytes
    _: KW_ONLY
    content_type: str = "application/json"
    correlation_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """One message in a queue. ``enqueued_at`` is when it became, or becomes, visible.

    ``source`` is the queue that a dead letter came from, if the bus knows it.
    """

    message_id: str
    body: bytes
    enqueued_at: datetime
    properties: Mapping[str, str] = field(default_factory=dict)
    sequence: int = 0
    is_scheduled: bool = False
    source: str | None = None
    content_type: str | None = None
    correlation_id: str | None = None

    @property
    def size(self) -> int:
        """The bytes of its body, and the characters of its properties."""
        return len(self.body) + sum(map(len, (*self.properties, *self.properties.values())))


@dataclass(frozen=True, slots=True)
class MessageMove:
    """A message to send, and the sequence numbers of the messages to remove once it is sent.

    Without a message to send, they are only removed.
    """

    sequences: frozenset[int]
    message: Message | None


QUEUE_MISSING = "There is no such queue: create it, or correct the name."
QUEUE_DISABLED = "It is disabled: enable it (set its status to Active)."
"""How the text of an error of the bus ends if the queue cannot be used at all."""
PEEK_BYTES_MAX = 4 * 1024 * 1024
"""A peek ends once it has read so many bytes: about 40 answers of Service Bus."""


class UndeliverableError(Exception):
    """The bus will never accept this message: no such queue, no right to send, or too large.

    ``undelivered`` is the message. The text says why.
    """

    def __init__(self, reason: str, undelivered: Message) -> None:
        super().__init__(reason)
        self.undelivered = undelivered


class TooLargeForQueueError(UndeliverableError):
    """The message is larger than its queue accepts. No deploy and no right changes that."""


class MessageBus(Protocol):
    """Sends messages. The Functions host receives them and calls the functions."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages: those to one queue in order, and in as few sends as they fit into.

        After an error some may have been sent. Sending all of them again is safe, because their
        ids stay the same.

        Raises:
            BusUnavailableError: the bus's own retries failed.
            QueueFullError: the queue is full or disabled.
            UndeliverableError: with the first message that can never be sent.
        """

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        """Return at most ``limit`` messages of a queue, oldest first, and leave them there.

        Only those whose sequence number is above ``after``.

        It ends once their sizes are ``PEEK_BYTES_MAX`` bytes, so that large messages do not make it
        slow.
        Scheduled messages and those that a function handles right now are among them.

        Raises:
            BusUnavailableError: the queue cannot be read now (away, disabled), or does not exist.
        """

    async def close(self) -> None:
        """Close connections."""


class OperatorBus(MessageBus, Protocol):
    """A bus for an operator, who may also remove messages. ``peek`` and ``move`` take the path of
    a queue or of its dead-letter subqueue. ``peek`` reads messages of any size.
    """

    async def check_sending(self, queue: str) -> None:
        """Check that messages can be sent to a queue; none is sent.

        Raises:
            UndeliverableError: there is no such queue, or no right to send to it.
            BusUnavailableError: no answer.
        """

    def move(self, path: str, moves: Sequence[MessageMove]) -> AsyncGenerator[bool]:
        """Send each message, then remove the messages that it replaces.

        Yields for each move whether all of those were removed. A message that was not removed
        stays: nothing is lost, and the next move sends it again. A move whose messages are gone is
        left out. Other messages in front of them are delivered once, and abandoned.

        Raises:
            BusUnavailableError: the bus cannot be read, or does not accept a message now.
            UndeliverableError: the target will never accept a message.
        """


class Clock(Protocol):
    """The current time in UTC, and sleeping."""

    def now(self) -> datetime:
        """Return the time in UTC, aware."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Cancel the block after ``seconds``, and raise TimeoutError; see ``asyncio.timeout``."""


class PayloadCodec(Protocol):
    """Encodes the content of orders and results wherever it is stored, sent or held.

    Both methods only compute: no I/O. ``encode`` may return another text each time.
    """

    def encode(self, text: str) -> str:
        """Return a text that ``decode`` understands."""

    def decode(self, text: str) -> str:
        """Return the text that was encoded.

        Raises:
            DecodingError: its key is missing, or the text was changed.
        """
