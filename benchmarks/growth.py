"""What grows with the number of finished orders, what does not: ``python -m benchmarks.growth``.

Sweep, lists and purge over stores with up to a million finished orders, and orders a second with
1, 2 and 4 host processes. Each curve becomes a picture (SVG). The memory store finds rows by key,
as Table Storage does; Azurite has no key index and walks the table for every query, so its times
grow with the table whatever is asked. Its requests and rows per operation are what a table is
asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.orders import PROJECT, REPLY_QUEUE, Run, closed_loop, cpu_s, settings_of
from benchmarks.picture import Curve, picture
from devstack.azurite import Azurite
from devstack.stack import Stack
from samples.services.remote import RemoteServices
from sas.actors.agent import RetryPolicy
from sas.adapters.clock import SystemClock
from sas.adapters.table import RefusedTransactionError, UnknownOutcomeError
from sas.adapters.table_store import TableStore
from sas.adapters.transaction import Operation, operations
from sas.bootstrap import Application, actors, wired
from sas.cli.counts import PURGE_RUN
from sas.client import OrdersClient
from sas.domain.change import Change
from sas.domain.ids import key_time, shard_of
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.domain.workflow import Workflows
from sas.engine.messages import Addresses
from sas.features.callbacks.codec import CallbackKeys
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Business, StateStore
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.unit.actors_kit import AGENTS, CHAIN, ScriptedAgent

OUT = PROJECT / "build" / "growth"
IN_ERROR = 20
LISTED = 50
SAMPLES = 5
Clock = Callable[[], float]
PURGED = 200
"""Orders that the purge removes from each memory store."""
RETENTION = timedelta(days=30)
ID = "GROWTH-00000000"
THREE = cases.rules_of(3)


@dataclass(slots=True)
class Point:
    """What was measured at one number of finished orders."""

    orders: int
    values: dict[str, float] = field(default_factory=dict)


async def three_steps(at: datetime, *, error: bool = False) -> list[Change]:
    """Return the changes of a three-step order that is Processed (or in Error) at a time."""
    store, changes = MemoryStore(), []

    async def commit(change: Change) -> Order:
        changes.append(change)
        return await store.commit(change)

    order = await commit(cases.submitted(ID, THREE))
    order = await commit(cases.claimed(order, THREE))
    if error:
        await commit(cases.refused(order, 0, THREE, at=at))
        return changes
    for step in range(3):
        order = await commit(cases.answered(order, step, THREE, at=at))
    return changes


async def fill_memory(store: MemoryStore, count: int, ended: datetime) -> None:
    """Commit so many finished orders, and a few in Error; only ``PURGED`` are old enough to go."""
    for error, number in ((False, count), (True, IN_ERROR)):
        last = (await three_steps(ended, error=error))[-1]
        for one in range(number):
            order_id = f"{'ERROR' if error else 'GROWTH'}-{one:08}"
            details = replace(last.after.details, order_id=order_id)
            at = ended + one * timedelta(milliseconds=1) + (one >= PURGED) * RETENTION / 2
            after = replace(last.after, details=details, settled_at=at)
            await store.commit(Change(None, after, last.entry))


async def rows_of(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return the rows that are there after these changes."""
    rows: dict[str, dict[str, Any]] = {}
    for change in changes:
        for operation in operations(change):
            rows.pop(operation.row_key, None)
            if operation.verb != "delete":
                rows[operation.row_key] = dict(operation.row)
    return list(rows.values())


async def written(store: TableStore, shard: str, batch: Sequence[Operation]) -> None:
    """Create rows that are not there yet, also if a connection breaks in between."""
    while True:
        try:
            await store.table.transact(shard, batch)
        except UnknownOutcomeError:
            continue
        except RefusedTransactionError as refused:
            if refused.status != 409:  # an earlier try was written
                raise
        return


