"""The chaos run: which ends are wrong, and a small run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lab.chaos.reconciliation import what_is_wrong
from lab.chaos.system import PROJECT

DONE = {"reserve-stock": 1, "take-payment": 1, "ship": 1}
GONE = dict.fromkeys(DONE, 0)


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
            "order",
            "undone",
            GONE | {"take-payment": 1},
            ["ship"],
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
    found_titles = [title for title, _ in what_is_wrong(workflow, notified, in_force, refused)]
    assert found_titles == titles


@pytest.mark.long
def test_the_ledgers_balance_after_a_small_chaos_run(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lab.chaos", "--orders", "30", "--faults", "4"]
    argv += ["--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert "30 orders, 4 faults" in done.stdout
    assert done.stdout.endswith("\nBALANCED\n")
