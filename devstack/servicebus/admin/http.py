"""As much HTTP/1.1 as the management port needs, with a bound on everything a peer may send."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

from devstack.numbers import whole_number

_log = logging.getLogger("devstack.servicebus")
_HEAD_MAX_BYTES = 16 * 1024
_BODY_MAX_BYTES = 256 * 1024
_REQUEST_WITHIN_S = 30.0
_CONNECTIONS_MAX = 100


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: ``path`` is decoded and without slashes at its ends, header names are lower."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class BadRequestError(Exception):
    """A request that cannot be answered otherwise; ``status`` says how, the text why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Listens on one port and gives every request to ``handler``."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_HEAD_MAX_BYTES)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        for task, writer in self._open.items():
            task.cancel()
            writer.close()  # a task that has not begun yet closes nothing
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        keep = False
        try:
            async with asyncio.timeout(_REQUEST_WITHIN_S):
                request = await _read(reader)
            if request is None:
                return False
            keep = request.headers.get("connection", "").lower() != "close"
            response = await self._handler(request)
        except TimeoutError:
            return False
        except BadRequestError as error:
            response = HttpResponse(error.status, str(error).encode(), "text/plain")
        except Exception:  # noqa: BLE001 (one request must not take the port down)
            _log.exception("a management request failed")
            response = HttpResponse(500, b"the broker failed; see its log", "text/plain")
        writer.write(_encode(response, keep=keep))
        await writer.drain()
        return keep


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadRequestError(400, "the request ends within its head") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadRequestError(
            431, f"a request's head has at most {_HEAD_MAX_BYTES} bytes"
        ) from None
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequestError(400, "this port speaks HTTP/1.1; AMQP is on the other port")
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines[1:])
        if colon
    }
    length = whole_number(headers.get("content-length", "0"))
    if length is None or "transfer-encoding" in headers:
        raise BadRequestError(411, "send a Content-Length; chunked bodies are not read here")
    if length > _BODY_MAX_BYTES:
        raise BadRequestError(413, f"a request's body has at most {_BODY_MAX_BYTES} bytes")
    try:
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise BadRequestError(400, f"the request ends within its body of {length} bytes") from None
    try:
        url = urlsplit(parts[1])
    except ValueError:
        raise BadRequestError(400, "the request's target is no URL") from None
    query = {name.lower(): value for name, value in parse_qsl(url.query)}
    return HttpRequest(parts[0].upper(), unquote(url.path).strip("/"), query, headers, body)


def _encode(response: HttpResponse, *, keep: bool) -> bytes:
    phrase = HTTPStatus(response.status).phrase
    lines = [
        f"HTTP/1.1 {response.status} {phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + response.body
