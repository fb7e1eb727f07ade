"""``sas desk`` as a process: the link that it prints, one browser, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from devstack.azurite import Azurite
from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from sas.adapters.tables.store import TableStore
from tests.contract import cases
from tests.functions_rig import ROOT, own_queues, until
from tests.terminal import Terminal

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env() -> AsyncIterator[dict[str, str]]:
    """The settings that name a broker and a table with one order."""
    with Azurite() as azurite:
        async with Broker(parse_config(_queues())) as broker:
            store = TableStore.connect(azurite.connection_string, "orders")
            await store.commit(cases.submitted("A-1"))
            await store.close()
            yield {"ServiceBus": broker.connection_string, "SAS_TABLES": azurite.connection_string}


async def test_the_desk_waits_for_the_table_then_prints_a_link_and_ends_by_a_signal(
    env: dict[str, str],
) -> None:
    env = {**env, "SAS_TABLE": "later"}
    async with started("--port", "0", **env) as (process, lines):
        await line_of(lines, "there is no table 'later'.*The desk waits for it.")
        store = TableStore.connect(env["SAS_TABLES"], "later")
        await store.commit(cases.submitted("A-1"))
        link = await line_of(lines, r"http://127\.0\.0\.1:\d+/login\?once=\S+")
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            async with http.get(link) as answer:
                place = answer.headers["Refresh"].partition("url=")[2]
            assert await line_of(lines, "A new link: http://.*") not in link
            page = answer.url.join(URL(place))
            async with http.get(page.join(URL("order?id=A-1"))) as answer:
                assert "It is under way: 0 of 3 steps done." in await answer.text()
            async with http.get(page.join(URL("live"))) as live:  # open at the end
                assert live.status == 200
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(120):
                    assert await process.wait() == 0
        await store.close()
    assert not [line for line in lines if "Traceback" in line]


BROWSER = """#!/bin/sh
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' > "$0.seen"
echo "$1" > "$0.part"
mv "$0.part" "$0.address"
"""
"""A browser that writes down what it was given, and what is in the process list meanwhile."""


def browser_of(folder: Path) -> dict[str, str]:
    """Settings with a home folder and a browser."""
    program = folder / "browser"
    program.write_text(BROWSER)
    program.chmod(0o700)
    return {"HOME": str(folder), "BROWSER": str(program)}


async def page_in(folder: Path) -> Path:
    """The page with which the browser was opened."""
    address = folder / "browser.address"

    async def is_open() -> bool:
        return address.exists()

    await until(is_open, "the browser")
    return Path(unquote(urlsplit(address.read_text().strip()).path))


async def test_the_browser_opens_a_private_page_and_the_link_is_not_in_the_process_list(
    env: dict[str, str], tmp_path: Path
) -> None:
    arguments = ("--port", "0", "--open", "--json")
    async with started(*arguments, **env, **browser_of(tmp_path)) as (_, lines):
        link = json.loads(await line_of(lines, r"\{.*\}"))["Link"]
        page = await page_in(tmp_path)
        process_list = (tmp_path / "browser.seen").read_text(errors="replace")
        assert page.as_uri() in process_list
        assert link.partition("once=")[2] not in process_list
        assert [stat.S_IMODE(path.stat().st_mode) for path in (page, page.parent)] == [
            0o600,
            0o700,
        ]
        assert f"url={link}" in page.read_text()
        before = datetime.now(UTC).replace(microsecond=0)
        async with aiohttp.ClientSession() as http, http.get(link) as answer:
            assert answer.status == 200
        used_at = json.loads(await line_of(lines, ".*LinkUsedAt.*"))["LinkUsedAt"]
        assert before <= datetime.fromisoformat(used_at) <= datetime.now(UTC)
        await line_of(lines, f'"Link":"(?!{re.escape(link)})http')
        assert not page.parent.exists()


@pytest.mark.long
async def test_at_a_terminal_it_says_that_a_link_was_used_and_removes_its_page_at_the_end(
    env: dict[str, str], tmp_path: Path
) -> None:
    terminal = Terminal(200)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sas.cli", "desk", "--port", "0", "--open"),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "SAS_OPERATOR": "ann", **env, **browser_of(tmp_path)},
        stdin=terminal.fd,
        stdout=terminal.fd,
        stderr=terminal.fd,
    )
    try:
        page = await page_in(tmp_path)
        terminal.type("\n")
        await asyncio.to_thread(terminal.wait_for, "A new link: ")
        link = terminal.raw.partition("A new link: ")[2].split()[0]
        async with aiohttp.ClientSession() as http, http.get(link) as answer:
            assert answer.status == 200
        await asyncio.to_thread(terminal.wait_for, "If it was not yours, stop the desk.")
        assert re.search(r"A browser logged in at 20\S+ \S+\+00:00\.", terminal.raw)
        terminal.type("\x04")
        async with asyncio.timeout(120):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        terminal.close()
    assert not page.parent.exists()


async def test_a_terminal_that_is_closed_leaves_no_page_in_the_home_folder(
    env: dict[str, str], tmp_path: Path
) -> None:
    arguments = ("--port", "0", "--open")
    async with started(*arguments, **env, **browser_of(tmp_path)) as (process, _):
        page = await page_in(tmp_path)
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(120):
            assert await process.wait() == 0
    assert not page.parent.exists()


async def test_a_port_that_is_taken_is_one_sentence(env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        async with started("--port", port, **env) as (process, lines):
            async with asyncio.timeout(120):
                assert await process.wait() == 2
            await line_of(lines, rf"sas: port {port} cannot be used .*: give --port 0")
    assert len(lines) == 1


def _queues() -> str:
    return json.dumps(own_queues())
