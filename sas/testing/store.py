"""A state store in memory that behaves like the one on Table Storage.

The contract tests run against this store and against the real one. The rules that it has:

1. **A transaction is whole.** No other task runs between two ``await``. So a commit writes the
   order, its journal row, its cause and its due rows together, or it writes nothing.
2. **The ETag guards a commit.** Each write gives the order a new token. A commit that was decided
   on an older token raises ``ConflictError``, so of two instances only the first one writes.
3. **A cause is recorded once.** A commit whose cause has a row already raises ``ConflictError``,
   also if its token is right.
4. **Our own write is recognised.** The answer of a commit may be lost. If the same change is then
   committed again, the journal row with the same ``commit_id`` shows that it was written, and the
   commit succeeds. If another instance has changed the order since, the returned order has the
   token ``OVERTAKEN``. This token matches nothing, so the caller must load the order again before
   it writes more.
5. **Due rows are read in the order of their keys**, which begin with the time. Lists of settled
   orders are sorted by time too, as the index rows of the table are.
6. **Limits.** Rows, pages and transactions have the bounds of Table Storage. ``meter`` counts the
   requests that the real store would make, so that tests of costs run in memory.
7. **Formats.** A store refuses an order that a newer version has written, and leaves it out of
   lists.
8. **Faults** come before an operation (``pause``, ``UNAVAILABLE``, ``CONFLICT``) or after a write
   (``LOST_ANSWER``). The caller gets the same error for ``UNAVAILABLE`` and ``LOST_ANSWER``, so it
   cannot know whether its write happened. What was written stays. At a ``CONFLICT`` a rival wrote
   the same once more: the token that the caller has is old for ever, and it has to read again.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import TypeVar

from sas.bounds import PAYLOAD_BYTES_MAX, check_bounds, check_bytes, has_own_row
from sas.domain.change import (
    Change,
    DeadlineDue,
    DeferredDue,
    Due,
    OtherDue,
    OutDue,
    check_finished,
)
from sas.domain.content import PayloadRef, chunks_of, matches, ref_of
from sas.domain.ids import all_shards, digest_id, key_time, shard_of
from sas.domain.messages import JournalEntry
from sas.domain.order import AttemptError, Order, OrderState
from sas.ports import (
    FORMAT,
    ConflictError,
    HeldMessage,
    LostContentError,
    Message,
    SharedValue,
    StoreUnavailableError,
    Summary,
    check_format,
)
from sas.telemetry.usage import Usage

T = TypeVar("T")

OVERTAKEN = "overtaken"
"""The token of an order that another instance changed after our write. It matches nothing."""

META, HELD = "meta", "held"
"""The partitions of leases and shared values, and of held messages."""
_OF_META = {"read_shared", "shared_values", "write_shared", "acquire_lease"}
_OF_HELD = {"hold", "held_queue", "held", "held_count", "release"}
_OF_SHARD = {"due", "oldest_due", "finished"}
_OF_ALL = {"attention"}
_EARLIEST, _LATEST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
PAGE_MAX = 1000
"""Most rows of one page."""
TRANSACTION_MAX = 100
"""Most rows of one transaction."""
_WRITES = {"keep_error", "put_payload", "hold", "write_shared"}
_READS = {"recorded", "entry", "hold_deferred", "read_shared", "acquire_lease"}


class StoreFault(Enum):
    """Faults that a test can inject into an operation."""

    UNAVAILABLE = "nothing was read or written: StoreUnavailableError"
    CONFLICT = "a rival was first, and nothing was written: ConflictError"
    LOST_ANSWER = "it was written, but the actor gets StoreUnavailableError"


_WITH = {
    StoreFault.CONFLICT: {"commit", "write_shared"},
    StoreFault.LOST_ANSWER: {"commit", "keep_error", "put_payload", "write_shared"},
}
"""The operations that can fail in these ways. All can be unavailable."""


@dataclass(slots=True, kw_only=True)
class Stored:
    """Everything that is stored of one order."""

    order: Order
    journal: list[JournalEntry] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    errors: dict[int, AttemptError] = field(default_factory=dict)

    @property
    def aggregate(self) -> int:
        """How many rows the last transaction of a purge removes, the index row among them."""
        steps = self.order.steps
        return 3 + len(steps) + sum(has_own_row(step.result) for step in steps)


class MemoryStore:
    """Orders in memory. The code between two ``await`` is one transaction.

    Faults: ``fail_next`` sets the faults of the next operations of a name (``"commit"``,
    ``"load"``, ...). For all other operations ``plan`` returns the fault. It gets the name of the
    operation and the order id (or the shard, or the lease). ``pause`` gets the same two arguments,
    and runs before every operation, so that other instances can act in between. If it raises, the
    operation fails. The partitions in ``partitions_away`` do not answer: see ``World``.

    ``on_written`` is called for each committed change. ``on_removed`` is called for each out row
    before it is removed. ``meter`` counts the requests that Table Storage would see. ``formats``
    has the format number of each order and shared value. ``held_messages`` has what is held, by
    keys that sort as those of the table do. ``deferred`` has the messages of due rows of the
    version before. A subclass may have a newer ``format``.
    """

    format = FORMAT
    """The format number that this store writes, and the newest that it reads."""

    def __init__(self, shards: int = 16) -> None:
        self.orders: dict[str, Stored] = {}
        self.payloads: dict[str, dict[str, bytes]] = {}
        self.formats: dict[str, int] = {}
        self.plan: Callable[[str, str], StoreFault | None] = lambda _operation, _key: None
        self.pause: Callable[[str, str], Awaitable[None]] = _let_others_run
        self.on_written: Callable[[Change], None] = lambda _change: None
        self.on_removed: Callable[[OutDue], None] = lambda _due: None
        self.partitions_away: frozenset[str] = frozenset()
        self.meter = Usage()
        self._shards = all_shards(shards)
        self._due: dict[str, dict[str, Due]] = {shard: {} for shard in self._shards}
        self._first_due: tuple[datetime | None] | None = None
        self.held_messages: dict[str, HeldMessage] = {}
        self.deferred: dict[DeferredDue, Message] = {}
        self._stopped: defaultdict[tuple[str, bool], list[tuple[datetime, str]]]
        self._stopped = defaultdict(list)
        self._shared: dict[str, SharedValue[str]] = {}
        self._leases: dict[str, tuple[str, datetime]] = {}
        self._faults: defaultdict[str, deque[StoreFault]] = defaultdict(deque)
        self._versions = 0

    @property
    def requests(self) -> int:
        """How many requests were made."""
        return self.meter.requests

    @property
    def shards(self) -> Sequence[str]:
        """All shards."""
        return self._shards

    @property
    def partitions(self) -> frozenset[str]:
        """The names of all partitions: the shards, META and HELD."""
        return frozenset({*self._shards, META, HELD})

    def is_away(self, operation: str, key: str) -> bool:
        """Return whether the partition that an operation needs is away."""
        if not self.partitions_away:
            return False
        if operation in _OF_ALL or not key:
            return True
        if operation in _OF_SHARD:
            return key in self.partitions_away
        if operation in _OF_META:
            return META in self.partitions_away
        name = HELD if operation in _OF_HELD else shard_of(key, len(self._shards))
        return name in self.partitions_away

    def next_due(self) -> datetime | None:
        """Return when a sweep first finds work: a due row, or a held message at any time.

        Only the simulation asks for it.
        """
        if self.held_messages:
            return _EARLIEST
        if self._first_due is None:
            times = (due.at for rows in self._due.values() for due in rows.values())
            self._first_due = (min(times, default=None),)
        return self._first_due[0]

    @property
    def due_rows(self) -> int:
        """How many due rows and held messages there are. Only the simulation asks for it."""
        return sum(map(len, self._due.values())) + len(self.held_messages)

    def fail_next(self, operation: str, *faults: StoreFault) -> None:
        """Inject these faults into the next calls of an operation, one each.

        Raises:
            ValueError: the operation cannot fail in this way, so the fault would do nothing.
        """
        for fault in faults:
            if operation not in _WITH.get(fault, {operation}):
                raise ValueError(f"{operation} has no {fault.name}")
        self._faults[operation].extend(faults)

    async def load(self, order_id: str) -> Order | None:
        """See ``StateStore.load``."""
        await self._begin("load", order_id)
        stored = self.orders.get(order_id)
        if stored is None:
            return None
        self._check_format(order_id)
        errors, steps = stored.errors, stored.order.steps
        if all(step.last_error is errors.get(step.number) for step in steps):
            return stored.order
        with_errors = (replace(step, last_error=errors.get(step.number)) for step in steps)
        return replace(stored.order, steps=tuple(with_errors))

    async def commit(self, change: Change) -> Order:
        """See ``StateStore.commit``."""
        check_bounds(change)
        order_id = change.after.order_id
        fault = await self._begin("commit", order_id)
        if fault is StoreFault.CONFLICT:
            self.meter.reads += 1  # the journal row of its seq
            if stored := self.orders.get(order_id):
                self._versions += 1
                stored.order = replace(stored.order, token=f"v{self._versions}")
            raise ConflictError(f"order {order_id}: an injected conflict")
        written = self._write(change)
        if fault is StoreFault.LOST_ANSWER:  # 8. what was written stays
            raise StoreUnavailableError(f"order {order_id}: written, but the answer was lost")
        return written

    async def keep_error(self, order_id: str, step: int, error: AttemptError) -> None:
        """See ``StateStore.keep_error``."""
        fault = await self._begin("keep_error", order_id)
        stored = self.orders.get(order_id)
        if stored is not None:
            stored.errors[step] = error
        if fault is StoreFault.LOST_ANSWER:
            raise StoreUnavailableError(f"order {order_id}: written, but the answer was lost")

    async def put_payload(self, order_id: str, data: bytes) -> PayloadRef:
        """See ``StateStore.put_payload``."""
        check_bytes("payload", len(data), PAYLOAD_BYTES_MAX)
        fault = await self._begin("put_payload", order_id)
        ref = ref_of(data)
        self.meter.writes += ref.chunks - 1
        self.payloads.setdefault(order_id, {})[ref.sha256] = data
        if fault is StoreFault.LOST_ANSWER:
            raise StoreUnavailableError(f"order {order_id}: written, but the answer was lost")
        return ref

    async def get_payload(self, order_id: str, ref: PayloadRef) -> bytes:
        """See ``StateStore.get_payload``."""
        await self._begin("get_payload", order_id)
        data = self.payloads.get(order_id, {}).get(ref.sha256)
        if data is None or not matches(ref, data):
            raise LostContentError(f"order {order_id}: payload {ref.sha256} cannot be read")
        return data

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """See ``StateStore.recorded``."""
        await self._begin("recorded", order_id)
        stored = self.orders.get(order_id)
        seq = stored.causes.get(digest_id(cause)) if stored else None
        if stored is None or seq is None:
            return None
        self._check_format(order_id)
        self.meter.reads += 1  # the cause row, then the journal row
        return stored.journal[seq - 1]

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """See ``StateStore.entry``."""
        await self._begin("entry", order_id)
        stored = self.orders.get(order_id)
        if stored is None or not 1 <= seq <= len(stored.journal):
            return None
        self._check_format(order_id)
        return stored.journal[seq - 1]

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """See ``StateStore.journal``."""
        await self._begin("journal", order_id)
        self._check_format(order_id)
        stored = self.orders.get(order_id)
        return self._page(list(stored.journal) if stored else [])

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """See ``StateStore.due``."""
        await self._begin("due", shard)
        # 5. In the order of their keys.
        rows = [due for _, due in sorted(self._due[shard].items()) if due.at <= until]
        return self._page(rows[:limit])

    async def remove_due(self, due: OutDue) -> None:
        """See ``StateStore.remove_due``."""
        await self._begin("remove_due", due.order_id)
        self.on_removed(due)
        self._due_of(due.order_id).pop(_due_key(due), None)

    async def oldest_due(self, shard: str) -> datetime | None:
        """See ``StateStore.oldest_due``."""
        await self._begin("oldest_due", shard)
        return min((due.at for due in self._due[shard].values()), default=None)

    async def attention(self, limit: int, *, since: datetime | None = None) -> list[Summary]:
        """See ``StateStore.attention``."""
        await self._begin("attention", "")
        return self._listed(self._shards, limit, in_error=True, since=since)

    async def finished(
        self,
        limit: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        shard: str | None = None,
    ) -> list[Summary]:
        """See ``StateStore.finished``."""
        await self._begin("finished", shard or "")
        shards = self._shards if shard is None else [shard]
        return self._listed(shards, limit, in_error=False, since=since, until=until)

    async def hold(self, item: HeldMessage) -> None:
        """See ``StateStore.hold``."""
        await self._begin("hold", HELD)
        self.held_messages[_held_key(item)] = item

    async def held_queue(self, behind: str) -> str | None:
        """See ``StateStore.held_queue``."""
        await self._begin("held_queue", HELD)
        low = f"{behind}}}" if behind else ""
        first = min((key for key in self.held_messages if key >= low), default=None)
        return first.split("|")[0] if first else None

    async def held(self, queue: str, limit: int) -> list[HeldMessage]:
        """See ``StateStore.held``."""
        await self._begin("held", HELD)
        return [self.held_messages[key] for key in self._held_for(queue)[:limit]]

    async def held_count(self, queue: str, limit: int) -> int:
        """See ``StateStore.held_count``."""
        await self._begin("held_count", HELD)
        return len(self._page(self._held_for(queue)[:limit]))

    def _held_for(self, queue: str) -> list[str]:
        return sorted(key for key in self.held_messages if key.startswith(f"{queue}|"))

    async def release(self, item: HeldMessage) -> None:
        """See ``StateStore.release``."""
        await self._begin("release", HELD)
        self.held_messages.pop(_held_key(item), None)

    async def hold_deferred(self, due: DeferredDue) -> None:
        """See ``StateStore.hold_deferred``."""
        await self._begin("hold_deferred", due.order_id)
        message = self.deferred.get(due)
        if message is not None:
            await self.hold(HeldMessage(message=message, since=due.at, order_id=due.order_id))
            self.meter.deletes += 1
        self.deferred.pop(due, None)
        self._due_of(due.order_id).pop(_due_key(due), None)

    async def purge(self, *orders: Order) -> set[str]:
        """See ``StateStore.purge``."""
        for order in orders:
            check_finished(order)
        removed_ids: set[str] = set()
        batches: dict[str, list[tuple[Order, int]]] = {}
        for order in orders:
            await self._begin("purge", order.order_id)
            rows = self._rows_to_purge(order)
            batch = batches.setdefault(shard_of(order.order_id, len(self._shards)), [])
            if sum(count for _, count in batch) + rows > TRANSACTION_MAX:
                removed_ids |= self._purge_batch(batch)
                batch.clear()
            if rows:
                batch.append((order, rows))
        for batch in batches.values():
            removed_ids |= self._purge_batch(batch)
        return removed_ids

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """See ``StateStore.read_shared``."""
        await self._begin("read_shared", name)
        self._check_format(_shared_key(name))
        return self._shared.get(name)

    async def shared_values(self, prefix: str) -> dict[str, SharedValue[str]]:
        """See ``StateStore.shared_values``."""
        await self._begin("shared_values", prefix)
        names = self._page(sorted(name for name in self._shared if name.startswith(prefix)))
        return {name: self._shared[name] for name in names if self._knows(_shared_key(name))}

    async def write_shared(self, name: str, value: str, token: str | None) -> SharedValue[str]:
        """See ``StateStore.write_shared``."""
        fault = await self._begin("write_shared", name)
        shared = self._shared.get(name)
        if fault is StoreFault.CONFLICT and shared:
            self._versions += 1
            self._shared[name] = SharedValue(shared.value, f"v{self._versions}")
        if fault is StoreFault.CONFLICT or (shared.token if shared else None) != token:
            raise ConflictError(f"shared value {name} changed since it was read")
        self.meter.reads += 1  # it is read again, for its new token
        self._versions += 1
        self._shared[name] = SharedValue(value, f"v{self._versions}")
        self.formats[_shared_key(name)] = self.format
        if fault is StoreFault.LOST_ANSWER:
            raise StoreUnavailableError(f"shared value {name}: written, but the answer was lost")
        return self._shared[name]

    async def acquire_lease(self, name: str, holder: str, until: datetime, now: datetime) -> bool:
        """See ``StateStore.acquire_lease``."""
        await self._begin("acquire_lease", name)
        held_by, held_until = self._leases.get(name, (holder, now))
        if held_by != holder and held_until > now:
            return False
        self.meter.writes += 1
        self._leases[name] = (holder, until)
        return True

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _begin(self, operation: str, key: str) -> StoreFault | None:
        """Let other tasks run, then return the fault of this operation, or raise it."""
        # 8. Only a fault that comes after the operation is returned.
        await self.pause(operation, key)
        self._asked(operation, key)
        faults = self._faults[operation]
        fault = faults.popleft() if faults else self.plan(operation, key)
        if fault is StoreFault.UNAVAILABLE:
            raise StoreUnavailableError(f"{operation} of {key}: an injected fault")
        return fault

    def _knows(self, key: str) -> bool:
        """Return whether the format of an order or a shared value is known to this store."""
        return self.formats.get(key, self.format) <= self.format

    def _check_format(self, key: str) -> None:
        # 7. A newer version has written it.
        check_format(self.formats.get(key, self.format), key, self.format)

    def _asked(self, operation: str, key: str) -> None:
        """Count the first request of an operation."""
        if operation == "commit":
            self.meter.transactions += 1
        elif operation in {"remove_due", "release"}:
            self.meter.deletes += 1
        elif operation in _READS:
            self.meter.reads += 1
        elif operation in _WRITES:
            self.meter.writes += 1
        else:
            is_of_all = operation in _OF_ALL or not key
            self.meter.queries += len(self._shards) if is_of_all else 1

    def _page(self, rows: list[T]) -> list[T]:
        """Count the pages after the first one, and return the rows of all pages."""
        # 6. A query returns at most ``PAGE_MAX`` rows.
        self.meter.queries += max(len(rows) - 1, 0) // PAGE_MAX
        return rows

    def _rows_to_purge(self, order: Order) -> int:
        """Return how many rows the last transaction removes; 0 if the order changed or is gone.

        Count the requests before that transaction.
        """
        stored = self.orders.get(order.order_id)
        if stored is None:
            return 0
        chunks = sum(
            len(chunks_of(data)) for data in self.payloads.get(order.order_id, {}).values()
        )
        past = len(stored.journal) + len(stored.causes) + len(stored.errors) + chunks
        last = stored.aggregate
        if past + last <= TRANSACTION_MAX:
            return past + last
        # The past is removed first, in parts. The state row guards each part.
        self.meter.reads += 1
        if stored.order.token != order.token:
            return 0
        parts = -(-(past + last - TRANSACTION_MAX) // (TRANSACTION_MAX - 1))
        self.meter.transactions += parts
        return TRANSACTION_MAX

    def _purge_batch(self, batch: Sequence[tuple[Order, int]]) -> set[str]:
        """Remove some orders of a shard in one transaction; return those that went: all or none."""
        if not batch:
            return set()
        self.meter.transactions += 1
        for order, _ in batch:
            stored = self.orders.get(order.order_id)
            if stored is None or stored.order.token != order.token:
                return set()
        for order, _ in batch:
            self._list(self.orders.pop(order.order_id).order, None)
            self.payloads.pop(order.order_id, None)
        return {order.order_id for order, _ in batch}

    def _write(self, change: Change) -> Order:
        after, entry = change.after, change.entry
        stored = self.orders.get(after.order_id)
        token = stored.order.token if stored else None
        if stored and _is_ours(stored, entry):  # 4.
            self.meter.reads += 2  # the journal row says so, and the state row has the new token
            overtaken = stored.order.seq != entry.seq
            return replace(after, token=OVERTAKEN if overtaken else token)
        if token != (change.before.token if change.before else None):  # 2.
            self.meter.reads += 1  # the journal row of its seq
            raise ConflictError(f"order {after.order_id} changed since it was loaded")
        if stored and entry.cause and digest_id(entry.cause) in stored.causes:  # 3.
            self.meter.reads += 1  # the journal row of its seq
            raise ConflictError(f"order {after.order_id}: {entry.cause} was recorded already")
        # 1. No ``await`` from here on.
        self._versions += 1
        written = replace(after, token=f"v{self._versions}")
        self._list(stored.order if stored else None, written)
        stored = stored or Stored(order=written)
        stored.order = written
        stored.journal.append(entry)
        if entry.cause:
            stored.causes[digest_id(entry.cause)] = entry.seq
        self.orders[after.order_id] = stored
        self.formats[after.order_id] = self.format
        self._write_due(change)
        self.on_written(change)
        return written

    def _write_due(self, change: Change) -> None:
        rows = self._due_of(change.after.order_id)
        for due in change.due_removed():
            rows.pop(_due_key(due), None)
        rows.update((_due_key(due), due) for due in change.due_added())
        if change.out_at is not None:
            out = OutDue(change.out_at, change.after.order_id, change.entry.seq)
            rows[_due_key(out)] = out

    def _due_of(self, order_id: str) -> dict[str, Due]:
        """Return the due rows of the shard of an order. The caller changes them."""
        self._first_due = None
        return self._due[shard_of(order_id, len(self._shards))]

    def _list(self, before: Order | None, after: Order | None) -> None:
        """Keep the lists of settled orders sorted, as the index rows of the table are."""
        for order in (before, after):
            if order is None or order.stopped_at is None:
                continue
            in_error = order.process_state is OrderState.ERROR
            entries = self._stopped[shard_of(order.order_id, len(self._shards)), in_error]
            entry = (order.stopped_at, order.order_id)
            place = bisect_left(entries, entry)
            is_there = entries[place : place + 1] == [entry]
            if order is after and not is_there:
                insort(entries, entry)
            elif order is before and is_there:
                del entries[place]

    def _listed(
        self,
        shards: Sequence[str],
        limit: int,
        *,
        in_error: bool,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Summary]:
        earliest, latest = since or _EARLIEST, until or _LATEST
        lists = [
            self._page(list(islice(self._between(shard, in_error, earliest, latest), limit)))
            for shard in shards
        ]
        merged = heapq.merge(*lists, key=lambda summary: (summary.at, summary.order_id))
        return list(islice(merged, limit))

    def _between(
        self, shard: str, in_error: bool, earliest: datetime, latest: datetime
    ) -> Iterator[Summary]:
        entries = self._stopped[shard, in_error]
        for place in range(bisect_left(entries, (earliest, "")), len(entries)):
            at, order_id = entries[place]
            if at > latest:
                return
            stored = self.orders.get(order_id)  # a test may have removed it by hand
            if stored is not None and self._knows(order_id):
                yield _summary(stored.order, at)


def _summary(order: Order, at: datetime) -> Summary:
    details = order.details
    return Summary(
        at=at,
        order_id=order.order_id,
        process_state=order.process_state,
        workflow=details.workflow,
        submitted_at=details.submitted_at,
        undone_because=order.undone_because,
        version=details.version,
        fingerprints=order.fingerprints,
        error_text=order.error_text,
        acknowledged_by=order.acknowledged_by,
    )


def _shared_key(name: str) -> str:
    """Return the key of a shared value in ``MemoryStore.formats``. No order id has a ``|``."""
    return f"shared|{name}"


def _is_ours(stored: Stored, entry: JournalEntry) -> bool:
    """Return whether this change was written before, and only its answer was lost."""
    rows = stored.journal[entry.seq - 1 :][:1]
    return any(row.commit_id == entry.commit_id for row in rows)


async def _let_others_run(_operation: str, _key: str) -> None:
    await asyncio.sleep(0)


def _held_key(item: HeldMessage) -> str:
    message = item.message
    digest = digest_id(message.queue, message.message_id)
    return f"{message.queue}|{key_time(item.since)}|{digest}"


def _due_key(due: Due) -> str:
    """Return a key that sorts like the row keys of the table: by time, then by order."""
    if isinstance(due, OtherDue):
        return due.row_key
    if isinstance(due, OutDue):
        return f"{key_time(due.at)}|{due.order_id}|out|{due.seq:010d}"
    if isinstance(due, DeferredDue):
        return f"{key_time(due.at)}|{due.order_id}|deferred|{due.key}"
    if isinstance(due, DeadlineDue):
        return f"{key_time(due.at)}|{due.order_id}|deadline|0"
    return f"{key_time(due.at)}|{due.order_id}|{due.step:02d}|{due.epoch}"
