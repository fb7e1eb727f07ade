"""The state store on Azure Table Storage: one table, one transaction per transition.

All rows of an order lie in one partition, so one entity group transaction can change them
together. Every change rewrites one of them, the state row. So the ETag of the state row is the
version of the whole order. The port calls it the order's *token*.

**How a load sees one consistent order**

1. One range query reads the details, the state, the steps and their results. The service answers
   in pages, and one page is a snapshot: it never shows half of a transaction.
2. Nearly every order fits into one page. If there are several, another instance may change the
   order between two of them. So the state row is read again after the last page. If its ETag is
   still the same, no transaction came between. Otherwise the load starts again.

**How a commit works**

3. ``operations`` turns the change into one transaction. Its first operation replaces the state row
   only if the row still has the token's ETag; for a new order it creates the row. The service
   writes all operations or none. So if two instances decide about the same version of an order,
   one commits, and the service refuses the other one (404, 409 or 412).
4. The answer holds the new ETag of the state row. It becomes the new token, so this process can
   decide about the order again without a load.

**What a lost answer means**

After a broken connection, a timeout or a 503 the outcome is unknown: the transaction may be
written, may not be, or may still arrive. A refusal proves little too, because the refused request
may be our own repeat of step 8. So the store looks before it says anything.

5. It reads the journal row of this seq (``_our_token``). A journal row is created once, never
   changes, and carries the commit id, which is new for each change. If the row is missing, no
   transaction of this seq is written so far. If it carries our commit id, ours is written, even if
   other transactions followed. If it carries another one, a rival committed first: ConflictError.
6. If ours is written, the state row has our commit id, and its ETag is our token. But another
   instance may have changed the order in the meantime. Then we were *overtaken*: our change stands
   and its messages must be sent, but our ETag is gone. The order gets ``OVERTAKEN_ETAG``, which no
   row has. So the next commit with it is refused, and the caller loads the order.
7. If nothing of this seq is written after a refusal, the cause was recorded at an earlier seq, a
   purge is removing the order, or somebody changed a row by hand: ConflictError, and the caller
   loads the order and decides anew. There is one exception. If the missing row is one that we
   wanted to delete (404), an operator has deleted it by hand. The same transaction is sent without
   this operation; otherwise its order could never change again.
8. If nothing is written after an unknown outcome, the **same** transaction is sent again, with the
   same ETag and the same commit id. It cannot be applied twice: the one that arrives first changes
   the ETag and creates the journal row, so the service refuses the other one, and step 5 finds our
   commit id. A new decision would have a new commit id, and would take the late one for a rival's.
9. When the retry budget (its attempts or its time) is used up, the caller gets
   StoreUnavailableError and puts its message back. The message comes again. If the transaction was
   not written, there is a new decision. If it was, its cause is recorded, and only the recorded
   messages are sent. A timer has no message: a due row brings the supervisor back, either the old
   row or the out row.

**Index rows and leases**

10. The rows ``due``, ``attention`` and ``done`` lie in the order's partition and change in its
    transactions, so they always agree with it. Their keys begin with a time, so a range query
    returns the oldest first. There is one exception: an out row is removed alone. After a crash
    before that, its messages are sent twice. That is harmless, because a message keeps its id.
11. Leases and shared values lie in the partition ``meta``. A lease names its holder and its end.
    It is taken over by a replace under its ETag, so one of two instances gets it. If the answer is
    lost, the holder may not know that it leads; it finds its name in the row when it asks again.
    Two leaders would do no harm either, because the ETag of each order decides.
12. Held messages lie in the partition ``held``, whose keys begin with the queue and the time. Each
    row is written once, and removed when its message was sent. So however many there are, no sweep
    of the due rows reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Self
from urllib.request import getproxies

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables import TableEntity
from azure.data.tables.aio import TableClient

from sas.adapters.clock import http_date
from sas.adapters.endpoints import Endpoint, token_credential
from sas.adapters.tables import keys
from sas.adapters.tables.group_transaction import GroupTransactions
from sas.adapters.tables.operations import (
    entry_from,
    held_from,
    held_row,
    operations,
    payload_from,
    payload_rows,
)
from sas.adapters.tables.purge import FinishedOrders
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
from sas.domain.ids import all_shards, key_time, parse_key_time, shard_of
from sas.domain.messages import JournalEntry
from sas.domain.order import AttemptError, Order, OrderState
from sas.ports import (
    ConflictError,
    CorruptOrderError,
    HeldMessage,
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
"""What ``UseDevelopmentStorage=true`` means. The Tables SDK does not know it. The key is public."""

LOAD_ATTEMPTS_MAX = 5
RESTORING = "Restoring"
"""Column of the row ``meta`` while a restore goes on: the id of the export."""
_START_OF_TIME = datetime.min.replace(tzinfo=UTC)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
SHARE_ROWS_MIN = 10
"""Of each shard so many index rows are read for a list, beside its share of the limit."""

OVERTAKEN_ETAG = "W/\"datetime'2000-01-01T00%3A00%3A00.0000000Z'\""
"""The token of an order that another instance changed before we saw the ETag of our write.

