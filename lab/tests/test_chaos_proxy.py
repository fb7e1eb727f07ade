"""The proxy before Azurite fails as a network and a busy table do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from lab.chaos.proxy import StoreProxy, Weather


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[StoreProxy, list[bytes]]]:
    """Give a proxy, and what the server behind it got."""
    got: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response(text="done")

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with StoreProxy(runner.addresses[0][1]) as proxy:
            yield proxy, got
    finally:
        await runner.cleanup()


async def ask(client: aiohttp.ClientSession, proxy: StoreProxy) -> int:
    async with client.post(f"http://127.0.0.1:{proxy.port}/", data=b"x" * 200_000) as answer:
        await answer.read()
        return answer.status


async def test_requests_pass_in_fine_weather_and_after_every_other_one() -> None:
    async with proxied() as (proxy, got), aiohttp.ClientSession() as client:
        for weather in Weather:
            await proxy.change(weather)
            await proxy.change(Weather.FINE)
            assert await ask(client, proxy) == 200
        assert [len(body) for body in got] == [200_000] * len(Weather)


async def test_a_refusing_and_a_busy_table_do_nothing() -> None:
    async with proxied() as (proxy, got), aiohttp.ClientSession() as client:
        await proxy.change(Weather.REFUSED)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(client, proxy)
        await proxy.change(Weather.BUSY)
        assert await ask(client, proxy) == 503
        assert not got


async def test_a_lost_answer_is_to_a_request_that_was_done() -> None:
    async with proxied() as (proxy, got), aiohttp.ClientSession() as client:
        await proxy.change(Weather.ANSWERS_LOST)
        with pytest.raises(aiohttp.ClientError):
            await ask(client, proxy)
        assert len(got) == 1


async def test_a_silent_table_does_not_answer_and_a_change_cuts_the_connection() -> None:
    async with proxied() as (proxy, got), aiohttp.ClientSession() as client:
        await proxy.change(Weather.SILENT)
        asking = asyncio.create_task(ask(client, proxy))
        done, _ = await asyncio.wait([asking], timeout=0.3)
        assert not done
        await proxy.change(Weather.FINE)
        with pytest.raises(aiohttp.ClientError):
            await asking
        assert not got
