"""Operators at random moments, patient workflows, clocks apart, supervisors side by side.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

import random

import pytest

from sas.domain.messages import Verb
from sas.testing.plan import VERBS, Apart, Chance, Item, Outside, Plan, Press, Submit
from sas.testing.play import Played, play
from sas.testing.system import Project
from tests.long import Seeds, ranges
from tests.simulation.patient_workflows import defined
from tests.simulation.system import PROJECT

COMMANDS = 10


def pressed(seed: int, orders: int, commands: int) -> list[Press]:
    """Return commands at times, for the current or an old seq, some of them twice."""
    rng = random.Random(seed)  # noqa: S311  it repeats itself
    return [
        Press(
            at_s=rng.uniform(0, 600),
            order_id=f"O-{rng.randrange(orders)}",
            verb=rng.choice(VERBS),
            stale=rng.random() < 0.15,
            edited=rng.random() < 0.5,
            twice=rng.random() < 0.2,
        )
        for _ in range(commands)
    ]


def played(seed: int, commands: int, *items: Item, instances: int = 3) -> Played:
    submissions = [
        Submit(
            at_s=1.0,
            order_id=f"O-{n}",
            workflow=("holding", "undoing")[n % 2],
            urgent=False,
            times=1,
        )
        for n in range(4)
    ]
    plan = Plan(seed, instances, (*submissions, *items, *pressed(seed, len(submissions), commands)))
    outcome = play(Project.of(defined(), PROJECT), plan)
    assert outcome.violations == [], f"seed {seed}"
    return outcome


SERVICES = {
    "transient": 0.1,
    "lost_answer": 0.1,
    "hangs": 0.2,
    "refused": 0.15,
    "undo_refused": 0.1,
}


def chances(**shares: float) -> list[Chance]:
    return [Chance(name, share) for name, share in (SERVICES | shares).items()]


@pytest.mark.parametrize("seeds", ranges(2, 30))
def test_every_order_ends_whole_while_operators_meddle_and_clocks_are_apart(seeds: Seeds) -> None:
    for seed in seeds:
        clocks = Apart(1, 2.0), Apart(2, -2.0)
        faults = chances(crash=0.005, lock_lost=0.03, duplicate=0.03, store_lost_answer=0.02)
        played(seed, COMMANDS, *clocks, *faults)


@pytest.mark.parametrize("seeds", ranges(2, 30))
def test_every_order_ends_whole_while_supervisors_sweep_side_by_side_and_die_on_the_way(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        clocks = Apart(0, 0.5), Apart(1, -0.5)
        played(
            seed, 3, *clocks, *chances(crash=0.02, store_conflict=0.05, bus_down=0.02), instances=2
        )


@pytest.mark.parametrize("seeds", ranges(4, 30))
def test_every_order_ends_whole_while_operators_cancel_and_answer_steps_that_await_callbacks(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        rng = random.Random(f"callbacks of {seed}")  # noqa: S311  it repeats itself
        presses = [
            Press(
                at_s=rng.choice(
                    (rng.uniform(1, 4), rng.uniform(4, 200))
                ),  # a call is out, or may wait
                order_id=f"O-{rng.randrange(4)}",
                verb=rng.choice((Verb.CANCEL, Verb.CALLBACK, Verb.CALLBACK)),
                refuses=rng.random() < 0.4,
                twice=rng.random() < 0.2,
            )
            for _ in range(8)
        ]
        faults = chances(crash=0.005, lock_lost=0.03, duplicate=0.05, bus_lost_answer=0.03)
        played(seed, 2, Outside("inventory"), Outside("payment"), *presses, *faults)


def test_without_faults_a_patient_order_is_processed_on_clocks_apart() -> None:
    outcome = played(1, 0, Apart(0, 2.0), Apart(1, -2.0), instances=2)
    assert {state for _, state in outcome.ends} == {"Processed"}
