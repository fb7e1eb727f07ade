"""A transaction as bytes, its answer, and its signature, compared with the SDK's."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import DecodeError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables import TableTransactionError
from azure.data.tables._serialize import _add_entity_properties
from azure.data.tables.aio import TableClient

from sas.adapters.tables import group_transaction
from sas.adapters.tables.group_transaction import GroupTransactions, read_answer, typed, write_body
from sas.adapters.tables.rows import stored
from sas.adapters.tables.table import LOST, first_line
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

ACCOUNT = "https://mine.table.core.windows.net"
KEY = base64.b64encode(b"a key of an account").decode()


GOLDEN = """\
--batch_M
Content-Type: multipart/mixed; boundary=changeset_M

--changeset_M
Content-Type: application/http
Content-Transfer-Encoding: binary
Content-ID: 0

PUT https://mine/t(PartitionKey='0%27%277',RowKey='order%7Ca%27%27b%2541%20%2B%C3%A9') HTTP/1.1
DataServiceVersion: 3.0
Accept: application/json;odata=minimalmetadata
Content-Type: application/json
Content-Length: 141
If-Match: W/"datetime'2026-03-01T12%3A00%3A00.1234567Z'"

{"PartitionKey":"0'7","PartitionKey@odata.type":"Edm.String","Format":1,\
"RowKey":"order|a'b%41 +é","RowKey@odata.type":"Edm.String","Seq":2}
--changeset_M
Content-Type: application/http
Content-Transfer-Encoding: binary
Content-ID: 1

POST https://mine/t HTTP/1.1
DataServiceVersion: 3.0
Accept: application/json;odata=minimalmetadata
Content-Type: application/json
Content-Length: 178
Prefer: return-no-content

{"PartitionKey":"0'7","PartitionKey@odata.type":"Edm.String","Format":1,\
"RowKey":"x","RowKey@odata.type":"Edm.String",\
"Text":"ü\\n🛒","Text@odata.type":"Edm.String","Yes":true}
--changeset_M
Content-Type: application/http
Content-Transfer-Encoding: binary
Content-ID: 2

PUT https://mine/t(PartitionKey='0%27%277',RowKey='y') HTTP/1.1
DataServiceVersion: 3.0
Accept: application/json;odata=minimalmetadata
Content-Type: application/json
Content-Length: 165

{"PartitionKey":"0'7","PartitionKey@odata.type":"Edm.String","Format":1,\
"RowKey":"y","RowKey@odata.type":"Edm.String",\
"Bytes":"AP8=","Bytes@odata.type":"Edm.Binary"}
--changeset_M
Content-Type: application/http
Content-Transfer-Encoding: binary
Content-ID: 3

DELETE https://mine/t(PartitionKey='0%27%277',RowKey='z') HTTP/1.1
DataServiceVersion: 3.0
Accept: application/json;odata=minimalmetadata
If-Match: *


--changeset_M--

