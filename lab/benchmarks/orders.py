"""Orders a second, latency, requests per order: ``python -m lab.benchmarks.orders``.

Everything runs on this machine (broker, Azurite, one host process, services without faults). So
absolute figures depend on the machine as much as on the code. Compare only ratios within one run.
``--memory 10000`` measures how the memory of a host process grows; ``--processes 2`` starts more
host processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from devstack.functions.host import Host
from devstack.stack import Stack
from samples.services.remote import RemoteServices
from sas.adapters.servicebus import ServiceBus
from sas.adapters.tables.store import TableStore
from sas.client import NewOrder, OrdersClient, is_end
from sas.domain.ids import parse_key_time

PROJECT = Path(__file__).parents[2]
REPLY_QUEUE = "responses-web-shop"
IN_FLIGHT = (1, 10, 100)
COUNTED_ORDERS = 20
CLOCK_TICKS = 100.0


@dataclass(slots=True, kw_only=True)
class LoadRun:
    """Latencies of completed orders in seconds, and the duration of the run.

    ``done`` is from submitting to the commit that completed the order (the event's own time),
    ``notified`` until this client had the event.
    """

    in_flight: int
    seconds: float = 0.0
    sent_at: dict[str, float] = field(default_factory=dict)
    done: list[float] = field(default_factory=list)
    notified: list[float] = field(default_factory=list)

    def percentile(self, latencies: list[float], share: float) -> float:
        """Return the latency that this share of orders did not exceed, in milliseconds."""
        ordered = sorted(latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def content() -> dict[str, Any]:
    """Return the first real order's content."""
    lines = (PROJECT / "samples" / "northwind-orders.jsonl").read_text(encoding="utf-8")
    order: dict[str, Any] = json.loads(lines.split("\n", 1)[0])
    del order["order_id"]
    return order


async def closed_loop(client: OrdersClient, run: LoadRun, orders: int, prefix: str) -> None:
    """Keep ``in_flight`` orders under way until ``orders`` have completed."""
    order = content()
    ids = [f"{prefix}-{number}" for number in range(orders)]
    waiting = iter(ids)
    started_at = time.perf_counter()

    async def send(count: int) -> None:
        batch = [order_id for _, order_id in zip(range(count), waiting, strict=False)]
        if batch:
            now = time.time()
            run.sent_at.update(dict.fromkeys(batch, now))
            await client.submit_many(
                [NewOrder(order_id=order_id, order=order) for order_id in batch]
            )

    await send(run.in_flight)
    async for event in client.follow(ids, quiet_s=60):
        sent_at = run.sent_at.get(event.data.order_id)
        if is_end(event) and sent_at is not None:
            run.notified.append(time.time() - sent_at)
            run.done.append(parse_key_time(event.time).timestamp() - sent_at)
            await send(1)
    run.seconds = time.perf_counter() - started_at


async def speed(orders: int, processes: int, inline: str) -> None:
    """Print orders a second and latency at several numbers in flight, and CPU per order."""
    async with (
        RemoteServices() as remote,
        Stack(
            PROJECT, settings=settings_of(remote, inline), groups={"app": []}, processes=processes
        ) as stack,
        OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
    ):
        await closed_loop(client, LoadRun(in_flight=8), 20 * processes, "warm")
        print("in flight   orders/s   done p50, p99 ms   notified p50, p99 ms   orders")
        for in_flight in IN_FLIGHT:
            run = LoadRun(in_flight=in_flight)
            count = min(orders, 20 * in_flight) if in_flight < 100 else orders
            cpu = {child.name: cpu_s(child.pid) for child in stack.children()}
            await closed_loop(client, run, count, f"b{in_flight}")
            latencies_text = "".join(
                f"{run.percentile(latencies, 0.5):9.0f} {run.percentile(latencies, 0.99):9.0f}"
                for latencies in (run.done, run.notified)
            )
            print(f"{in_flight:9} {count / run.seconds:10.1f}{latencies_text} {count:8}")
        cpu_ms = {c.name: 1000 * (cpu_s(c.pid) - cpu[c.name]) / count for c in stack.children()}
    print("CPU ms per order at 100 in flight: " + _listed(cpu_ms, "{:.1f}"))


async def counts(inline: str) -> None:
    """Print storage requests and Service Bus messages per order, without sweeps."""
    async with RemoteServices() as remote:
        stack = Stack(PROJECT, settings=settings_of(remote, inline), groups={})
        async with stack:
            settings = stack.host_settings()
            async with (
                Host(PROJECT, settings=settings, without=["supervisor"]),
                OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
            ):
                import function_app  # noqa: PLC0415  the host has set its environment by now

                application = function_app.app.application()
                await closed_loop(client, LoadRun(in_flight=4), COUNTED_ORDERS, "first")
                store, bus = application.context.store, application.context.bus
                if not isinstance(store, TableStore) or not isinstance(bus, ServiceBus):
                    raise TypeError("only requests of the real adapters can be counted")
                before = store.table.meter.now() + bus.meter
                await closed_loop(client, LoadRun(in_flight=4), COUNTED_ORDERS, "counted")
                usage = store.table.meter.now() + bus.meter - before
                await application.close()
    per_order = {
        counter.name: getattr(usage, counter.name) / COUNTED_ORDERS for counter in fields(usage)
    }
    print(
        f"per three-step order: {usage.requests / COUNTED_ORDERS:.2f} storage requests; "
        + _listed({name: value for name, value in per_order.items() if value}, "{:.2f}")
    )


async def memory(orders: int) -> None:
    """Print the memory of a host process every thousand orders, and how it grew."""
    async with (
        RemoteServices() as remote,
        Stack(PROJECT, settings=settings_of(remote), groups={"app": []}) as stack,
        OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
    ):
        pid = stack.group("app")[0].pid
        sizes: list[int] = []
        for thousand in range(-(-orders // 1000)):
            await closed_loop(client, LoadRun(in_flight=60), 1000, f"m{thousand}")
            sizes.append(_rss_kib(pid))
            print(f"{1000 * (thousand + 1):7} orders: {sizes[-1] / 1024:.1f} MiB", flush=True)
    print(f"host process after {orders} orders / after 1000: {sizes[-1] / sizes[0]:.3f}")


def settings_of(remote: RemoteServices, inline: str = "") -> dict[str, str]:
    """Return the app settings of a host that speaks to these services."""
    return {
        "ORDERS_INLINE_AGENTS": inline,
        "ORDERS_STOCK_URL": remote.urls["stock"],
        "ORDERS_PAYMENT_URL": remote.urls["payment"],
        "ORDERS_SHIPPING_URL": remote.urls["shipping"],
        "ORDERS_MAIL_URL": remote.urls["mail"],
        "ORDERS_CARRIER_URL": remote.urls["carrier"],
        "ORDERS_TIME_ALLOWED_SECONDS": "60",
    }


def _listed(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def main() -> int:
    """Run the measurements."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.orders", description=__doc__)
    parser.add_argument("--orders", type=int, default=300, help="orders at 100 in flight")
    parser.add_argument("--processes", type=int, default=1, help="host processes (1)")
    parser.add_argument("--inline", default="", metavar="AGENTS", help="agents that run inline")
    parser.add_argument("--memory", type=int, help="watch memory over this many orders instead")
    options = parser.parse_args()
    if options.memory:
        asyncio.run(memory(options.memory))
        return 0
    asyncio.run(counts(options.inline))
    asyncio.run(speed(options.orders, options.processes, options.inline))
    return 0


if __name__ == "__main__":
    sys.exit(main())
