"""Make the table of outages in docs/failure-modes.md: what each outage costs.

    python -m lab.outages --seeds 20 --jobs 2 > table.md
    python -m lab.outages --drawn 0 10000 --minutes 60

Each cell is one dependency that is away for one duration, over all seeds and loads. A busy load
and more than one seed are for outages of at most half an hour: longer ones take long to play.
With ``--drawn`` each seed draws its own cell, as in tests/simulation/test_outages.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.outages import DEPENDENCIES, DURATIONS, LOADS, MINUTE, Cost, cost_of, drawn

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


def cell(costs: Iterable[Cost]) -> str:
    """Return the longest way back of all costs, or the sums of what went wrong."""
    wrong: defaultdict[str, float] = defaultdict(float)
    longest = 0.0
    for cost in costs:
        longest = max(longest, cost.back_s)
        for name, value in cost.wrong().items():
            wrong[name] += value
    texts = [f"**{name.replace('_', ' ')} {value:.0f}**" for name, value in wrong.items()]
    return ", ".join(texts or [f"{longest:.0f} s"])


def play_drawn(first: int, end: int, minutes: float) -> int:
    """Play the outage that each seed draws, in this process; return 1 if one cost more than time.

    No further one begins after so many minutes.
    """
    logging.disable(logging.CRITICAL)
    until = time.monotonic() + 60 * minutes
    played: Counter[str] = Counter()
    wrong = 0
    for seed in range(first, end):
        if time.monotonic() > until:
            break
        dependency, duration, load = drawn(seed)
        cost = cost_of(seed, dependency, duration, load)
        played[f"{duration}, {load}"] += 1
        if what := cost.wrong():
            wrong += 1
            print(f"seed {seed}: {dependency}, {duration}, {load}: {what}", flush=True)
        cpu = time.process_time()
        print(f"\rseed {seed}, {wrong} wrong, {cpu:.0f} s of CPU ", end="", file=sys.stderr)
    print(file=sys.stderr)
    each = "; ".join(f"{times} x {what}" for what, times in sorted(played.items()))
    print(f"{played.total()} outages, {wrong} wrong, {time.process_time():.0f} s of CPU: {each}")
    return 1 if wrong else 0


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
            cells.append(cell(costs))
        lines.append(f"| {dependency} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Play every outage; return 1 if one cost more than time."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--seeds", type=int, default=20, help="seeds of each cell (20)")
    asked.add_argument("--jobs", type=int, default=2, help="processes (2)")
    asked.add_argument("--longest", choices=DURATIONS, default="3 d", help="longest outage (3 d)")
    asked.add_argument("--drawn", type=int, nargs=2, help="seeds that draw their own outage")
    asked.add_argument("--minutes", type=float, default=1e6, help="time for --drawn (no limit)")
    given = asked.parse_args()
    if given.drawn:
        first, end = given.drawn
        return play_drawn(first, end, given.minutes)
    durations = [d for d in DURATIONS if DURATIONS[d] <= DURATIONS[given.longest]]
    todo = cases(given.seeds, durations)
    found: dict[Case, Cost] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, done in enumerate(as_completed([pool.submit(play, one) for one in todo]), 1):
            case, cost = done.result()
            found[case] = cost
            wrong = sum(bool(cost.wrong()) for cost in found.values())
            print(f"\r{number} of {len(todo)}, {wrong} wrong ", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(table(dict(sorted(found.items())), durations))
    return 1 if any(cost.wrong() for cost in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
