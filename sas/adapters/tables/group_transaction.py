"""Sends operations as one entity group transaction, which is written, sent and read by hand.

``TableClient.submit_transaction`` builds and parses multipart messages with the standard library's
``email`` package, which costs several milliseconds of CPU for each transaction; the pipeline costs
a fifth of the rest. This module joins bytes, and posts them over the aiohttp session of the client.
It raises the errors of ``submit_transaction`` or of aiohttp, and returns only the ETags.

1. ``write_body`` joins the body: one part for each operation, with its method, its key and, for a
   guarded row, ``If-Match``. The boundary is random, so that no content holds it.
2. It is sent, signed with the client's own credential, **once**: aiohttp repeats no POST. A repeat
   of a transaction that was written would be refused by its own ETag, and look like another
   instance's win. Only ``store`` repeats, because it looks first.
3. The answer has status 202 and one part for each operation, or a single part with the error of
   the first operation that was refused. Then all are rolled back: TableTransactionError. Another
   status is about the whole request: HttpResponseError.
4. If the answer is cut off, too large, unreadable, or has another number of parts, nobody knows
   whether the transaction was written: DecodeError. ``table`` treats it like a lost answer.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4
from wsgiref.handlers import format_date_time

import msgspec
from aiohttp import ClientResponse, ClientTimeout
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import DecodeError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables import TableTransactionError
from azure.data.tables.aio import TableClient

from sas.adapters.tables.operations import Operation
from sas.adapters.tables.rows import Entity, stored

TRANSACTION_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Largest answer that is read. An answer repeats keys, but no content."""
STORAGE_SCOPE = "https://storage.azure.com/.default"
TOKEN_REST_S = 300
"""Seconds before the end of a token at which the credential is asked for a new one."""
INT_MAX = 2**31 - 1
"""Largest number that a column holds."""
_BOUNDARY = re.compile(r'multipart/mixed; *boundary="?([^";]+)"?', re.IGNORECASE)
_STATUS = re.compile(r"HTTP/1\.[01] (\d{3})(?![^ \r])")
_ETAG = re.compile(r"\r\netag: *([^\r]+)", re.IGNORECASE)


