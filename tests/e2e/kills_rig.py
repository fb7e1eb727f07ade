"""function_app.py in processes under a steady load of orders, and what must hold in the end.

Broker and Azurite keep their data on disk and come back on the ports they had. The remote
services live in the test's own process: their ledgers outlive every kill.
"""

from __future__ import annotations

import asyncio
import random
import re
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devstack.stack import Stack
from samples.remote_services import Faults, RemoteServices
from sas.adapters.tables.store import TableStore
from sas.client import NewOrder, OrdersClient, SubmitError
from sas.domain.queues import Queues
from sas.ports import StoreUnavailableError
from tests import business
from tests.functions_rig import SHOP, WHOLESALE, WORKED, addresses, northwind, own_app, own_queues

AGENTS = tuple(f"agent_{agent}{lane}" for agent in business.AGENTS for lane in ("", "_urgent"))
CORE = (
    *("submission", "scheduler", "deadletters"),
    *("submission_urgent", "scheduler_urgent"),
)
APART = {"agents": AGENTS, "core": CORE, "supervisor": ("supervisor",)}
TOGETHER = {"host": (*AGENTS, *CORE, "supervisor")}
WORKFLOWS = {SHOP: "order", WHOLESALE: "order-with-care"}
LOCK = "PT5S"
"""The shortest that Azure allows: what a killed process had in hand comes back after that."""
EVERY_S = 0.25
ENDS_WITHIN_S = 240.0
"""Far more than is needed: a killed supervisor's words wait 30 s (``OUT_AGAIN_AFTER``)."""
SETTINGS = {
    "SAS_SUPERVISOR_SCHEDULE": "* * * * * *",
    "TESTS_TIME_ALLOWED_SECONDS": "6",
    "TESTS_ATTEMPT_SECONDS": "20",
}


@dataclass(kw_only=True)
class System:
    """A running system, the orders it was given, and the hand that kills."""

    stack: Stack
    remote: RemoteServices
    store: TableStore
    chance: random.Random
    orders: dict[str, str] = field(default_factory=dict)
    killed: list[int] = field(default_factory=list)

    async def load(self, count: int) -> None:
        """Submit orders one by one from two applications, each until it is taken.

        Those of wholesale are urgent: they go another way, by queues and functions of their own.
        """
        text = self.stack.servicebus_connection
        async with (
            OrdersClient(text, reply_queue=SHOP, patience_s=3) as shop,
            OrdersClient(
                text, reply_queue=WHOLESALE, patience_s=3, queues=Queues().urgent
            ) as wholesale,
        ):
            for number in range(count):
                queue = WHOLESALE if number % 3 == 2 else SHOP
                client = wholesale if queue == WHOLESALE else shop
                await _submit(client, f"K-{number:03}", WORKFLOWS[queue])
                self.orders[f"K-{number:03}"] = queue
                await asyncio.sleep(EVERY_S)

    async def pause(self, seconds_min: float, seconds_max: float) -> None:
        """Wait for a random while, in seconds."""
        await asyncio.sleep(self.chance.uniform(seconds_min, seconds_max))

    async def kill_group(self, name: str, functions: Sequence[str]) -> None:
        """``kill -9`` a group of functions, and start it again a random while later."""
        self.killed += self.stack.kill(name)
        await self.pause(0.0, 1.0)
        await self.stack.start_group(functions, name=name)

    async def kill_broker(self) -> None:
        """``kill -9`` the broker, and start it again on its port with what it kept."""
        broker = self.stack.broker
        assert broker is not None
        self.killed.append(broker.pid)
        broker.kill()
        await self.pause(0.0, 1.0)
        await broker.start_async(timeout_s=120)

    async def kill_azurite(self) -> None:
        """``kill -9`` Azurite, and start it again on its port with its tables."""
        azurite = self.stack.azurite
        assert azurite is not None
        assert azurite.child is not None
        self.killed.append(azurite.child.pid)
        azurite.child.kill()
        await self.pause(2.0, 4.0)
        await azurite.child.start_async(timeout_s=120)

    async def kill_everything(self) -> None:
        """``kill -9`` all of it."""
        for child in self.stack.children():
            self.killed.append(child.pid)
            child.kill()

    async def settled(self) -> None:
        """Wait until every order has come to its end, nothing is due and no message waits."""

        async def there() -> bool:
            self.stack.check()
            stopped = [*await self.store.finished(1000), *await self.store.attention(1000)]
            if not {order.order_id for order in stopped} >= set(self.orders):
                return False
            if any([await self.store.oldest_due(shard) for shard in self.store.shards]):
                return False
            counts = await self.counts()
            return not any(counts[queue, "Active"] for queue in WORKED)

        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                while True:
                    try:
                        if await there():
                            return
                    except StoreUnavailableError:
                        pass  # it is being started again
                    await asyncio.sleep(0.25)
        except TimeoutError:
            raise AssertionError(f"not at rest: {await self._restless()}") from None

    async def counts(self) -> dict[tuple[str, str], int]:
        """Return how many messages are Active, DeadLetter and so on, by queue and kind."""

        def ask() -> str:
            address = f"http://127.0.0.1:{self.stack.management_port}/$Resources/queues"
            with urllib.request.urlopen(address, timeout=60) as answer:
                return str(answer.read().decode())

        counts = {}
        for entry in (await asyncio.to_thread(ask)).split("<entry")[1:]:
            (name,) = re.findall(r"<title[^>]*>([^<]+)<", entry)
            for kind, count in re.findall(r"<[\w:]*?(\w+)MessageCount>(\d+)<", entry):
                counts[name, kind] = int(count)
        return counts

    async def _restless(self) -> list[str]:
        orders = {order_id: await self.store.load(order_id) for order_id in self.orders}
        due = {shard: await self.store.oldest_due(shard) for shard in self.store.shards}
        under_way = [order for order in orders.values() if order and not order.stopped_at]
        return [
            *(f"{order_id} is not there" for order_id, order in orders.items() if not order),
            *(f"{order.order_id}: {order.steps}" for order in under_way),
            *(f"shard {shard} due {oldest}" for shard, oldest in due.items() if oldest),
            *(f"{where}: {count}" for where, count in (await self.counts()).items() if count),
        ]


