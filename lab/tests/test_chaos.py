"""The chaos run's own rules: which faults it draws, and which ends are wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from lab.chaos import report
from lab.chaos.faults import DECK, Kind, draw
from lab.chaos.reconciliation import what_is_wrong
from lab.chaos.screen import Screen
from lab.chaos.soak import Sample, Samples
from samples.demo.tally import Tally

DONE = {"reserve-stock": 1, "take-payment": 1, "ship": 1}
GONE = dict.fromkeys(DONE, 0)


def test_a_seed_draws_the_same_faults_again_and_every_kind_comes() -> None:
    first, again, other = (draw(100, random.Random(seed), ["a", "b"]) for seed in (7, 7, 8))
    assert first == again != other
    assert {fault.kind for fault in first[: sum(DECK.values())]} == set(Kind)


@pytest.mark.parametrize(
    ("workflow", "notified", "in_force", "refused", "titles"),
    [
        ("order", "completed", DONE, [], []),
        ("order", "undone", GONE, ["ship"], []),
        ("order-with-care", "failed", DONE | {"ship": 0}, ["ship"], []),
        ("order", None, DONE, [], ["lost"]),
        ("order", "undone", GONE, [], ["failed without a refusal"]),
        ("order-with-care", "failed", GONE, [], ["failed without a refusal"]),
        ("order", "completed", DONE, ["ship"], ["wrong end"]),
        ("order", "completed", DONE | {"ship": 0}, [], ["effects wrong"]),
        ("order", "completed", DONE | {"ship": 2}, [], ["effects wrong"]),
        (
            *("order", "undone", GONE | {"take-payment": 1}, ["ship"]),
            ["effects of undone orders in force"],
        ),
    ],
)
def test_the_reconciliation_finds_an_end_that_the_services_did_not_cause(
    workflow: str,
    notified: str | None,
    in_force: Mapping[str, int],
    refused: Sequence[str],
    titles: Sequence[str],
) -> None:
    found = [title for title, _ in what_is_wrong(workflow, notified, in_force, refused)]
    assert found == titles


def test_the_report_lists_only_transitions_other_than_the_happy_path() -> None:
    found = Counter({"submitted": 1, "claimed": 1, "step processed": 3, "step reset": 2})
    assert report._unusual(found) == [("step reset", 2)]


def test_a_worker_is_flat_only_if_nothing_rises_after_the_first_third() -> None:
    def of(*memory_mib: float) -> Samples:
        at_rest = [Sample(0, 99.0, 30, 20, in_use_mib=one) for one in memory_mib]
        return Samples(1, Path(), Tally(0), Screen(Console(), 0, 0), at_rest=at_rest)

    assert of(50, 60, 80, 82, 84, 85).flat
    assert of(60, 77, 121, 97, 82, 84, 71, 113, 91, 88).flat, "a burst is not a trend"
    assert not of(50, 60, 80, 82, 90, 95).flat
    assert not of(50, 50).flat, "two samples show no trend"


def test_the_table_shows_which_leak_a_run_is_long_enough_to_find() -> None:
    tally = Tally(0, ended=dict.fromkeys(map(str, range(3000)), "completed"))
    at_rest = [Sample(0, 200.0, 30, 20, in_use_mib=100.0)] * 6
    table = Samples(1, Path(), tally, Screen(Console(), 0, 0), at_rest=at_rest).table()
    assert table[-1] == "a leak of 5.1 KiB an order or more would show"
