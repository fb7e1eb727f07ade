"""A transaction has the result that it has when the SDK builds it and reads the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from azure.core.exceptions import HttpResponseError
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.tables.group_transaction import GroupTransactions
from sas.adapters.tables.operations import Operation, deletion
from sas.adapters.tables.store import AZURITE, TableStore
from sas.adapters.tables.table import (
    RefusedTransactionError,
    RetryBudget,
    Table,
    UnknownOutcomeError,
    code_of,
    first_line,
)
from sas.ports import StoreUnavailableError
from tests.contract.conftest import new_table
from tests.group_transaction_kit import (
    CREATED,
    DELETED,
    MIXED,
    OPERATIONS,
    answer,
    done,
    for_sdk,
    refusal,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
XML = (
    '<?xml version="1.0"?><m:error xmlns:m="http://schemas.microsoft.com/ado/2007/08/dataservices/'
    'metadata"><m:code>AuthenticationFailed</m:code><m:message xml:lang="en-US">Server failed to '
    "authenticate the request.\nRequestId:1</m:message></m:error>"
)
UNITS = 'ü🛒\n"\\' * 1000


class BySdk(GroupTransactions):
    """The transactions of a table, built, sent and read by the SDK."""

    def __init__(self, client: TableClient) -> None:
        self._client = client

    async def submit(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        requests = [for_sdk(operation, partition) for operation in operations]
        return [done.get("etag") for done in await self._client.submit_transaction(requests)]


def a_table(direct: bool, where: str, name: str) -> TableStore:
    store = TableStore.connect(where, name, retry_budget=RetryBudget(attempts=1))
    if not direct:
        store.table.transactions = BySdk(store.table.client)
    return store


@asynccontextmanager
async def service(handler: Handler) -> AsyncIterator[str]:
    """A table service that answers every change alike; its connection string."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/devstoreaccount1/{what}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield AZURITE.replace(":10002", f":{port}")
    finally:
        await runner.cleanup()


async def what_comes(table: Table) -> object:
    """The result of a transaction, or all that a caller can see of its error."""
    try:
        return await table.transact("p", OPERATIONS)
    except RefusedTransactionError as refused:
        return RefusedTransactionError, refused.status, refused.index, str(refused)
    except (UnknownOutcomeError, StoreUnavailableError) as error:
        return type(error), re.sub("answer to a .*|Expected .*", "", str(error))
    except HttpResponseError as error:
        return "raw", error.status_code, code_of(error), first_line(error)


def saying(status: int, code: str, text: str) -> Handler:
    return always(status, refusal(status, code, text).partition("\r\n\r\n")[2].encode())


def always(status: int, content: bytes, kind: str = "application/json") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        await request.read()
        headers = {"Content-Type": kind, "Retry-After": "1"}
        return web.Response(status=status, body=content, headers=headers)

    return handler


def parts(*responses: str) -> Handler:
    return always(202, answer(*responses), MIXED)


async def cut_off(request: web.Request) -> web.StreamResponse:
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    """Half of an answer, then the end of the connection."""
    await request.read()
    content = answer(done(1), CREATED, done(3), DELETED)
    headers = {"Content-Type": MIXED, "Content-Length": str(len(content))}
    response = web.StreamResponse(status=202, headers=headers)
    await response.prepare(request)
    await response.write(content[:400])
    assert request.transport is not None
    request.transport.close()
    return response


