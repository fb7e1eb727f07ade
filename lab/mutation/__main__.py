"""Hunt mutants that nobody chose: ``python -m lab.mutation --seed 1``.

mutmut's operators make mutants of the domain, the engine, the actors and the features (see
``make.py`` for what is left out). A sample of them is hunted by the tests in memory that touch
the changed line: unit before contract before simulation, the shortest first. The end lists what
survived, and exit code 1 says that less than 95 % were found. ``equivalents.txt`` holds the
mutants that no test can find, a line and a reason each.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TextIO

from lab.mutation.hunt import (
    BUILD,
    CODE,
    FILES_FIRST,
    FILES_THEN,
    LAYERS,
    ROOT,
    Bench,
    MadeMutant,
    MeasuredTest,
    digest,
    forked,
    hunted_at_import,
    nearest,
)

GOAL = 0.95
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")
PRELOADED = (
    "aiohttp.web",
    "azure.data.tables.aio",
    "azure.servicebus.aio",
    "msgspec",
    "rich.console",
)


def made(paths: Sequence[str]) -> list[MadeMutant]:
    """Return all mutants of some files."""
    maker = Path(__file__).with_name("make.py")
    folder = BUILD / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    files = {path: folder / f"{digest([maker, ROOT / path])}.json" for path in paths}
    if missing := [path for path, file in files.items() if not file.exists()]:
        new = BUILD / "mutants.json"
        subprocess.run([BUILD / "bin" / "python", maker, new, *missing], cwd=ROOT, check=True)
        made_of: dict[str, list[object]] = {path: [] for path in missing}
        for mutant in json.loads(new.read_text()):
            made_of[mutant["path"]].append(mutant)
        for path, several in made_of.items():
            files[path].write_text(json.dumps(several))
    texts = [file.read_text() for file in files.values()]
    return [MadeMutant(**mutant) for text in texts for mutant in json.loads(text)]


class Report:
    """What was found so far; processes that are forked add to it."""

    def __init__(self, mutants: Sequence[MadeMutant]) -> None:
        self._mutants = mutants
        BUILD.mkdir(parents=True, exist_ok=True)
        self._file = BUILD / f"report-{os.getpid()}.jsonl"
        self._file.write_text("")
        self._begin = time.monotonic()

    def add(self, number: int, finder: str, tests: int) -> None:
        """Note what found a mutant, and print it."""
        with self._file.open("a") as stream:
            print(json.dumps([number, finder, tests]), file=stream)
        mutant, results = self._mutants[number], self.results()
        survivors = sum(not finder for finder, _ in results.values())
        total = len(self._mutants)
        left_s = (time.monotonic() - self._begin) / len(results) * (total - len(results))
        print(
            f"{len(results)} of {total}, {survivors} survived, {left_s / 60:.0f} min left:"
            f" {mutant.path}:{mutant.line} {finder or 'SURVIVED'}",
            flush=True,
        )

    def results(self) -> dict[int, tuple[str, int]]:
        """Return what found each mutant, and how many tests there were."""
        lines = map(json.loads, self._file.read_text().splitlines())
        return {number: (finder, tests) for number, finder, tests in lines}

    def summary(self) -> float:
        """Print survivors and kills by layer. Return the part that was found."""
        results = self.results()
        self._file.unlink()
        if len(results) < len(self._mutants):
            raise RuntimeError("the hunt broke: its first lines say why")
        kills: Counter[str] = Counter()
        for number, (finder, tests) in sorted(results.items()):
            layer = next((layer for layer in LAYERS if finder.startswith(layer)), finder)
            kills[layer] += 1
            if not finder:
                mutant = self._mutants[number]
                print(f"\nSURVIVED {tests} tests, {mutant.path}:{mutant.line}\n  {mutant.key}")
                old = (ROOT / mutant.path).read_text().splitlines()
                diff = difflib.unified_diff(old, mutant.source().splitlines(), n=0, lineterm="")
                print("\n".join([*diff][3:]))
        survivors = kills.pop("", 0)
        part = (len(results) - survivors) / len(results)
        print(
            f"\nfound first by: {', '.join(f'{layer} {count}' for layer, count in kills.items())}"
        )
        print(f"{len(results) - survivors} of {len(results)} were found, {part:.1%}")
        return part


def hunt(mutants: Sequence[MadeMutant], jobs: int) -> float:
    """Hunt mutants. Return the part that was found."""
    report = Report(mutants)
    for name in PRELOADED:
        import_module(name)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            Bench(jobs).run(partial(_hunt_functions, mutants, report, stream))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        rest = [
            (number, [MeasuredTest(**test) for test in tests])
            for number, tests in map(json.loads, stream)
        ]
    os.waitpid(pid, 0)
    for files_max in (FILES_FIRST, FILES_THEN):
        works = [
            partial(hunted_at_import, mutants[number], nearest(tests, files_max))
            for number, tests in rest
        ]
        survivors = []
        for place, finder in forked(works, jobs):
            number, tests = rest[place]
            if finder or files_max > FILES_FIRST:
                report.add(number, finder, len(tests))
            else:
                survivors.append(rest[place])
        rest = survivors
    return report.summary()


def _hunt_functions(
    mutants: Sequence[MadeMutant], report: Report, rest: TextIO, bench: Bench
) -> None:
    """Hunt what can be hunted in processes that have imported all; write the others.

    What survives here, and runs at import too, is hunted again with the mutant imported.
    """
    swift = [number for number, mutant in enumerate(mutants) if bench.replaced(mutant)]
    works = [partial(bench.hunted, mutants[number]) for number in swift]
    again = {*range(len(mutants))} - {*swift}
    for place, finder in forked(works, bench.jobs):
        number = swift[place]
        if finder or not bench.is_at_import(mutants[number]):
            report.add(number, finder, len(bench.covering(mutants[number])))
        else:
            again.add(number)
    for number in sorted(again):
        tests = [replace(test, lines={}) for test in bench.covering(mutants[number])]
        print(json.dumps([number, [asdict(test) for test in tests]]), file=rest)


def main(argv: list[str] | None = None) -> int:
    """Make mutants, hunt a sample of them, and print what survived."""
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, help="so many mutants; 200, or with --only all")
    parser.add_argument("--only", nargs="+", metavar="PATH", help="mutants of these files alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    paths = arguments.only or sorted(
        str(path.relative_to(ROOT)) for top in CODE for path in (ROOT / top).rglob("*.py")
    )
    mutants = made(paths)
    lines = EQUIVALENTS.read_text().splitlines()
    equivalents = {line.rpartition("  # ")[0] for line in lines if line.startswith("sas/")}
    if not arguments.only:
        for key in sorted(equivalents - {mutant.key for mutant in mutants}):
            print(f"no mutant is this equivalent: {key}")
    rest = [mutant for mutant in mutants if mutant.key not in equivalents]
    size = arguments.sample or (len(rest) if arguments.only else 200)
    print(f"{len(mutants)} mutants, {len(mutants) - len(rest)} of them equivalent; {size} drawn")
    sample = random.Random(arguments.seed).sample(rest, min(size, len(rest)))
    return 0 if hunt(sample, arguments.jobs) >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
