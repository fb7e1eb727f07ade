"""Anonymous posts to the callback endpoint: the app's settings bound what they take.

The app is the sample's, with its host.json and local.settings.json, in a process of its own.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from tests.infra.kit import ROOT

POSTS = 16
CHUNK = b"x" * 2**20
CHUNKS = 60
GROWTH_MIB_MAX = 200  # 16 posts of 60 MiB need 960 if they are read to their ends


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


async def large() -> AsyncIterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK


async def post(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.post(url, data=large()) as response:
            return response.status
    except aiohttp.ClientConnectionError:  # closed while the body was on its way
        return 0


async def test_large_anonymous_posts_do_not_fill_the_memory() -> None:
    command = [sys.executable, "-m", "devstack.functions", str(ROOT)]
    host = await asyncio.create_subprocess_exec(
        *(*command, "--only", "callback", "--http-port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert host.stdout is not None
        async for line in host.stdout:
            if ready := re.search(rb'"http_port": (\d+)', line):
                break
        assert ready is not None
        url = f"http://127.0.0.1:{ready[1].decode()}/api/callbacks/forged"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=b"{}") as response:
                assert response.status == 404  # this app has no key
            before = peak_mib(host.pid)
            statuses = await asyncio.gather(*(post(session, url) for _ in range(POSTS)))
        assert set(statuses) <= {0, 413}
        assert peak_mib(host.pid) - before < GROWTH_MIB_MAX
    finally:
        host.terminate()
        await host.communicate()
