"""The host bounds HTTP requests and their bodies before it reads them, as Azure does."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from devstack.functions.host import Host

APP = """
import asyncio, pathlib
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.route("size", methods=["POST"])
async def size(req: func.HttpRequest) -> str:
    return str(len(req.get_body()))

@app.route("wait", methods=["POST"])
async def wait(req: func.HttpRequest) -> str:
    while not pathlib.Path(__file__).with_name("go").exists():
        await asyncio.sleep(0.01)
    return "done"
"""
BYTES_MAX = 1000
HTTP = {"maxConcurrentRequests": 2, "maxOutstandingRequests": 3}


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    (tmp_path / "function_app.py").write_text(APP)
    content = {"version": "2.0", "extensions": {"http": HTTP}}
    (tmp_path / "host.json").write_text(json.dumps(content))
    settings = {"FUNCTIONS_REQUEST_BODY_SIZE_LIMIT": str(BYTES_MAX)}
    async with Host(tmp_path, settings=settings) as host:
        address = f"http://127.0.0.1:{host.http_port}/api/"
        async with aiohttp.ClientSession(address) as opened:
            yield opened


async def status(session: aiohttp.ClientSession, path: str, body: object = b"") -> int:
    async with session.post(path, data=body) as response:
        return response.status


async def parts(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 100


async def test_a_body_above_the_bound_never_reaches_the_function(
    session: aiohttp.ClientSession,
) -> None:
    assert await status(session, "size", b"x" * BYTES_MAX) == 200
    assert await status(session, "size", b"x" * (BYTES_MAX + 1)) == 413
    assert await status(session, "size", parts(10)) == 200  # without a Content-Length
    assert await status(session, "size", parts(11)) == 413


async def test_a_compressed_body_arrives_as_it_was_sent(session: aiohttp.ClientSession) -> None:
    body, headers = gzip.compress(b"x" * 1_000_000), {"Content-Encoding": "gzip"}
    assert len(body) > BYTES_MAX
    assert await status(session, "size", body) == 413
    body = gzip.compress(b"x" * 100_000)
    async with session.post("size", data=body, headers=headers) as response:
        assert (response.status, await response.text()) == (200, str(len(body)))


async def test_a_request_above_the_bound_is_429_while_others_run_or_wait(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    posts = [asyncio.ensure_future(status(session, "wait")) for _ in range(4)]
    done, others = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
    assert [post.result() for post in done] == [429]
    (tmp_path / "go").touch()
    assert await asyncio.gather(*others) == [200] * 3  # two ran, and one waited for its turn
    assert await status(session, "wait") == 200
