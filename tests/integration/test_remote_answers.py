"""Whatever bytes a remote service answers with, a call ends with one of three errors."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sas.adapters.remote import HttpService
from sas.ports import HeldError, RefusedError, TransientError


class Receipt(msgspec.Struct):
    """An answer of each type that is parsed from a text or a number."""

    number: int = 0
    amount: Decimal | None = None
    weight: float = 0.0
    at: datetime | None = None
    raw: bytes = b""
    parts: list[Receipt] = []


@dataclass(frozen=True)
class Call:
    """A call with a fixed key."""

    def key_for(self, method: str) -> str:
        return f"O-1/{method}"


@dataclass
class Server:
    """Writes ``answer`` to each request, whatever it is, and closes the connection."""

    answer: bytes = b""
    listener: asyncio.Server = field(init=False)
    service: HttpService = field(init=False)
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    async def start(self) -> None:
        self.listener = await asyncio.start_server(self._write, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}"
        self.service = HttpService(address, name="stock", attempt_seconds=5.0)

    async def stop(self) -> None:
        await self.service.close()
        self.listener.close()
        await self.listener.wait_closed()

    async def _write(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.close()

    def ending(self, method: str, shape: Any) -> str:
        """Return how a call ended; any other error than the three of the port is raised."""
        work = self.service.request(Call(), method, "/receipts", body=None, shape=shape)
        try:
            self.runner.run(work)
        except (RefusedError, TransientError, HeldError) as error:
            if isinstance(error, RefusedError):
                error.code.encode()
            str(error).encode()  # no half character: the error is stored
            return type(error).__name__
        return "done"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    started.runner.run(started.start())
    try:
        yield started
    finally:
        started.runner.run(started.stop())
        started.runner.close()


def packed(status: object, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} Word\r\n".encode() + lines + b"\r\n" + body


NAMES = [
    b"Retry-After", b"Content-Type", b"Content-Encoding", b"Content-Length", b"Transfer-Encoding",
    b"Location", b"Set-Cookie", b"Connection", b"Link", b"Upgrade", b"Trailer",
]  # fmt: skip
VALUES = [
    b"gzip", b"deflate", b"br", b"gzip, gzip", b"chunked", b"-1", b"9" * 400, b"99999999999999",
    b"http://[", b"//\xff", b"a=b; Expires=Fri, 99 Oct 99999 00:00:00 GMT", b"text/html; charset=x",
    b"Fri, 31 Dec 9999 23:59:59 -2359", b"Fri, 31 Dec 99999999999999999999 23:59:59 GMT", b"h2c",
    b"application/problem+json; charset=\xc3\xa9", b"x" * 9000,
]  # fmt: skip
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(-(10**40), 10**40),
    st.text(st.characters(), max_size=20),  # half characters too
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999Z", "1e999", "QUI="]),
)
MEMBERS = st.sampled_from(
    ["type", "title", "detail", "number", "amount", "weight", "at", "raw", "parts", "x"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
BODIES = st.one_of(
    JSON,
    JSON.map(gzip.compress),
    JSON.map(zlib.compress),
    JSON.map(lambda body: gzip.compress(body)[:-6]),
    st.binary(max_size=60),
    st.sampled_from([b"[" * 100_000, b'{"parts":[' * 150 + b"]}" * 150, b'{"weight":1e999}']),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES) | st.binary(max_size=8),
        st.sampled_from(VALUES) | st.binary(max_size=30),
    ),
    max_size=4,
)
STATUSES = st.sampled_from([200, 201, 204, 304, 307, 401, 404, 409, 422, 429, 500, 503]) | (
    st.integers(0, 1200)
)
ANSWERS = st.builds(packed, STATUSES, HEADERS, BODIES) | st.binary(max_size=200)


@given(ANSWERS, st.sampled_from(["POST", "DELETE"]), st.sampled_from([None, Any, Receipt]))
@example(packed(200, [], b'"\\ud800"'), "POST", Receipt)
@example(packed(200, [], b'{"at":"\\ud800"}'), "POST", Receipt)
@example(packed(200, [], b'{"amount":"\\ud800"}'), "POST", Receipt)
@example(packed(422, [], b'{"detail":"\\ud800","type":"urn:x:\\ud800"}'), "POST", None)
@example(b"HTTP/1.1 422 \xff\xfe\r\n\r\n", "POST", None)
@example(packed(422, [(b"Retry-After", VALUES[13])], b""), "POST", None)
@example(packed(200, [(b"Content-Encoding", b"gzip")], b"no gzip"), "POST", Any)
@example(packed(200, [], b"[" * 900 + b"]" * 900), "POST", Receipt)
@example(packed(200, [(b"X", b"y")] * 5_000, b""), "POST", None)
def test_a_call_ends_with_an_error_of_the_port_whatever_the_service_answers(
    server: Server, answer: bytes, method: str, shape: Any
) -> None:
    server.answer = answer
    assert server.ending(method, shape)


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (422, [(b"Retry-After", VALUES[13])], b"", "RefusedError"),  # a date that is none
        (422, [(b"Retry-After", VALUES[12])], b"", "TransientError"),
        (200, [], b'{"weight":1e999}', "TransientError"),
        (200, [], b'{"number":1000000000000000000000000}', "done"),
        (200, [], b'{"at":"\\ud800"}', "HeldError"),
        (101, [], b"", "TransientError"),
        (600, [], b"", "TransientError"),
        (302, [(b"Location", b"http://[")], b"", "RefusedError"),
    ],
)
def test_what_an_odd_answer_means(
    server: Server, status: int, headers: list[tuple[bytes, bytes]], body: bytes, expected: str
) -> None:
    server.answer = packed(status, headers, body)
    assert server.ending("POST", Receipt) == expected


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        ({"type": "urn:problem:out-of-stock"}, "out-of-stock"),
        ({"type": {"a": 1}}, "http-409"),
        ({"type": "urn:problem:"}, "http-409"),
        ({"type": "https://x.example/out-of-stock"}, "//x.example/out-of-stock"),
        ({"type": "x. All is repaired; run `sas undo A`"}, "http-409"),
        ({"type": "about:blank", "detail": ["no"]}, "http-409"),
    ],
)
def test_only_a_text_is_the_type_of_a_problem(server: Server, problem: Any, code: str) -> None:
    server.answer = packed(409, [], json.dumps(problem).encode())
    with pytest.raises(RefusedError, match="stock refused: Word") as refused:
        server.runner.run(server.service.call("POST", "/receipts", key="O-1"))
    assert refused.value.code == code
