"""``sas desk`` as a process: the link that it prints, one browser, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest

from devstack.azurite import Azurite
from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from sas.adapters.tables.store import TableStore
from tests.contract import cases
from tests.functions_rig import ROOT, own_queues

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def started(
    *arguments: str, **env: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """Start the command; its lines come into the list."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sas.cli", "desk", *arguments),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "SAS_OPERATOR": "ann", "PYTHONUNBUFFERED": "1", **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    lines: list[str] = []

    async def read() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            lines.append(line.decode().rstrip())

    reading = asyncio.create_task(read())
    try:
        yield process, lines
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def line_of(lines: Sequence[str], pattern: str) -> str:
    async with asyncio.timeout(120):
        while True:
            for line in lines:
                if match := re.search(pattern, line):
                    return match[0]
            await asyncio.sleep(0.05)


async def test_the_desk_waits_for_the_table_then_prints_a_link_and_ends_by_a_signal() -> None:
    with Azurite() as azurite:
        async with Broker(parse_config(_queues())) as broker:
            env = {"ServiceBus": broker.connection_string, "SAS_TABLES": azurite.connection_string}
            async with started("--port", "0", **env) as (process, lines):
                await line_of(lines, "there is no table 'orders'.*The desk waits for it.")
                store = TableStore.connect(azurite.connection_string, "orders")
                await store.commit(cases.submitted("A-1"))
                link = await line_of(lines, r"http://127\.0\.0\.1:\d+/login\?once=\S+")
                jar = aiohttp.CookieJar(unsafe=True)
                async with aiohttp.ClientSession(cookie_jar=jar) as http:
                    async with http.get(link) as answer:
                        assert (answer.status, answer.url.path) == (200, "/")
                    assert await line_of(lines, "A new link: http://.*") not in link
                    async with http.get(answer.url.with_path("/orders/A-1")) as answer:
                        assert "It is under way: 0 of 3 steps done." in await answer.text()
                    async with http.get(answer.url.with_path("/live")) as live:  # open at the end
                        assert live.status == 200
                        process.send_signal(signal.SIGINT)
                        async with asyncio.timeout(120):
                            assert await process.wait() == 0
                await store.close()
    assert not [line for line in lines if "Traceback" in line]


@asynccontextmanager
async def with_an_order() -> AsyncIterator[tuple[Broker, dict[str, str]]]:
    """A broker and a table with one order, and the settings that name them."""
    with Azurite() as azurite:
        async with Broker(parse_config(_queues())) as broker:
            store = TableStore.connect(azurite.connection_string, "orders")
            await store.commit(cases.submitted("A-1"))
            await store.close()
            env = {"ServiceBus": broker.connection_string, "SAS_TABLES": azurite.connection_string}
            yield broker, env


async def test_with_json_a_link_is_one_object() -> None:
    async with with_an_order() as (_, env), started("--port", "0", "--json", **env) as (_, lines):
        line = await line_of(lines, r"\{.*\}")
    assert json.loads(line)["Link"].startswith("http://127.0.0.1:")


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    async with with_an_order() as (broker, env):
        port = broker.connection_string.split("localhost:")[-1].split("127.0.0.1:")[-1]
        async with started("--port", port.split(";")[0].strip("/"), **env) as (process, lines):
            async with asyncio.timeout(120):
                assert await process.wait() == 2
            await line_of(lines, r"sas: port \d+ cannot be used .*: give --port 0")
    assert len(lines) == 1


def _queues() -> str:
    return json.dumps(own_queues())
