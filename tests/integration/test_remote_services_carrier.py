"""The carrier over HTTP: it delivers late, is asked again, calls back, and takes parcels back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from samples.remote_services import Faults, RemoteServices

PARCEL = {"order_id": "a", "tracking": "NWTRACK000001"}


class Road:
    """``time`` and ``asyncio`` for the carrier: parcels are on their way until the test says so."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def monotonic(self) -> float:
        return 600.0 if self.arrived.is_set() else 0.0

    async def sleep(self, _seconds: float) -> None:
        await self.arrived.wait()


@pytest.fixture
def road(monkeypatch: pytest.MonkeyPatch) -> Road:
    road = Road()
    for name in ("time", "asyncio"):
        monkeypatch.setattr(f"samples.services.carrier.{name}", road)
    return road


@pytest.fixture
async def remote() -> AsyncIterator[RemoteServices]:
    async with RemoteServices({"carrier": Faults(delivery=0.6)}) as remote:
        yield remote


async def call(remote: RemoteServices, method: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Idempotency-Key": "a/deliver"}
    address = f"{remote.urls['carrier']}/deliveries"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, address, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


class Listener:
    """A receiver of callbacks that answers as the test says."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[Any] = []

    async def __aenter__(self) -> str:
        app = web.Application()
        app.add_routes([web.post("/told", self._take)])
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/told"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.Response(status=self.statuses.pop(0))


async def until(there: Any) -> None:
    async with asyncio.timeout(120):
        while not there():  # noqa: ASYNC110  what is asked is outside
            await asyncio.sleep(0.02)


async def test_a_parcel_is_on_its_way_until_it_is_delivered_once(
    remote: RemoteServices, road: Road
) -> None:
    status, answer = await call(remote, "POST", PARCEL)
    assert (status, answer["state"]) == (202, "on-its-way")
    assert answer["check_after"] >= 0.5
    assert remote.ledger("carrier")["effects"] == []
    road.arrived.set()
    for _ in range(2):
        status, answer = await call(remote, "POST", PARCEL)
        assert (status, answer["state"]) == (201, "delivered")
    assert len(remote.ledger("carrier")["effects"]) == 1


async def test_it_calls_back_until_it_is_answered_and_the_address_is_not_part_of_the_parcel(
    remote: RemoteServices, road: Road
) -> None:
    listener = Listener(503, 202)
    async with listener as address:
        assert (await call(remote, "POST", PARCEL | {"answer_to": address}))[0] == 202
        other = PARCEL | {"answer_to": address + "?again"}
        assert (await call(remote, "POST", other))[0] == 202
        road.arrived.set()
        await until(lambda: len(listener.bodies) == 2)
    result = {"delivery_id": "D-000001", "state": "delivered"}
    assert listener.bodies == [{"outcome": "done", "result": result}] * 2
    assert len(remote.ledger("carrier")["effects"]) == 1


async def test_if_its_callback_is_too_late_it_takes_the_parcel_back(
    remote: RemoteServices,
) -> None:
    listener = Listener(410)
    async with listener as address:
        await call(remote, "POST", PARCEL | {"answer_to": address})
        await until(lambda: listener.bodies)
        await until(lambda: remote.ledger("carrier")["effects"][0]["undone_at"])


async def test_a_parcel_called_back_on_its_way_is_never_delivered_nor_reported(
    remote: RemoteServices, road: Road
) -> None:
    listener = Listener(202)
    async with listener as address:
        await call(remote, "POST", PARCEL | {"answer_to": address})
        assert await call(remote, "DELETE") == (200, {"undone": False})
        road.arrived.set()
        await asyncio.sleep(0.3)
        assert listener.bodies == []
    assert remote.ledger("carrier")["effects"] == []
    status, answer = await call(remote, "POST", PARCEL)
    assert (status, answer["type"]) == (409, "urn:sample:undone")
