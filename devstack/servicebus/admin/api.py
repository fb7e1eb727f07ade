"""The management port over HTTP.

- ``GET /health``: JSON, needs no token (with an ``api-version`` it is the queue of that name);
- ``/{queue}`` and ``/$Resources/queues``: the Atom API of `ServiceBusAdministrationClient`;
- ``GET``, ``POST``, ``DELETE /$faults``: list the armed faults, arm or do a fault, disarm all.

With a required key every request except ``/health`` needs a signed token in ``Authorization``.

Programs use this port, pages do not. A browser names the page's origin in each request that could
change something, so a request with ``Origin`` is refused. DNS rebinding can give our address to a
name of another site, so each request must name our host. Both are checked before a body is read.
"""

import asyncio
import json
import logging
from dataclasses import asdict
from typing import Any

from aiohttp import web

from devstack.servicebus.admin import atom
from devstack.servicebus.core.errors import BrokerError, UnauthorizedError
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.faults import KINDS
from devstack.servicebus.wire.server import AmqpServer

_STOPS_WITHIN_S = 0.1
_log = logging.getLogger("devstack.servicebus")
# aiohttp would log a traceback for each malformed request. The answer tells the client already.
_aiohttp_log = logging.getLogger("devstack.servicebus.http")
_aiohttp_log.setLevel(logging.CRITICAL)


