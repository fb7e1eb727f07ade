"""The mutants still fit the code, and a hunt reports whether one is found."""

from __future__ import annotations

import pytest

from lab.mutants.__main__ import ROOT, hunted, main
from lab.mutants.calls import CALLS
from lab.mutants.edge import EDGE
from lab.mutants.mutant import Mutant
from lab.mutants.protocol import MUTANTS
from lab.mutants.run_on import RUN_ON


@pytest.mark.parametrize(
    "mutant", [*MUTANTS, *CALLS, *RUN_ON, *EDGE], ids=lambda mutant: mutant.name
)
def test_a_mutant_changes_one_place_of_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_mutants_have_names_of_their_own_and_tests_that_there_are() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *CALLS, *RUN_ON, *EDGE)]
    assert len(set(names)) == len(names)
    assert not any(mutant.tests for mutant in MUTANTS)
    assert all(mutant.tests for mutant in (*CALLS, *RUN_ON, *EDGE))
    files = {
        test.partition("::")[0] for mutant in (*CALLS, *RUN_ON, *EDGE) for test in mutant.tests
    }
    assert [file for file in files if not (ROOT / file).is_file()] == []


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
