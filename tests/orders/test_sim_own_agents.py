"""The agents of the sample under every fault: ``sas sim --agents own``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sas.cli.application import named
from sas.cli.main import main
from sas.cli.sim import project_of
from sas.testing.plan import drawn
from sas.testing.play import play
from tests.long import long

ROOT = Path(__file__).parents[2]


def test_the_agents_of_the_sample_run_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--app", "orders", "--agents", "own", "--project", str(ROOT), "--first", "6"]
    assert main([*words, "--seeds", "8", "--jobs", "1"]) == 0
    assert "every invariant held" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [*range(14, 18), *long(range(18, 120))])
def test_the_agents_of_the_sample_hold_every_invariant(seed: int) -> None:
    sample = project_of(named("orders"), ROOT, own_agents=True)
    assert play(sample, drawn(seed, sample.workflows)).violations == []
