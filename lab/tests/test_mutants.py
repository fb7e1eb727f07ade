"""The mutants still fit the code, and a hunt reports whether one is found."""

from __future__ import annotations

import pytest

from lab.mutants.__main__ import ROOT, hunted, main
from lab.mutants.calls import CALLS
from lab.mutants.edge import EDGE
from lab.mutants.mutant import Mutant
from lab.mutants.protocol import MUTANTS
from lab.mutants.run_on import RUN_ON

ALL = (*MUTANTS, *CALLS, *RUN_ON, *EDGE)


def test_each_mutant_changes_one_place_of_the_code_and_names_tests_that_there_are() -> None:
    for mutant in ALL:
        assert (ROOT / mutant.path).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new
        assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests), mutant.name
    assert len({mutant.name for mutant in ALL}) == len(ALL)


@pytest.mark.long
def test_a_hunt_finds_a_broken_protocol_and_nothing_in_code_that_is_not_broken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "no ETag", "--seeds", "400"]) == 0
    assert "no ETag: seed " in capsys.readouterr().out
    same = Mutant(
        name="nothing", path="sas/domain/submit.py", old="(Wake(), Notify", new="(Wake(),  Notify"
    )
    assert hunted(same, 20) is None
