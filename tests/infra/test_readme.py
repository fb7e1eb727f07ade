"""infra/README.md says what is there: variables, alerts, API versions."""

from __future__ import annotations

import json
import re

from tests.infra.kit import INFRA
from tests.infra.test_operations import TWINS
from tools.azd_hooks import asked

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


def test_the_page_has_every_api_version_and_the_day_on_which_they_were_looked_at() -> None:
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


def test_the_page_says_which_alerts_stay_when_logs_are_cut_off() -> None:
    named = {
        name: cells[1] for cells in rows("Alerts") for name in re.findall(r"`([\w-]+)`", cells[0])
    }
    assert set(named) == set(TWINS)
    for name, twin in TWINS.items():
        assert twin is None or f"`{twin}`" in named[name], name


def test_the_page_describes_the_rule_for_the_branch_that_deploys() -> None:
    ci = (INFRA.parent / ".github" / "workflows" / "ci.yml").read_text()
    rule = PAGE.partition("A rule for `main`")[2].partition("- **")[0]
    jobs = set(re.findall(r"^  (\w+):$", ci.partition("\njobs:\n")[2], re.MULTILINE))
    assert jobs == {"test", "infra", "audit"}
    assert all(f"`{job}`" in rule for job in jobs)
