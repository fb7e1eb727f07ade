"""Submits far more orders at once than can be handled in time: ``python -m lab.benchmarks.burst``.

No fault is injected: only load can make a step fail. It prints how many orders came to which end,
how often each step was sent, and how long it took. One host process, everything on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from devstack.stack import Stack
from lab.benchmarks.orders import PROJECT, REPLY_QUEUE, Run, closed_loop, content, settings_of
from samples.services.remote import RemoteServices
from sas.adapters.table_store import TableStore
from sas.client import NewOrder, OrdersClient, is_end
from sas.codec.outward import notice_of

TABLE = "orders"


async def burst(orders: int, allowed_s: float) -> None:
    """Submit so many orders at once, follow them to their ends, print what came of them."""
    async with RemoteServices() as remote:
        settings = settings_of(remote) | {"ORDERS_TIME_ALLOWED_SECONDS": f"{allowed_s:g}"}
        async with (
            Stack(PROJECT, settings=settings, groups={"app": []}) as stack,
            OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
        ):
            await closed_loop(client, Run(4), 8, "warm")
            ids = [f"burst-{number}" for number in range(orders)]
            ends, seconds = await _played(client, ids)
            store = TableStore.connect(stack.storage_connection, TABLE)
            try:
                words = await _journals(store, ids)
            finally:
                await store.close()
    resets = words["step reset"] + words["undo reset"]
    waits = words["waits in its queue"]
    print(f"{orders} orders at once, {allowed_s:g} s allowed: {seconds:.0f} s; ends {dict(ends)}")
    print(f"claims per order {words['claimed'] / orders:.2f} (1 is the least)")
    print(f"resets per order {resets / orders:.2f}, more time in a queue {waits / orders:.2f}")


async def _played(client: OrdersClient, ids: Sequence[str]) -> tuple[Counter[str], float]:
    """Return how the orders ended, and after how many seconds the last one had."""
    order, begun = content(), time.perf_counter()
    await client.submit_many([NewOrder(order_id, order) for order_id in ids])
    ends: dict[str, str] = {}
    async for event in client.follow(ids, quiet_s=120):
        if is_end(event):
            ends[event.data.order_id] = notice_of(event.type)
            if len(ends) % 100 == 0:
                print(f"  {len(ends)} ended after {time.perf_counter() - begun:.0f} s", flush=True)
    return Counter(ends.values()), time.perf_counter() - begun


async def _journals(store: TableStore, ids: Sequence[str]) -> Counter[str]:
    """Return what all journals say happened, counted."""
    return Counter([row.what for order_id in ids for row in await store.journal(order_id)])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m lab.benchmarks.burst")
    parser.add_argument("--orders", type=int, default=600, help="how many at once")
    parser.add_argument("--allowed", type=float, default=8.0, help="seconds allowed for each step")
    arguments = parser.parse_args()
    asyncio.run(burst(arguments.orders, arguments.allowed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
