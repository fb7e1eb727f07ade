"""Run real orders over real processes while everything fails; reconcile with the services' ledgers.

``make chaos`` and ``make soak``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from devstack.azurite import require_node
from devstack.inputs import DevstackError
from lab.chaos import report
from lab.chaos.faults import CLOCK_S_MAX, OUTAGES, draw
from lab.chaos.reconciliation import SHOWN_MAX, Reconciliation, reconcile, show
from lab.chaos.run import Run, make_orders
from lab.chaos.screen import Screen
from lab.chaos.soak import Samples
from lab.chaos.system import GROUPS, ONE_WORKER, PROJECT, SERVICES, running

FAULT_S = 7.0
"""What a fault takes with its pause, on average; the pace of orders comes from it."""
SOAK_PACE = 50.0
SOAK_IN_FLIGHT = 150
SOAK_FAULT_EVERY = 200


def main(argv: list[str] | None = None) -> int:
    """Run; return 0 if all ledgers balance, 1 if not, 2 for bad usage, 130 for Ctrl-C."""
    options = _options(argv)
    logging.basicConfig(level=logging.CRITICAL)
    console = Console()
    try:
        require_node()
        balanced = asyncio.run(
            _soak(console, options) if options.soak else _chaos(console, options)
        )
    except DevstackError as failed:
        console.print(f"{failed}\nThe data and the logs are in {options.out}.", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; no process is left")
        return 130
    return 0 if balanced else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description=__doc__)
    add = parser.add_argument
    add("--orders", type=int, help="number of orders (default 2000; in a soak 20000)")
    add("--faults", type=int, help="default: one for 20 orders; in a soak: one for 200")
    add("--seed", type=int, default=1, help="decides the faults, and what the services refuse")
    add("--pace", type=float, help="orders a second, at most (default: as the faults need)")
    add("--quiet", type=float, default=180.0, help="give up when nothing moves for these seconds")
    add("--soak", action="store_true", help="watch memory and sockets of one worker")
    add("--minutes", type=float, default=600.0, help="submit no order after this time")
    add("--out", type=Path, help="directory of report, picture, data and logs")
    options = parser.parse_args(argv)
    if options.orders is None:
        options.orders = 20_000 if options.soak else 2_000
    if options.faults is None:
        options.faults = max(1, options.orders // (SOAK_FAULT_EVERY if options.soak else 20))
    if options.orders < 1 or options.faults < 1:
        parser.error("give at least one order and one fault")
    options.out = options.out or PROJECT / "build" / ("soak" if options.soak else "chaos")
    if (options.out / "data").exists():
        shutil.rmtree(options.out / "data")
    shutil.rmtree(options.out / "logs", ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


async def _chaos(console: Console, options: argparse.Namespace) -> bool:
    chance = random.Random(options.seed)
    faults = draw(options.faults, chance, list(GROUPS))
    services = replace(SERVICES, seed=options.seed)
    screen = Screen(console, options.orders, len(faults))
    screen.say("starting a broker, Azurite behind a proxy, and four hosts ...")
    async with running(options.out, GROUPS, services) as system:
        for group in GROUPS:
            system.set_clock(group, round(chance.uniform(-CLOCK_S_MAX, CLOCK_S_MAX), 1))
        run = Run(
            system, screen, make_orders(options.orders), faults,
            pace=options.pace or options.orders / (FAULT_S * len(faults)),
            quiet_s_max=options.quiet, seconds_max=60 * options.minutes,
        )  # fmt: skip
        await _play(run)
        return await _conclude(console, run, options)


async def _soak(console: Console, options: argparse.Namespace) -> bool:
    chance = random.Random(options.seed)
    faults = draw(options.faults, chance, list(ONE_WORKER), OUTAGES)
    services = replace(SERVICES, seed=options.seed, latency=0.0)
    screen = Screen(console, options.orders, len(faults))
    screen.say("starting a broker, Azurite behind a proxy, and one worker ...")
    async with running(options.out, ONE_WORKER, services, on_disk=False) as system:
        run = Run(
            system, screen, make_orders(options.orders), faults,
            pace=options.pace or SOAK_PACE, in_flight=SOAK_IN_FLIGHT, archives=True,
            quiet_s_max=options.quiet, seconds_max=60 * options.minutes,
        )  # fmt: skip
        worker = system.stack.group("worker")[0].pid
        samples = Samples(worker, system.memory_file("worker"), run.tally, screen)
        run.rest = samples.rest
        watching = asyncio.create_task(samples.watch())
        try:
            await _play(run)
            await samples.rest()
        finally:
            watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        for line in samples.table():  # reconciling may take minutes
            screen.say(line)
        return await _conclude(console, run, options, samples)


async def _play(run: Run) -> None:
    run.screen.begin()
    try:
        await run.play()
    finally:
        run.screen.end()


async def _conclude(
    console: Console, run: Run, options: argparse.Namespace, samples: Samples | None = None
) -> bool:
    run.screen.say("reconciling the services' ledgers with store, queues and notifications ...")
    result = await reconcile(run)
    found = report.lines(run, result, options.seed)
    found += await _shown(run, result)
    flat = samples is None or samples.flat
    if samples is not None:
        found += [*samples.table(), "FLAT" if flat else "NOT FLAT"]
    found.append("BALANCED" if result.balanced else "NOT BALANCED")
    (options.out / "report.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
    picture = report.picture(run, samples.taken if samples else ())
    (options.out / "faults.svg").write_text(picture, encoding="utf-8")
    for line in found:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"report and picture: {options.out}", highlight=False, soft_wrap=True)
    return result.balanced and flat


async def _shown(run: Run, result: Reconciliation) -> list[str]:
    orders = [order_id for order_id in result.orders() if order_id in run.submitted]
    return [await show(run.system, order_id) for order_id in orders[:SHOWN_MAX]]


if __name__ == "__main__":
    sys.exit(main())
