"""HTTP triggers: an aiohttp server on 127.0.0.1, with Azure's routes.

The server accepts each request without a function key, as the Core Tools do. Routes are templates
of ASP.NET, such as `orders/{id:int}/{page?}/{*rest}`.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from azure.functions.meta import Datum
from multidict import CIMultiDict

from devstack.functions.bindings import HttpTrigger, IndexingError
from devstack.functions.hostjson import HttpOptions
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker, Result
from devstack.functions.service_bus import Clients

_log = logging.getLogger("devstack.functions")
_STATUS_MIN, _STATUS_MAX = 200, 999
_SERVER_HEADERS = {"content-length", "transfer-encoding", "connection"}  # aiohttp sets these
_CONSTRAINTS = {
    **dict.fromkeys(("int", "long"), r"[+-]?\d+"),
    **dict.fromkeys(("decimal", "double", "float"), r"[+-]?\d+(?:\.\d+)?"),
    "bool": r"(?i:true|false)",
    "alpha": r"[A-Za-z]+",
    "guid": r"[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}",
    "datetime": r"[^/]+",
}
_ENCODED_SLASH = re.compile("(%2f)", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\{(?P<star>\*{0,2})(?P<name>\w+)(?P<constraints>(?::[^{}:=?]+)*)"
    r"(?:=(?P<default>[^{}?]*))?(?P<optional>\?)?\}"
)
_LENGTH = re.compile(r"(?P<kind>length|minlength|maxlength)\((?P<low>\d+)(?:,(?P<high>\d+))?\)")


@dataclass(kw_only=True)
class HttpServer:
    """Serves the HTTP functions of this process.

    A request above `max_outstanding_requests` gets status 429. A body is read when its request is
    among the `max_concurrent_requests` that run, and only up to `body_bytes_max`: then the status
    is 413. So bodies never need more memory than the product of both.
    """

    functions: Sequence[IndexedFunction]
    invoker: Invoker
    clients: Clients
    options: HttpOptions
    body_bytes_max: int

    def __post_init__(self) -> None:
        """Raise IndexingError when a route is wrong."""
        routes = []
        for function in self.functions:
            if isinstance(trigger := function.trigger, HttpTrigger):
                route = compile_route(function.name, self.options.route_prefix, trigger.route)
                routes.append((route, trigger, function))
        self._routes = sorted(routes, key=lambda route: (route[0].rank, route[2].name))
        self._runner: web.AppRunner | None = None
        self._stopping = False
        self._answered = asyncio.Event()
        self._requests = 0
        self._turns = asyncio.Semaphore(self.options.max_concurrent_requests)

    async def start(self, port: int, listener: socket.socket) -> int:
        """Serve on the socket `listener`, or raise OSError if the port is taken; return the port.

        If the socket is not bound yet, it is bound to `port` of 127.0.0.1 (0: a free one). `drain`
        or `stop` closes it.
        """
        app = web.Application(client_max_size=self.body_bytes_max)
        app.router.add_route("*", "/{path:.*}", self._serve)
        # As in Azure, a compressed body arrives as it was sent.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.5, auto_decompress=False
        )
        await self._runner.setup()
        try:
            if not listener.getsockname()[1]:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
            await web.SockSite(self._runner, listener).start()
        except OSError:
            listener.close()
            raise
        return int(listener.getsockname()[1])

    async def drain(self, limit_s: float) -> None:
        """Close the port; wait up to `limit_s` seconds for the answers to current requests."""
        self._stopping = True
        for site in list(self._runner.sites) if self._runner else ():
            await site.stop()
        if self._requests:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), limit_s)

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        # As in ASP.NET, an encoded slash stays encoded and does not end a segment.
        parts = _ENCODED_SLASH.split(request.rel_url.raw_path.strip("/"))
        path = "".join(part if n % 2 else unquote(part) for n, part in enumerate(parts))
        if path == "admin/host/ping" or not path:
            return web.Response(text="")
        for route, trigger, function in self._routes:  # noqa: B007  # used below
            values = route.match(path)
            if values is not None and request.method in trigger.methods:
                break
        else:
            return web.Response(status=404)  # for a wrong method too, as in Azure
        if self._stopping:  # the connection was opened before the port closed
            return web.Response(status=503)
        if self._requests >= self.options.max_outstanding_requests:
            return web.Response(status=429)
        self._requests += 1
        try:
            async with self._turns:
                return await self._invoke(function, request, values)
        finally:
            self._request_ended()

    def _request_ended(self) -> None:
        self._requests -= 1
        if self._stopping and not self._requests:
            self._answered.set()

    async def _invoke(
        self, function: IndexedFunction, request: web.Request, values: Mapping[str, str]
    ) -> web.Response:
        datum = await request_datum(request, values)
        reason = f"{request.method} {request.path}"
        try:
            result = await self.invoker.invoke(function, datum, {}, reason=reason)
            await self.clients.send_outputs(function, result)
        except Exception as error:  # noqa: BLE001  # the invoker has logged it; the caller gets 500
            _log.debug("%s answers 500 after %r", function.name, error)
            return web.Response(status=500)
        return self._answer(function, result)

    def _answer(self, function: IndexedFunction, result: Result) -> web.Response:
        datum = result.returned
        for output in function.outputs:
            datum = result.outputs.get(output.param, datum)
        headers: CIMultiDict[str] = CIMultiDict()
        if datum is None or datum.value is None:
            return web.Response(status=204, headers=headers)
        if datum.type != "http":
            headers.setdefault("Content-Type", "text/plain; charset=utf-8")
            return web.Response(body=datum.value, headers=headers)
        value: dict[str, Any] = datum.value
        status = int(value["status_code"].value)
        if not _STATUS_MIN <= status <= _STATUS_MAX:
            text = "Function %s answers with the status %d, which clients refuse: use %d to %d"
            _log.error(text, function.name, status, _STATUS_MIN, _STATUS_MAX)
            return web.Response(status=500)
        for name, header in value["headers"].items():
            if name.lower() not in _SERVER_HEADERS:
                headers.add(name, header.value)
        for jar in value.get("cookies") or []:
            for morsel in jar.values():
                headers.add("Set-Cookie", morsel.OutputString())
        return web.Response(status=status, body=value["body"].value, headers=headers)


async def request_datum(request: web.Request, values: Mapping[str, str]) -> Datum:
    """The datum of a request as in the host's gRPC message: lower-case headers, a body of bytes.

    Headers and query parameters without a value are left out, as in the Functions host.
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


