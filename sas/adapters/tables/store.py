"""The state store on Azure Table Storage: one table, one transaction per transition.

**Our own write is never taken for another instance's.** After a refusal (404, 409, 412) or an
unknown outcome the store reads the journal row of this seq. That row never changes. It carries
our commit id if, and only if, our transaction was written, even if other writes followed. If it is
missing after an unknown outcome, the same transaction is tried again, never a new decision: if the
first one arrives late, one of the two is refused.

**A finished order is removed so that no crash leaves half of one.** Up to 100 rows go in one
transaction, those of several orders of a shard together, each guarded by its state row's ETag. If
an order has more, the last errors of its steps and its oldest journal and cause rows go first, and
payloads that nothing refers to. Each of these transactions rewrites the state row under its ETag,
so that an order which an operator changes meanwhile is left alone. The rest of the aggregate, its
payloads and the row that lists the order as finished go last, together. These are at most 99 rows:
6 chunks of a payload, and for each of 30 steps its row and 2 chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Self
from urllib.request import getproxies

from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables import TableEntity
from azure.data.tables.aio import TableClient

from sas.adapters.endpoints import Endpoint, token_credential
from sas.adapters.tables import keys
from sas.adapters.tables.group_transaction import GroupTransactions
from sas.adapters.tables.operations import (
    deferred_message,
    deferred_row,
    entry_from,
    operations,
    payload_from,
    payload_rows,
)
from sas.adapters.tables.purge import Purge
from sas.adapters.tables.rows import Row, error_row, order_from, reading
from sas.adapters.tables.table import (
    Meter,
    RefusedTransactionError,
    RetryBudget,
    Table,
    UnknownOutcomeError,
    first_line,
)
from sas.bounds import PAYLOAD_BYTES_MAX, SHARDS_MAX, check_bounds, check_bytes
from sas.domain.change import Change, DeferredDue, Due, OutDue
from sas.domain.content import PayloadRef, ref_of
from sas.domain.ids import all_shards, digest_id, key_time, parse_key_time, shard_of
from sas.domain.messages import JournalEntry
from sas.domain.order import AttemptError, Order, OrderState
from sas.ports import (
    ConflictError,
    CorruptOrderError,
    Message,
    OtherVersionError,
    SharedValue,
    StoreMismatchError,
    StoreUnavailableError,
    Summary,
    check_format,
)
from sas.telemetry.tracing import logger

log = logger(__name__)
AZURITE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLl"
    "mEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"
)
"""Meaning of ``UseDevelopmentStorage=true``, which the Tables SDK lacks. The key is public."""

LOADS_MAX = 5

OVERTAKEN = "W/\"datetime'2000-01-01T00%3A00%3A00.0000000Z'\""
"""The token of an order that we wrote and another instance changed before we saw our ETag.

