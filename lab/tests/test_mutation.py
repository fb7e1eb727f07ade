"""A short hunt over one file of tests: what must be found is found, and what must survive does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab.mutation.hunt import ROOT

HUNT = """
import sys
from lab.mutation import __main__, hunt

hunt.LAYERS = ("tests/unit/test_domain_calls.py",)
PATH = "sas/domain/calls.py"
source = (hunt.ROOT / PATH).read_bytes()

def mutant(function, old, new):
    at = source.index(old.encode())
    line = source[:at].count(b"\\n") + 1
    return hunt.MadeMutant(
        path=PATH, line=line, function=function, at=at, length=len(old), text=new, change=new
    )

mutants = [
    mutant("after", "return _AFTER[state, event]", "return state"),
    mutant("after", "return _AFTER[state, event]", "return _AFTER[(state, event)]"),
    mutant(None, "_E.TIME_OVER, _S.CUT_OFF", "_E.TIME_OVER, _S.NOT_BEGUN"),
]
part = __main__.hunt(mutants, 1)
sys.exit(0 if part == 2 / 3 else 1)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it needs sys.monitoring")
def test_a_mutant_is_found_by_the_test_of_its_line_and_an_equivalent_survives() -> None:
    command = [sys.executable, "-c", HUNT]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    survivors = [line for line in run.stdout.splitlines() if line.startswith("SURVIVED")]
    assert [line.split(", ")[1].split(":")[0] for line in survivors] == ["sas/domain/calls.py"]
