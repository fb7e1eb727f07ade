"""Fuzz every entry point: ``python -m lab.fuzz --inputs 200000 --seed 1``.

Each input is a valid input with changes that a seed draws. It must be accepted, or refused with a
clear error. Nothing may be lost, and no other order harmed. Exit code 1: an input failed. The
failure is printed with the command that repeats it: ``python -m lab.fuzz --seed 1 --input 4711``.
"""

from __future__ import annotations

import argparse
import os
import pprint
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from lab.fuzz.run import BLOCK, Failure, Fuzz, block

SHOWN = 5
"""Most kinds of problems that are printed."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--input", type=int, help="try and print this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    if arguments.input is not None:
        door, parts = Fuzz(arguments.seed).drawn(arguments.input)
        print(f"input {arguments.input} of seed {arguments.seed}, door {door}:")
        pprint.pp(parts, width=100)
        arguments.first, arguments.inputs = arguments.input, 1
    return many(arguments.seed, arguments.first, arguments.inputs, arguments.jobs)


def many(seed: int, first: int, count: int, jobs: int) -> int:
    """Try inputs, several blocks of them at once; print how many of each door, and what failed."""
    numbers = range(first, first + count)
    blocks = [numbers[start : start + BLOCK] for start in range(0, count, BLOCK)]
    tried, problems = Counter[str](), list[Failure]()
    with ProcessPoolExecutor(jobs) as pool:
        results = (
            map(partial(block, seed), blocks)
            if jobs == 1
            else pool.map(partial(block, seed), blocks)
        )
        for doors, block_problems in results:
            tried += doors
            problems += block_problems
    for door, times in sorted(tried.items()):
        print(f"{times:>9,}  {door}")
    print(f"{tried.total():,} inputs of seed {seed}: {len(problems)} went wrong")
    kinds = {(failure.door, failure.problem[:40]): failure for failure in reversed(problems)}
    for failure in sorted(kinds.values(), key=lambda failure: failure.number)[:SHOWN]:
        print(f"door {failure.door}: {failure.problem}")
        print(f"repeat it: python -m lab.fuzz --seed {seed} --input {failure.number}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