async def fill_table(store: TableStore, begin: int, count: int, ended: datetime) -> None:
    """Write finished orders into a table, several in each transaction."""
    await store.open()
    template = await rows_of(await three_steps(ended))
    together = 100 // len(template)
    shards: dict[str, list[tuple[str, str]]] = {}
    for number in range(begin, begin + count):
        order_id = f"GROWTH-{number:08}"
        at = key_time(ended + number * timedelta(milliseconds=1))
        shards.setdefault(shard_of(order_id, len(store.shards)), []).append((order_id, at))

    def renamed(value: Any, order_id: str, at: str) -> Any:
        if not isinstance(value, str):
            return value
        return value.replace(ID, order_id).replace(key_time(ended), at)

    async def fill(shard: str, orders: list[tuple[str, str]]) -> None:
        for first in range(0, len(orders), together):
            batch = [
                Operation("create", {name: renamed(value, *one) for name, value in row.items()})
                for one in orders[first : first + together]
                for row in template
            ]
            await written(store, shard, batch)

    await asyncio.gather(*(fill(shard, orders) for shard, orders in shards.items()))


def application(store: StateStore) -> Application:
    """Return the actors over a store."""
    clock = SystemClock()
    business = Business(Workflows((CHAIN,)), {name: ScriptedAgent() for name in AGENTS})
    to = Addresses(Queues(), "/growth")
    bus = MemoryBus(VirtualClock())
    context = wired(store, bus, clock, to, "growth", business.workflows)
    return actors(
        context, business, policy=RetryPolicy(0.2, 2.0), circuit=BreakerPolicy(0),
        callback_keys=CallbackKeys((), ""), retention=RETENTION,
    )  # fmt: skip


async def milliseconds(work: Callable[[], Awaitable[object]], clock: Clock) -> float:
    """Return the shortest of some tries: the others waited for the rest of the machine."""
    took = []
    for _ in range(SAMPLES):
        began = clock()
        await work()
        took.append(clock() - began)
    return 1000 * min(took)


async def measured(store: StateStore, point: Point, clock: Clock) -> None:
    """Measure the sweep and the lists by a clock: of the CPU, or of the wall."""
    app = application(store)
    point.values["sweep"] = await milliseconds(app.supervisor.sweep, clock)
    point.values["finished"] = await milliseconds(lambda: store.finished(LISTED), clock)
    point.values["attention"] = await milliseconds(lambda: store.attention(LISTED), clock)


async def in_memory(count: int) -> Point:
    """Measure a memory store with so many finished orders."""
    now, point = SystemClock().now(), Point(count)
    store = MemoryStore()
    old = now - RETENTION - timedelta(milliseconds=PURGED)
    await fill_memory(store, count, old)
    await measured(store, point, time.process_time)
    began = time.process_time()
    found = await application(store).purger.run()
    point.values["purge of an order"] = 1000 * (time.process_time() - began) / found.removed
    return point


@asynccontextmanager
async def azurite(shards: int) -> AsyncIterator[TableStore]:
    """Yield a store on an Azurite of its own."""
    async with Azurite() as server:
        store = TableStore.connect(server.connection_string, shards=shards)
        try:
            yield store
        finally:
            await store.close()


async def purge_rate(store: TableStore, seconds: float) -> dict[str, float]:
    """Purge for some seconds; return orders a second, and what one order costs (not the run)."""
    app, meter = application(store), store.table.meter
    app.purger._function_time = timedelta(seconds=seconds)  # noqa: SLF001  a setting of the app's
    before = (meter.requests, meter.entities_read, time.process_time())
    began = time.perf_counter()
    found = await app.purger.run()
    took = time.perf_counter() - began
    return {
        "orders": found.removed,
        "orders/s": found.removed / took,
        "requests an order": (meter.requests - before[0] - PURGE_RUN.usage.requests)
        / found.removed,
        "rows read an order": (meter.entities_read - before[1]) / found.removed,
        "CPU ms an order": 1000 * (time.process_time() - before[2]) / found.removed,
    }


async def in_azurite(counts: Sequence[int], seconds: float, shards: int) -> list[Point]:
    """Measure one table at each of these numbers of finished orders; purge at the end of each."""
    points, there, made = [], 0, 0
    async with azurite(shards) as store:
        old = SystemClock().now() - 2 * RETENTION
        for count in counts:
            point = Point(count)
            began = time.perf_counter()
            await fill_table(store, made, count - there, old)
            point.values["seconds to write a thousand"] = (
                1000 * (time.perf_counter() - began) / (count - there)
            )
            made += count - there
            await measured(store, point, time.perf_counter)
            meter = store.table.meter
            before = (meter.requests, meter.entities_read)
            await application(store).supervisor.sweep()
            point.values["requests a sweep"] = meter.requests - before[0]
            point.values["rows read a sweep"] = meter.entities_read - before[1]
            rate = await purge_rate(store, seconds)
            removed = int(rate.pop("orders"))
            there = count - removed
            point.values |= {f"purge: {name}": value for name, value in rate.items()}
            points.append(point)
            _show(point, f"Azurite, {removed} purged in the run")
    return points


