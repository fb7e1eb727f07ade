"""One table of Azure Table Storage: requests, retries and the meaning of errors.

The SDK's own retries are switched off (``retry_total=0``). They would repeat a transaction
whose answer was lost, and the repeat ends in 409 or 412 although our write won: a false
conflict. So there is one place that tries again, and it knows what it repeats: reads and
idempotent writes here, transactions in ``outcome.py``, which looks first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.data.tables import TableEntity, TableTransactionError, UpdateMode
from azure.data.tables.aio import TableClient

from sas.adapters.commit import Operation
from sas.adapters.rows import Entity
from sas.adapters.table_errors import BUSY, LOST, advice, code_of, first_line
from sas.ports import StoreUnavailableError
from sas.telemetry import metrics

T = TypeVar("T")

PAGE_MAX = 1000
"""Most entities the service returns at once."""


class UnknownOutcomeError(Exception):
    """A transaction was sent; whether it was written is unknown."""


class RefusedTransactionError(Exception):
    """A transaction was refused (404, 409, 412) and rolled back; ``index`` is the operation."""

    def __init__(self, status: int, index: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.index = index


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How often and how long to try. Waits double from ``wait_s`` on, with jitter; after
    ``total_s`` seconds nothing is waited for any more.
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
class Meter:
    """What was asked of the service: requests (repeats included), rows that came and went."""

    requests: int = 0
    entities_read: int = 0
    entities_written: int = 0

    def count_request(self, _request: object) -> None:
        """Count one; the SDK's ``raw_request_hook``."""
        self.requests += 1
        metrics.storage_request()


