"""Run real orders over real processes while everything fails; reconcile with the services' ledgers.

``make chaos``: kills, pauses, outages and wrong clocks. ``make soak``: one worker over many orders
with outages and without kills; its memory and sockets must stay flat.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from devstack.azurite import require_node
from devstack.inputs import DevstackError
from lab.chaos import report
from lab.chaos.faults import CLOCK_S_MAX, DECK, OUTAGES, draw
from lab.chaos.reconciliation import reconcile, show
from lab.chaos.run import Run, make_orders
from lab.chaos.soak import Samples
from lab.chaos.system import GROUPS, ONE_WORKER, PROJECT, SERVICES, running

FAULT_S = 7.0
"""What a fault takes with its pause, on average; the pace of orders comes from it."""
SOAK_PACE, SOAK_IN_FLIGHT, SOAK_FAULT_EVERY = 50.0, 150, 200
SHOWN_MAX = 10


def main(argv: list[str] | None = None) -> int:
    """Run; return 0 if all ledgers balance, 1 if not, 2 for bad usage, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description=__doc__)
    add = parser.add_argument
    add("--orders", type=int, help="number of orders (default 2000; in a soak 20000)")
    add("--faults", type=int, help="default: one for 20 orders; in a soak: one for 200")
    add("--seed", type=int, default=1, help="decides the faults, and what the services refuse")
    add("--soak", action="store_true", help="watch memory and sockets of one worker")
    add("--minutes", type=float, default=600.0, help="submit no order after this time")
    add("--out", type=Path, help="directory of data and logs")
    options = parser.parse_args(argv)
    if options.orders is None:
        options.orders = 20_000 if options.soak else 2_000
    if options.faults is None:
        options.faults = max(1, options.orders // (SOAK_FAULT_EVERY if options.soak else 20))
    if options.orders < 1 or options.faults < 1:
        parser.error("give at least one order and one fault")
    options.out = options.out or PROJECT / "build" / ("soak" if options.soak else "chaos")
    for name in ("data", "logs"):
        shutil.rmtree(options.out / name, ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.CRITICAL)
    try:
        require_node()
        return 0 if asyncio.run(_soak(options) if options.soak else _chaos(options)) else 1
    except DevstackError as failed:
        print(f"{failed}\nThe data and the logs are in {options.out}.")
        return 1
    except KeyboardInterrupt:
        print("stopped; no process is left")
        return 130


async def _chaos(options: argparse.Namespace) -> bool:
    chance = random.Random(options.seed)
    faults = draw(options.faults, chance, list(GROUPS), DECK)
    services = replace(SERVICES, seed=options.seed)
    async with running(options.out, GROUPS, services) as system:
        for group in GROUPS:
            system.set_clock(group, round(chance.uniform(-CLOCK_S_MAX, CLOCK_S_MAX), 1))
        run = Run(
            system=system,
            orders=make_orders(options.orders),
            faults=faults,
            pace=options.orders / (FAULT_S * len(faults)),
            seconds_max=60 * options.minutes,
        )
        await run.play()
        return await _conclude(run, options.seed)


async def _soak(options: argparse.Namespace) -> bool:
    faults = draw(options.faults, random.Random(options.seed), list(ONE_WORKER), OUTAGES)
    services = replace(SERVICES, seed=options.seed, latency=0.0)
    async with running(options.out, ONE_WORKER, services, on_disk=False) as system:
        run = Run(
            system=system,
            orders=make_orders(options.orders),
            faults=faults,
            pace=SOAK_PACE,
            in_flight=SOAK_IN_FLIGHT,
            archives=True,
            seconds_max=60 * options.minutes,
        )
        worker = system.stack.group("worker")[0].pid
        samples = Samples(pid=worker, memory=system.memory_file("worker"), tally=run.tally)
        run.rest = samples.rest
        await run.play()
        await samples.rest()
        print(*samples.table(), sep="\n", flush=True)  # reconciling may take minutes
        balanced = await _conclude(run, options.seed)
        print("FLAT" if samples.flat else "NOT FLAT")
        return balanced and samples.flat


async def _conclude(run: Run, seed: int) -> bool:
    run.say("reconciling the services' ledgers with store, queues and notifications ...")
    result = await reconcile(run)
    print(*report.lines(run, result, seed), sep="\n")
    orders = [order_id for order_id in result.orders() if order_id in run.submitted]
    for order_id in orders[:SHOWN_MAX]:
        print(await show(run.system, order_id))
    print("BALANCED" if result.balanced else "NOT BALANCED", flush=True)
    return result.balanced


if __name__ == "__main__":
    sys.exit(main())
