"""One table of Azure Table Storage: single requests, retries, and what an error means.

1. **The SDK's own retries are off** (``retry_total=0``). They would repeat a transaction whose
   answer was lost. The repeat fails with 409 or 412 although the first one was written: a false
   conflict. So retries happen in two places only, and both know what they repeat.
2. Here (``_with_retries``): reads, and writes that are safe to repeat, because they write a whole
   row whatever was there, or delete one. ``insert`` and ``replace`` are repeated too. If the first
   answer was lost, they return False although the row is ours. Their callers can bear that: leases,
   shared values and the row ``meta`` are read again.
3. In ``store``: transactions. ``transact`` sends a transaction once and sorts what came back. Any
   other error is a bug, and is raised as it is.

   * **refused** (404, 409, 412 about one operation): rolled back, RefusedTransactionError;
   * **unknown** (no answer, half an answer, or a status of ``BUSY``): it may be written, or may
     still arrive, UnknownOutcomeError. A 503 is unknown too, because a gateway can answer it while
     the request is on its way;
   * **misconfigured** (no right, no table): not written, and no retry helps, StoreUnavailableError
     with what to check.
4. A time limit (``within_time``) encloses each request with its retries. So no request takes
   longer than ``total_s``, whatever the service does. A method that sends several requests may
   take longer. A commit has one limit around all of its requests.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import Any, TypeVar

import aiohttp
from azure.core import MatchConditions
from azure.core.exceptions import (
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.data.tables import TableEntity, TableTransactionError, UpdateMode
from azure.data.tables.aio import TableClient

from sas.adapters.tables.group_transaction import GroupTransactions
from sas.adapters.tables.operations import Operation
from sas.adapters.tables.rows import Entity, stored
from sas.ports import StoreUnavailableError
from sas.telemetry import metrics
from sas.telemetry.usage import Usage

T = TypeVar("T")

PAGE_ROWS_MAX = 1000
"""Most rows that the service returns at once."""
IN_RANGE = "PartitionKey eq @partition and RowKey ge @low and RowKey lt @high"

LOST = (
    ServiceRequestError,
    ServiceResponseError,
    DecodeError,
    HTTPException,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)
"""The answer is missing or incomplete. Whether the request had its effect is unknown."""

BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes of a service that may answer later."""

_TABLE_IS_GONE = frozenset({"TableNotFound", "TableBeingDeleted"})


class UnknownOutcomeError(Exception):
    """A transaction was sent, and whether it was written is unknown."""


