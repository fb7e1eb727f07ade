"""``python -m samples.demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
from pathlib import Path

from rich.console import Console

from devstack.inputs import DevstackError
from samples.demo import scenario
from samples.demo.run import Options, play
from samples.services.faults import FaultsError

KEEP = Path("build", "demo")


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 for success, 1 for a failure, 2 for bad usage, 130 for Ctrl-C."""
    default = scenario.faults(1)
    parser = argparse.ArgumentParser(prog="python -m samples.demo", description=__doc__)
    add = parser.add_argument
    add("--orders", type=int, default=scenario.ORDERS_MAX, help="number of orders, 1 to 830")
    add("--seed", type=int, default=42, help="decides which calls fail")
    for name, text in (
        ("transient", "share of calls that fail temporarily"),
        ("permanent", "share of keys that are always refused"),
        ("slow", "share of calls that answer after CompleteBy"),
    ):
        add(f"--{name}", type=float, default=getattr(default, name), help=text)
    add("--logs", type=Path, help="keep the logs of the processes in this directory")
    add(
        "--keep",
        type=Path,
        nargs="?",
        const=KEEP,
        metavar="DIR",
        help=f"keep the orders, to operate them later (DIR: {KEEP})",
    )
    options = parser.parse_args(argv)
    if not 1 <= options.orders <= scenario.ORDERS_MAX:
        parser.error(f"--orders {options.orders}: give a number from 1 to {scenario.ORDERS_MAX}")
    logging.basicConfig(level=logging.ERROR)
    console = Console()
    try:
        faults = dataclasses.replace(
            scenario.faults(options.seed),
            transient=options.transient,
            permanent=options.permanent,
            slow=options.slow,
        )
        is_default = faults == scenario.faults(42)
        demo_options = Options(
            orders=options.orders,
            faults=faults,
            logs=options.logs,
            keep=options.keep,
            is_default=is_default,
        )
        passed = asyncio.run(play(console, demo_options))
    except FaultsError as error:
        parser.error(str(error))
    except DevstackError as error:
        console.print(f"[red]{error}[/]", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; no process is left")
        return 130
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