--batch_M--
"""


def test_a_transaction_is_these_bytes() -> None:
    body = write_body("https://mine/t", "0'7", OPERATIONS, "M")
    assert body.decode() == GOLDEN.replace("\n", "\r\n")


VALUES: list[object] = [
    *("", "text", "ü\n\x00 🛒", True, False, 0, 7, -(2**31) + 1, 2**31 - 1),
    *(b"", b"\x00\xff", None),
]


def test_a_property_has_the_type_that_the_sdk_gives_it() -> None:
    for value in VALUES:
        row = {"RowKey": "r", "Column": value}
        assert typed("p", row) == _add_entity_properties(stored("p", row)), value


def test_what_no_column_holds_is_refused() -> None:
    values: list[object] = [2**31, -(2**31), datetime(2026, 3, 1, tzinfo=UTC), {}, [1]]
    for value in values:
        with pytest.raises(TypeError, match="Column"):
            typed("p", {"RowKey": "r", "Column": value})


def test_each_operation_has_its_etag_and_a_deletion_none() -> None:
    content = answer(done(1), CREATED, DELETED, done(4))
    assert read_answer(MIXED, content, 4) == ['W/"1"', 'W/"9"', None, 'W/"4"']
    content_type = 'multipart/mixed; boundary="batchresponse_1"'
    assert read_answer(content_type, content, 4)[0] == 'W/"1"'


def test_the_refused_operation_has_its_status_index_code_and_text() -> None:
    text = "7:The specified entity already exists.\nRequestId:1"
    content = answer(refusal(409, "EntityAlreadyExists", text))
    with pytest.raises(TableTransactionError) as caught:
        read_answer(MIXED, content, 12)
    refused: Any = caught.value
    assert (refused.status_code, refused.index) == (409, 7)
    assert refused.error_code == "EntityAlreadyExists"
    assert refused.message.startswith("7:The specified entity already exists.\n")


@pytest.mark.parametrize("parts", [[done(1), CREATED, DELETED], [refusal(412, "c", "0:stale")]])
def test_no_answer_that_was_cut_off_is_taken_for_one(parts: list[str]) -> None:
    content = answer(*parts)
    for size in range(len(content) - 2):  # the last two bytes are a line's end
        with pytest.raises(DecodeError):
            read_answer(MIXED, content[:size], 3)


def test_no_answer_that_lost_bytes_is_a_success() -> None:
    """Bytes are lost within headers, boundaries and status lines, one stretch at a time."""
    content = answer(done(1), done(2), done(3))
    all_etags = read_answer(MIXED, content, 3)
    for start in range(len(content)):
        for size in (1, 2, 7, 40, 200):
            broken = content[:start] + content[start + size :]
            try:
                etags = read_answer(MIXED, broken, 3)
            except (DecodeError, TableTransactionError):
                continue
            assert len(etags) == 3
            assert broken.count(b"HTTP/1.1 204") == 3
            assert sum(a != b for a, b in zip(etags, all_etags, strict=True)) <= 1


OTHER_ANSWERS = [
    (MIXED, answer(done(1), done(2))),
    (MIXED, answer(done(1), done(2), done(3), done(4))),
    (MIXED, answer()),
    (MIXED, b""),
    (MIXED, b"\xff" + answer(done(1), done(2), done(3))),
    ("application/json", answer(done(1), done(2), done(3))),
    ("", answer(done(1), done(2), done(3))),
    (MIXED, answer("HTTP/1.1 two No Content\r\n\r\n", done(2), done(3))),
    (MIXED, answer(done(1), done(2), done(3)) + answer(done(1), done(2), done(3))),
]


def test_an_answer_to_another_request_is_refused() -> None:
    for kind, content in OTHER_ANSWERS:
        with pytest.raises(DecodeError, match="answer"):
            read_answer(kind, content, 3)


class Recording:
    """The session of a transport: notes requests, answers the first ones, cuts off all others."""

    def __init__(self, *answers: SimpleNamespace) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str]]] = []

    async def request(self, _: str, url: str, *, headers: Any, **_options: Any) -> SimpleNamespace:
        self.requests.append((url, dict(headers)))
        if not self.answers:
            raise aiohttp.ServerDisconnectedError
        return self.answers.pop(0)

    @asynccontextmanager
    async def post(self, url: str, **options: Any) -> AsyncIterator[SimpleNamespace]:
        yield await self.request("POST", url, **options)

    async def __aenter__(self) -> Self:
        return self


class Tokens:
    """A credential that notes what it was asked for."""

    def __init__(self, end: int = 2**33) -> None:
        self.end = end
        self.requests: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.requests.append((scopes, options))
        return AccessToken(f"token-{len(self.requests)}", self.end)

    async def close(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self


@asynccontextmanager
async def both_ways(
    credential: Any, *answers: SimpleNamespace
) -> AsyncIterator[tuple[Recording, GroupTransactions, TableClient]]:
    session: Any = Recording(*answers)
    transport = AioHttpTransport(session=session, session_owner=False)
    client = TableClient(ACCOUNT, "t", credential=credential, transport=transport, retry_total=0)
    async with client:
        yield session, GroupTransactions(client, transport, lambda _kind, _size: None), client


async def sent_both_ways(credential: Any) -> list[tuple[str, dict[str, str]]]:
    """The request that we make and the request that the SDK makes."""
    async with both_ways(credential) as (session, direct, client):
        with pytest.raises(LOST):
            await direct.submit("p", OPERATIONS)
        with pytest.raises(LOST):
            await client.submit_transaction([for_sdk(operation, "p") for operation in OPERATIONS])
        return session.requests


async def test_an_account_key_signs_what_the_sdk_signs() -> None:
    requests = await sent_both_ways(AzureNamedKeyCredential("mine", KEY))
    for url, headers in requests:
        assert url == f"{ACCOUNT}/$batch"
        signed = f"POST\n\n{headers['Content-Type']}\n{headers['x-ms-date']}\n/mine/$batch"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")
        expected = f"SharedKey mine:{base64.b64encode(digest).decode()}"
        assert headers["Authorization"] == expected
    ours, theirs = (headers for _, headers in requests)
    same = ("x-ms-version", "DataServiceVersion", "MaxDataServiceVersion", "Accept")
    assert [ours[name] for name in same] == [theirs[name] for name in same]
    assert theirs.keys() - ours.keys() == {"x-ms-client-request-id", "User-Agent", "Content-Length"}


async def test_a_shared_access_signature_is_in_the_address_as_the_sdk_puts_it() -> None:
    requests = await sent_both_ways(AzureSasCredential("sv=1&sig=a%2Bb"))
    assert [url for url, _ in requests] == [f"{ACCOUNT}/$batch?sv=1&sig=a%2Bb"] * 2
    assert not any("Authorization" in headers for _, headers in requests)


async def test_an_identity_signs_with_the_scope_that_the_sdk_asks_for() -> None:
    tokens = Tokens()
    requests = await sent_both_ways(tokens)
    bearers = [headers["Authorization"] for _, headers in requests]
    assert bearers == ["Bearer token-1", "Bearer token-2"]
    assert tokens.requests[0] == tokens.requests[1]
    assert tokens.requests[0][0] == ("https://storage.azure.com/.default",)


def response(status: int) -> SimpleNamespace:
    async def chunks() -> AsyncIterator[bytes]:
        yield answer(*map(done, range(4)))

    content = SimpleNamespace(iter_any=chunks)
    return SimpleNamespace(status=status, headers={"Content-Type": MIXED}, content=content)


async def bearers(tokens: Tokens, *statuses: int) -> list[str]:
    """The tokens of transactions that are answered with these statuses."""
    answers = [response(status) for status in statuses]
    async with both_ways(tokens, *answers) as (session, direct, _):
        for status in statuses:
            with pytest.raises(HttpResponseError) if status == 401 else nullcontext():
                await direct.submit("p", OPERATIONS)
    return [headers["Authorization"].removeprefix("Bearer ") for _, headers in session.requests]


async def test_a_token_is_used_until_its_end_is_near_or_the_service_refuses_it() -> None:
    assert await bearers(Tokens(), 202, 202) == ["token-1", "token-1"]
    assert await bearers(Tokens(int(time.time()) + 290), 202, 202) == ["token-1", "token-2"]
    assert await bearers(Tokens(), 401, 202, 202) == ["token-1", "token-2", "token-2"]


async def test_an_answer_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_transaction, "TRANSACTION_ANSWER_BYTES_MAX", 100)
    with pytest.raises(DecodeError, match="too large"):
        await bearers(Tokens(), 202)


async def test_no_two_transactions_have_the_same_boundary() -> None:
    async with both_ways(AzureNamedKeyCredential("mine", KEY)) as (session, direct, _):
        for _ in range(3):
            with pytest.raises(LOST):
                await direct.submit("p", OPERATIONS)
    assert len({headers["Content-Type"] for _, headers in session.requests}) == 3


def test_the_text_of_an_error_has_no_signature_of_an_address() -> None:
    error = OSError("Connection timeout to host https://a.example/$batch?sv=1&sig=secret refused")
    assert first_line(error) == "Connection timeout to host https://a.example/$batch refused"
