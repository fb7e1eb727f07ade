"""The management port over HTTP.

- ``GET /health``: JSON, needs no token (with an ``api-version`` it is the queue of that name);
- ``/{queue}`` and ``/$Resources/queues``: the Atom API of `ServiceBusAdministrationClient`;
- ``GET``, ``POST``, ``DELETE /$faults``: list the armed faults, arm or do a fault, disarm all.

With a required key every request except ``/health`` needs a signed token in ``Authorization``.
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

    async def start(self, port: int) -> int:
        """Listen; return the port, a free one if ``port`` is 0. Raises OSError."""
        http = web.Server(self._handle, access_log=None, logger=_aiohttp_log)
        host, loop = self._server.host, asyncio.get_running_loop()
        self._listener = await loop.create_server(http, host, port)
        self._http = http
        bound_port: int = self._listener.sockets[0].getsockname()[1]
        self._address = f"http://{host}:{bound_port}"
        return bound_port

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._http is not None:
            self._listener.close()
            await self._http.shutdown(_STOPS_WITHIN_S)

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        try:
            return self._answer(request, request.path.strip("/"), body)
        except BrokerError as error:
            return _error(error.status, error.description)
        except ValueError as error:
            return _error(400, str(error))
        except Exception:  # noqa: BLE001 (one request must not stop the port)
            _log.exception("a management request failed")
            return _error(500, "the broker failed; see its log")

    def _answer(self, request: web.BaseRequest, path: str, body: bytes) -> web.Response:
        query = {name.lower(): value for name, value in request.query.items()}
        if path.lower() == "health" and "api-version" not in query:
            return _json({"status": "healthy", "queues": len(self._server.namespace)})
        self._check_token(path, request.headers.get("Authorization", ""))
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

    def _check_token(self, path: str, token: str) -> None:
        if self._server.tokens.enabled:
            now = self._server.clock()
            if not self._server.tokens.check(token, path, now).covers(path, now):
                raise UnauthorizedError(f"the token is not for '{path[:200]}'")

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