GONE = "The table specified does not exist.\nRequestId:1"
SUCCESS = ['W/"1"', 'W/"9"', 'W/"3"', None]
ANSWERS: dict[str, tuple[Handler, object]] = {
    "success": (parts(done(1), CREATED, done(3), DELETED), list),
    "stale": (parts(refusal(412, "UpdateConditionNotSatisfied", "0:Stale.\nRequestId:1")), 412),
    "duplicate": (parts(refusal(409, "EntityAlreadyExists", "1:There.\nTime:1")), 409),
    "missing": (parts(refusal(404, "ResourceNotFound", "3:Missing.")), 404),
    "no index": (parts(refusal(409, "EntityAlreadyExists", "There.")), 409),
    "refused after others": (parts(done(1), refusal(409, "EntityAlreadyExists", "1:There.")), 409),
    "a bad operation": (parts(refusal(400, "InvalidDuplicateRow", "2:Twice.")), "raw"),
    "a bad operation, in XML": (
        parts(f"HTTP/1.1 400 No\r\nContent-Type: application/xml\r\n\r\n{XML}"),
        "raw",
    ),
    "gone, of an operation": (parts(refusal(404, "TableNotFound", f"0:{GONE}")), "away"),
    "busy, of an operation": (parts(refusal(503, "ServerBusy", "0:Busy.")), "unknown"),
    "failing, of an operation": (parts(refusal(500, "InternalError", "0:No.")), "unknown"),
    "forbidden, of an operation": (parts(refusal(403, "AuthorizationFailure", "0:No.")), "away"),
    "unauthorized": (always(401, XML.encode(), "application/xml"), "away"),
    "forbidden": (always(403, XML.encode(), "application/xml"), "away"),
    "forbidden, in JSON": (saying(403, "AuthorizationPermissionMismatch", "No."), "away"),
    "gone": (saying(404, "TableNotFound", GONE), "away"),
    "being deleted": (saying(409, "TableBeingDeleted", "Wait."), "away"),
    "another conflict": (saying(409, "AccountBeingCreated", "Wait."), "raw"),
    "a bad request": (saying(400, "InvalidInput", "One of the inputs is bad."), "raw"),
    "too many": (saying(429, "TooManyRequests", "Slower."), "unknown"),
    "failing": (saying(500, "InternalError", "No."), "unknown"),
    "busy": (saying(503, "ServerBusy", "Busy."), "unknown"),
    "silent in time": (saying(504, "OperationTimedOut", "Late."), "unknown"),
    "cut off": (cut_off, "unknown"),
    "half": (half, "unknown"),
}


def kind_of(result: object) -> object:
    """The kind of a result, as the table above names it."""
    if isinstance(result, list):
        return list
    assert isinstance(result, tuple)
    if result[0] is RefusedTransactionError:
        return result[1]
    names = {UnknownOutcomeError: "unknown", StoreUnavailableError: "away"}
    return names.get(result[0], result[0])


@pytest.mark.filterwarnings(
    "ignore:Testing an element's truth value:DeprecationWarning"  # the SDK's, reading XML errors
)
async def test_every_answer_has_one_meaning_for_both_ways() -> None:
    for name, (handler, expected) in ANSWERS.items():
        results = []
        async with service(handler) as where:
            for direct in (True, False):
                store = a_table(direct, where, "orders")
                results.append(await what_comes(store.table))
                assert store.requests == 1, name
                written = store.table.meter.entities_written
                assert written == (len(OPERATIONS) if expected is list else 0), name
                await store.close()
        ours, theirs = results
        assert ours == theirs, name
        assert kind_of(ours) == expected, name
        assert expected is not list or ours == SUCCESS


async def test_a_table_may_be_there_already_but_not_be_deleted_just_now() -> None:
    for code, expected in (("TableAlreadyExists", None), ("TableBeingDeleted", "away")):
        async with service(saying(409, code, "No.")) as where:
            store = a_table(True, where, "orders")
            try:
                await store.table.create()
                assert expected is None
            except StoreUnavailableError:
                assert expected == "away"
            await store.close()


async def test_a_transaction_too_large_for_the_service_is_an_error_with_the_services_text() -> None:
    async with service(saying(413, "RequestBodyTooLarge", "Too large.")) as where:
        for direct in (True, False):
            store = a_table(direct, where, "orders")
            with pytest.raises(HttpResponseError, match="Too large") as caught:
                await store.table.transact("p", OPERATIONS)
            assert caught.value.status_code == 413
            await store.close()


