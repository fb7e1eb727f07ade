"""Break the code on purpose, and see what finds it: ``python -m lab.mutants``.

These mutants are written by hand: ``lab.mutation`` cannot make them, or does not hunt there (the
adapters and the world in memory). Each changes one place of a copy of the code. For a mutant of the
protocol the hunt plays seeds of the simulation, until a seed breaks an invariant, ends in an error
of the simulation itself, or never ends. For the others, of a call, of running on and of the edge
with Azure, the hunt runs the tests that the mutant names. Each hunt prints a line. Exit code 1: a
mutant was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from lab.mutants.calls import CALLS
from lab.mutants.edge import EDGE
from lab.mutants.mutant import Mutant
from lab.mutants.protocol import MUTANTS
from lab.mutants.run_on import RUN_ON

ROOT = Path(__file__).parents[2]
COPIED = (
    "sas",
    "orders",
    "tests",
    "infra",
    "host.json",
    "tools",
    "pyproject.toml",
    "function_app.py",
    "local.settings.json",
    "docs",
)
APP = "tests.simulation.crowded:DEFINED"
"""Workflows with every feature: alternatives, drain times, waits, deadlines, no undo."""
SEEDS_MAX = 2000
SEED_CPU_S_MAX = 60
"""A seed that takes more CPU time counts as a seed that never ends. The longest seeds of code
without a mutant last for days of virtual time, and take 10 s."""
TEST_S_MAX = 300
PLAY = """
import signal
import sys
from pathlib import Path
from sas.cli.application import workflows_of
from sas.testing.plan import drawn
from sas.testing.play import Project, play
project = Project.of(workflows_of(sys.argv[1]), Path())
for seed in range(int(sys.argv[2])):
    signal.setitimer(signal.ITIMER_VIRTUAL, int(sys.argv[3]))
    print(f"seed {seed}:", end=" ", flush=True)
    try:
        broken = play(project, drawn(seed, project.workflows)).violations
    except Exception as error:
        broken = [f"{type(error).__name__}: {error}"]
    if broken:
        sys.exit(str(broken[0]))
"""
"""Exit code 0: no seed found the mutant. Otherwise the last seed found it, and stderr says how."""


def hunted(mutant: Mutant, seeds: int = SEEDS_MAX) -> str | None:
    """Return the seed or test that finds a mutant in a copy of the code; None if nothing does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = copied(Path(name))
        mutant.apply(copy)
        return failing(copy, mutant.tests) if mutant.tests else played(copy, seeds)


def copied(to: Path) -> Path:
    """Copy the code that is played and tested."""
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, to / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / part)
    return to


def played(copy: Path, seeds: int) -> str | None:
    """Play seeds. Return the seed that finds the mutant and what it found; None if none does."""
    process = _python(copy, "-c", PLAY, APP, str(seeds), str(SEED_CPU_S_MAX))
    if process.returncode == 0:
        return None
    seed = process.stdout.rstrip(": ").rpartition("seed ")[2]
    never_ends = process.returncode == -signal.SIGVTALRM
    finding = "it never ends" if never_ends else process.stderr.strip().splitlines()[-1]
    return f"seed {seed}: {finding}"


def failing(copy: Path, tests: Sequence[str]) -> str | None:
    """Return the first of some tests that fails.

    Raises:
        RuntimeError: pytest ran no test, or broke.
    """
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}")
    process = _python(copy, "-m", "pytest", *options, *tests)
    match = re.search(r"^FAILED (\S+)", process.stdout, re.MULTILINE)
    if process.returncode == 1 and match is not None:
        return match[1]
    if process.returncode != 0:
        raise RuntimeError(f"pytest ended with {process.returncode}:\n{process.stdout[-3000:]}")
    return None


def _python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def main(argv: list[str] | None = None) -> int:
    """Hunt the mutants, and print what finds each."""
    parser = argparse.ArgumentParser(prog="python -m lab.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", default=[""], help="mutants with one of these texts")
    arguments = parser.parse_args(argv)
    mutants = [
        mutant
        for mutant in (*MUTANTS, *CALLS, *RUN_ON, *EDGE)
        if any(text in mutant.name for text in arguments.only)
    ]
    if not mutants:
        parser.error("no mutant has one of these texts")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if tests:
        with tempfile.TemporaryDirectory(prefix="mutant-") as name:
            if broken := failing(copied(Path(name)), tests):
                print(f"{broken} fails on the code as it is: repair that first")
                return 1
    missed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        hunts = {pool.submit(hunted, mutant, arguments.seeds): mutant for mutant in mutants}
        for hunt in as_completed(hunts):
            finder = hunt.result()
            missed += finder is None
            print(f"{hunts[hunt].name}: {finder or 'NOT FOUND'}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