async def with_processes(numbers: Sequence[int], orders: int) -> list[Point]:
    """Measure orders a second with so many host processes, 60 in flight."""
    points = []
    for number in numbers:
        async with (
            RemoteServices() as remote,
            Stack(
                PROJECT, settings=settings_of(remote), groups={"app": []}, processes=number
            ) as stack,
            OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
        ):
            await closed_loop(client, Run(8), 20 * number, "warm")
            run, before = Run(60), cpu_ms_of(stack)
            await closed_loop(client, run, orders, "many")
            values = {"orders/s": orders / run.seconds}
            spent = cpu_ms_of(stack)
            for name in spent:
                values[f"CPU ms an order: {name}"] = (spent[name] - before[name]) / orders
            values["orders/s that two cores allow"] = (
                2000 * orders / (sum(spent.values()) - sum(before.values()))
            )
            points.append(Point(number, values))
            _show(points[-1], "host processes")
    return points


def cpu_ms_of(stack: Stack) -> dict[str, float]:
    """Return the CPU that was used until now: all hosts, the servers, and this process."""
    found = {"hosts": 0.0, "servers": 0.0, "driver and services": 1000 * time.process_time()}
    for child in stack.children():
        kind = "hosts" if child.name.startswith("host") else "servers"
        found[kind] += 1000 * cpu_s(child.pid)
    return found


def _show(point: Point, where: str) -> None:
    print(f"{point.orders:9,} {where}", flush=True)
    for name, value in point.values.items():
        print(f"{'':10}{name:28} {value:10.3f}", flush=True)


def _picture(out: Path, title: str, unit: str, points: Sequence[Point], *names: str) -> None:
    curves = [Curve(one, [point.values[one] for point in points]) for one in names]
    text = picture(title, unit, [f"{point.orders:,}" for point in points], curves)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"wrote {out}", flush=True)


async def everything(options: argparse.Namespace) -> None:
    """Carry out what was asked for."""
    parts = options.only.split(",")
    lists = ("sweep", "finished", "attention")
    if "memory" in parts:
        points = []
        for count in options.memory:
            points.append(await in_memory(count))
            _show(points[-1], "finished orders in memory")
        title = "Milliseconds of CPU with so many finished orders in a store with a key index"
        _picture(options.out / "memory.svg", title, "ms", points, *lists, "purge of an order")
    if "azurite" in parts:
        points = await in_azurite(options.azurite, options.seconds, options.shards)
        title = "Milliseconds with so many finished orders in Azurite, which walks the table"
        _picture(options.out / "azurite.svg", title, "ms", points, *lists)
        title = "Requests and rows, with so many finished orders in a table"
        kinds = ["requests a sweep", "rows read a sweep"]
        kinds += ["purge: requests an order", "purge: rows read an order"]
        _picture(options.out / "requests.svg", title, "", points, *kinds)
        title = "Orders a second that the purge removes"
        _picture(options.out / "purge.svg", title, "/s", points, "purge: orders/s")
    if "processes" in parts:
        points = await with_processes(options.processes, options.orders)
        title = "Orders a second with so many host processes, 60 in flight"
        ceiling = "orders/s that two cores allow"
        _picture(options.out / "processes.svg", title, "/s", points, "orders/s", ceiling)


def main() -> int:
    """Measure, print, and draw into build/growth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers of orders")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    parser.add_argument("--only", default="memory,azurite,processes", help="commas between")
    parser.add_argument("--azurite", type=int, nargs="+", help="numbers of orders in Azurite")
    parser.add_argument("--shards", type=int, default=16, help="shards of its table (16)")
    parser.add_argument("--seconds", type=float, help="how long its purge runs (15)")
    options = parser.parse_args()
    options.memory = [1_000, 10_000] if options.quick else [1_000, 10_000, 100_000, 1_000_000]
    options.azurite = options.azurite or ([300, 1_000] if options.quick else [1_000, 3_000, 10_000])
    options.seconds = options.seconds or (5.0 if options.quick else 15.0)
    options.processes = [1, 2] if options.quick else [1, 2, 4]
    options.orders = 60 if options.quick else 300
    asyncio.run(everything(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
