"""HTTP triggers: an aiohttp server on 127.0.0.1, with Azure's keys and routes.

A function key is in the header `x-functions-key` or the query parameter `code`. The
settings `devstack.functionKey` and `devstack.masterKey` set the two keys of this machine;
without them every key is accepted, as the Core Tools accept requests without any.
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web
from azure.functions.meta import Datum
from multidict import CIMultiDict

from devstack.functions.bindings import HttpTrigger
from devstack.functions.clients import Clients
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker, Result
from devstack.functions.options import HttpOptions
from devstack.functions.routes import Route, compile_route
from devstack.functions.settings import Settings

_log = logging.getLogger("devstack.functions")
_BODY_MAX = 100 * 1024 * 1024
_FUNCTION_KEY = "devstack.functionKey"
_MASTER_KEY = "devstack.masterKey"
_STATUS_MIN, _STATUS_MAX = 200, 999
_OURS = {"content-length", "transfer-encoding", "connection"}  # the server's own business


class HttpServer:
    """Serves the HTTP functions of this process."""

    def __init__(
        self,
        functions: Sequence[IndexedFunction],
        invoker: Invoker,
        clients: Clients,
        options: HttpOptions,
        settings: Settings,
    ) -> None:
        """Raises IndexingError where a route is wrong."""
        self._invoker = invoker
        self._clients = clients
        self._options = options
        self._keys = {
            "function": settings.get(_FUNCTION_KEY),
            "admin": settings.get(_MASTER_KEY),
        }
        self._routes = _routes(functions, options)
        limit = options.max_concurrent_requests
        self._slots = asyncio.Semaphore(limit) if limit > 0 else None
        self._runner: web.AppRunner | None = None
        self._stopping = False
        self._answered = asyncio.Event()
        self.port = 0
        self.in_hand = 0

    async def start(self, port: int) -> None:
        """Listen on 127.0.0.1; port 0 takes a free one (see `port`).

        Raises:
            OSError: the port is taken.
        """
        app = web.Application(client_max_size=_BODY_MAX)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def drain(self, limit_s: float) -> None:
        """Close the port, and wait up to `limit_s` seconds for the requests in hand."""
        self._stopping = True
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
        if self.in_hand:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), limit_s)

    async def stop(self) -> None:
        """Close every connection; requests in hand have had their time before."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"].strip("/")
        if path == "admin/host/ping" or not path:
            return web.Response(text="")
        function, values = self._find(path, request.method)
        if function is None:
            return web.Response(status=404)  # for a wrong method too, as in Azure
        trigger = function.trigger
        assert isinstance(trigger, HttpTrigger)  # noqa: S101  # for mypy
        refusal = self._refusal(trigger, request)
        if refusal is not None:
            return web.Response(status=refusal)
        self.in_hand += 1
        try:
            if self._slots is None:
                return await self._invoke(function, request, values)
            async with self._slots:
                return await self._invoke(function, request, values)
        finally:
            self.in_hand -= 1
            if self._stopping and not self.in_hand:
                self._answered.set()

    def _refusal(self, trigger: HttpTrigger, request: web.Request) -> int | None:
        """The status with which a request is turned away, None where it is not."""
        if not self._allowed(trigger.auth_level, request):
            return 401
        if self._stopping:  # over a connection that was there before the port was closed
            return 503
        limit = self._options.max_outstanding_requests
        return 429 if 0 < limit <= self.in_hand else None

    def _find(self, path: str, method: str) -> tuple[IndexedFunction | None, dict[str, str]]:
        for route, function in self._routes:
            values = route.match(path)
            if values is None:
                continue
            trigger = function.trigger
            if isinstance(trigger, HttpTrigger) and method in trigger.methods:
                return function, values
        return None, {}

    def _allowed(self, level: str, request: web.Request) -> bool:
        if level == "anonymous":
            return True
        given = request.headers.get("x-functions-key") or request.query.get("code") or ""
        accepted = [self._keys["admin"]]
        if level == "function":
            accepted.append(self._keys["function"])
        known = [key for key in accepted if key]
        if not known:
            return True
        return any(hmac.compare_digest(_bytes(given), _bytes(key)) for key in known)

    async def _invoke(
        self, function: IndexedFunction, request: web.Request, values: Mapping[str, str]
    ) -> web.Response:
        datum = await request_datum(request, values)
        reason = f"{request.method} {request.path}"
        try:
            result = await self._invoker.invoke(function, datum, {}, reason=reason)
            await self._clients.send_outputs(function, result)
        except Exception as error:  # noqa: BLE001  # the invoker has logged it; the caller gets 500
            _log.debug("%s answers 500 after %r", function.name, error)
            return web.Response(status=500)
        return self._answer(function, result)

    def _answer(self, function: IndexedFunction, result: Result) -> web.Response:
        datum = result.returned
        for output in function.outputs:
            datum = result.outputs.get(output.param, datum)
        headers: CIMultiDict[str] = CIMultiDict(self._options.custom_headers)
        if datum is None or datum.value is None:
            return web.Response(status=204, headers=headers)
        if datum.type != "http":
            headers.setdefault("Content-Type", "text/plain; charset=utf-8")
            return web.Response(body=datum.value, headers=headers)
        value: dict[str, Any] = datum.value
        status = int(value["status_code"].value)
        if not _STATUS_MIN <= status <= _STATUS_MAX:
            _log.error(
                "Function %s answers with the status %d, which no client understands: use one from "
                "%d to %d",
                function.name,
                status,
                _STATUS_MIN,
                _STATUS_MAX,
            )
            return web.Response(status=500)
        given = {name: one.value for name, one in value["headers"].items()}
        headers.extend({name: text for name, text in given.items() if name.lower() not in _OURS})
        for jar in value.get("cookies") or []:
            for morsel in jar.values():
                headers.add("Set-Cookie", morsel.OutputString())
        return web.Response(status=status, body=value["body"].value, headers=headers)


async def request_datum(request: web.Request, values: Mapping[str, str]) -> Datum:
    """A request as the host's gRPC message has it: lower-case headers, body as bytes.

    Headers and query parameters without a value are left out, as they are there.
    """
    return Datum(
        {
            "method": Datum(request.method, "string"),
            "url": Datum(str(request.url), "string"),
            "headers": _strings((k.lower(), v) for k, v in request.headers.items()),
            "query": _strings(request.query.items()),
            "params": _strings(values.items()),
            "body": Datum(await request.read(), "bytes"),
        },
        "http",
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # what came may be no UTF-8


def _strings(values: Iterable[tuple[str, str]]) -> dict[str, Datum]:
    found: dict[str, Datum] = {}
    for name, value in values:
        if name in found:  # a repeated one is joined, as .NET's StringValues are
            found[name] = Datum(f"{found[name].value},{value}", "string")
        elif value:
            found[name] = Datum(value, "string")
    return found


def _routes(
    functions: Sequence[IndexedFunction], options: HttpOptions
) -> list[tuple[Route, IndexedFunction]]:
    routes = [
        (compile_route(one.name, options.route_prefix, one.trigger.route), one)
        for one in functions
        if isinstance(one.trigger, HttpTrigger)
    ]
    return sorted(routes, key=lambda pair: (pair[0].rank, pair[1].name))
