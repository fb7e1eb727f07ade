"""The pytest plugin: the fixture ``saga``, the story in a report, and no cost elsewhere."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
TEST = """\
from samples.claim.claim import Claim, claims

def test_nobody_approves(saga):
    order = saga.run(claims, Claim("ann", "r-17", 100))
    assert order.state == "Processed"
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_a_failed_assertion_shows_the_story_of_the_orders(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess("-p", "sas.testing.plugin")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*assert 'Compensated' == 'Processed'",
            "*- story of the orders -*",
            "*SCANNER_URL: POST /scans of step scan, order O-1: 200 {*",
            "*order O-1: step approve waits for a callback 2 days*",
            "*order O-1: step undone (scan)",
        ]
    )


def test_a_test_that_passes_shows_no_story(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST.replace('"Processed"', '"Compensated"'))
    result = pytester.runpytest_subprocess("-p", "sas.testing.plugin", "-rA")
    result.assert_outcomes(passed=1)
    assert "story of the orders" not in result.stdout.str()


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("claims, {}", "TypeError: the order is no Claim: *"),
        ("claims, CLAIM, callbacks={'aprove': 1}", "LookupError: saga 'claim' has no step*"),
        ("saga_of(raises), TICKET", "*StoryError: order O-1: step pay raised KeyError*"),
        ("saga_of(returns_another_type), TICKET", "*StoryError: order O-1: step pay fails in *"),
        ("saga_of(opens_a_socket), TICKET", "*StoryError: order O-1: step pay fails in opens_a_*"),
    ],
)
def test_a_failure_shows_the_line_of_the_test_and_none_of_the_kit(
    pytester: pytest.Pytester, run: str, text: str
) -> None:
    pytester.makepyfile(
        f"""
        from samples.claim.claim import Claim, claims
        from tests.wrong_sagas import Ticket, opens_a_socket, raises, returns_another_type, saga_of

        CLAIM, TICKET = Claim("ann", "r-17", 100), Ticket(3)

        def test_it(saga):
            saga.run({run})
        """
    )
    result = pytester.runpytest_subprocess("-p", "sas.testing.plugin")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f">       saga.run({run})", f"E       {text}"])
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


def test_the_wheel_registers_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"sas.testing.plugin": "sas.testing.plugin"}
    assert "testing" in project["optional-dependencies"]
