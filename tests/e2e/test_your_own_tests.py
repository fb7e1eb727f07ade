"""The tests of the pattern pass with the business of docs/your-own-workflow.md in ``orders/``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.workflow_page import NOT_COPIED, PROJECT, command, project, run, run_for

__all__ = ["project"]  # a fixture

ALSO = (
    "tests",
    "template",
    "azure.yaml",
    ".funcignore",
    ".github",
    "samples",
    "docs",
    "benchmarks",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "Makefile",
)
LAYERS = ("unit", "contract", "simulation", "infra/test_names.py", "infra/test_queue_list.py")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_tests_of_the_pattern_pass_with_another_business_in_orders(project: Path) -> None:
    for name in ALSO:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=NOT_COPIED, dirs_exist_ok=True)
        else:
            shutil.copy(source, project / name)
    named = run(command("tools.queues"), project)
    assert named.returncode == 0, named.stderr
    tests = [f"tests/{layer}" for layer in LAYERS]
    pages = "--ignore-glob=tests/unit/test_docs_*"  # they are about this repository
    words = [sys.executable, "-m", "pytest", "-q", pages, *tests]
    done = run_for(1700, words, project, {"TRIPS_URL": "http://127.0.0.1:7201"})
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
