"""Make the table of outages in docs/failure-modes.md: what each outage costs.

    python -m tools.outages --seeds 20 --jobs 2 > table.md

Each cell is one dependency that is away for one duration, over all seeds and loads. A busy load
and more than one seed are for outages of at most half an hour: longer ones take long to play.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.outages import DEPENDENCIES, DURATIONS, LOADS, MINUTE, Cost, cost_of

Case = tuple[int, str, str, str]
"""Seed, dependency, duration, load."""
LONG_S = 30 * MINUTE


def cases(seeds: int, durations: Sequence[str]) -> list[Case]:
    """Return what is to be played, the longest first."""
    found = [
        (seed, dependency, duration, load)
        for dependency in DEPENDENCIES
        for duration in durations
        for load in LOADS
        for seed in range(seeds)
        if DURATIONS[duration] <= LONG_S or (seed == 0 and load == "light")
    ]
    return sorted(found, key=lambda case: -DURATIONS[case[2]])


def play(case: Case) -> tuple[Case, Cost]:
    """Play one outage."""
    logging.disable(logging.CRITICAL)
    return case, cost_of(*case)


def cell(costs: Iterable[Cost], dependency: str) -> str:
    """Return the longest way back of all costs, or the sums of what went wrong."""
    wrong: defaultdict[str, float] = defaultdict(float)
    longest = failed = 0.0
    for cost in costs:
        longest = max(longest, cost.back_s)
        failed += cost.not_processed
        for name, value in cost.wrong(dependency).items():
            wrong[name] += value
    texts = [f"**{name.replace('_', ' ')} {value:.0f}**" for name, value in wrong.items()]
    tried = [f"{failed:.0f} failed after calls"] if failed and "not_processed" not in wrong else []
    return ", ".join([*(texts or [f"{longest:.0f} s"]), *tried])


def table(found: dict[Case, Cost], durations: Sequence[str]) -> str:
    """Return the table in markdown."""
    lines = [
        f"| Away | {' | '.join(durations)} |",
        f"|---|{'---|' * len(durations)}",
    ]
    for dependency in DEPENDENCIES:
        cells = []
        for duration in durations:
            costs = [cost for case, cost in found.items() if case[1:3] == (dependency, duration)]
            cells.append(cell(costs, dependency))
        lines.append(f"| {dependency} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Play every outage; return 1 if one cost more than time."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--seeds", type=int, default=20, help="seeds of each cell (20)")
    asked.add_argument("--jobs", type=int, default=2, help="processes (2)")
    asked.add_argument("--longest", choices=DURATIONS, default="3 d", help="longest outage (3 d)")
    given = asked.parse_args()
    durations = [d for d in DURATIONS if DURATIONS[d] <= DURATIONS[given.longest]]
    todo = cases(given.seeds, durations)
    found: dict[Case, Cost] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, done in enumerate(as_completed([pool.submit(play, one) for one in todo]), 1):
            case, cost = done.result()
            found[case] = cost
            wrong = sum(bool(cost.wrong(case[1])) for case, cost in found.items())
            print(f"\r{number} of {len(todo)}, {wrong} wrong ", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(table(dict(sorted(found.items())), durations))
    return 1 if any(cost.wrong(case[1]) for case, cost in found.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
