"""infra/README.md lists every variable, alert and API version of the templates."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
from typing import Any

import pytest

from tests.infra.kit import INFRA, ROOT, need_module
from tests.infra.test_operations import TWINS
from tools.azd_hooks import asked

need_module("yaml")
yaml: Any = importlib.import_module("yaml")

PAGE = (INFRA / "README.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]


def test_the_page_names_every_variable_that_can_be_set() -> None:
    parameters = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
    business = json.dumps(parameters["businessSettings"])
    ours = {name for name in asked() if name.startswith("SAS_") and name not in business}
    chosen = set(re.findall(r"\bSAS_[A-Z_]+", PAGE.partition("## Deploying from")[0]))
    assert ours - chosen == {"SAS_PRINCIPAL_WHOLESALE"}
    assert chosen <= ours | {"SAS_CALLBACK_KEY"}


def test_the_page_has_every_api_version_and_the_date_of_the_last_check() -> None:
    texts = "".join(path.read_text() for path in INFRA.rglob("*.bicep"))
    used = set(re.findall(r"'(Microsoft\.\w+)(?:/\w+)+@([\d-]+(?:-preview)?)'", texts))
    said = {
        (provider, version)
        for cells in rows("API versions")
        for provider in re.findall(r"Microsoft\.\w+", cells[0])
        for version in re.findall(r"\d{4}-\d\d-\d\d(?:-preview)?", cells[1])
    }
    assert said == used
    assert re.search(r"Looked at on \d+ \w+ \d{4}; look again each year", PAGE)


def test_the_page_says_which_alerts_remain_when_no_logs_arrive() -> None:
    named = {
        name: cells[1] for cells in rows("Alerts") for name in re.findall(r"`([\w-]+)`", cells[0])
    }
    assert set(named) == set(TWINS)
    for name, twin in TWINS.items():
        assert twin is None or f"`{twin}`" in named[name], name


def checks(jobs: dict[str, Any]) -> dict[str, str]:
    """Return the checks that GitHub reports for the jobs: a matrix reports one for each value."""
    found = {}
    for name, job in jobs.items():
        matrix = job.get("strategy", {}).get("matrix", {})
        for values in itertools.product(*matrix.values()):
            found[f"{name} ({', '.join(values)})" if values else name] = name
    return found


def test_the_rule_for_the_branch_requires_existing_checks_and_covers_every_job() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    rule = PAGE.partition("A rule for `main`")[2].partition("(in a")[0]
    required = set(re.findall(r"`(\w+)`", rule))
    reported = checks(jobs)
    assert "test (3.11)" in reported
    assert required <= set(reported)
    covered = {jobs[name].get("needs") for name in required}
    assert {reported[name] for name in required} | covered - {None} == set(jobs)


@pytest.mark.parametrize(
    ("result", "code"), [("success", 0), ("failure", 1), ("cancelled", 1), ("skipped", 1)]
)
def test_the_check_for_the_matrix_passes_only_if_every_job_of_it_passed(
    result: str, code: int
) -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["tests"]
    assert (job["needs"], job["if"]) == ("test", "always()")
    [step] = job["steps"]
    assert step["env"] == {"RESULT": "${{ needs.test.result }}"}
    done = subprocess.run(
        ["/bin/sh", "-c", step["run"]], env={"RESULT": result, "PATH": "/bin"}, check=False
    )
    assert done.returncode == code
