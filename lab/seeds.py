"""Play seeds of the engine with models in place of agents: ``python -m lab.seeds``.

Each seed draws orders, commands of operators and faults of everything (``sas.testing.plan``). After
every transition, and at the end, the invariants are checked. A broken seed is printed at once, and
at the end the first is made as short as possible. Exit code 1: a seed broke an invariant.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from pathlib import Path

from sas.cli.application import workflows_of
from sas.domain.messages import JournalWord
from sas.testing.plan import drawn
from sas.testing.play import Played, Project, play
from sas.testing.run import jobs_here, played
from sas.testing.shrink import shrunk

ROOT = Path(__file__).parents[1]
APP = "tests.simulation.crowded:DEFINED"
"""Workflows with every feature."""


def project_of(app: str) -> Project:
    """Return the workflows of an application, on the platform of this repository."""
    return Project.of(workflows_of(app), ROOT)


def play_seed(project: Project, seed: int) -> Played:
    """Play a seed."""
    return play(project, drawn(seed, project.workflows))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.seeds", description=__doc__)
    parser.add_argument("--app", default=APP, help="MODULE[:NAME] of the workflows")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=jobs_here())
    parser.add_argument("--seed", type=int, help="tell its story")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _tell(project_of(options.app), options.seed)
    seeds = range(options.first, options.first + options.seeds)
    load = functools.partial(project_of, options.app)
    ends, words, broken = Counter[tuple[str, str]](), Counter[str](), list[int]()
    for result in played(load, play_seed, seeds, options.jobs):
        ends.update(result.ends)
        words.update(result.words)
        if result.violations:
            broken.append(result.plan.seed)
            print(f"seed {result.plan.seed} is broken: {result.violations[0]}", flush=True)
    for (workflow, state), count in sorted(ends.items()):
        print(f"{workflow} {state}: {count:,}")
    print(f"never reached: {'; '.join(sorted({*JournalWord} - {*words})) or 'nothing'}")
    print(f"{options.seeds:,} seeds, {ends.total():,} orders, {len(broken):,} seeds broken")
    if broken:
        _shorten(load(), broken[0])
    return 1 if broken else 0


def _tell(project: Project, seed: int) -> int:
    result = play(project, drawn(seed, project.workflows), tell=True)
    print("\n".join(result.story))
    print(f"seed {seed}: {result.violations or 'every invariant held'}")
    return 1 if result.violations else 0


def _shorten(project: Project, seed: int) -> None:
    plan = shrunk(drawn(seed, project.workflows), lambda plan: bool(play(project, plan).violations))
    print(f"the shortest story of seed {seed} that still fails:")
    print("\n".join(play(project, plan, tell=True).story))


if __name__ == "__main__":
    raise SystemExit(main())
