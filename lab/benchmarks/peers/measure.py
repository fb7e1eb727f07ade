"""The two measurements of one peer: its speed, and its recovery after a kill."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from devstack.children import Scratch
from lab.benchmarks.peers.drivers import Driver, Ended
from lab.benchmarks.peers.rigs import Rig, cpu_s
from samples.services.faults import Faults
from samples.services.remote import RemoteServices

IN_FLIGHT = (1, 10, 100)
WARM_ORDERS = 12
STEP_S = 60.0
"""Time allowed for a step while speed is measured: no peer gives up a step for load alone."""
RECOVERY_STEP_S = 10.0
RECOVERY_IN_FLIGHT = 20
RECOVERY_ORDERS = (40, 400)
RECOVERY_LOAD_S = 6.0
REFUSED = 0.05
"""Share of calls that the services refuse for good in the recovery run, so that undos happen."""
STEPS = {"stock": "reserve-stock", "payment": "take-payment", "shipping": "ship"}


@dataclass(frozen=True, slots=True)
class Speed:
    """One run at one number of orders in flight."""

    in_flight: int
    orders: int
    rate: float
    p50_ms: float
    cpu_ms: dict[str, float]
    """CPU per order of the workers and of the servers."""


@dataclass(slots=True)
class Recovery:
    """What became of a run whose workers were killed when half of its orders had ended."""

    orders: int
    left: int = 0
    """Orders that had not ended at the kill."""
    due_s: float = 0.0
    """Seconds that they would have taken at the rate before the kill."""
    seconds: float = 0.0
    """Seconds from the kill to the last order's end."""
    lost: int = 0
    undone: int = 0
    repeated: int = 0
    """Calls that reached a service again with the same key."""
    doubled: int = 0
    """Orders with two effects at one service."""
    torn: list[str] = field(default_factory=list)
    """Orders that ended with some, but not all or none, of their effects in force."""


@asynccontextmanager
async def running(
    kind: type[Rig], step_s: float, faults: Faults | None = None
) -> AsyncIterator[tuple[Rig, Driver, RemoteServices]]:
    """Start a peer with services and driver; stop all at the end. A failure keeps the logs."""
    scratch = Scratch("peers-")
    try:
        async with RemoteServices(faults) as remote:
            rig = kind(scratch.path, remote.urls, step_s)
            try:
                await rig.start()
                async with Driver(rig) as driver:
                    await driver.run(prefix="warm", in_flight=4, orders=WARM_ORDERS)
                    yield rig, driver, remote
            finally:
                await rig.stop()
    except Exception:
        scratch.keep()
        print(f"  the logs of {kind.name} stay in {scratch.path}", flush=True)
        raise
    finally:
        scratch.close()


async def speed(kind: type[Rig], seconds: dict[int, float]) -> list[Speed]:
    """Measure a peer at each number of orders in flight, for so many seconds."""
    found = []
    async with running(kind, STEP_S) as (rig, driver, _):
        for in_flight in IN_FLIGHT:
            before = _cpu(rig)
            ended = await driver.run(
                prefix=f"b{in_flight}", in_flight=in_flight, seconds=seconds[in_flight]
            )
            count, after = len(ended.told), _cpu(rig)
            cpu_ms = {part: 1000 * (after[part] - before[part]) / count for part in after}
            p50_ms = statistics.median(ended.latencies_ms)
            found.append(Speed(in_flight, count, ended.rate, p50_ms, cpu_ms))
            print(
                f"  {kind.name:14} {in_flight:4} in flight {ended.rate:8.1f} orders/s"
                f" {p50_ms:8.0f} ms p50 {count:6} orders",
                flush=True,
            )
    return found


async def recovery(kind: type[Rig], rate: float) -> Recovery:
    """Kill the workers at half time and start them at once; see how the orders end."""
    fewest, most = RECOVERY_ORDERS
    found = Recovery(orders=int(min(most, max(fewest, RECOVERY_LOAD_S * rate))))
    async with running(kind, RECOVERY_STEP_S, Faults(permanent=REFUSED)) as (rig, driver, remote):
        ended, killed_at, restart = Ended(), 0.0, None
        try:
            asked = {"prefix": "r", "in_flight": RECOVERY_IN_FLIGHT, "orders": found.orders}
            async for _ in driver.follow(ended, **asked):
                if restart is None and 2 * len(ended.told) >= found.orders:
                    rig.kill_workers()
                    killed_at = time.monotonic()
                    found.left = found.orders - len(ended.told)
                    found.due_s = found.left / ended.rate
                    restart = asyncio.create_task(rig.start_workers())
        except TimeoutError:
            found.lost = found.orders - len(ended.told)
        if restart is not None:
            await restart
        found.seconds = max(ended.told) - killed_at
        found.undone = sum(outcome == "undone" for outcome in ended.outcomes.values())
        _count_effects(remote, ended, found)
    return found


def _count_effects(remote: RemoteServices, ended: Ended, found: Recovery) -> None:
    in_force: dict[str, int] = dict.fromkeys(ended.outcomes, 0)
    for service in STEPS:
        ledger = remote.ledger(service)
        found.doubled += len(ledger["doubled"])
        for effect in ledger["effects"]:
            found.repeated += effect["replays"]
            if effect["undone_at"] is None and effect["order_id"] in in_force:
                in_force[effect["order_id"]] += 1
    found.torn = [
        order_id
        for order_id, outcome in ended.outcomes.items()
        if in_force[order_id] != (len(STEPS) if outcome == "done" else 0)
    ]


def _cpu(rig: Rig) -> dict[str, float]:
    return {part: cpu_s(pids) for part, pids in rig.pids().items()}
