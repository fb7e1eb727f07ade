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


async def ending(handler: Handler, method: str = "POST") -> Any:
    """Return what a call returns or raises."""
    async with answering(handler) as service:
        try:
            return await service.call(method, "/reservations", key="O-1/reserve")
        except (RefusedError, TransientError) as error:
            return error


async def transient(status: int, body: bytes = b"", **headers: str) -> TransientError:
    """Return the error of a call that may be repeated."""
    error = await ending(fixed(status, body, **headers))
    assert isinstance(error, TransientError), (status, body, headers)
    return error


async def test_a_call_carries_method_path_key_in_any_writing_and_json() -> None:
    calls: list[tuple[str, str, str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        body = await request.json() if request.can_read_body else None
        calls.append((request.method, request.path, key, body))
        return web.json_response({"reservation_id": "r-1"})

    keys = ("O-1/ü/注文", "a b", "%2F", "'\"", "é" * 100)
    async with answering(handle) as service:
        assert await call(service, {"lines": [1]}) == {"reservation_id": "r-1"}
        for key in keys:
            await service.call("DELETE", "/reservations", key=key)
    assert calls == [
        ("POST", "/reservations", "O-1/reserve", {"lines": [1]}),
        *(("DELETE", "/reservations", key, None) for key in keys),
    ]


async def test_a_success_returns_its_json_or_none() -> None:
    for status, body, value in (
        *((status, b'{"a":[1,null]}', {"a": [1, None]}) for status in (200, 201, 202)),
        *((status, b"", None) for status in (200, 204)),
        (200, b"null", None),
    ):
        assert await ending(fixed(status, body)) == value, (status, body)
    packed = fixed(200, gzip.compress(b'{"a":1}'), Content_Encoding="gzip")
    assert await ending(packed) == {"a": 1}


async def test_a_success_that_is_not_json_is_transient() -> None:
    for body in (b"<html>", b"{", b"\xff", b"[" * 100_000, b'{"a":NaN}', b"1" * 5000):
        error = await transient(200, body)
        assert (error.answered, error.error_answer) == (False, True), body[:9]


async def test_an_undo_that_finds_nothing_is_done_and_a_do_is_refused() -> None:
    """A refused do is undone too: a call of another delivery may have had its effect."""
    for status in (404, 410):
        handler = fixed(status, b'{"detail":"no such reservation"}')
        assert await ending(handler, "DELETE") is None
        assert isinstance(await ending(handler), RefusedError)


async def test_any_other_4xx_is_a_refusal_in_whatever_words() -> None:
    for status in (400, 401, 403, 404, 405, 409, 410, 422):
        error = await ending(fixed(status))
        assert isinstance(error, RefusedError)
        assert error.code == f"http-{status}"
        if status not in {404, 410}:
            assert isinstance(await ending(fixed(status), "DELETE"), RefusedError)
    for body in (b'"no"', b"[1]", b"null", b'{"detail":7,"type":8}', b"\xff"):
        assert isinstance(await ending(fixed(422, body)), RefusedError)


async def test_a_refusal_has_the_text_of_the_problem() -> None:
    body = b'{"type":"urn:problem:out-of-stock","title":"no","detail":"none of 11 left"}'
    error = await ending(fixed(409, body))
    assert (error.code, str(error)) == ("out-of-stock", "stock refused: none of 11 left")


async def test_what_may_pass_is_transient_and_says_whose_failure_it_is() -> None:
    """``answered``: the service worked, and asks to wait. ``error_answer``: it may be this call."""
    call_alone, service = (False, True), (False, False)
    for status, expected in (
        *((status, call_alone) for status in (500, 501)),
        *((status, service) for status in (408, 429, 502, 503, 504)),
        (425, (True, False)),
        (507, None),
    ):
        error = await transient(status)
        assert error.retry_after is None
        assert expected in {None, (error.answered, error.error_answer)}, status
    for status in (409, 423, 425, 408, 429, 500, 503):
        error = await transient(status, Retry_After="7")
        assert error.answered is (status in {409, 423, 425}), status
        assert error.retry_after == timedelta(seconds=7)


async def test_retry_after_is_seconds_or_a_date_and_an_odd_one_is_bounded_or_ignored() -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    retry_after = (await transient(503, Retry_After=when)).retry_after
    assert retry_after is not None
    assert timedelta(seconds=5) < retry_after <= timedelta(seconds=100)
    for text, expected in {
        "Wed, 21 Oct 2015 07:28:00 GMT": timedelta(0),
        "Wed, 21 Oct 2015 07:28:00 -0000": timedelta(0),
        "999999999999": timedelta(days=1),
        "9" * 5000: timedelta(days=1),
        "soon": None,
        "-1": None,
        "1.5": None,
        "Wed, 99 Oct 2015 07:28:00 GMT": None,
        "Fri, 31 Dec 9999 23:59:59 GMT": timedelta(days=1),
        "Fri, 31 Dec 9999 23:59:59 -2359": timedelta(days=1),
        "Fri, 31 Dec 99999999999999999999 23:59:59 GMT": None,
    }.items():
        assert (await transient(503, Retry_After=text)).retry_after == expected, text


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
        for _ in range(10_000):
            await answer.write(b" " * 65_536)
        raise AssertionError("it was read to its end")

    async with answering(endless) as service:
        async with asyncio.timeout(120):
            with pytest.raises(TransientError):
                await call(service)


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


async def test_an_answer_that_is_cut_or_is_not_http_may_pass() -> None:
    for answer in (
        b"",
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a":',
        b"220 ESMTP\r\n\r\n",
    ):

        async def cut(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with raw(cut) as service:
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
