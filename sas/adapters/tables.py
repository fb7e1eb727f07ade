"""The state store on Azure Table Storage: one table, one transaction per transition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from azure.data.tables.aio import TableClient

from sas.adapters import keys
from sas.adapters.commit import due_row, operations
from sas.adapters.endpoints import Endpoint, token_credential
from sas.adapters.journal_rows import entry_from
from sas.adapters.outcome import settle
from sas.adapters.payload_rows import payload_from, payload_rows
from sas.adapters.removal import remove
from sas.adapters.rows import Row, order_from
from sas.adapters.table import Meter, RetryBudget, Table
from sas.bounds import PAYLOAD_BYTES_MAX, check_bounds, check_bytes
from sas.domain.change import Change, Due, OutDue
from sas.domain.content import PayloadRef, ref_of
from sas.domain.ids import all_shards, key_time, parse_key_time, shard_of
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, OrderState
from sas.ports import ConflictError, SharedValue, StoreMismatchError, StoreUnavailableError, Summary

AZURITE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLl"
    "mEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"
)
"""What ``UseDevelopmentStorage=true`` means; the Tables SDK does not know. The key is public."""

LOADS_MAX = 5


class TableStore:
    """Orders, journals and index rows in one table. See ``sas.ports.StateStore``.

    One store serves all tasks of one event loop: the SDK's client is bound to the first it
    meets. It opens by being used; close it. ``table.meter`` counts what was asked of the service.
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
        **options: Any,
    ) -> Self:
        """Return a store by an endpoint, or by a connection string alone.

        An endpoint without a connection string is asked as the app's managed identity.
        ``options`` go to the SDK's client. Nothing is sent before the first use.

        Raises:
            ValueError: neither an address nor a readable connection string.
        """
        meter = Meter()
        settings = {"connection_timeout": 5, "read_timeout": 15} | options
        settings |= {"retry_total": 0, "raw_request_hook": meter.count_request}
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
        return cls(Table(client, retry_budget or RetryBudget(), meter), shards=shards, owned=owned)

    @property
    def requests(self) -> int:
        """How many requests were sent, repeats included."""
        return self.table.meter.requests

    @property
    def shards(self) -> Sequence[str]:
        """Every shard there is."""
        return self._shards

    async def open(self) -> None:
        """Create the table if absent and check its number of shards; done by the first use.

        Raises:
            StoreMismatchError: the table was created with another number of shards.
        """
        async with self._opening:
            if not self._opened:
                await self._pin_shards()
                self._opened = True

    async def _pin_shards(self) -> None:
        meta = await self.table.get(keys.META_PARTITION, keys.META)
        if meta is None:
            await self.table.create()
            row = {"RowKey": keys.META, "Shards": len(self._shards)}
            await self.table.insert(keys.META_PARTITION, row)
            meta = await self.table.get(keys.META_PARTITION, keys.META)
        if meta is None:
            raise StoreUnavailableError("the table was deleted while it was being opened")
        if meta["Shards"] != len(self._shards):
            raise StoreMismatchError(
                f"the table was created with {meta['Shards']} shards, this start asks for "
                f"{len(self._shards)}: orders would not be found. Set the number of shards back "
                f"to {meta['Shards']}, or name a new table."
            )

    async def _partition(self, order_id: str) -> str:
        if not self._opened:
            await self.open()
        return shard_of(order_id, len(self._shards))

    async def load(self, order_id: str) -> Order | None:
        """See ``StateStore.load``. One range query; its rows are one moment's.

        A page is a snapshot, several are not: then the state row's ETag is looked at again.
        """
        partition = await self._partition(order_id)
        for _ in range(LOADS_MAX):
            pages = [page async for page in self.table.pages(partition, keys.aggregate(order_id))]
            if not pages:
                return None
            found = {row["RowKey"]: row for page in pages for row in page}
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
        wanted = operations(change)
        partition = await self._partition(change.after.order_id)
        token = await settle(self.table, partition, change, wanted)
        return replace(change.after, token=token)

    async def put_payload(self, order_id: str, data: bytes) -> PayloadRef:
        """See ``StateStore.put_payload``. Every chunk is written, whether it exists or not."""
        check_bytes("content", len(data), PAYLOAD_BYTES_MAX)
        partition = await self._partition(order_id)
        ref = ref_of(data)
        for row in payload_rows(order_id, ref, data):
            await self.table.put(partition, row)
        return ref

    async def get_payload(self, order_id: str, ref: PayloadRef) -> bytes:
        """See ``StateStore.get_payload``. One range query."""
        partition = await self._partition(order_id)
        pages = self.table.pages(partition, keys.payload_chunks(order_id, ref.sha256))
        found = {row["RowKey"]: row async for page in pages for row in page}
        return payload_from(order_id, ref, found)

    async def recorded(self, order_id: str, cause: str) -> JournalEntry | None:
        """See ``StateStore.recorded``."""
        partition = await self._partition(order_id)
        found = await self.table.get(partition, keys.cause(order_id, cause))
        return None if found is None else await self.entry(order_id, found["Seq"])

    async def entry(self, order_id: str, seq: int) -> JournalEntry | None:
        """See ``StateStore.entry``."""
        partition = await self._partition(order_id)
        found = await self.table.get(partition, keys.journal(order_id, seq))
        return None if found is None else entry_from(found)

    async def journal(self, order_id: str) -> list[JournalEntry]:
        """See ``StateStore.journal``."""
        partition = await self._partition(order_id)
        pages = self.table.pages(partition, keys.journals(order_id))
        return [entry_from(row) async for page in pages for row in page]

    async def due(self, shard: str, until: datetime, limit: int) -> list[Due]:
        """See ``StateStore.due``."""
        await self.open()
        pages = self.table.pages(shard, keys.due_until(until), limit=limit)
        return [keys.parse_due(row["RowKey"]) async for page in pages for row in page]

    async def oldest_due(self, shard: str) -> datetime | None:
        """See ``StateStore.oldest_due``."""
        await self.open()
        pages = self.table.pages(shard, keys.due_until(None), limit=1)
        first = [keys.parse_due(row["RowKey"]).at async for page in pages for row in page]
        return first[0] if first else None

    async def add_out(self, due: OutDue) -> None:
        """See ``StateStore.add_out``."""
        await self.table.put(await self._partition(due.order_id), due_row(due))

    async def remove_out(self, due: OutDue) -> None:
        """See ``StateStore.remove_out``."""
        await self.table.delete(await self._partition(due.order_id), keys.due(due))

    async def attention(self, limit: int, *, since: datetime | None = None) -> list[Summary]:
        """See ``StateStore.attention``."""
        return await self._settled(keys.settled_range("attention", since), limit)

    async def finished(
        self, limit: int, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Summary]:
        """See ``StateStore.finished``."""
        return await self._settled(keys.settled_range("done", since, until), limit)

    async def _settled(self, span: tuple[str, str], limit: int) -> list[Summary]:
        await self.open()
        lists = await asyncio.gather(*(self._settled_in(s, span, limit) for s in self._shards))
        merged = [summary for part in lists for summary in part]
        return sorted(merged, key=lambda summary: (summary.at, summary.order_id))[:limit]

    async def _settled_in(self, shard: str, span: tuple[str, str], limit: int) -> list[Summary]:
        pages = self.table.pages(shard, span, limit=limit)
        return [_summary(row) async for page in pages for row in page]

    async def purge(self, order: Order) -> bool:
        """See ``StateStore.purge``."""
        return await remove(self.table, await self._partition(order.order_id), order)

    async def read_shared(self, name: str) -> SharedValue[str] | None:
        """See ``StateStore.read_shared``."""
        await self.open()
        found = await self.table.get(keys.META_PARTITION, keys.shared(name))
        return None if found is None else SharedValue(found["Value"], str(found.metadata["etag"]))

    async def shared_values(self, prefix: str) -> dict[str, SharedValue[str]]:
        """See ``StateStore.shared_values``."""
        await self.open()
        span = keys.shared_range(prefix)
        return {
            keys.shared_name(row["RowKey"]): SharedValue(row["Value"], str(row.metadata["etag"]))
            async for page in self.table.pages(keys.META_PARTITION, span)
            for row in page
        }

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
        if found["Holder"] != holder and parse_key_time(found["Until"]) > now:
            return False
        etag = str(found.metadata["etag"])
        return await self.table.replace(keys.META_PARTITION, row, etag)

    async def close(self) -> None:
        """Close the client, and the credential if it is ours."""
        await self.table.close()
        for owned in self._owned:
            await owned.close()


def _summary(row: Row) -> Summary:
    state = OrderState(row["ProcessState"])
    return Summary(parse_key_time(row["At"]), row["OrderID"], state, row["Workflow"])