class RefusedTransactionError(Exception):
    """A transaction was refused (404, 409, 412) and rolled back; ``index`` is the operation."""

    def __init__(self, status: int, index: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.index = index


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How often and how long to try.

    Pauses start at ``wait_s`` and double, with jitter. After ``total_s`` seconds the adapter
    gives up, even during an attempt.
    """

    attempts: int = 4
    wait_s: float = 0.1
    wait_max_s: float = 2.0
    total_s: float = 30.0

    async def pause(self, attempt: int) -> None:
        """Wait after the given attempt, counted from 1."""
        longest = min(self.wait_max_s, self.wait_s * 2 ** (attempt - 1))
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, no secret


@dataclass(slots=True)
class Meter(Usage):
    """Counts requests by kind, and the rows that were read and written."""

    def count_request(self, request: Any) -> None:
        """Count one request; the SDK's ``raw_request_hook``, called at each repeat too."""
        http = request.http_request
        size = int(http.headers.get("Content-Length") or 0)
        self.count(_kind(http.method, http.url), size)

    def count(self, kind: str, size: int) -> None:
        """Count one request; ``kind`` is its count of ``Usage``, ``size`` its body in bytes."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.storage_bytes += size
        metrics.storage_request(kind, size)

    def count_read(self, entities: int) -> None:
        """Count rows that were read."""
        self.entities_read += entities
        metrics.entities("read", entities)

    def count_written(self, entities: int) -> None:
        """Count rows that were written or deleted."""
        self.entities_written += entities
        metrics.entities("written", entities)


def _kind(method: str, url: str) -> str:
    """Return which count of ``Usage`` a request belongs to."""
    if method == "GET":
        return "reads" if "(PartitionKey=" in url else "queries"
    return "deletes" if method == "DELETE" else "writes"


class Table:
    """A table, its retry budget and its meter."""

    def __init__(
        self,
        client: TableClient,
        retry_budget: RetryBudget,
        meter: Meter,
        transactions: GroupTransactions,
    ) -> None:
        self.retry_budget = retry_budget
        self.meter = meter
        self.client = client
        self.transactions = transactions

    async def create(self) -> None:
        """Create the table. An existing one is not an error."""

        async def ask() -> None:
            with suppress(ResourceExistsError):
                await self.client.create_table()

        await self._with_retries(ask)

    async def get(self, partition: str, row_key: str) -> TableEntity | None:
        """Return one row; None if there is no such row or no table."""

        async def ask() -> TableEntity | None:
            try:
                row = await self.client.get_entity(partition, row_key)
            except ResourceNotFoundError:
                return None
            self.meter.count_read(1)
            return row

        return await self._with_retries(ask)

    async def insert(self, partition: str, row: Entity) -> bool:
        """Create a row; False if it exists. It may be ours, if the first answer was lost."""
        entity = stored(partition, row)
        return await self._write(lambda: self.client.create_entity(entity), ResourceExistsError)

    async def put(self, partition: str, row: Entity) -> None:
        """Write a row, whether it exists or not."""
        entity = stored(partition, row)
        await self._write(lambda: self.client.upsert_entity(entity, mode=UpdateMode.REPLACE))

    async def replace(self, partition: str, row: Entity, etag: str) -> bool:
        """Replace a row that still has this ETag; False if it changed or is gone."""
        update = partial(
            self.client.update_entity,
            stored(partition, row),
            mode=UpdateMode.REPLACE,
            etag=etag,
            match_condition=MatchConditions.IfNotModified,
        )
        return await self._write(update, ResourceModifiedError, ResourceNotFoundError)

    async def delete(self, partition: str, row_key: str) -> None:
        """Delete a row. A missing one is not an error."""
        await self._write(lambda: self.client.delete_entity(partition, row_key))

    async def _write(
        self, ask: Callable[[], Awaitable[object]], *refusals: type[Exception]
    ) -> bool:
        """Return whether one row was written; False if ``ask`` raises one of ``refusals``."""

        async def write() -> bool:
            try:
                await ask()
            except refusals:
                return False
            self.meter.count_written(1)
            return True

        return await self._with_retries(write)

    async def rows(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,
    ) -> list[TableEntity]:
        """Return the rows that ``pages`` yields, as one list."""
        pages = self.pages(partition, span, limit=limit, select=select)
        return [row async for page in pages for row in page]

    async def pages(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,
    ) -> AsyncIterator[list[TableEntity]]:
        """Yield the rows of a range of row keys in pages, at most ``limit`` rows in all.

        ``select`` names the columns to read. The service may answer with an empty page and a
        continuation token: such pages are followed, and not yielded.
        """
        query = self.client.query_entities(
            IN_RANGE,
            parameters={"partition": partition, "low": span[0], "high": span[1]},
            results_per_page=None if limit is None else min(limit, PAGE_ROWS_MAX),
            select=None if select is None else list(select),
        ).by_page()
        room = limit
        while room is None or room > 0:
            page = await self._with_retries(lambda: _next_page(query))
            if page is None:
                return
            self.meter.count_read(len(page))
            if page:
                yield page[:room]
                room = None if room is None else room - len(page)

    async def raw_pages(self, partition: str, span: tuple[str, str]) -> AsyncIterator[list[Entity]]:
        """Yield the rows of a range in pages, as the service writes them in JSON.

        Beside a value whose type JSON does not show stands its type, as ``<column>@odata.type``. So
        such a row can be written again as it is. Its ETag is ``odata.etag``.
        """
        answers: deque[Any] = deque(maxlen=1)
        query = self.client.query_entities(
            IN_RANGE,
            parameters={"partition": partition, "low": span[0], "high": span[1]},
            raw_response_hook=lambda response: answers.append(response.http_response),
        ).by_page()
        while await self._with_retries(lambda: _next_page(query)) is not None:
            page = json.loads(answers[0].text())["value"]
            self.meter.count_read(len(page))
            if page:
                yield page

    async def overwrite(self, partition: str, rows: Sequence[Entity]) -> None:
        """Write at most 100 rows in one transaction, whether they exist or not."""
        batch = [Operation("upsert", row) for row in rows]
        await self._with_retries(lambda: self.transactions.submit(partition, batch))
        self.meter.count_written(len(rows))

    async def transact(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        """Send one entity group transaction, once; return the new ETag of each row.

        Raises:
            RefusedTransactionError: it was rolled back.
            UnknownOutcomeError: it may be written, or may still be written later.
            StoreUnavailableError: no table, or no right to it; it was not written.
        """
        # 3. Refused, unknown or misconfigured.
        try:
            etags = await self.transactions.submit(partition, operations)
        except LOST as error:
            raise UnknownOutcomeError(first_line(error)) from error
        except HttpResponseError as error:
            if error.status_code in BUSY:
                raise UnknownOutcomeError(first_line(error)) from error
            self._raise_misconfigured(error)
            if isinstance(error, TableTransactionError) and error.status_code in {404, 409, 412}:
                status, text = error.status_code, first_line(error)
                raise RefusedTransactionError(status, error.index, text) from error
            raise
        self.meter.count_written(len(operations))
        return etags

    @asynccontextmanager
    async def within_time(self) -> AsyncIterator[None]:
        """Raise StoreUnavailableError if the block takes longer than ``total_s``."""
        try:
            async with asyncio.timeout(self.retry_budget.total_s):
                yield
        except TimeoutError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException) -> StoreUnavailableError:
        """Return the error to raise for an error of the SDK: the table, and what to check."""
        address = f"{self.client.url.split('?')[0].rstrip('/')}/{self.client.table_name}"
        timeout = f"no answer within {self.retry_budget.total_s:g} s"
        text = timeout if type(error) is TimeoutError else first_line(error).rstrip(".")
        return StoreUnavailableError(
            f"the state store at {address} did not answer as it should: {text}. {advice(error)}"
        )

    async def close(self) -> None:
        """Close the client's connections."""
        await self.client.close()

    async def _with_retries(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what ``ask`` returns, trying again while the store is busy or silent.

        Raises:
            StoreUnavailableError: the retry budget is used up, or a setting is wrong.
        """
        async with self.within_time():  # 4.
            attempt = 1
            while True:
                try:
                    return await ask()
                except LOST as error:
                    failure: Exception = error
                except HttpResponseError as error:
                    self._raise_misconfigured(error)
                    if error.status_code not in BUSY:
                        raise
                    failure = error
                if attempt >= self.retry_budget.attempts:
                    raise self.unavailable(failure) from failure
                await self.retry_budget.pause(attempt)  # 2. It is safe to ask again.
                attempt += 1

    def _raise_misconfigured(self, error: HttpResponseError) -> None:
        if isinstance(error, LOST):
            return
        if _is_forbidden(error) or code_of(error) in _TABLE_IS_GONE:
            raise self.unavailable(error) from error


async def _next_page(pages: AsyncIterator[AsyncIterator[TableEntity]]) -> list[TableEntity] | None:
    """Return the next page, possibly empty; None after the last one.

    A retry is safe, because the iterator keeps its continuation token until a page is complete.
    """
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return None
    return [entity async for entity in page]


def advice(error: BaseException) -> str:
    """Return a sentence that says what to check."""
    if _is_forbidden(error):
        return (
            "Without a connection string, `az login` first. "
            "Check the key in the connection string, if you use one, or the role on "
            "the account: the app's identity needs Storage Table Data Contributor, an "
            "operator's Storage Table Data Reader."
        )
    if code_of(error) == "TableBeingDeleted":
        return "Azure is still deleting the table: try again in a minute."
    if code_of(error) in _TABLE_IS_GONE:
        return "The table is gone: restart the app, which creates it, or restore it."
    if getattr(error, "status_code", None) in BUSY:
        return "It is busy or failing: look at the account's metrics for throttling."
    return "Check that the account (or Azurite) runs, its address in the settings and its firewall."


def code_of(error: BaseException) -> str | None:
    """Return the service's own error code. For some errors the SDK leaves it in the header."""
    code = getattr(error, "error_code", None)
    if code is None and isinstance(error, HttpResponseError) and error.response is not None:
        code = getattr(error.response, "headers", {}).get("x-ms-error-code")
    return None if code is None else str(getattr(code, "value", code))


def first_line(error: BaseException) -> str:
    """Return the text of an error without request ids, or else the name of its class.

    The query of an address is left out: it may be a signature.
    """
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", lines[0]) if lines else type(error).__name__


def _is_forbidden(error: BaseException) -> bool:
    status = getattr(error, "status_code", None)
    return isinstance(error, ClientAuthenticationError) or status in {401, 403}