It matches no row, so the next commit with it is refused, as it must be.
"""


class NoStoreError(LookupError):
    """There is no state store of this name. The message says where it was looked for."""


class TableStore:
    """Orders, journals and index rows in one table. See ``sas.ports.StateStore``.

    One store serves all tasks of one event loop, because the SDK's client belongs to the first
    loop that uses it. It opens on first use; close it. ``table.meter`` counts the requests.
    """

    def __init__(self, table: Table, *, shards: int = 16, credentials: Sequence[Any] = ()) -> None:
        self.table = table
        self._shards = all_shards(shards)
        self._credentials = credentials
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
        credentials: list[Any] = []
        if text:
            text = AZURITE if "UseDevelopmentStorage=true" in text else text
            client = TableClient.from_connection_string(text, table, **settings)
        elif not isinstance(endpoint, str) and endpoint.address:
            credential = token_credential(endpoint.client_id)
            credentials.append(credential)
            client = TableClient(endpoint.address, table, credential=credential, **settings)
        else:
            raise ValueError("the state store needs a connection string or an address")
        transactions = GroupTransactions(client, transport, meter.count)
        rows = Table(client, retry_budget or RetryBudget(), meter, transactions)
        return cls(rows, shards=shards, credentials=credentials)

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
        meta = await self.table.get(keys.META_PARTITION, keys.META_ROW)
        if meta is None:
            await self.table.create()
            row = {"RowKey": keys.META_ROW, "Shards": len(self._shards)}
            await self.table.insert(keys.META_PARTITION, row)
            meta = await self.table.get(keys.META_PARTITION, keys.META_ROW)
        if meta is None:
            raise StoreUnavailableError("the table was deleted while it was being opened")
        try:
            _check_table(meta)
        except (OtherVersionError, ValueError) as error:
            raise StoreMismatchError(str(error), "format of the table") from None
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
        """See ``StateStore.load``. The numbers are those of the theory of operation above."""
        partition = await self._partition(order_id)
        for _ in range(LOAD_ATTEMPTS_MAX):
            # 1. One range query reads the aggregate.
            pages = [page async for page in self.table.pages(partition, keys.aggregate(order_id))]
            if not pages:
                return None
            by_key = {row["RowKey"]: row for page in pages for row in page}
            if all(keys.is_error(row_key) for row_key in by_key):
                return None  # an agent wrote it after its order was purged
            state = by_key.get(keys.state(order_id))
            token = str(state.metadata["etag"]) if state else ""
            # 2. Several pages fit together if the state row did not change meanwhile.
            if len(pages) == 1 or await self._has_token(partition, order_id, token):
                return order_from(order_id, by_key, token)
        raise StoreUnavailableError(
            f"order {order_id} changed {LOAD_ATTEMPTS_MAX} times while it was read"
        )

    async def _has_token(self, partition: str, order_id: str, token: str) -> bool:
        state = await self.table.get(partition, keys.state(order_id))
        return state is not None and state.metadata["etag"] == token

    async def commit(self, change: Change) -> Order:
        """See ``StateStore.commit``. The numbers are those of the theory of operation above."""
        check_bounds(change)
        batch = operations(change)
        partition = await self._partition(change.after.order_id)
        budget, attempt = self.table.retry_budget, 1
        async with self.table.within_time():  # 9.
            while True:
                try:
                    # 3. and 4. The first operation writes the state row: its ETag is the token.
                    etags = await self.table.transact(partition, batch)
                    return replace(change.after, token=etags[0] or OVERTAKEN_ETAG)
                except RefusedTransactionError as refusal:
                    # 5. and 6. Refused, perhaps because our first attempt is written.
                    if (token := await self._our_token(partition, change)) is not None:
                        return replace(change.after, token=token)
                    # 7. A rival won, unless only an index row to delete is missing.
                    if refusal.status != 404 or not batch[refusal.index].is_deletion:
                        raise ConflictError(
                            f"order {change.after.order_id} changed since it was loaded (seq "
                            f"{change.entry.seq - 1}), or its cause was recorded already: {refusal}"
                        ) from refusal
                    del batch[refusal.index]
                except UnknownOutcomeError as error:
                    # 5. and 6. The answer is lost, but the transaction may be written.
                    if (token := await self._our_token(partition, change)) is not None:
                        return replace(change.after, token=token)
                    if attempt >= budget.attempts:  # 9.
                        raise self.table.unavailable(error.__cause__ or error) from error
                    # 8. The same transaction again, never a new decision.
                    await budget.pause(attempt)
                    attempt += 1

    async def _our_token(self, partition: str, change: Change) -> str | None:
        """Return our token if our transaction is written; None if none of this seq is.

        Raises:
            ConflictError: another instance's transaction is written.
        """
        # 5. The journal row says whose transaction it was.
        order_id, entry = change.after.order_id, change.entry
        journal = await self.table.get(partition, keys.journal(order_id, entry.seq))
        if journal is None:
            return None
        if journal.get("CommitId") != entry.commit_id:
            raise ConflictError(
                f"order {order_id}: seq {entry.seq} was committed by {journal.get('By')} "
                f"({journal.get('What')})"
            )
        # 6. The state row says whether another transaction followed.
        state = await self.table.get(partition, keys.state(order_id))
        if state is None or state.get("CommitId") != entry.commit_id:
            return OVERTAKEN_ETAG
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
        chunks = await self.table.rows(partition, keys.payload_chunks(order_id, ref.sha256))
        return payload_from(order_id, ref, {chunk["RowKey"]: chunk for chunk in chunks})

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """See ``StateStore.recorded``."""
        partition = await self._partition(order_id)
        row = await self.table.get(partition, keys.cause(order_id, cause))
        if row is None:
            return None
        with reading(order_id, row):
            seq = int(row["Seq"])
        return await self.entry(order_id, seq)

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """See ``StateStore.entry``."""
        partition = await self._partition(order_id)
        row = await self.table.get(partition, keys.journal(order_id, seq))
        return None if row is None else entry_from(row)

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """See ``StateStore.journal``."""
        partition = await self._partition(order_id)
        rows = await self.table.rows(partition, keys.journals(order_id))
        return [entry_from(row) for row in rows]

    # 10. Index rows

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """See ``StateStore.due``."""
        await self.open()
        span = keys.between("due", until=until)
        rows = await self.table.rows(shard, span, limit=limit, select=["RowKey"])
        return [keys.parse_due(row["RowKey"]) for row in rows]

    async def oldest_due(self, shard: str) -> datetime | None:
        """See ``StateStore.oldest_due``."""
        await self.open()
        rows = await self.table.rows(shard, keys.between("due"), limit=1, select=["RowKey"])
        return keys.parse_due(rows[0]["RowKey"]).at if rows else None

    async def remove_due(self, due: OutDue) -> None:
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
        self, span: tuple[str, str], limit: int, shard: str | None = None
    ) -> list[Summary]:
        """Read one list from all shards, or from one of them, oldest first.

        Orders are spread evenly over the shards. So a little more than its share is read of each
        shard, and all of it only if a shard may have more of the oldest orders than that.
        """
        await self.open()
        shards = self._shards if shard is None else [shard]
        share = min(limit, 2 * limit // len(shards) + SHARE_ROWS_MIN) if len(shards) > 1 else limit
        summaries, known_to = await self._merged(shards, span, share)
        if (
            share < limit
            and known_to < _END_OF_TIME
            and (sum(summary.at < known_to for summary in summaries) < limit)
        ):
            summaries, _ = await self._merged(shards, span, limit)
        return summaries[:limit]

    async def _merged(
        self, shards: Sequence[str], span: tuple[str, str], share: int
    ) -> tuple[list[Summary], datetime]:
        """Read ``share`` rows of each shard; return them, and before when no order is missing."""
        lists = await asyncio.gather(
            *(self.table.rows(shard, span, limit=share) for shard in shards)
        )
        known_to = _END_OF_TIME
        summaries: list[Summary] = []
        for rows in lists:
            of_shard = [summary for row in rows if (summary := _summary(row))]
            summaries += of_shard
            if len(rows) == share:
                known_to = min(known_to, of_shard[-1].at if of_shard else _START_OF_TIME)
        summaries.sort(key=lambda summary: (summary.at, summary.order_id))
        return summaries, known_to

    # 12. Held messages

    async def hold(self, item: HeldMessage) -> None:
        """See ``StateStore.hold``."""
        await self.open()
        await self.table.put(keys.HELD_PARTITION, held_row(item))

    async def held_queue(self, behind: str) -> str | None:
        """See ``StateStore.held_queue``."""
        rows = await self._held(keys.held_behind(behind), 1, ["RowKey"])
        return keys.held_queue(rows[0]["RowKey"]) if rows else None

    async def held(self, queue: str, limit: int) -> list[HeldMessage]:
        """See ``StateStore.held``."""
        return [held_from(row) for row in await self._held(keys.held_for(queue), limit)]

    async def held_count(self, queue: str, limit: int) -> int:
        """See ``StateStore.held_count``."""
        return len(await self._held(keys.held_for(queue), limit, ["RowKey"]))

    async def _held(
        self, span: tuple[str, str], limit: int, select: Sequence[str] | None = None
    ) -> list[TableEntity]:
        await self.open()
        return await self.table.rows(keys.HELD_PARTITION, span, limit=limit, select=select)

    async def release(self, item: HeldMessage) -> None:
        """See ``StateStore.release``."""
        await self.open()
        message = item.message
        row_key = keys.held(message.queue, item.since, message.message_id)
        await self.table.delete(keys.HELD_PARTITION, row_key)

    async def hold_deferred(self, due: DeferredDue) -> None:
        """See ``StateStore.hold_deferred``."""
        partition = await self._partition(due.order_id)
        row = await self.table.get(partition, keys.due(due))
        if row is not None:
            await self.hold(held_from(row))
            await self.table.delete(partition, keys.due(due))

    # Removal

    async def purge(self, *orders: Order) -> set[str]:
        """See ``StateStore.purge``.

        Raises:
            IllegalMoveError: an order is not finished.
            StoreUnavailableError: no answer. An order stays listed as finished until all its
                rows are gone.
        """
        await self.open()
        return await FinishedOrders(self.table, len(self._shards)).remove(*orders)

    # 11. Shared values and leases

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """See ``StateStore.read_shared``."""
        await self.open()
        row = await self.table.get(keys.META_PARTITION, keys.shared(name))
        return None if row is None else _shared(row)

    async def shared_values(self, prefix: str) -> dict[str, SharedValue[str]]:
        """See ``StateStore.shared_values``."""
        await self.open()
        rows = await self.table.rows(keys.META_PARTITION, keys.shared_range(prefix))
        values: dict[str, SharedValue[str]] = {}
        for row in rows:
            try:
                values[keys.shared_name(row["RowKey"])] = _shared(row)
            except OtherVersionError as error:
                log.warning("%s", error)
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
        shared = await self.read_shared(name)  # for its token
        if shared is None or shared.value != value:
            raise ConflictError(f"shared value {name} changed as soon as it was written")
        return shared

    async def acquire_lease(self, name: str, holder: str, until: datetime, now: datetime) -> bool:
        """See ``StateStore.acquire_lease``."""
        await self.open()
        row = {"RowKey": keys.lease(name), "Holder": holder, "Until": key_time(until)}
        lease = await self.table.get(keys.META_PARTITION, keys.lease(name))
        if lease is None:
            return await self.table.insert(keys.META_PARTITION, row)
        if lease.get("Holder") != holder and _lease_end(lease, now) > now:
            return False
        etag = str(lease.metadata["etag"])
        return await self.table.replace(keys.META_PARTITION, row, etag)

    async def close(self) -> None:
        """Close the client, and the credential if the store made it."""
        await self.table.close()
        for credential in self._credentials:
            await credential.close()


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
    address = probe.table.client.url.split("?")[0].rstrip("/")
    try:
        meta = await probe.table.get(keys.META_PARTITION, keys.META_ROW)
    except HttpResponseError as error:
        raise NoStoreError(
            f"{address} does not answer as Table Storage does ({first_line(error)}): check the "
            "address of the storage account's tables"
        ) from error
    finally:
        await probe.close()
    if meta is None:
        raise NoStoreError(
            f"no order yet: there is no table {table!r} with orders at {address} (otherwise "
            "check the storage account and the table's name)"
        )
    try:
        _check_table(meta)
    except (OtherVersionError, ValueError) as error:
        raise NoStoreError(f"{address}: {error}") from None
    shards = meta.get("Shards")
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise NoStoreError(
            f"the row {keys.META_ROW!r} of table {table!r} at {address} has "
            f"Shards={str(shards)[:40]!r}: set it back to SAS_SHARDS of the app"
        )
    return TableStore.connect(endpoint, table, shards)


def _check_table(meta: Row) -> None:
    """Check that the row ``meta`` is that of a table to work on.

    Raises:
        OtherVersionError: its format is newer.
        ValueError: it has no format number, or its orders are not all there yet.
    """
    check_format(meta.get("Format"), "the table")
    if RESTORING in meta:
        raise ValueError("the table is being restored: run `sas azd restore` to its end")


async def service_time(endpoint: Endpoint, table: str) -> datetime | None:
    """Return the time of the service's clock, to a second; None if it does not say."""
    dates: list[str] = []

    def keep_date(response: Any) -> None:
        dates.append(response.http_response.headers.get("Date", ""))

    probe = TableStore.connect(endpoint, table)
    try:
        await probe.table.client.get_entity(
            keys.META_PARTITION, keys.META_ROW, raw_response_hook=keep_date
        )
    except AzureError:  # the answer has a date all the same, if there was one
        pass
    finally:
        await probe.close()
    return http_date(dates[-1]) if dates else None


def _shared(row: TableEntity) -> SharedValue[str]:
    """Return a shared value; a value that was broken by hand is empty.

    Raises:
        OtherVersionError: its format is newer.
    """
    with suppress(ValueError):
        check_format(row.get("Format"), f"shared value {keys.shared_name(row['RowKey'])}")
    value = row.get("Value")
    return SharedValue(value if isinstance(value, str) else "", str(row.metadata["etag"]))


def _lease_end(row: Row, now: datetime) -> datetime:
    """Return when a lease ends. If its row was broken by hand, the lease has ended."""
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
                version=row.get("Version"),
                fingerprints=tuple(filter(None, row.get("ErrorCode", "").split("\n"))),
                error_text=row.get("ErrorMessage", ""),
                acknowledged_by=row.get("AcknowledgedBy"),
            )
    except (CorruptOrderError, OtherVersionError) as error:
        log.warning("a row of a list is skipped: %s", error)
    return None