async def test_an_answer_that_is_none_leaves_the_outcome_unknown() -> None:
    cut_short = answer(done(1), CREATED, done(3), DELETED)[:-60]
    for content in (b"", b"<html>", answer(done(1)), answer(), cut_short):
        async with service(always(202, content, MIXED)) as where:
            store = a_table(True, where, "orders")
            with pytest.raises(UnknownOutcomeError, match="transaction"):
                await store.table.transact("p", OPERATIONS)
            await store.close()


async def written(direct: bool, where: str) -> list[dict[str, Any]]:
    """Rows of every type, created, updated and deleted, as they are read afterwards."""
    store = a_table(direct, where, new_table())
    table, partition = store.table, "p'%41 é+"
    await table.create()
    row: dict[str, Any] = {
        "RowKey": "a'b%27|é +🛒",
        "Text": UNITS,
        "Whole": 1 - 2**31,
        "Yes": True,
        "Bytes": b"\x00\xff" * 1000,
        "Gone": None,
    }
    [first] = await table.transact(partition, [Operation("create", row)])
    stored = await table.get(partition, row["RowKey"])
    assert stored is not None
    assert stored.metadata["etag"] == first
    with pytest.raises(RefusedTransactionError) as refused:
        await table.transact(partition, [deletion("none")])
    assert (refused.value.status, refused.value.index) == (404, 0)
    again = {**stored, "RowKey": row["RowKey"], "Whole": 7, "Again": "yes"}
    again.pop("PartitionKey")
    etags = await table.transact(
        partition,
        [
            Operation("update", again, first),
            Operation("upsert", {"RowKey": "z"}),
            Operation("create", {"RowKey": "y"}),
        ],
    )
    assert len(etags) == 3
    assert all(etags)  # Azurite may give two rows of one transaction the same
    with pytest.raises(RefusedTransactionError) as refused:
        await table.transact(partition, [deletion("z"), Operation("update", again, first)])
    assert (refused.value.status, refused.value.index) == (412, 1)
    assert await table.transact(partition, [deletion("z")]) == [None]
    rows = await table.rows(partition, ("", "~"))
    assert etags[0] in {row.metadata["etag"] for row in rows}
    await store.close()
    return [dict(row) for row in rows]


async def test_both_ways_store_the_same_rows(azurite: Azurite) -> None:
    ours = await written(True, azurite.connection_string)
    assert ours == await written(False, azurite.connection_string)
    assert [row["RowKey"] for row in ours] == ["a'b%27|é +🛒", "y"]
    assert ours[0]["Text"] == UNITS
    assert ours[0]["Again"] == "yes"


async def test_many_transactions_at_once_share_connections_and_are_closed_with_the_store(
    azurite: Azurite,
) -> None:
    store = a_table(True, azurite.connection_string, new_table())
    await store.table.create()
    before = store.requests
    rows = [[Operation("create", {"RowKey": f"{n:02d}"})] for n in range(30)]
    await asyncio.gather(*(store.table.transact("p", row) for row in rows))
    assert store.requests == before + 30
    assert len(await store.table.rows("p", ("", "~"))) == 30
    await store.close()
    with pytest.raises(ValueError, match="closed"):
        await store.table.transact("p", rows[0])


@pytest.mark.parametrize("direct", [True, False])
async def test_a_proxy_of_the_environment_is_used(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        hosts.append(request.headers["Host"])
        return await parts(done(1), CREATED, done(3), DELETED)(request)

    async with service(handler) as proxy:
        address = re.search(r"http://[^/]*", proxy)
        assert address is not None
        monkeypatch.setenv("http_proxy", address[0])
        monkeypatch.delenv("no_proxy", raising=False)
        store = a_table(direct, AZURITE.replace("127.0.0.1:10002", "far.example"), "orders")
        assert await store.table.transact("p", OPERATIONS) == SUCCESS
        await store.close()
    assert hosts == ["far.example"]
