"""The tool that plays outages, over a few of them."""

from __future__ import annotations

import pytest

from lab import outages


def test_outages_that_seeds_draw_are_played_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert outages.main(["--seeds", "2", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.endswith("2 outages, 0 cost more than time\n")
