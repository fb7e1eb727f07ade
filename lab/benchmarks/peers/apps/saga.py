"""The three steps and their undos, as HTTP calls that every peer makes alike.

The services are those of ``samples.remote_services``, which this project's agents call too. A
call has a key of its own for each step, so that a repeated call has one effect.
"""

from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.parse import urlsplit

import aiohttp

STEPS = ("reserve-stock", "take-payment", "ship")
SECONDS_MAX = float(os.environ.get("PEERS_STEP_SECONDS", "60"))
"""Time allowed for one step."""

_SERVICES = {
    "reserve-stock": ("stock", "/reservations"),
    "take-payment": ("payment", "/charges"),
    "ship": ("shipping", "/shipments"),
}


class RefusedError(Exception):
    """The service refused for good: undo the order."""


def url_of(step: str) -> str:
    """Return the address of a step's service."""
    service, path = _SERVICES[step]
    return str(json.loads(os.environ["PEERS_SERVICES"])[service]) + path


def headers_of(order_id: str, step: str) -> dict[str, str]:
    """Return the headers of a call and of its undo."""
    return {"Idempotency-Key": f"{order_id}/{step}", "Content-Type": "application/json"}


def body_of(step: str, order_id: str, order: dict[str, Any], results: dict[str, Any]) -> bytes:
    """Return the body of a call."""
    body: dict[str, Any] = {"order_id": order_id}
    if step == "reserve-stock":
        body["lines"] = order["lines"]
    elif step == "take-payment":
        body |= {"customer_id": order["customer_id"], "amount": order["amount"], "currency": "USD"}
    else:
        reserved = results["reserve-stock"]["reservation_id"]
        body |= {"ship_to": order["ship_to"], "reservation_id": reserved}
    return json.dumps(body).encode()


def answer_of(status: int, text: bytes) -> dict[str, Any]:
    """Return an answer, or raise: RefusedError for good, OSError to try again."""
    if status < 400:
        answer: dict[str, Any] = json.loads(text or b"{}")
        return answer
    if status in {400, 404, 409, 410, 422}:
        raise RefusedError(f"{status}: {text.decode(errors='replace')}")
    raise OSError(f"the service answered {status}")


class Services:
    """The services for asynchronous code; one connection pool."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def do(
        self, step: str, order_id: str, order: dict[str, Any], results: dict[str, Any]
    ) -> dict[str, Any]:
        """Carry out a step."""
        return await self._call("POST", step, order_id, body_of(step, order_id, order, results))

    async def undo(self, step: str, order_id: str) -> dict[str, Any]:
        """Undo a step, whether it had an effect or not."""
        return await self._call("DELETE", step, order_id, None)

    async def _call(
        self, method: str, step: str, order_id: str, body: bytes | None
    ) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10))
        url, headers = url_of(step), headers_of(order_id, step)
        async with self._session.request(method, url, data=body, headers=headers) as response:
            return answer_of(response.status, await response.read())


class BlockingServices:
    """The same for synchronous code; one connection for each service, kept open."""

    def __init__(self) -> None:
        self._open: dict[str, http.client.HTTPConnection] = {}

    def do(
        self, step: str, order_id: str, order: dict[str, Any], results: dict[str, Any]
    ) -> dict[str, Any]:
        """Carry out a step."""
        return self._call("POST", step, order_id, body_of(step, order_id, order, results))

    def undo(self, step: str, order_id: str) -> dict[str, Any]:
        """Undo a step, whether it had an effect or not."""
        return self._call("DELETE", step, order_id, None)

    def _call(self, method: str, step: str, order_id: str, body: bytes | None) -> dict[str, Any]:
        parts = urlsplit(url_of(step))
        if step not in self._open:
            self._open[step] = http.client.HTTPConnection(parts.netloc, timeout=10)
        connection = self._open[step]
        try:
            connection.request(method, parts.path, body, headers_of(order_id, step))
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as broken:
            self._open.pop(step).close()
            raise OSError(str(broken)) from broken
        return answer_of(response.status, text)