async def _submit(client: OrdersClient, order_id: str, workflow: str) -> None:
    new = NewOrder(
        order_id=order_id,
        order=northwind(),
        workflow=workflow,
        correlation_id=f"c-{order_id}",
        submission_id=f"s-{order_id}",
    )
    async with asyncio.timeout(ENDS_WITHIN_S):
        while True:
            try:
                await client.submit(new)
            except SubmitError:
                await asyncio.sleep(0.2)  # safe to send again, under the id it had
            else:
                return


def _config() -> dict[str, Any]:
    """Return the queues with the shortest lock."""
    config = own_queues()
    for queue in config["UserConfig"]["Namespaces"][0]["Queues"]:
        queue["Properties"]["LockDuration"] = LOCK
    return config


def stack_of(
    folder: Path, groups: Mapping[str, Sequence[str]], remote: RemoteServices, **settings: str
) -> Stack:
    """Describe a stack that keeps its data in the folder."""
    return Stack(
        own_app(folder / "app"),
        config=_config(),
        settings=SETTINGS | addresses(remote) | settings,
        groups=groups,
        data=folder / "data",
        logs=folder / "logs",
    )


@asynccontextmanager
async def running(stack: Stack, remote: RemoteServices, seed: int) -> AsyncIterator[System]:
    """Start everything; stop it all at the end."""
    async with stack:
        store = TableStore.connect(stack.storage_connection)
        try:
            yield System(stack=stack, remote=remote, store=store, chance=random.Random(seed))  # noqa: S311
        finally:
            await store.close()


@asynccontextmanager
async def system(
    folder: Path,
    groups: Mapping[str, Sequence[str]],
    faults: Faults,
    seed: int,
    **settings: str,
) -> AsyncIterator[System]:
    """Start everything, remote services too; stop it all at the end."""
    async with (
        RemoteServices(faults) as remote,
        running(stack_of(folder, groups, remote, **settings), remote, seed) as deployment,
    ):
        yield deployment