class AdminServer:
    """Answers the requests on the management port of one broker."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._http: web.Server | None = None
        self._address = ""
        self._hosts: frozenset[str] = frozenset()

    async def start(self, port: int) -> int:
        """Listen; return the port, a free one if ``port`` is 0. Raises OSError."""
        http = web.Server(self._handle, access_log=None, logger=_aiohttp_log)
        host, loop = self._server.host, asyncio.get_running_loop()
        self._listener = await loop.create_server(http, host, port)
        self._http = http
        bound_port: int = self._listener.sockets[0].getsockname()[1]
        self._address = f"http://{host}:{bound_port}"
        self._hosts = frozenset(f"{name}:{bound_port}" for name in (host, "127.0.0.1", "localhost"))
        return bound_port

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._http is not None:
            self._listener.close()
            await self._http.shutdown(_STOPS_WITHIN_S)

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        path = request.path.strip("/")
        query = {name.lower() for name in request.query}
        is_health = path.lower() == "health" and "api-version" not in query
        if problem := self._foreign(request) or (not is_health and self._no_token(request, path)):
            return _error(*problem)
        if is_health:
            return _json({"status": "healthy", "queues": len(self._server.namespace)})
        body = await request.read()
        try:
            return self._answer(request, path, body)
        except BrokerError as error:
            return _error(error.status, error.description)
        except ValueError as error:
            return _error(400, str(error))
        except Exception:  # noqa: BLE001 (one request must not stop the port)
            _log.exception("a management request failed")
            return _error(500, "the broker failed; see its log")

    def _answer(self, request: web.BaseRequest, path: str, body: bytes) -> web.Response:
        if path.lower() == "$faults":
            response = self._faults(request.method, body)
        elif path.lower() == "$resources/queues":
            response = self._list()
        elif path.startswith("$") or "/subscriptions" in path.lower():
            text = f"'{path[:200]}' is not served: this broker serves queues only"
            response = _error(501, text)
        else:
            response = self._queue(request.method, path, body, update="If-Match" in request.headers)
        self._server.commit()
        return response if self._server.failure is None else _error(500, self._server.failure)

    def _foreign(self, request: web.BaseRequest) -> tuple[int, str] | None:
        """Return why a request may be of a page of a browser; None if it is of a program."""
        if request.host not in self._hosts:
            return 421, f"this port answers as {self._address} only"
        if "Origin" in request.headers:
            return 403, "this port answers programs, and no page of a browser"
        if request.method == "POST" and request.content_type != "application/json":
            return 415, "send the header Content-Type: application/json"
        return None

    def _no_token(self, request: web.BaseRequest, path: str) -> tuple[int, str] | None:
        """Return why the token of a request does not allow it; None if it does."""
        tokens, now = self._server.tokens, self._server.clock()
        if not tokens.enabled:
            return None
        try:
            claim = tokens.check(request.headers.get("Authorization", ""), path, now)
        except UnauthorizedError as error:
            return error.status, error.description
        return None if claim.covers(path, now) else (401, f"the token is not for '{path[:200]}'")

    def _describe(self, queue: Queue) -> str:
        return atom.queue_entry(queue, self._server.counts(queue.name), self._address)

    def _list(self) -> web.Response:
        queues = sorted(self._server.namespace, key=lambda queue: queue.name.lower())
        base = f"{self._address}/$Resources/queues"
        return _reply(200, atom.feed("Queues", base, map(self._describe, queues)), atom.FEED_TYPE)

    def _queue(self, method: str, name: str, body: bytes, *, update: bool) -> web.Response:
        exists = name.lower() in {queue.name.lower() for queue in self._server.namespace}
        if method == "GET" and not exists:
            empty = atom.feed("Publicly Listed Services", self._address, ())
            return _reply(200, empty, atom.FEED_TYPE)
        if method == "GET":
            return _entry(200, self._describe(self._server.namespace.queue(name)).encode())
        if method == "DELETE":
            self._server.delete_queue(name)
            return _reply(200, b"", atom.ERROR_TYPE)
        if method != "PUT":
            return _error(405, "use GET, PUT or DELETE on a queue")
        properties = atom.read_description(body)
        if exists and not update:
            return _error(409, f"queue '{name[:200]}' exists already; update or delete it")
        change = self._server.update_to if update else self._server.create_with
        return _entry(200 if update else 201, self._describe(change(name, properties)).encode())

    def _faults(self, method: str, body: bytes) -> web.Response:
        if method == "POST":
            return _json(self._do_fault(_object(body)))
        if method == "DELETE":
            self._server.clear_faults()
        elif method != "GET":
            return _error(405, "use GET, POST or DELETE on $faults")
        return _json({"armed": [asdict(fault) for fault in self._server.context.faults.armed]})

    def _do_fault(self, fault: dict[str, Any]) -> dict[str, Any]:
        kind, queue = fault.pop("kind", ""), fault.pop("queue", "")
        if not isinstance(kind, str) or not isinstance(queue, str):
            raise ValueError("'kind' and 'queue' are text")  # noqa: TRY004 (one kind of error)
        kinds = ("drop-connections", "expire-locks", *KINDS)
        if kind not in kinds:
            raise ValueError(f"'{kind[:50]}' is not a fault; use one of {', '.join(kinds)}")
        allowed = {"count", "seconds", "operation"} if kind in KINDS else set()
        unknown = fault.keys() - allowed
        if unknown:
            text = f"'{unknown.pop()[:50]}' is not a part of this fault; leave it out"
            raise ValueError(text)
        if kind == "drop-connections":
            return {"dropped": self._server.drop_connections(queue)}
        if kind == "expire-locks":
            return {"expired": self._server.expire_locks(queue)}
        count, seconds = fault.get("count", 1), fault.get("seconds", 0.0)
        operation = fault.get("operation", "")
        if type(count) is not int or type(seconds) not in {int, float}:
            raise ValueError("'count' is a whole number and 'seconds' a number")
        self._server.arm(kind, queue, operation=str(operation), count=count, seconds=seconds)
        return {"armed": kind, "count": count}


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON; send an object with 'kind'") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object with 'kind'")  # noqa: TRY004 (one kind)
    return value


def _json(value: dict[str, Any]) -> web.Response:
    return _reply(200, json.dumps(value).encode(), "application/json")


def _entry(status: int, entry: bytes) -> web.Response:
    return _reply(status, entry, atom.ENTRY_TYPE)


def _error(status: int, detail: str) -> web.Response:
    return _reply(status, atom.error(status, detail), atom.ERROR_TYPE)


def _reply(status: int, body: bytes, content_type: str) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": content_type})
