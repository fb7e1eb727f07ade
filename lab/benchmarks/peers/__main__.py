"""The same saga on this project and its peers, in turns: ``python -m lab.benchmarks.peers``.

Installs the peers into ``build/peers`` the first time; one that cannot be installed is left out.
Each round visits each peer once, with 1, 10 and 100 orders in flight. At the end the workers of
each peer get ``kill -9`` once. Read the lab's README before you compare figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sysconfig
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

import orders
from devstack.children import Scratch
from devstack.inputs import DevstackError
from lab.benchmarks.orders import content
from lab.benchmarks.peers.install import PROJECT, NotInstalledError, install
from lab.benchmarks.peers.rigs import RIGS, Rig, cpu_s
from samples.services.faults import Faults
from samples.services.remote import RemoteServices

SECONDS = {1: 3.0, 10: 4.0, 100: 6.0}
"""How long each number of orders is kept in flight."""
WARM_ORDERS = 12
STEP_S, RECOVERY_STEP_S = 60.0, 10.0
"""Time allowed for a step, in the speed run and in the recovery run. The first is so long that no
peer gives up a step only because of the load."""
RECOVERY_IN_FLIGHT, RECOVERY_ORDERS, RECOVERY_LOAD_S = 20, (40, 400), 6.0
REFUSED = 0.05
"""The share of calls that the services refuse in the recovery run, so that undos happen."""
SERVICES = ("stock", "payment", "shipping")
READY_S, QUIET_S, VISIT_S = 30.0, 120.0, 240.0
BASES = ("ours-inline", "ours")
"""The peers that each other is compared with."""
FAILURES = (OSError, RuntimeError, TimeoutError, NotInstalledError, DevstackError)


@dataclass(slots=True)
class EndedOrders:
    """The orders of one run that ended: when each was sent, and when the client heard its end."""

    outcomes: dict[str, str] = field(default_factory=dict)
    sent_at: list[float] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Orders a second, from the first that was sent to the last that ended."""
        return len(self.told_at) / (max(self.told_at) - min(self.sent_at))

    @property
    def latency(self) -> float:
        """The median of the seconds from sending an order to hearing of its end."""
        times = zip(self.sent_at, self.told_at, strict=True)
        return median(told_at - sent_at for sent_at, told_at in times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The speed of a peer in one round."""

    peer: str
    round: int
    speeds: dict[str, float]
    """Orders a second by the number in flight, and the median latency of a lone order in ms."""
    cpu_ms: tuple[float, ...]
    """CPU an order at the most in flight: the workers', the servers'."""


async def follow(
    driver: asyncio.subprocess.Process, ended: EndedOrders, **load: Any
) -> AsyncIterator[None]:
    """Ask the driver for a run, and yield after each order that ended."""
    if driver.stdin is None:
        raise RuntimeError("the driver has no input: report this")
    driver.stdin.write(json.dumps(load).encode() + b"\n")
    while isinstance(line := await read(driver, QUIET_S), list):
        order_id, outcome, sent_at, told_at = line
        ended.outcomes[order_id] = outcome
        ended.sent_at.append(sent_at)
        ended.told_at.append(told_at)
        yield


async def read(driver: asyncio.subprocess.Process, seconds: float) -> Any:
    """Return the driver's next line."""
    if driver.stdout is None:
        raise RuntimeError("the driver has no output: report this")
    line = await asyncio.wait_for(driver.stdout.readline(), seconds)
    if not line:
        raise OSError("the driver ended: see driver.log")
    return json.loads(line)


async def driven(driver: asyncio.subprocess.Process, **load: Any) -> EndedOrders:
    """Carry out a whole run."""
    ended = EndedOrders()
    async for _ in follow(driver, ended, **load):
        pass
    return ended


@asynccontextmanager
async def running(
    kind: type[Rig], step_s: float, faults: Faults | None = None
) -> AsyncIterator[tuple[Rig, asyncio.subprocess.Process, RemoteServices]]:
    """Start a peer with services and driver; stop all at the end. A failure keeps the logs."""
    order = content()
    order["amount"] = orders.amount_due(msgspec.convert(order, orders.OrderContent))
    scratch = Scratch("peers-")
    try:
        async with RemoteServices(faults) as remote:
            rig = kind(scratch.path, remote.urls, step_s)
            try:
                await rig.start()
                with (scratch.path / "driver.log").open("wb") as log:
                    drive = ["-m", "lab.benchmarks.peers.apps.drive", rig.client, rig.address]
                    driver = await asyncio.create_subprocess_exec(
                        rig.python,
                        *drive,
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                        env={**rig.environment(), "PEERS_ORDER": json.dumps(order)},
                        cwd=PROJECT,
                    )
                    try:
                        await read(driver, READY_S)
                        await driven(driver, prefix="warm", in_flight=4, orders=WARM_ORDERS)
                        yield rig, driver, remote
                    finally:
                        driver.kill()
                        await driver.wait()
            finally:
                await rig.stop()
    except BaseException:
        scratch.keep()
        print(f"  the logs of {kind.name} stay in {scratch.path}", flush=True)
        raise
    finally:
        scratch.close()


async def speed(kind: type[Rig], number: int, seconds: dict[int, float]) -> Visit:
    """Drive a peer with each number of orders in flight."""
    speeds: dict[str, float] = {}
    lone_ms, cpu_ms = 0.0, tuple[float, ...]()
    async with running(kind, STEP_S) as (rig, driver, _):
        for in_flight, lasts in seconds.items():
            before = [cpu_s(pids) for pids in rig.pids().values()]
            load = {"prefix": f"b{in_flight}", "in_flight": in_flight, "seconds": lasts}
            ended = await driven(driver, **load)
            after = [cpu_s(pids) for pids in rig.pids().values()]
            count = len(ended.told_at)
            uses = zip(before, after, strict=True)
            cpu_ms = tuple(1000 * (end - begin) / count for begin, end in uses)
            speeds[f"{in_flight} in flight"] = ended.rate
            if in_flight == 1:
                lone_ms = 1000 * ended.latency
    speeds["p50 at 1, ms"] = lone_ms
    return Visit(peer=kind.name, round=number, speeds=speeds, cpu_ms=cpu_ms)


async def recovery(kind: type[Rig]) -> str:
    """Kill the workers when half of the orders have ended. Return a row of what became of all."""
    async with running(kind, RECOVERY_STEP_S, Faults(permanent=REFUSED)) as (rig, driver, remote):
        trial = await driven(driver, prefix="t", in_flight=RECOVERY_IN_FLIGHT, seconds=3.0)
        orders_min, orders_max = RECOVERY_ORDERS
        orders = int(min(orders_max, max(orders_min, RECOVERY_LOAD_S * trial.rate)))
        ended, killed_at, due_s, restart = EndedOrders(), 0.0, 0.0, None
        lost = 0
        try:
            load = {"prefix": "r", "in_flight": RECOVERY_IN_FLIGHT, "orders": orders}
            async for _ in follow(driver, ended, **load):
                if restart is None and 2 * len(ended.told_at) >= orders:
                    rig.kill_workers()
                    killed_at = time.monotonic()
                    due_s = (orders - len(ended.told_at)) / ended.rate
                    restart = asyncio.create_task(rig.start_workers())
        except TimeoutError:
            lost = orders - len(ended.told_at)
        if restart is not None:
            await restart
        torn, doubled = effects(remote, ended)
    seconds = max(ended.told_at) - killed_at
    return f"{orders} | {due_s:.1f} | {seconds:.1f} | {lost} | {torn} | {doubled}"


def effects(remote: RemoteServices, ended: EndedOrders) -> tuple[int, int]:
    """Return how many orders have only some of their effects, and how many have one twice."""
    in_force, doubled = dict.fromkeys(ended.outcomes, 0), 0
    for service in SERVICES:
        ledger = remote.ledger(service)
        doubled += len(ledger["doubled"])
        for effect in ledger["effects"]:
            if effect["undone_at"] is None and effect["order_id"] in in_force:
                in_force[effect["order_id"]] += 1
    effects_of = {"done": len(SERVICES)}
    torn = sum(
        in_force[order_id] != effects_of.get(outcome, 0)
        for order_id, outcome in ended.outcomes.items()
    )
    return torn, doubled


async def collect(
    names: Sequence[str], seconds: dict[int, float], rounds: int
) -> tuple[list[Visit], dict[str, str]]:
    """Visit each peer in each round, and then kill the workers of each."""
    visits, recoveries = list[Visit](), dict[str, str]()
    for number in range(rounds + 1):
        for name in names:
            kind = RIGS[name]
            try:
                if kind.installed_as:
                    install(kind.installed_as)
                async with asyncio.timeout(VISIT_S):
                    if number < rounds:
                        visits.append(await speed(kind, number, seconds))
                        print(visits[-1], flush=True)
                    else:
                        recoveries[name] = await recovery(kind)
            except FAILURES as error:
                print(f"{kind.title} is left out: {type(error).__name__}: {error}", flush=True)
    return visits, recoveries


def ratios(visits: Sequence[Visit], peer: str, base: str) -> dict[str, list[float]]:
    """Return each speed of a peer over that of another, for each round that visited both."""
    speeds_of = {(visit.peer, visit.round): visit.speeds for visit in visits}
    ratios_of: dict[str, list[float]] = {}
    for (name, number), speeds in speeds_of.items():
        if name == peer and (base, number) in speeds_of:
            for figure, value in speeds.items():
                ratio = value / speeds_of[base, number][figure]
                ratios_of.setdefault(figure, []).append(ratio)
    return ratios_of


def show(visits: Sequence[Visit], recoveries: dict[str, str]) -> None:
    """Print the medians of all rounds, the ratios within the rounds, and the recoveries."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    build = "an optimised" if optimized else "an unoptimised (no --enable-optimizations)"
    print(f"\nPython {platform.python_version()}, {build} build; load {os.getloadavg()[0]:.1f}")
    peers = list(dict.fromkeys(visit.peer for visit in visits))
    if visits:
        _table("orders/s", *visits[0].speeds, "CPU ms: workers, servers", "kept on disk")
    for peer in peers:
        rounds = [visit for visit in visits if visit.peer == peer]
        speeds = _medians([[*visit.speeds.values()] for visit in rounds])
        cpu_ms = _medians([visit.cpu_ms for visit in rounds])
        _row(RIGS[peer].title, *speeds, ", ".join(cpu_ms), RIGS[peer].durability)
    for base in BASES:
        if base in peers:
            _table(f"over {RIGS[base].title}: median (min to max)", *visits[0].speeds)
        for peer in peers:
            cells = [
                f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                for values in ratios(visits, peer, base).values()
            ]
            if cells and peer != base:
                _row(RIGS[peer].title, *cells)
    heads = "orders", "left at the rate before, s", "the last ended after, s"
    _table("`kill -9` at half time", *heads, "lost", "torn", "doubled")
    for peer, row in recoveries.items():
        _row(RIGS[peer].title, row)


def _medians(records: Sequence[Sequence[float]]) -> list[str]:
    return [f"{median(values):.1f}" for values in zip(*records, strict=True)]


def _table(*heads: str) -> None:
    print()
    _row(*heads)
    print("|" + "---|" * len(heads))


def _row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Install, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--rounds", type=int, default=1, help="visits to each peer (1)")
    parser.add_argument("--only", nargs="+", choices=RIGS, default=list(RIGS), help="some peers")
    options = parser.parse_args()
    part = 1 / 3 if options.quick else 1
    seconds = {count: part * lasts for count, lasts in SECONDS.items()}
    show(*asyncio.run(collect(options.only, seconds, options.rounds)))


if __name__ == "__main__":
    main()
