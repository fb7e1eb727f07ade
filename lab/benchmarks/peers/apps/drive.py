"""The driver: keeps orders in flight at one peer, and prints each as it ends.

``python -m lab.benchmarks.peers.apps.drive CLIENT ADDRESS`` in the peer's Python. A line of JSON on
standard input starts a run: ``{"prefix", "in_flight", "seconds" or "orders"}``. Each order gives a
line ``[id, outcome, sent, ended]`` (seconds of the monotonic clock); ``{"ended": count}`` ends the
run. Standard input's end stops the driver.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from typing import Any, Protocol

CONTENT: dict[str, Any] = json.loads(os.environ["PEERS_ORDER"])


class Client(Protocol):
    """Takes one order to a peer and waits for its end."""

    async def open(self) -> None:
        """Connect."""

    async def order(self, order_id: str) -> str:
        """Send an order; return *done* or *undone* when this client hears of it."""


class HttpClient:
    """Restate and DBOS: a request whose answer is the result; DBOS's is repeated after a kill."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self) -> None:
        import aiohttp  # noqa: PLC0415  each client has what its own Python has

        self._lost = (aiohttp.ClientError, OSError)
        none = aiohttp.ClientTimeout(None)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=none, connector=connector)

    async def order(self, order_id: str) -> str:
        while True:
            try:
                url = self._address.format(id=order_id)
                async with self._session.post(url, json=CONTENT) as answer:
                    if answer.status == 200:
                        return str(await answer.json())
                    raise RuntimeError(f"{order_id}: {answer.status} {await answer.text()}")
            except self._lost:
                await asyncio.sleep(0.1)  # the workers were killed: the same id finds its workflow


class TemporalClient:
    """Temporal's own client."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self) -> None:
        from temporalio.client import Client as TemporalioClient  # noqa: PLC0415

        self._client = await TemporalioClient.connect(self._address)

    async def order(self, order_id: str) -> str:
        run: Any = self._client.execute_workflow
        return str(await run("Saga", CONTENT, id=order_id, task_queue="saga"))


class CeleryClient:
    """Celery publishes each result on a Redis channel, which its own ``get`` listens to."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def open(self) -> None:
        from redis.asyncio import Redis  # noqa: PLC0415

        from lab.benchmarks.peers.apps import celery_app  # noqa: PLC0415

        self._app: Any = celery_app
        self._results = Redis.from_url(self._address).pubsub()
        await self._results.psubscribe("celery-task-meta-*")
        self._listening = asyncio.create_task(self._listen())

    async def order(self, order_id: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[order_id] = future
        chain = self._app.order(order_id, CONTENT)
        await asyncio.to_thread(chain.apply_async)
        return await future

    async def _listen(self) -> None:
        async for message in self._results.listen():
            if message["type"] != "pmessage":
                continue
            result = json.loads(message["data"])
            if result["status"] != "SUCCESS":
                continue
            future = self._waiting.pop(result["task_id"], None)
            if future is not None:
                future.set_result("undone" if result["result"] == "undone" else "done")


class OwnClient:
    """This project's client; the address is the connection string."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def open(self) -> None:
        from sas.client import NewOrder, OrdersClient, is_end  # noqa: PLC0415

        self._new, self._is_end = NewOrder, is_end
        self._content = {name: value for name, value in CONTENT.items() if name != "amount"}
        self._client = OrdersClient(self._address, reply_queue="responses-web-shop")
        self._listening = asyncio.create_task(self._listen())

    async def order(self, order_id: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[order_id] = future
        await self._client.submit(self._new(order_id, self._content))
        return await future

    async def _listen(self) -> None:
        async for event in self._client.events():
            future = self._waiting.get(event.data.order_id)
            if future is not None and self._is_end(event) and not future.done():
                outcome = event.type.removesuffix(".v1").rsplit(".", 1)[-1]
                future.set_result("done" if outcome == "completed" else outcome)


CLIENTS: dict[str, type[Any]] = {
    "http": HttpClient,
    "temporal": TemporalClient,
    "celery": CeleryClient,
    "own": OwnClient,
}


async def run(client: Client, load: dict[str, Any]) -> None:
    """Keep orders in flight until the time or the number of orders is reached."""
    numbers = itertools.count()
    until = time.monotonic() + load.get("seconds", 1e9)
    orders_max = load.get("orders", 1_000_000_000)
    ended = 0

    async def worker() -> None:
        nonlocal ended
        while time.monotonic() < until and (number := next(numbers)) < orders_max:
            order_id, sent_at = f"{load['prefix']}-{number}", time.monotonic()
            outcome = await client.order(order_id)
            ended += 1
            print(json.dumps([order_id, outcome, sent_at, time.monotonic()]), flush=True)

    await asyncio.gather(*(worker() for _ in range(load["in_flight"])))
    print(json.dumps({"ended": ended}), flush=True)


async def main(name: str, address: str) -> None:
    """Carry out one run after another."""
    client: Client = CLIENTS[name](address)
    await client.open()
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await run(client, json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