def _strings(values: Iterable[tuple[str, str]]) -> dict[str, Datum]:
    strings: dict[str, Datum] = {}
    for name, value in values:
        if name in strings:  # joined, as .NET's StringValues are
            strings[name] = Datum(f"{strings[name].value},{value}", "string")
        elif value:
            strings[name] = Datum(value, "string")
    return strings


@dataclass(frozen=True)
class Route:
    """One route template, compiled."""

    pattern: re.Pattern[str]
    defaults: dict[str, str]
    rank: tuple[int, ...]
    """Routes with a lower rank are tried first: a literal segment, then `{id:int}`, then `{id}`."""

    def match(self, path: str) -> dict[str, str] | None:
        """The values of the route's parameters in `path` (without outer slashes), or None."""
        match = self.pattern.fullmatch(path)
        if match is None:
            return None
        return self.defaults | {k: v for k, v in match.groupdict().items() if v is not None}


def compile_route(function: str, prefix: str, template: str) -> Route:
    """Compile a route template under the host's prefix, or raise IndexingError."""
    pattern = ""
    defaults: dict[str, str] = {}
    names: set[str] = set()
    rank: list[int] = []
    try:
        for segment in filter(None, f"{prefix}/{template}".split("/")):
            text, optional, weight = _segment(segment, defaults, names)
            slash = "/" if rank else ""
            pattern += f"(?:{slash}{text})?" if optional else f"{slash}{text}"
            rank.append(weight)
    except ValueError as error:
        raise IndexingError(f"Function {function}: the route {template!r} {error}.") from error
    return Route(re.compile(pattern, re.IGNORECASE), defaults, tuple(rank))


def _segment(segment: str, defaults: dict[str, str], names: set[str]) -> tuple[str, bool, int]:
    """Return the pattern of a segment, whether it is optional, and its number in the rank."""
    text, position, optional, weight = "", 0, False, 0
    for match in _PARAMETER.finditer(segment):
        name, star, default = match["name"], bool(match["star"]), match["default"]
        if not name.isidentifier():
            raise ValueError(f"has the invalid name {name!r}: begin with a letter")
        if name in names:
            raise ValueError(f"has two parameters named {name!r}: rename one")
        names.add(name)
        text += re.escape(segment[position : match.start()])
        position = match.end()
        text += f"(?P<{name}>{'.*' if star else _constraint(match['constraints'])})"
        if default is not None:
            defaults[name] = default
        optional = optional or star or bool(match["optional"]) or default is not None
        weight = max(weight, 3 if star else 1 if match["constraints"] else 2)
    rest = segment[position:]
    if "{" in rest or "}" in rest:
        raise ValueError(
            f"cannot be read at {segment!r}: write {{name}}, {{name:int}}, {{name?}} or {{*name}}"
        )
    return text + re.escape(rest), optional, weight


def _constraint(constraints: str) -> str:
    inner = "[^/]+"
    for constraint in filter(None, constraints.split(":")):
        length = _LENGTH.fullmatch(constraint)
        if length is not None and int(length["low"]) <= int(length["high"] or length["low"]):
            low, high = length["low"], length["high"] or length["low"]
            bounds = {"length": f"{low},{high}", "minlength": f"{low},", "maxlength": f"1,{low}"}
            inner = f"[^/]{{{bounds[length['kind']]}}}"
        elif constraint.lower() in _CONSTRAINTS:
            inner = _CONSTRAINTS[constraint.lower()]
        else:
            raise ValueError(
                f"uses the constraint {constraint!r}, which this host does not know; it knows "
                f"{', '.join(sorted(_CONSTRAINTS))} and lengths"
            )
    return inner
