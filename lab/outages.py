"""What outages of one dependency cost: ``python -m lab.outages``.

Each seed draws a dependency, how long it is away, and a load (tests/simulation/outages.py).
``--table SEEDS`` plays every dependency for every duration instead, and prints the longest recovery
of each as Markdown (docs/failure-modes.md). Exit code 1: an outage cost more than time.
"""

from __future__ import annotations

import argparse
import logging
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.outages import DEPENDENCIES, DURATIONS, LOADS, MINUTE, Cost, cost_of, drawn

Case = tuple[int, str, str, str]
"""Seed, dependency, duration, load."""
LONG_S = 30 * MINUTE
"""An outage longer than this takes long to play, so it gets one seed with a light load."""


def play(case: Case) -> tuple[Case, Cost]:
    """Play one outage."""
    logging.disable(logging.CRITICAL)
    return case, cost_of(*case)


def cases(seeds: int) -> list[Case]:
    """Return the cases of the table, the longest first."""
    table_cases = [
        (seed, dependency, duration, load)
        for dependency in DEPENDENCIES
        for duration, lasts in DURATIONS.items()
        for load in LOADS
        for seed in range(seeds)
        if lasts <= LONG_S or (seed == 0 and load == "light")
    ]
    return sorted(table_cases, key=lambda case: -DURATIONS[case[2]])


def table(costs: dict[Case, Cost]) -> str:
    """Return the longest time to recover from each outage, as a table in Markdown."""
    lines = [f"| Away | {' | '.join(DURATIONS)} |", f"|---|{'---|' * len(DURATIONS)}"]
    for dependency in DEPENDENCIES:
        longest = [
            max(cost.back_s for case, cost in costs.items() if case[1:3] == (dependency, duration))
            for duration in DURATIONS
        ]
        lines.append(f"| {dependency} | {' | '.join(f'{back_s:.0f} s' for back_s in longest)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Play outages."""
    parser = argparse.ArgumentParser(prog="python -m lab.outages", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds draw (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--table", type=int, metavar="SEEDS", help="make the table")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args(argv)
    seeds = range(options.first, options.first + options.seeds)
    todo = cases(options.table) if options.table else [(seed, *drawn(seed)) for seed in seeds]
    costs: dict[Case, Cost] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for case, cost in pool.map(play, todo):
            costs[case] = cost
            if problem := cost.wrong():
                print(f"{case}: {problem}", flush=True)
    failures = sum(bool(cost.wrong()) for cost in costs.values())
    if options.table:
        print(table(costs))
    print(f"{len(costs)} outages, {failures} cost more than time")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
