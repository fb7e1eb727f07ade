"""HTTP calls to remote services, against real servers that answer, misbehave and hang."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from sas.adapters.remote import ANSWER_BYTES_MAX, HttpService
from sas.ports import RefusedError, TransientError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(
    handler: Handler, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[HttpService]:
    """A service behind a real server that answers with ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service = HttpService(f"http://{host}:{runner.addresses[0][1]}/", name="stock", **options)
    try:
        yield service
    finally:
        await service.close()
        await runner.cleanup()


@asynccontextmanager
async def raw(handler: Raw, **options: Any) -> AsyncIterator[HttpService]:
    """A service behind a server that writes what it likes."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service = HttpService(f"http://127.0.0.1:{port}", name="stock", **options)
    try:
        yield service
    finally:
        await service.close()
        server.close()
        await server.wait_closed()


def fixed(status: int, body: bytes = b"", **headers: str) -> Handler:
    async def handle(_request: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, headers=named)

    return handle


async def call(service: HttpService, body: Any = None) -> Any:
    return await service.call("POST", "/reservations", key="O-1/reserve", body=body)


async def test_a_call_carries_method_path_key_and_json() -> None:
    calls: list[tuple[str, str, str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        calls.append((request.method, request.path, key, await request.json()))
        return web.json_response({"reservation_id": "r-1"})

    async with answering(handle) as service:
        assert await call(service, {"lines": [1]}) == {"reservation_id": "r-1"}
    assert calls == [("POST", "/reservations", "O-1/reserve", {"lines": [1]})]


async def test_a_call_without_a_body_sends_none() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"length": len(await request.read())})

    async with answering(handle) as service:
        assert await service.call("DELETE", "/reservations", key="k") == {"length": 0}


@pytest.mark.parametrize("status", [404, 410])
async def test_an_undo_that_finds_nothing_is_done(status: int) -> None:
    """A refused do is undone too: a call of another delivery may have had its effect."""
    async with answering(fixed(status, b'{"detail":"no such reservation"}')) as service:
        assert await service.call("DELETE", "/reservations", key="k") is None
        with pytest.raises(RefusedError):
            await call(service)


@pytest.mark.parametrize("status", [400, 403, 409, 422])
async def test_any_other_definite_answer_to_an_undo_is_a_refusal(status: int) -> None:
    async with answering(fixed(status)) as service:
        with pytest.raises(RefusedError):
            await service.call("DELETE", "/reservations", key="k")


@pytest.mark.parametrize("key", ["O-1/ü/注文", "a b", "%2F", "'\"", "é" * 100])
async def test_a_key_in_any_writing_arrives_as_it_is(key: str) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"key": request.headers["Idempotency-Key"]})

    async with answering(handle) as service:
        assert await service.call("POST", "/", key=key) == {"key": key}


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_a_success_returns_its_json(status: int) -> None:
    async with answering(fixed(status, b'{"a":[1,null]}')) as service:
        assert await call(service) == {"a": [1, None]}


@pytest.mark.parametrize(("status", "body"), [(204, b""), (200, b""), (200, b"null")])
async def test_a_success_without_content_is_a_success(status: int, body: bytes) -> None:
    async with answering(fixed(status, body)) as service:
        assert await call(service) is None


async def test_an_answer_in_many_pieces_is_read_to_its_end() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (b'{"text":"', b"x" * 100, b"y" * 100, b'"}'):
            await answer.write(piece)
            await asyncio.sleep(0.01)
        return answer

    async with answering(handle) as service:
        assert await call(service) == {"text": "x" * 100 + "y" * 100}


async def test_a_large_answer_within_the_bound_is_read_whole() -> None:
    text = "x" * (ANSWER_BYTES_MAX - 2)
    async with answering(fixed(200, f'"{text}"'.encode())) as service:
        assert await call(service) == text


async def test_an_answer_past_the_bound_is_not_read_to_its_end() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" " * 65_536)

    async with answering(endless) as service:
        async with asyncio.timeout(120):
            with pytest.raises(TransientError):
                await call(service)


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(b'{"a":1}')
    async with answering(fixed(200, body, Content_Encoding="gzip")) as service:
        assert await call(service) == {"a": 1}


@pytest.mark.parametrize(
    "body", [b"<html>", b"{", b"\xff", b"[" * 100_000, b'{"a":NaN}', b"1" * 5000]
)
async def test_a_success_that_is_not_json_is_transient(body: bytes) -> None:
    async with answering(fixed(200, body)) as service:
        with pytest.raises(TransientError, match="without JSON"):
            await call(service)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 422])
async def test_a_4xx_is_a_refusal(status: int) -> None:
    async with answering(fixed(status)) as service:
        with pytest.raises(RefusedError) as refused:
            await call(service)
    assert refused.value.code == f"http-{status}"


async def test_a_refusal_has_the_text_of_the_problem() -> None:
    body = b'{"type":"urn:problem:out-of-stock","title":"no","detail":"none of 11 left"}'
    async with answering(fixed(409, body)) as service:
        with pytest.raises(RefusedError, match="stock refused: none of 11 left") as refused:
            await call(service)
    assert refused.value.code == "out-of-stock"


@pytest.mark.parametrize("body", [b'"no"', b"[1]", b"null", b'{"detail":7,"type":8}', b"\xff"])
async def test_a_refusal_in_any_words_is_a_refusal(body: bytes) -> None:
    async with answering(fixed(422, body)) as service:
        with pytest.raises(RefusedError):
            await call(service)


async def test_a_problem_of_type_about_blank_is_named_by_its_status() -> None:
    async with answering(fixed(409, b'{"type":"about:blank","title":"Conflict"}')) as service:
        with pytest.raises(RefusedError) as refused:
            await call(service)
    assert refused.value.code == "http-409"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
async def test_what_may_pass_is_transient(status: int) -> None:
    async with answering(fixed(status)) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert failed.value.retry_after is None


@pytest.mark.parametrize("status", [429, 503, 409])
async def test_retry_after_in_seconds_is_passed_on(status: int) -> None:
    async with answering(fixed(status, Retry_After="7")) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert failed.value.retry_after == timedelta(seconds=7)


@pytest.mark.parametrize(
    ("status", "answered"),
    [(409, True), (423, True), (425, True), (408, False), (429, False), (500, False), (503, False)],
)
async def test_a_call_that_must_wait_reports_whether_its_service_answered(
    status: int, answered: bool
) -> None:
    async with answering(fixed(status, Retry_After="1")) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert failed.value.answered is answered


@pytest.mark.parametrize(
    ("status", "body", "error_answer"),
    [(500, b"", True), (501, b"", True), (200, b"<html>", True)]
    + [(status, b"", False) for status in (408, 429, 502, 503, 504)],
)
async def test_an_error_that_may_concern_only_this_call_is_marked(
    status: int, body: bytes, error_answer: bool
) -> None:
    async with answering(fixed(status, body)) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert (failed.value.answered, failed.value.error_answer) == (False, error_answer)


async def test_retry_after_as_a_date_is_passed_on() -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    async with answering(fixed(503, Retry_After=when)) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert failed.value.retry_after is not None
    assert timedelta(seconds=95) < failed.value.retry_after <= timedelta(seconds=100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wed, 21 Oct 2015 07:28:00 GMT", timedelta(0)),
        ("Wed, 21 Oct 2015 07:28:00 -0000", timedelta(0)),
        ("999999999999", timedelta(days=1)),
        ("9" * 5000, timedelta(days=1)),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", timedelta(days=1)),
        ("Fri, 31 Dec 9999 23:59:59 -2359", timedelta(days=1)),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
    ],
)
async def test_an_odd_retry_after_is_bounded_or_ignored(
    text: str, expected: timedelta | None
) -> None:
    async with answering(fixed(503, Retry_After=text)) as service:
        with pytest.raises(TransientError) as failed:
            await call(service)
    assert failed.value.retry_after == expected


async def test_a_cookie_of_a_service_comes_back_with_no_other_call() -> None:
    cookies: list[str | None] = []

    async def handle(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": "customer=of-order-1"})

    async with answering(handle, host="localhost") as service:  # a jar takes none of an address
        await call(service)
        await call(service)
    assert cookies == [None, None]


async def test_a_redirect_is_not_followed() -> None:
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with answering(handle) as service:
        with pytest.raises(RefusedError):
            await call(service)
    assert paths == ["/reservations"]


async def test_a_refused_connection_is_a_transient_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, not listening: refused
        service = HttpService(f"http://127.0.0.1:{listener.getsockname()[1]}", name="stock")
        with pytest.raises(TransientError, match="stock could not be reached"):
            await call(service)
        await service.close()


async def test_a_connection_cut_before_an_answer_may_pass() -> None:
    async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with raw(cut) as service:
        with pytest.raises(TransientError):
            await call(service)


async def test_a_connection_cut_within_an_answer_may_pass() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a":')
        await writer.drain()
        writer.close()

    async with raw(cut) as service:
        with pytest.raises(TransientError):
            await call(service)


async def test_an_answer_that_is_not_http_is_transient() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    async with raw(babble) as service:
        with pytest.raises(TransientError):
            await call(service)


async def test_a_slow_answer_is_given_up_after_the_time_for_an_attempt() -> None:
    async def handle(_request: web.Request) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    async with answering(handle, attempt_seconds=0.1) as service, asyncio.timeout(120):
        with pytest.raises(TransientError, match="could not be reached"):
            await call(service)


async def test_an_answer_that_drips_is_given_up_too() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(1000):
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        return answer

    async with answering(drip, attempt_seconds=0.15) as service:
        with pytest.raises(TransientError):
            await call(service)


async def test_a_cancelled_call_is_cancelled() -> None:
    started = asyncio.Event()

    async def handle(_request: web.Request) -> web.Response:
        started.set()
        await asyncio.sleep(600)
        return web.Response()

    async with answering(handle) as service:
        task = asyncio.create_task(call(service))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_calls_share_connections_and_a_closed_service_opens_new_ones() -> None:
    ports: set[Any] = set()

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.Response()

    async with answering(handle) as service:
        for _ in range(5):
            await call(service)
        assert len(ports) == 1
        await service.close()
        await service.close()
        await call(service)
        assert len(ports) == 2


def test_a_service_may_be_used_from_one_event_loop_after_another() -> None:
    service = HttpService("http://127.0.0.1:9", name="stock")

    async def once() -> None:
        with pytest.raises(TransientError):
            await call(service)
        await service.close()

    asyncio.run(once())
    asyncio.run(once())
