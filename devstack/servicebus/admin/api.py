"""What the management port answers.

- ``GET /health``: JSON, always open (with an ``api-version`` it is the queue of that name);
- ``/{queue}`` and ``/$Resources/queues``: the Atom API of `ServiceBusAdministrationClient`;
- ``GET``, ``POST``, ``DELETE /$faults``: what is armed, arm or do something, disarm all.

With --require-key everything but ``/health`` wants a signed token in ``Authorization``.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from devstack.numbers import whole_number
from devstack.servicebus.admin import atom
from devstack.servicebus.admin.http import HttpRequest, HttpResponse
from devstack.servicebus.core.errors import BrokerError, EntityNotFoundError, UnauthorizedError
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.faults import KINDS

if TYPE_CHECKING:
    from devstack.servicebus.broker import Broker

NAMESPACE = "sbemulatorns"
_PAGE_MAX = 100


class AdminApi:
    """Answers requests for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; every refusal is an answer too."""
        if request.path.lower() == "health" and "api-version" not in request.query:
            return _json(200, {"status": "healthy", "queues": len(self._broker.namespace)})
        try:
            self._check_token(request)
            response = self._route(request)
        except UnauthorizedError as error:
            return _error(401, error.description)
        except BrokerError as error:
            return _error(error.status, error.description)
        except ValueError as error:
            return _error(400, str(error))
        self._broker.commit()
        return response

    def _check_token(self, request: HttpRequest) -> None:
        gate = self._broker.gate
        if not gate.closed:
            return
        now = self._broker.clock()
        claim = gate.check(request.headers.get("authorization", ""), request.path, now)
        if not claim.covers(request.path, now):
            raise UnauthorizedError(f"the token is not for '{request.path[:200]}'")

    def _route(self, request: HttpRequest) -> HttpResponse:  # noqa: PLR0911 (one for each place)
        path = request.path.lower()
        if path == "$faults":
            return self._faults(request)
        if path == "$namespaceinfo":
            return HttpResponse(200, atom.namespace_info(NAMESPACE, self._address), atom.ENTRY_TYPE)
        if path == "$resources/queues":
            return self._list(request)
        if path.startswith("$") or "/subscriptions" in path:
            return _error(501, f"'{request.path[:200]}' is not served: this broker has queues only")
        match request.method:
            case "GET":
                return self._get(request.path)
            case "PUT":
                return self._put(request)
            case "DELETE":
                self._broker.delete_queue(request.path)
                return HttpResponse(200, b"", atom.ERROR_TYPE)
            case _:
                return _error(405, "use GET, PUT or DELETE on a queue")

    @property
    def _address(self) -> str:
        return f"http://{self._broker.host}:{self._broker.management_port}"

    def _entry(self, queue: QueueCore) -> str:
        transfer = self._broker.namespace.transfer_queue_of(queue.name)
        return atom.queue_entry(queue, len(transfer.messages) if transfer else 0, self._address)

    def _get(self, name: str) -> HttpResponse:
        try:
            queue = self._broker.namespace.queue(name)
        except EntityNotFoundError:
            empty = atom.feed("Publicly Listed Services", self._address, ())
            return HttpResponse(200, empty, atom.FEED_TYPE)
        return HttpResponse(200, self._entry(queue).encode(), atom.ENTRY_TYPE)

    def _list(self, request: HttpRequest) -> HttpResponse:
        skip = _number(request.query.get("$skip"), 0, least=0)
        top = min(_number(request.query.get("$top"), _PAGE_MAX, least=1), _PAGE_MAX)
        queues = sorted(self._broker.namespace, key=lambda queue: queue.name.lower())
        page = queues[skip : skip + top]
        base = f"{self._address}/$Resources/queues"
        links = [f'<link rel="self" href="{base}"/>']
        if skip + top < len(queues):
            href = f"{base}?$skip={skip + top}&amp;$top={top}"
            links.append(f'<link rel="next" href="{href}"/>')
        entries = links + [self._entry(queue) for queue in page]
        return HttpResponse(200, atom.feed("Queues", base, entries), atom.FEED_TYPE)

    def _put(self, request: HttpRequest) -> HttpResponse:
        properties = atom.read_description(request.body)
        exists = request.path.lower() in {queue.name.lower() for queue in self._broker.namespace}
        if "if-match" in request.headers:
            queue = self._broker.update_to(request.path, properties)
            return HttpResponse(200, self._entry(queue).encode(), atom.ENTRY_TYPE)
        if exists:
            return _error(409, f"queue '{request.path[:200]}' exists already; update or delete it")
        queue = self._broker.create_with(request.path, properties)
        return HttpResponse(201, self._entry(queue).encode(), atom.ENTRY_TYPE)

    # -- faults -----------------------------------------------------------------------------

    def _faults(self, request: HttpRequest) -> HttpResponse:
        broker = self._broker
        match request.method:
            case "GET":
                return _json(200, {"armed": [asdict(f) for f in broker.server.faults.armed]})
            case "DELETE":
                broker.clear_faults()
                return _json(200, {"armed": []})
            case "POST":
                return _json(200, self._do_fault(_object(request.body)))
            case _:
                return _error(405, "use GET, POST or DELETE on $faults")

    def _do_fault(self, wish: dict[str, Any]) -> dict[str, Any]:
        kind, queue = wish.pop("kind", ""), wish.pop("queue", "")
        if not isinstance(kind, str) or not isinstance(queue, str):
            raise ValueError("'kind' and 'queue' are text")  # noqa: TRY004 (one kind of error)
        if kind not in {"drop-connections", "expire-locks"}:
            return self._arm_fault(kind, queue, wish)
        _nothing_else(wish)
        if kind == "drop-connections":
            return {"dropped": self._broker.drop_connections(queue)}
        return {"expired": self._broker.expire_locks(queue)}

    def _arm_fault(self, kind: str, queue: str, wish: dict[str, Any]) -> dict[str, Any]:
        if kind not in KINDS:
            kinds = ", ".join(("drop-connections", "expire-locks", *KINDS))
            raise ValueError(f"'{kind[:50]}' is no fault; use one of {kinds}")
        count, seconds = wish.pop("count", 1), wish.pop("seconds", 0.0)
        operation = wish.pop("operation", "")
        _nothing_else(wish)
        if type(count) is not int or type(seconds) not in {int, float}:
            raise ValueError("'count' is a whole number and 'seconds' a number")
        self._broker.arm(kind, queue, operation=str(operation), count=count, seconds=seconds)
        return {"armed": kind, "count": count}


def _nothing_else(wish: dict[str, Any]) -> None:
    if wish:
        raise ValueError(f"'{next(iter(wish))[:50]}' is no part of this fault; leave it out")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON; send an object with 'kind'") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object with 'kind'")  # noqa: TRY004 (one kind)
    return value


def _number(text: str | None, default: int, least: int) -> int:
    number = default if text is None else whole_number(text)
    if number is None or number < least:
        raise ValueError(
            f"'{(text or '')[:50]}' is no page position; use $skip and $top with numbers"
        )
    return number


def _json(status: int, value: dict[str, Any]) -> HttpResponse:
    return HttpResponse(status, json.dumps(value).encode())


def _error(status: int, detail: str) -> HttpResponse:
    return HttpResponse(status, atom.error(status, detail), atom.ERROR_TYPE)