class GroupTransactions:
    """Sends the transactions of one table, over the transport of the table's client.

    The client closes the transport. ``count`` gets the kind and the size of each request.
    """

    def __init__(
        self, client: TableClient, transport: AioHttpTransport, count: Callable[[str, int], None]
    ) -> None:
        self._transport = transport
        self._count = count
        self._credential: Any = client.credential
        self._token: AccessToken | None = None
        self._asking = asyncio.Lock()
        account = client.url.split("?")[0].rstrip("/")
        self._address = f"{account}/$batch"
        self._table = f"{account}/{client.table_name}"
        self._headers = {
            "x-ms-version": client.api_version,
            "DataServiceVersion": "3.0",
            "MaxDataServiceVersion": "3.0;NetFx",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # the session decompresses nothing
        }
        limits = transport.connection_config
        self._timeout = ClientTimeout(sock_connect=limits.timeout, sock_read=limits.read_timeout)

    async def submit(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        """Send one transaction, once; return the new ETag of each row.

        Raises:
            TableTransactionError: the service refused an operation, and rolled all back.
            HttpResponseError: another status; ``Table.transact`` sorts it.
            DecodeError, or another of ``sas.adapters.tables.table.LOST``: the outcome is unknown.
        """
        mark, now = uuid4().hex, format_date_time(time.time())
        body = write_body(self._table, partition, operations, mark)  # 1.
        kind = f"multipart/mixed; boundary=batch_{mark}"
        headers = {**self._headers, "x-ms-date": now, "Date": now, "Content-Type": kind}
        address = await self._sign(headers)
        self._count("transactions", len(body))
        await self._transport.open()
        async with self._transport.session.post(  # 2.
            address, data=body, headers=headers, timeout=self._timeout, allow_redirects=False
        ) as answer:
            content = await _content(answer)
        if answer.status == 202:
            return read_answer(answer.headers.get("Content-Type", ""), content, len(operations))
        if answer.status == 401:
            self._token = None
        code, text = answer.headers.get("x-ms-error-code"), content.decode("utf-8", "replace")
        raise _error(HttpResponseError, answer.status, text, code)

    async def _sign(self, headers: dict[str, str]) -> str:
        """Add the header Authorization; return the address, with a signature that belongs there."""
        credential = self._credential
        if isinstance(credential, AzureSasCredential):
            return f"{self._address}?{credential.signature.removeprefix('?')}"
        if isinstance(credential, AzureNamedKeyCredential):  # "Shared Key for Table service"
            (name, key), path = credential.named_key, urlsplit(self._address).path
            text = f"POST\n\n{headers['Content-Type']}\n{headers['x-ms-date']}\n/{name}{path}"
            signature = b64encode(hmac.digest(b64decode(key), text.encode(), "sha256")).decode()
            headers["Authorization"] = f"SharedKey {name}:{signature}"
        else:
            async with self._asking:
                if self._token is None or self._token.expires_on < time.time() + TOKEN_REST_S:
                    self._token = await credential.get_token(STORAGE_SCOPE)
                headers["Authorization"] = f"Bearer {self._token.token}"
        return self._address


async def _content(answer: ClientResponse) -> bytes:
    """Return the content of an answer; raise DecodeError if it is too large."""
    content = b""
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > TRANSACTION_ANSWER_BYTES_MAX:  # 4.
            raise DecodeError("the answer to a transaction is too large")
    return content


def write_body(table: str, partition: str, operations: Sequence[Operation], mark: str) -> bytes:
    """Return the body of a transaction on the table at this address.

    ``mark`` makes the boundaries. It is new for each transaction.
    """
    batch, change = f"batch_{mark}", f"changeset_{mark}"
    parts = [f"--{batch}\r\nContent-Type: multipart/mixed; boundary={change}\r\n\r\n".encode()]
    quoted = _quoted(partition)
    for number, operation in enumerate(operations):
        content = b""
        if operation.verb != "delete":
            content = msgspec.json.encode(typed(partition, operation.row))
        head = (
            f"--{change}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
            f"Content-ID: {number}\r\n\r\n{_head(table, quoted, operation, len(content))}\r\n"
        )
        parts += (head.encode(), content, b"\r\n")
    parts.append(f"--{change}--\r\n\r\n--{batch}--\r\n".encode())
    return b"".join(parts)


def _head(table: str, partition: str, operation: Operation, size: int) -> str:
    """Return the request line and the headers of one operation."""
    head = "DataServiceVersion: 3.0\r\nAccept: application/json;odata=minimalmetadata\r\n"
    if operation.verb != "delete":
        head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
    if operation.verb == "create":  # without Prefer the service answers with the whole row
        return f"POST {table} HTTP/1.1\r\n{head}Prefer: return-no-content\r\n"
    etag = operation.etag or (None if operation.verb == "upsert" else "*")
    if etag is not None:
        head += f"If-Match: {etag}\r\n"
    method = "DELETE" if operation.verb == "delete" else "PUT"
    keys = f"(PartitionKey='{partition}',RowKey='{_quoted(operation.row_key)}')"
    return f"{method} {table}{keys} HTTP/1.1\r\n{head}"


def _quoted(key: str) -> str:
    return quote(key.replace("'", "''"), safe="")


def typed(partition: str, row: Entity) -> dict[str, Any]:
    """Return the JSON members of an entity, with the types that the SDK gives them.

    A value of a row of ``Table.raw_pages`` keeps the type that stands beside it.

    Raises:
        TypeError: no row has values of this type, or the number is too large for its type.
    """
    members: dict[str, Any] = {}
    for name, value in stored(partition, row).items():
        if "@" in name or f"{name}@odata.type" in row:
            members[name] = value
            continue
        match value:
            case None:
                pass
            case str():
                members[name], members[f"{name}@odata.type"] = value, "Edm.String"
            case bytes():
                members[name] = b64encode(value).decode("ascii")
                members[f"{name}@odata.type"] = "Edm.Binary"
            case bool() | float():
                members[name] = value
            case int() if -INT_MAX <= value <= INT_MAX:
                members[name] = value
            case _:
                raise TypeError(f"{name}: no column has the {type(value).__name__} {value!r:.40}")
    return members


def read_answer(content_type: str, content: bytes, count: int) -> list[str | None]:
    """Return the ETag of each of ``count`` operations from an answer.

    Raises:
        TableTransactionError: the service refused an operation.
        DecodeError: the answer is cut off, or not the answer to so many operations.
    """
    try:
        [changes] = _parts(content_type, content.decode())
        headers, inner = _headers_and_content(changes)
        answers = [_answer(part) for part in _parts(headers, inner)]
    except ValueError as error:
        raise DecodeError(f"the answer to a transaction is unreadable: {error}") from None
    for status, _, text in answers:  # 3.
        if not 200 <= status < 300:
            raise _error(TableTransactionError, status, text)
    if len(answers) != count:  # 4.
        raise DecodeError(f"{len(answers)} answers to {count} operations of a transaction")
    return [etag for _, etag, _ in answers]


def _parts(headers: str, text: str) -> list[str]:
    """Return the parts of a multipart text.

    Raises:
        ValueError: the headers name no boundary, or the text does not begin and end with it.
    """
    boundary = _BOUNDARY.search(headers)
    if boundary is None:
        raise ValueError("no boundary")
    first, *parts, last = f"\r\n{text}".split(f"\r\n--{boundary[1]}")
    if first or last.rstrip() != "--" or not all(part.startswith("\r\n") for part in parts):
        raise ValueError("cut off, or broken between its parts")
    return [part[2:] for part in parts]


def _answer(part: str) -> tuple[int, str | None, str]:
    """Return the status, the ETag and the content of the answer to one operation."""
    _, answer = _headers_and_content(part)
    head, content = _headers_and_content(answer)
    status, etag = _STATUS.match(head), _ETAG.search(head)
    if status is None:
        raise ValueError("no status")
    return int(status[1]), etag and etag[1], content


def _headers_and_content(text: str) -> tuple[str, str]:
    """Return headers and content, which an empty line separates."""
    headers, line, content = text.partition("\r\n\r\n")
    if not line:
        raise ValueError("headers without end")
    return headers, content


def _error(
    error_class: type[HttpResponseError], status: int, text: str, code: str | None = None
) -> HttpResponseError:
    """Return an error with the service's code and message: JSON, or XML about authentication."""
    try:
        problem = json.loads(text)["odata.error"]
        code, message = problem["code"], problem["message"]["value"]
    except (ValueError, KeyError, TypeError):
        code = _element("code", text) or code
        message = _element("message", text) or f"the service answered {status}"
    error = error_class(message=f"{message}\nErrorCode:{code}")
    error.status_code = status
    error.error_code = code  # type: ignore[attr-defined]  # where the SDK puts it, too
    return error


def _element(name: str, xml: str) -> str | None:
    match = re.search(rf"<(?:\w+:)?{name}\b[^>]*>([^<]*)<", xml, re.IGNORECASE)
    return match[1] if match else None
