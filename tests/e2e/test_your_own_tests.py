"""The tests of the pattern pass with the business of docs/your-own-workflow.md in ``orders/``."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.workflow_page import NOT_COPIED, PROJECT, project, run_for, write_infra

__all__ = ["project"]  # a fixture

ALSO = (
    "tests",
    "template",
    "azure.yaml",
    ".funcignore",
    ".github",
    "samples",
    "docs",
    "lab",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "Makefile",
)
RUN = (
    "unit",
    "simulation/test_sim.py",
    "integration/test_cold_start.py",
    "infra/test_names.py",
    "infra/test_queue_list.py",
)
ONLY_IMPORTED = ("contract", "simulation")
"""These name neither ``orders`` nor a file outside ``sas``: what they import must be there."""
NOT_RUN = ("tests/unit/test_docs_*", "tests/unit/test_domain_*")
"""The pages are about this repository. The decisions are pure: they import ``sas.domain`` alone."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_tests_of_the_pattern_pass_with_another_business_in_orders(project: Path) -> None:
    for name in ALSO:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=NOT_COPIED, dirs_exist_ok=True)
        else:
            shutil.copy(source, project / name)
    write_infra(project)
    environment = {"TRIPS_URL": "http://127.0.0.1:7201"}
    words = [sys.executable, "-m", "pytest", "-q"]
    listing = [*words, "--collect-only", *(f"tests/{layer}" for layer in ONLY_IMPORTED)]
    collected = run_for(300, listing, project, environment)
    assert collected.returncode == 0, collected.stdout[-5000:]
    ignored = [f"--ignore-glob={name}" for name in NOT_RUN]
    tests = [f"tests/{layer}" for layer in RUN]
    done = run_for(1700, [*words, *ignored, *tests], project, environment)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("layer", ONLY_IMPORTED)
def test_tests_of_the_pattern_import_no_business(layer: str) -> None:
    named = re.compile(r"(?m)^(?:from|import) (?:orders|samples|function_app)\b|orders\.\w+:\w+")
    tests = (PROJECT / "tests" / layer).glob("*.py")
    assert [path.name for path in tests if named.search(path.read_text(encoding="utf-8"))] == []
