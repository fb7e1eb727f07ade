"""The tool that plays outages, over a few of them."""

from __future__ import annotations

import pytest

from lab import outages
from tests.simulation.outages import DEPENDENCIES, DURATIONS, Cost


def test_outages_that_seeds_draw_are_played_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert outages.main(["--seeds", "2", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.endswith("2 outages, 0 cost more than time\n")


def test_the_table_has_a_row_for_each_dependency() -> None:
    costs = {case: Cost(back_s=7.0) for case in outages.cases(1)}
    lines = outages.table(costs).splitlines()
    assert len(lines) == 2 + len(DEPENDENCIES)
    assert lines[2].count("7 s") == len(DURATIONS)