class Table:
    """A table by its client, counting what is asked of it."""

    def __init__(self, client: TableClient, retry_budget: RetryBudget, meter: Meter) -> None:
        self.retry_budget = retry_budget
        self.meter = meter
        self.client = client

    async def create(self) -> None:
        """Create the table; it is no error where it is there already."""

        async def ask() -> None:
            try:
                await self.client.create_table()
            except ResourceExistsError as error:
                if code_of(error) != "TableAlreadyExists":  # TableBeingDeleted, for one
                    raise self.unavailable(error) from error

        await self.with_retries(ask)

    async def get(self, partition: str, row_key: str) -> TableEntity | None:
        """Return one row; None where there is none (or no table)."""

        async def ask() -> TableEntity | None:
            try:
                found = await self.client.get_entity(partition, row_key)
            except ResourceNotFoundError:
                return None
            self.meter.entities_read += 1
            return found

        return await self.with_retries(ask)

    async def insert(self, partition: str, row: Entity) -> bool:
        """Create a row; False where there is one (perhaps our own: the answer may get lost)."""

        async def ask() -> bool:
            try:
                await self.client.create_entity({"PartitionKey": partition, **row})
            except ResourceExistsError:
                return False
            self.meter.entities_written += 1
            return True

        return await self.with_retries(ask)

    async def put(self, partition: str, row: Entity) -> None:
        """Write a row, whether it is there or not."""

        async def ask() -> None:
            entity = {"PartitionKey": partition, **row}
            await self.client.upsert_entity(entity, mode=UpdateMode.REPLACE)
            self.meter.entities_written += 1

        await self.with_retries(ask)

    async def replace(self, partition: str, row: Entity, etag: str) -> bool:
        """Replace a row if it still has this ETag; False where it has another or is gone."""

        async def ask() -> bool:
            try:
                await self.client.update_entity(
                    {"PartitionKey": partition, **row},
                    mode=UpdateMode.REPLACE,
                    etag=etag,
                    match_condition=MatchConditions.IfNotModified,
                )
            except (ResourceModifiedError, ResourceNotFoundError):
                return False
            self.meter.entities_written += 1
            return True

        return await self.with_retries(ask)

    async def delete(self, partition: str, row_key: str) -> None:
        """Delete a row; a missing one is no error."""

        async def ask() -> None:
            await self.client.delete_entity(partition, row_key)
            self.meter.entities_written += 1

        await self.with_retries(ask)

    async def pages(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,
    ) -> AsyncIterator[list[TableEntity]]:
        """Yield the rows of a range of row keys in pages, at most ``limit`` rows in all,
        with the columns of ``select`` alone.

        The service may answer with an empty page and a continuation token: those are
        followed, and not yielded.
        """
        asked = self.client.query_entities(
            "PartitionKey eq @partition and RowKey ge @low and RowKey lt @high",
            parameters={"partition": partition, "low": span[0], "high": span[1]},
            results_per_page=None if limit is None else min(limit, PAGE_MAX),
            select=None if select is None else list(select),
        ).by_page()
        left = limit
        while left is None or left > 0:
            page = await self.with_retries(lambda: _next_page(asked))
            if page is None:
                return
            self.meter.entities_read += len(page)
            if page:
                yield page[:left]
                left = None if left is None else left - len(page)

    async def transact(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        """Send one entity group transaction, once; return the new ETag of each row.

        Raises:
            RefusedTransactionError: rolled back.
            UnknownOutcomeError: perhaps written, perhaps not, perhaps only later.
            StoreUnavailableError: no table, or no right to it; not written.
        """
        batch = [operation.for_sdk(partition) for operation in operations]
        try:
            done: Sequence[Mapping[str, Any]] = await self.client.submit_transaction(batch)
        except LOST as error:
            raise UnknownOutcomeError(first_line(error)) from error
        except HttpResponseError as error:
            if error.status_code in BUSY:
                raise UnknownOutcomeError(first_line(error)) from error
            self._raise_misconfigured(error)
            if isinstance(error, TableTransactionError) and error.status_code in {404, 409, 412}:
                status, said = error.status_code, first_line(error)
                raise RefusedTransactionError(status, error.index, said) from error
            raise
        self.meter.entities_written += len(operations)
        return [result.get("etag") for result in done]

    async def with_retries(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what ``ask`` returns, trying again while the store is busy or silent.

        Raises:
            StoreUnavailableError: the attempts or the time are used up, or a setting is wrong.
        """
        async with self.within_time():
            attempt = 1
            while True:
                try:
                    return await ask()
                except LOST as error:
                    lost: Exception = error
                except HttpResponseError as error:
                    self._raise_misconfigured(error)
                    if error.status_code not in BUSY:
                        raise
                    lost = error
                if attempt >= self.retry_budget.attempts:
                    raise self.unavailable(lost) from lost
                await self.retry_budget.pause(attempt)
                attempt += 1

    @asynccontextmanager
    async def within_time(self) -> AsyncIterator[None]:
        """Raise StoreUnavailableError when what is inside takes longer than ``total_s``."""
        try:
            async with asyncio.timeout(self.retry_budget.total_s):
                yield
        except TimeoutError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException) -> StoreUnavailableError:
        """Return the error to raise for one of the SDK's: where, what, and what to look at."""
        where = f"{self.client.url.split('?')[0].rstrip('/')}/{self.client.table_name}"
        silent = f"no answer within {self.retry_budget.total_s:g} s"
        said = silent if type(error) is TimeoutError else first_line(error).rstrip(".")
        return StoreUnavailableError(
            f"the state store at {where} did not answer as it should: {said}. {advice(error)}"
        )

    def _raise_misconfigured(self, error: HttpResponseError) -> None:
        if isinstance(error, LOST):
            return
        refused = isinstance(error, ClientAuthenticationError) or error.status_code in {401, 403}
        if refused or code_of(error) in {"TableNotFound", "TableBeingDeleted"}:
            raise self.unavailable(error) from error

    async def close(self) -> None:
        """Close the client's connections."""
        await self.client.close()


async def _next_page(pages: AsyncIterator[AsyncIterator[TableEntity]]) -> list[TableEntity] | None:
    """Return the next page, possibly empty; None after the last. Asking again is safe: the
    iterator keeps its continuation token until a page came whole.
    """
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return None
    return [entity async for entity in page]
