"""The pytest plugin: the fixture ``saga``, the story in a report, and no cost elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_a_failure_shows_the_line_of_the_test_and_the_story_and_nothing_of_the_kit(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        from samples.claim.claim import Claim, claims
        from tests.wrong_sagas import Ticket, raises, saga_of

        CLAIM, TICKET = Claim("ann", "r-17", 100), Ticket(3)

        def test_an_assertion(saga):
            order = saga.run(claims, CLAIM)
            assert order.state == "Processed"

        def test_that_passes(saga):
            assert saga.run(claims, CLAIM).state == "Compensated"

        def test_a_slip(saga):
            saga.run(claims, {})

        def test_a_bug(saga):
            saga.run(saga_of(raises), TICKET)
        """
    )
    result = pytester.runpytest_subprocess("-p", "sas.testing.plugin", "-rA")
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*assert 'Compensated' == 'Processed'",
            "*- story of the orders -*",
            "*SCANNER_URL: POST /scans of step scan, order O-1: 200 {*",
            "*order O-1: step undone (scan)",
            ">       saga.run(claims, {})",
            "E       TypeError: the order is no Claim: *",
            ">       saga.run(saga_of(raises), TICKET)",
            "E       *StoryError: order O-1: step pay raised KeyError*",
        ]
    )
    passed = result.stdout.str().partition("= PASSES =")[2]
    assert "test_that_passes" in passed
    assert "story of the orders" not in passed
    for line in ("*sas/testing/*.py:*", "*sas/saga/*.py:*", "*sas/engine/*.py:*"):
        result.stdout.no_fnmatch_line(line)


def test_a_project_that_does_not_use_it_loads_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_what_is_loaded():
            ours = {name for name in sys.modules if name.partition(".")[0] == "sas"}
            assert ours <= {"sas", "sas.distribution", "sas.testing", "sas.testing.plugin"}
            assert "msgspec" not in sys.modules and "azure" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "sas.testing.plugin").assert_outcomes(passed=1)
