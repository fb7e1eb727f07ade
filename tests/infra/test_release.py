"""The release workflow: what is published, from where, and by which right."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.infra.kit import ROOT, read_yaml
from tools.release import problems

GITHUB = ROOT / ".github"
JOBS = read_yaml(GITHUB / "workflows" / "release.yml")["jobs"]


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def runs(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def test_what_is_published_is_built_where_nothing_else_is_installed() -> None:
    """A tool that checks the packages cannot change them: it runs in another job, afterwards."""
    build = JOBS["build"]
    installed = [line for line in runs("build").splitlines() if "install" in line]
    assert installed == [
        'python -m pip install --require-hashes --requirement "$RUNNER_TEMP/backend.txt"'
    ]
    assert "/^setuptools==/" in runs("build")
    assert "make" not in runs("build")
    upload = build["steps"][-1]
    assert upload["with"]["path"] == "build/dist/"
    assert build["outputs"]["packages"] == f"${{{{ steps.{upload['id']}.outputs.artifact-id }}}}"
    for job in ("check", "publish"):
        downloads = [
            step["with"]["artifact-ids"]
            for step in JOBS[job]["steps"]
            if "download-artifact" in step.get("uses", "")
        ]
        assert downloads == ["${{ needs.build.outputs.packages }}"]


def test_the_pin_of_the_build_backend_is_cut_out_with_its_hashes() -> None:
    [pattern] = re.findall(r"sed -n '(.*?)'", runs("build"))
    cut = subprocess.run(
        ["/usr/bin/env", "sed", "-n", pattern, "requirements-dev.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.fullmatch(r"setuptools==\S+ \\\n(    --hash=sha256:\w{64}( \\)?\n)+", cut)


def test_publishing_needs_a_tag_a_switch_and_an_environment_and_only_there_a_right() -> None:
    assert JOBS["publish"]["if"] == "github.ref_type == 'tag' && vars.PUBLISH == 'true'"
    assert JOBS["publish"]["environment"] == "release"
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}
    assert "permissions" not in JOBS["build"]
    assert "permissions" not in JOBS["check"]


def test_only_a_tag_that_is_the_version_of_both_packages_and_in_the_changelog_is_released(
    tmp_path: Path,
) -> None:
    (tmp_path / "devstack").mkdir()
    for name in ("pyproject.toml", "devstack/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n## {version()}\n")
    assert problems(f"v{version()}", tmp_path) == []
    assert len(problems("v9.9.9", tmp_path)) == 3
    changelog.write_text(f"## {version()}, not released\n")
    assert len(problems(f"v{version()}", tmp_path)) == 1
