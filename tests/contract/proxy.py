"""A proxy before Azurite that fails as a network and a busy service do.

It speaks HTTP, so the SDK, its transport and its paging are all real. Azurite never sends
an empty page and never answers 503; the service does both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit, urlunsplit

import aiohttp
from aiohttp import web
from yarl import URL

NEXT = ("NextPartitionKey", "NextRowKey")
HEADERS = tuple(f"x-ms-continuation-{name}" for name in NEXT)


class Trouble(Enum):
    """What one request can meet."""

    BUSY = "503, and nothing was done"
    BUSY_AFTERWARDS = "503, though it was done"
    CUT_OFF = "no answer, and nothing was done"
    ANSWER_LOST = "no answer, though it was done"
    LATE = "no answer; it arrives just before the next of its kind"
    SLOW = "done and answered, but other things happen before the answer arrives"
    SILENT = "no answer for a very long time, and nothing was done"


async def _nothing() -> None:
    return None


class FaultyProxy:
    """Forwards to Azurite; an async context manager.

    ``batches``, ``queries`` and ``points`` hold the troubles of the next requests of a kind,
    one each (None for none). ``meanwhile`` runs once, after a troubled request was forwarded
    and before its sender learns of it. ``page_size`` and ``empty_pages`` shape queries.
    """

    def __init__(self, connection_string: str) -> None:
        parts = dict(part.split("=", 1) for part in connection_string.split(";") if part)
        self._azurite = urlsplit(parts["TableEndpoint"])
        self._parts = parts
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.connection_string = ""
        self.batches: deque[Trouble | None] = deque()
        self.queries: deque[Trouble | None] = deque()
        self.points: deque[Trouble | None] = deque()
        self.meanwhile: Callable[[], Awaitable[None]] = _nothing
        self.page_size: int | None = None
        self.empty_pages = 0
        self.kinds: list[str] = []
        self.late_statuses: list[int] = []
        self._late: Callable[[], Awaitable[web.Response]] | None = None
        self._released = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        endpoint = urlunsplit(self._azurite._replace(netloc=f"127.0.0.1:{port}"))
        parts = self._parts | {"TableEndpoint": endpoint}
        self.connection_string = ";".join(f"{key}={value}" for key, value in parts.items())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        assert self._session is not None
        self._released.set()
        await self._session.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        kind = _kind(request)
        self.kinds.append(kind)
        faults = {"batch": self.batches, "query": self.queries}.get(kind, self.points)
        trouble = faults.popleft() if faults else None
        if trouble in {Trouble.BUSY, Trouble.CUT_OFF, Trouble.SILENT, Trouble.LATE}:
            return await self._do_nothing(request, trouble)
        await self._deliver_late(kind)
        answer = await self._query(request) if kind == "query" else await self._forward(request)
        if trouble is not None:
            meanwhile, self.meanwhile = self.meanwhile, _nothing
            await meanwhile()
        if trouble is None or trouble is Trouble.SLOW:
            return answer
        return _busy() if trouble is Trouble.BUSY_AFTERWARDS else _cut_off(request)

    async def _do_nothing(self, request: web.Request, trouble: Trouble) -> web.Response:
        if trouble is Trouble.BUSY:
            return _busy()
        if trouble is Trouble.LATE:
            await request.read()
            self._late = lambda: self._forward(request)
        if trouble is Trouble.SILENT:
            await self._released.wait()
        return _cut_off(request)

    async def _deliver_late(self, kind: str) -> None:
        late, self._late = (self._late, None) if kind == "batch" else (None, self._late)
        if late is not None:
            self.late_statuses.append((await late()).status)

    async def _forward(
        self, request: web.Request, query: dict[str, str] | None = None
    ) -> web.Response:
        assert self._session is not None
        # The path as it came, byte for byte: it is signed.
        path, _, query_text = request.raw_path.partition("?")
        query_text = query_text if query is None else urlencode(query)
        target = f"http://{self._azurite.netloc}{path}" + (f"?{query_text}" if query_text else "")
        url = URL(target, encoded=True)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        body = await request.read()
        async with self._session.request(
            request.method,
            url,
            data=body or None,
            headers=headers,
            skip_auto_headers=["Content-Type"],  # signed too
        ) as answer:
            headers_back = {
                k: v
                for k, v in answer.headers.items()
                if k.lower() not in {"transfer-encoding", "content-length", "connection"}
            }
            return web.Response(
                status=answer.status, headers=headers_back, body=await answer.read()
            )

    async def _query(self, request: web.Request) -> web.Response:
        """Put empty pages before each real one, and one after the last."""
        query = dict(request.query)
        mark, _, partition = query.get(NEXT[0], "0~").partition("~")
        row = query.pop(NEXT[1], "")
        empties = int(mark)
        if mark == "-1" or empties < self.empty_pages:
            token = None if mark == "-1" else (f"{empties + 1}~{partition}", row)
            return _empty_page(token)
        query.pop(NEXT[0], None)
        if partition:
            query |= dict(zip(NEXT, (partition, row), strict=True))
        if self.page_size is not None:
            query["$top"] = str(min(self.page_size, int(query.get("$top", "1000"))))
        answer = await self._forward(request, query)
        follow = answer.headers.get(HEADERS[0])
        if follow is not None:
            answer.headers[HEADERS[0]] = f"0~{follow}"
        elif self.empty_pages and answer.status == 200:
            answer.headers[HEADERS[0]], answer.headers[HEADERS[1]] = "-1~", "end"
        return answer


def _kind(request: web.Request) -> str:
    if request.path.endswith("/$batch"):
        return "batch"
    return "query" if request.method == "GET" and request.path.endswith("()") else "point"


def _busy() -> web.Response:
    body = '{"odata.error":{"code":"ServerBusy","message":{"lang":"en-US","value":"busy"}}}'
    headers = {"x-ms-error-code": "ServerBusy"}
    return web.Response(status=503, text=body, content_type="application/json", headers=headers)


def _cut_off(request: web.Request) -> web.Response:
    """Close the connection without a word."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _empty_page(token: tuple[str, str] | None) -> web.Response:
    headers = dict(zip(HEADERS, token, strict=True)) if token else {}
    return web.Response(text='{"value":[]}', content_type="application/json", headers=headers)
