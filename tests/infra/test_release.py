"""The release workflow, the templates of GitHub, and the documentation as a site."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kit import ROOT
from tests.infra.test_azd import read_yaml
from tools.docs_site import pages, stage
from tools.release import problems

GITHUB = ROOT / ".github"
JOBS = read_yaml(GITHUB / "workflows" / "release.yml")["jobs"]
NAV = (ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


# -- Releases ---------------------------------------------------------------------------------


def test_nothing_is_published_but_what_the_tests_and_checks_passed() -> None:
    assert JOBS["build"]["needs"] == "ci"
    assert JOBS["publish"]["needs"] == "build"
    runs = " ".join(step.get("run", "") for step in JOBS["build"]["steps"])
    for step in ("make dist", "twine==", "check-wheel-contents==", "cyclonedx-py", "make docs"):
        assert step in runs
    kept = [step["with"] for step in JOBS["build"]["steps"] if "upload" in step.get("uses", "")]
    [packages] = [one for one in kept if one["name"] == "packages"]
    assert JOBS["publish"]["steps"][0]["with"]["name"] == packages["name"]
    assert packages["path"] == "build/dist/"


def test_publishing_needs_a_tag_a_switch_and_an_environment_and_only_there_a_right() -> None:
    assert JOBS["publish"]["if"] == "github.ref_type == 'tag' && vars.PUBLISH == 'true'"
    assert JOBS["publish"]["environment"] == "release"
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}
    assert "permissions" not in JOBS["build"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "devstack").mkdir()
    for name in ("pyproject.toml", "devstack/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version()}\n")
    return tmp_path


def test_a_tag_that_is_the_version_of_both_packages_can_be_released(project: Path) -> None:
    assert problems(f"v{version()}", project) == []


def test_a_tag_that_is_not_the_version_is_refused_with_what_to_do(project: Path) -> None:
    first, second, changelog = problems("v9.9.9", project)
    assert first.startswith(f"pyproject.toml has version {version()}: tag v{version()}, or")
    assert second.startswith("devstack/pyproject.toml has version")
    assert 'no heading "## 9.9.9"' in changelog


def test_what_the_changelog_calls_not_released_is_not_released(project: Path) -> None:
    (project / "CHANGELOG.md").write_text(f"## {version()}, not released\n")
    [problem] = problems(f"v{version()}", project)
    assert "without a remark" in problem


# -- Templates --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_a_form_for_issues_has_what_github_asks_for(name: str) -> None:
    form: Any = read_yaml(GITHUB / "ISSUE_TEMPLATE" / name)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) >= 3
    for field in fields:
        assert field["type"] in {"textarea", "dropdown"}
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1


def test_the_forms_name_commands_and_files_that_are_there() -> None:
    texts = [path.read_text() for path in (GITHUB / "ISSUE_TEMPLATE").iterdir()]
    text = " ".join([*texts, (GITHUB / "pull_request_template.md").read_text()])
    for name in set(re.findall(r"\b[A-Z]+\.md\b", text)):
        assert (ROOT / name).exists(), name
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


# -- The site ---------------------------------------------------------------------------------


def test_every_page_has_its_place_in_the_site_once() -> None:
    named = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)
    decisions = {str(page) for page in pages() if re.match(r"(devstack/)?docs/adr/0", str(page))}
    assert sorted(named) == sorted({str(page) for page in pages()} - decisions)
    assert re.findall(r"^  - ([\w-]+):", NAV, re.MULTILINE) == [
        "Home", "Tutorial", "How-to", "Reference", "Explanation",
    ]  # fmt: skip


def test_the_pages_are_copied_with_the_files_that_they_link_to(tmp_path: Path) -> None:
    stage(tmp_path)
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert (tmp_path / "docs" / "images" / "desk-overview.png").exists()
    assert not list(tmp_path.rglob("*.py"))


def test_the_packages_of_the_site_are_locked_without_addresses_and_not_part_of_setup() -> None:
    lock = (ROOT / "requirements-docs.txt").read_text()
    assert "mkdocs-material==" in lock
    assert "--hash=sha256:" in lock
    assert "://" not in lock
    assert "mkdocs" not in (ROOT / "requirements-dev.txt").read_text()
    recipe = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r requirements-docs.txt" in recipe
