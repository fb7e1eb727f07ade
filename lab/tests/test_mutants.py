"""The mutants of ``lab.mutants`` still fit the code, and a hunt reports whether one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.edge_mutants import EDGE, EdgeMutant
from lab.mutants import MUTANTS, ROOT, Mutant, hunted


@pytest.mark.parametrize("mutant", [*MUTANTS, *EDGE], ids=lambda one: one.name)
def test_a_mutant_changes_one_place_of_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_there_are_at_least_forty_mutants_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_there_are_at_least_ten_mutants_of_the_edge_in_the_code_of_the_product() -> None:
    assert len({mutant.name for mutant in EDGE}) == len(EDGE) >= 10
    edge = ("sas/adapters/", "sas/functions.py")
    assert [mutant.name for mutant in EDGE if not mutant.path.startswith(edge)] == []


@pytest.mark.parametrize("mutant", EDGE, ids=lambda one: one.name)
def test_a_mutant_of_the_edge_names_tests_that_there_are(mutant: EdgeMutant) -> None:
    assert mutant.tests
    files = [name.partition("::")[0] for name in mutant.tests]
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_a_mutant_that_no_longer_fits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1\n")
    with pytest.raises(ValueError, match="has its text 0 times"):
        Mutant("gone", "one.py", "b = 1", "b = 2").apply(tmp_path)


@pytest.mark.long
def test_a_hunt_finds_a_broken_protocol() -> None:
    (mutant,) = (one for one in MUTANTS if one.name == "a submission wakes nobody")
    hunt = hunted(mutant, 50)
    assert hunt.seed is not None or hunt.saw == "not found"
    (mutant,) = (one for one in MUTANTS if one.name == "no ETag")
    assert hunted(mutant, 400).saw != "not found"


@pytest.mark.long
def test_a_hunt_finds_nothing_in_code_that_is_not_broken() -> None:
    same = Mutant("nothing", "sas/domain/submit.py", "(Wake(), Notify", "(Wake(),  Notify")
    assert hunted(same, 20).saw == "not found"
