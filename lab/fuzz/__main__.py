"""Command line of the fuzz."""

from __future__ import annotations

import argparse
import logging
import os
import pprint
import sys
import time
from collections import Counter

from lab.fuzz.run import Found, Fuzz, fuzzed
from sas.cli.output import Progress, complain, say

DESCRIPTION = """\
Fuzz every entry point: queue messages, HTTP callbacks, rows of the table, files, settings. Each
input is a valid one that was changed by a seed. It must be accepted, or refused with a clear error;
nothing is lost, and no other order is harmed. Exit code 1: an input failed. It is printed as short
as it can be made, with the command that repeats it.

  python -m lab.fuzz --inputs 200000 --seed 1
  python -m lab.fuzz --seed 1 --input 4711
"""
SHOWN = 5
"""Most different problems that are printed."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        "python -m lab.fuzz",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--inputs", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the first input")
    parser.add_argument("--input", type=int, metavar="NUMBER", help="try and print this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J")
    arguments = parser.parse_args(argv)
    if arguments.input is not None:
        return _one(arguments.seed, arguments.input)
    return _many(arguments)


def _one(seed: int, number: int) -> int:
    fuzz = _fuzz(seed)
    door, parts = fuzz.drawn(number)
    say(f"input {number} of seed {seed}, door {door}:")
    say(pprint.pformat(parts, width=100))
    found = fuzz.found(number)
    if found is None:
        say("it is accepted, or refused with a clear error")
        return 0
    _tell(fuzz, found)
    return 1


def _many(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    tried, by_door, wrong = 0, Counter[str](), list[Found]()
    numbers = range(arguments.first, arguments.first + arguments.inputs)
    progress = Progress(lambda: f"{tried:,} of {len(numbers):,} inputs, {len(wrong)} went wrong")
    with progress.shown():
        for count, doors, found in fuzzed(arguments.seed, numbers, arguments.jobs):
            tried += count
            by_door += doors
            wrong += found
            progress()
    for door, count in sorted(by_door.items()):
        say(f"{count:>9,}  {door}")
    rate = tried / max(time.monotonic() - began, 0.001)
    say(f"{tried:,} inputs of seed {arguments.seed}, {rate:,.0f} a second: {len(wrong)} went wrong")
    if not wrong:
        return 0
    kinds = {(one.door, one.problem[:40]): one for one in reversed(wrong)}
    fuzz = _fuzz(arguments.seed)
    for one in sorted(kinds.values(), key=lambda one: one.number)[:SHOWN]:
        _tell(fuzz, one)
    return 1


def _fuzz(seed: int) -> Fuzz:
    logging.disable(logging.CRITICAL)
    return Fuzz(seed)


def _tell(fuzz: Fuzz, found: Found) -> None:
    """Tell what went wrong with the shortest such input, and how to repeat it."""
    complain(f"input {found.number} is made shorter")
    short = fuzz.shrunk(found)
    say(f"door {short.door}: {short.problem}")
    say(pprint.pformat(short.parts, width=100))
    say(f"repeat it: python -m lab.fuzz --seed {found.seed} --input {found.number}")


if __name__ == "__main__":
    sys.exit(main())