It matches no row, so the next commit with it is refused, as it must be.
"""


class NoStoreError(LookupError):
    """There is no state store of this name. The message says where it was looked for."""


class TableStore:
    """Orders, journals and index rows in one table. See ``sas.ports.StateStore``.

    One store serves all tasks of one event loop, because the SDK's client belongs to the first
    loop that uses it. It opens on first use; close it. ``table.meter`` counts the requests.
    """

    def __init__(self, table: Table, *, shards: int = 16, owned: Sequence[Any] = ()) -> None:
        self.table = table
        self._shards = all_shards(shards)
        self._owned = owned
        self._opening = asyncio.Lock()
        self._opened = False

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint | str,
        table: str = "orders",
        shards: int = 16,
        *,
        retry_budget: RetryBudget | None = None,
    ) -> Self:
        """Return a store by an endpoint, or by a connection string alone.

        Without a connection string the app's managed identity is used. Nothing is sent before the
        first use.

        Raises:
            ValueError: neither an address nor a readable connection string.
        """
        meter = Meter()
        # aiohttp reads the environment and .netrc in two threads before every request.
        transport = AioHttpTransport(
            connection_timeout=5, read_timeout=15, use_env_settings=bool(getproxies())
        )
        settings: dict[str, Any] = {
            "retry_total": 0,
            "raw_request_hook": meter.count_request,
            "transport": transport,
        }
        text = endpoint if isinstance(endpoint, str) else endpoint.connection_string
        owned: list[Any] = []
        if text:
            text = AZURITE if "UseDevelopmentStorage=true" in text else text
            client = TableClient.from_connection_string(text, table, **settings)
        elif not isinstance(endpoint, str) and endpoint.address:
            credential = token_credential(endpoint.client_id)
            owned.append(credential)
            client = TableClient(endpoint.address, table, credential=credential, **settings)
        else:
            raise ValueError("the state store needs a connection string or an address")
        transactions = GroupTransactions(client, transport, meter.count_request)
        made = Table(client, retry_budget or RetryBudget(), meter, transactions)
        return cls(made, shards=shards, owned=owned)

    @property
    def requests(self) -> int:
        """How many requests were sent, repeats included."""
        return self.table.meter.requests

    @property
    def shards(self) -> Sequence[str]:
        """All shards."""
        return self._shards

    async def open(self) -> None:
        """Create the table if it is missing, and check its number of shards.

        The first use of the store calls this.

        Raises:
            StoreMismatchError: the table was created with another number of shards.
        """
        async with self._opening:
            if not self._opened:
                await self._check_meta()
                self._opened = True

    async def _check_meta(self) -> None:
        meta = await self.table.get(keys.META_PARTITION, keys.META)
        if meta is None:
            await self.table.create()
            row = {"RowKey": keys.META, "Shards": len(self._shards)}
            await self.table.insert(keys.META_PARTITION, row)
            meta = await self.table.get(keys.META_PARTITION, keys.META)
        if meta is None:
            raise StoreUnavailableError("the table was deleted while it was being opened")
        try:
            check_format(meta.get("Format"), "the table")
        except (OtherVersionError, ValueError) as wrong:
            raise StoreMismatchError(str(wrong), "format of the table") from None
        if (shards := meta.get("Shards")) != len(self._shards):
            raise StoreMismatchError(
                f"the table was created with {shards} shards, this start asks for "
                f"{len(self._shards)}: orders would not be found. Set the number of shards back "
                f"to {shards}, or name a new table",
                "number of shards",
            )

    async def _partition(self, order_id: str) -> str:
        if not self._opened:
            await self.open()
        return shard_of(order_id, len(self._shards))

    # Orders

    async def load(self, order_id: str) -> Order | None:
        """See ``StateStore.load``. One range query returns all rows of the aggregate.

        One page is a consistent snapshot. Several pages are not, so the state row's ETag is
        checked again after them.
        """
        partition = await self._partition(order_id)
        for _ in range(LOADS_MAX):
            pages = [page async for page in self.table.pages(partition, keys.aggregate(order_id))]
            if not pages:
                return None
            found = {row["RowKey"]: row for page in pages for row in page}
            if all(keys.is_error(row_key) for row_key in found):
                return None  # an agent wrote it after its order was purged
            state = found.get(keys.state(order_id))
            token = str(state.metadata["etag"]) if state else ""
            if len(pages) == 1 or await self._has_token(partition, order_id, token):
                return order_from(order_id, found, token)
        raise StoreUnavailableError(f"order {order_id} changed {LOADS_MAX} times while it was read")

    async def _has_token(self, partition: str, order_id: str, token: str) -> bool:
        state = await self.table.get(partition, keys.state(order_id))
        return state is not None and state.metadata["etag"] == token

    async def commit(self, change: Change) -> Order:
        """See ``StateStore.commit``."""
        check_bounds(change)
        left = operations(change)
        partition = await self._partition(change.after.order_id)
        budget, attempt = self.table.retry_budget, 1
        async with self.table.within_time():
            while True:
                try:
                    etags = await self.table.transact(partition, left)
                    return replace(change.after, token=etags[0] or OVERTAKEN)
                except RefusedTransactionError as refused:
                    if (token := await self._our_token(partition, change)) is not None:
                        return replace(change.after, token=token)
                    # An index row to delete may be missing already, because it was deleted
                    # by hand. Without this its order could never change again.
                    if refused.status != 404 or not left[refused.index].is_index_delete:
                        raise ConflictError(
                            f"order {change.after.order_id} changed since it was loaded (seq "
                            f"{change.entry.seq - 1}), or its cause was recorded already: {refused}"
                        ) from refused
                    del left[refused.index]
                except UnknownOutcomeError as unknown:
                    if (token := await self._our_token(partition, change)) is not None:
                        return replace(change.after, token=token)
                    if attempt >= budget.attempts:
                        raise self.table.unavailable(unknown.__cause__ or unknown) from unknown
                    await budget.pause(attempt)
                    attempt += 1

    async def _our_token(self, partition: str, change: Change) -> str | None:
        """Return our token if our transaction was written; None if no transaction was.

        Raises:
            ConflictError: another instance's transaction was written.
        """
        order_id, entry = change.after.order_id, change.entry
        journal = await self.table.get(partition, keys.journal(order_id, entry.seq))
        if journal is None:
            return None
        if journal.get("CommitId") != entry.commit_id:
            raise ConflictError(
                f"order {order_id}: seq {entry.seq} was committed by {journal.get('By')} "
                f"({journal.get('What')})"
            )
        state = await self.table.get(partition, keys.state(order_id))
        if state is None or state.get("CommitId") != entry.commit_id:
            return OVERTAKEN
        return str(state.metadata["etag"])

    async def keep_error(self, order_id: str, step: int, error: AttemptError) -> None:
        """See ``StateStore.keep_error``."""
        await self.table.put(await self._partition(order_id), error_row(order_id, step, error))

    async def put_payload(self, order_id: str, data: bytes) -> PayloadRef:
        """See ``StateStore.put_payload``. Every chunk is written, whether it exists or not."""
        check_bytes("payload", len(data), PAYLOAD_BYTES_MAX)
        partition = await self._partition(order_id)
        ref = ref_of(data)
        for row in payload_rows(order_id, ref, data):
            await self.table.put(partition, row)
        return ref

    async def get_payload(self, order_id: str, ref: PayloadRef) -> bytes:
        """See ``StateStore.get_payload``. One range query."""
        partition = await self._partition(order_id)
        found = await self.table.rows(partition, keys.payload_chunks(order_id, ref.sha256))
        return payload_from(order_id, ref, {row["RowKey"]: row for row in found})

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """See ``StateStore.recorded``."""
        partition = await self._partition(order_id)
        found = await self.table.get(partition, keys.cause(order_id, cause))
        if found is None:
            return None
        with reading(order_id, found):
            seq = int(found["Seq"])
        return await self.entry(order_id, seq)

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """See ``StateStore.entry``."""
        partition = await self._partition(order_id)
        found = await self.table.get(partition, keys.journal(order_id, seq))
        return None if found is None else entry_from(found)

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """See ``StateStore.journal``."""
        partition = await self._partition(order_id)
        found = await self.table.rows(partition, keys.journals(order_id))
        return [entry_from(row) for row in found]

    # Index rows

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """See ``StateStore.due``."""
        await self.open()
        span = keys.between("due", until=until)
        found = await self.table.rows(shard, span, limit=limit, select=["RowKey"])
        return [keys.parse_due(row["RowKey"]) for row in found]

    async def oldest_due(self, shard: str) -> datetime | None:
        """See ``StateStore.oldest_due``."""
        await self.open()
        found = await self.table.rows(shard, keys.between("due"), limit=1, select=["RowKey"])
        return keys.parse_due(found[0]["RowKey"]).at if found else None

    async def defer(self, order_id: str, message: Message, at: datetime) -> None:
        """See ``StateStore.defer``."""
        due = DeferredDue(at, order_id, digest_id(message.queue, message.message_id))
        await self.table.put(await self._partition(order_id), deferred_row(due, message))

    async def deferred(self, due: DeferredDue) -> Message | None:
        """See ``StateStore.deferred``."""
        row = await self.table.get(await self._partition(due.order_id), keys.due(due))
        return None if row is None else deferred_message(row)

    async def remove_due(self, due: OutDue | DeferredDue) -> None:
        """See ``StateStore.remove_due``."""
        await self.table.delete(await self._partition(due.order_id), keys.due(due))

    async def attention(self, limit: int, *, since: datetime | None = None) -> list[Summary]:
        """See ``StateStore.attention``."""
        return await self._stopped(keys.between("attention", since), limit)

    async def finished(
        self,
        limit: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        shard: str | None = None,
    ) -> list[Summary]:
        """See ``StateStore.finished``."""
        return await self._stopped(keys.between("done", since, until), limit, shard)

    async def _stopped(
        self, span: tuple[str, str], limit: int, only: str | None = None
    ) -> list[Summary]:
        await self.open()
        shards = self._shards if only is None else [only]
        lists = await asyncio.gather(
            *(self.table.rows(shard, span, limit=limit) for shard in shards)
        )
        found = [one for rows in lists for row in rows if (one := _summary(row)) is not None]
        return sorted(found, key=lambda summary: (summary.at, summary.order_id))[:limit]

    # Removal

    async def purge(self, *orders: Order) -> set[str]:
        """See ``StateStore.purge``.

        Raises:
            IllegalMoveError: an order is not finished.
            StoreUnavailableError: no answer. An order stays listed as finished until all its
                rows are gone.
        """
        await self.open()
        return await Purge(self.table, len(self._shards)).remove(*orders)

    # Shared values and leases

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """See ``StateStore.read_shared``."""
        await self.open()
        found = await self.table.get(keys.META_PARTITION, keys.shared(name))
        return None if found is None else _shared(found)

    async def shared_values(self, prefix: str) -> dict[str, SharedValue[str]]:
        """See ``StateStore.shared_values``."""
        await self.open()
        found = await self.table.rows(keys.META_PARTITION, keys.shared_range(prefix))
        values: dict[str, SharedValue[str]] = {}
        for row in found:
            try:
                values[keys.shared_name(row["RowKey"])] = _shared(row)
            except OtherVersionError as newer:
                log.warning("%s", newer)
        return values

    async def write_shared(self, name: str, value: str, token: str | None) -> SharedValue[str]:
        """See ``StateStore.write_shared``."""
        await self.open()
        row = {"RowKey": keys.shared(name), "Value": value}
        if token is None:
            written = await self.table.insert(keys.META_PARTITION, row)
        else:
            written = await self.table.replace(keys.META_PARTITION, row, token)
        if not written:
            raise ConflictError(f"shared value {name} changed since it was read")
        found = await self.read_shared(name)
        if found is None or found.value != value:
            raise ConflictError(f"shared value {name} changed as soon as it was written")
        return found

    async def acquire_lease(self, name: str, holder: str, until: datetime, now: datetime) -> bool:
        """See ``StateStore.acquire_lease``."""
        await self.open()
        row = {"RowKey": keys.lease(name), "Holder": holder, "Until": key_time(until)}
        found = await self.table.get(keys.META_PARTITION, keys.lease(name))
        if found is None:
            return await self.table.insert(keys.META_PARTITION, row)
        if found.get("Holder") != holder and _held_until(found, now) > now:
            return False
        etag = str(found.metadata["etag"])
        return await self.table.replace(keys.META_PARTITION, row, etag)

    async def close(self) -> None:
        """Close the client, and the credential if the store made it."""
        await self.table.close()
        for owned in self._owned:
            await owned.close()


async def connect_existing(endpoint: Endpoint, table: str) -> TableStore:
    """Return a store that exists already, for an operator's tool.

    Creates no table, and reads the number of shards from the table.

    Raises:
        NoStoreError: there is no such table, it holds no orders, or the address is not one of
            Table Storage.
        StoreUnavailableError: the account did not answer.
        ValueError: the endpoint has neither an address nor a readable connection string.
    """
    probe = TableStore.connect(endpoint, table)
    where = probe.table.client.url.split("?")[0].rstrip("/")
    try:
        meta = await probe.table.get(keys.META_PARTITION, keys.META)
    except HttpResponseError as other:
        raise NoStoreError(
            f"{where} does not answer as Table Storage does ({first_line(other)}): check the "
            "address of the storage account's tables"
        ) from other
    finally:
        await probe.close()
    if meta is None:
        raise NoStoreError(
            f"no order yet: there is no table {table!r} with orders at {where} (otherwise "
            "check the storage account and the table's name)"
        )
    try:
        check_format(meta.get("Format"), "the table")
    except (OtherVersionError, ValueError) as wrong:
        raise NoStoreError(f"{where}: {wrong}") from None
    shards = meta.get("Shards")
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise NoStoreError(
            f"the row {keys.META!r} of table {table!r} at {where} has Shards={str(shards)[:40]!r}: "
            "set it back to SAS_SHARDS of the app"
        )
    return TableStore.connect(endpoint, table, shards)


def _shared(row: TableEntity) -> SharedValue[str]:
    """Return a shared value; one that was broken by hand is empty.

    Raises:
        OtherVersionError: its format is newer.
    """
    with suppress(ValueError):
        check_format(row.get("Format"), f"shared value {keys.shared_name(row['RowKey'])}")
    value = row.get("Value")
    return SharedValue(value if isinstance(value, str) else "", str(row.metadata["etag"]))


def _held_until(row: Row, now: datetime) -> datetime:
    """Return when a lease ends; if its row was broken by hand, it has ended."""
    try:
        return parse_key_time(row["Until"])
    except (KeyError, TypeError, ValueError):
        return now


def _summary(row: Row) -> Summary | None:
    """Return an order of a list; None if its row is of a newer version, or was broken by hand."""
    try:
        with reading(str(row.get("OrderID")), row):
            return Summary(
                at=parse_key_time(row["At"]),
                order_id=row["OrderID"],
                process_state=OrderState(row["ProcessState"]),
                workflow=row["Workflow"],
                submitted_at=parse_key_time(row["SubmittedAt"]),
                undone_because=row.get("UndoneBecause"),
            )
    except (CorruptOrderError, OtherVersionError) as wrong:
        log.warning("a row of a list is skipped: %s", wrong)
    return None
