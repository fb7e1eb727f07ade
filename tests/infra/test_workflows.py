"""The workflows that deploy, and what they pin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sas.deploy.github import SECRETS
from tests.infra.kit import ROOT, read_yaml
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.in_process import call_in_process
from tools import pinned

GITHUB = ROOT / ".github"
TEXTS = {path.stem: path.read_text() for path in (GITHUB / "workflows").glob("*.yml")}
DEPLOY: dict[str, Any] = read_yaml(GITHUB / "workflows" / "deploy.yml")["jobs"]
STAGE: dict[str, Any] = read_yaml(GITHUB / "workflows" / "deploy-stage.yml")["jobs"]
BACKUP: dict[Any, Any] = read_yaml(GITHUB / "workflows" / "backup.yml")
SIGN_IN = (GITHUB / "actions" / "sign-in" / "action.yml").read_text()


def runs(job: dict[str, Any]) -> list[str]:
    return [step.get("run", step.get("uses", "").partition("@")[0]) for step in job["steps"]]


def place(steps: list[str], text: str) -> int:
    [number] = [number for number, step in enumerate(steps) if text in step]
    return number


# -- How it deploys ---------------------------------------------------------------------------


def test_one_package_is_built_and_is_what_both_environments_get() -> None:
    steps = runs(DEPLOY["package"])
    assert "needs" in DEPLOY["package"]
    assert place(steps, "sas azd package build/app.zip") < place(steps, "actions/upload-artifact")
    upload = DEPLOY["package"]["steps"][-1]["with"]
    assert upload["name"] == "package-${{ github.sha }}"
    [download] = [
        step["with"] for step in STAGE["deploy"]["steps"] if "download" in step.get("uses", "")
    ]
    assert download["pattern"] == "package-*"
    assert download["run-id"] == "${{ inputs.run || github.run_id }}"
    assert "sas azd deploy build/app.zip" in runs(STAGE["deploy"])[-1]
    assert DEPLOY["production"]["needs"] == ["package", "staging"]


def test_a_plan_is_shown_where_nobody_approves_and_the_deployment_waits_for_it() -> None:
    assert STAGE["plan"]["environment"] == "${{ inputs.environment }}-plan"
    assert STAGE["deploy"]["environment"] == "${{ inputs.environment }}"
    assert "plan" in STAGE["deploy"]["needs"]
    steps = runs(STAGE["plan"])
    assert place(steps, "sign-in") < place(steps, "sas azd check") < place(steps, "--preview")
    assert place(steps, "--preview") < place(steps, "actions/upload-artifact")
    # Without `shell: bash` the exit code of azd is lost in the pipe.
    assert STAGE["plan"]["steps"][place(steps, "--preview")]["shell"] == "bash"


def test_a_rollback_deploys_no_package_of_a_branch_that_may_not_deploy(tmp_path: Path) -> None:
    steps = runs(STAGE["deploy"])
    step = STAGE["deploy"]["steps"][place(steps, "actions/runs/$RUN")]
    assert steps[0] == "actions/checkout"
    assert place(steps, "actions/runs/$RUN") < place(steps, "download-artifact")
    assert step["if"] == "inputs.run != ''"

    bash, git_path = shutil.which("bash"), shutil.which("git")
    assert bash is not None
    assert git_path is not None

    def git(*words: str) -> str:
        identity = (git_path, "-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.check_output([*identity, *words], cwd=tmp_path, text=True).strip()

    git("init", "--initial-branch=main")
    commits: dict[str, str] = {}
    for name in ("main", "feature", "v1-feature", "v1.0.0"):
        git("checkout", "-B", "work", *(["main"] if commits else []))
        git("commit", "--allow-empty", "--message", name)
        commits[name] = git("rev-parse", "HEAD")
        git(*(("tag", name) if name == "v1.0.0" else ("branch", "--force", name)))
    git("update-ref", "refs/remotes/origin/main", "main")
    gh = tmp_path / "gh"
    for run, event, branch, is_deployed in (
        ("1", "workflow_dispatch", "main", True),
        ("1", "workflow_dispatch", "v1.0.0", True),
        ("1", "workflow_dispatch", "feature", False),
        ("1", "workflow_dispatch", "v1-feature", False),  # a branch, no tag
        ("1", "pull_request", "main", False),  # it merges what others wrote
        ("1/../2", "workflow_dispatch", "main", False),
        ("1", "", "", False),
    ):
        gh.write_text(f"#!/bin/sh\necho '{event} {commits.get(branch, '')}'\n")
        gh.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {"PATH": path, "RUN": run, "GITHUB_REPOSITORY": "o/r"}
        code = subprocess.call([bash, "-e", "-c", step["run"]], cwd=tmp_path, env=environment)
        assert (code == 0) == is_deployed, (run, event, branch)


def test_who_signs_in_has_federated_identity_and_keeps_no_secret_for_it() -> None:
    signing_in = [STAGE["plan"], STAGE["deploy"], BACKUP["jobs"]["export"]]
    for job in signing_in:
        assert job["permissions"]["id-token"] == "write"
        assert "./.github/actions/sign-in" in runs(job)
    assert "--federated-credential-provider github" in SIGN_IN
    secrets = set(re.findall(r"secrets\.(\w+)", "".join((*TEXTS.values(), SIGN_IN))))
    assert secrets == set(SECRETS)
    assert SIGN_IN.index("GITHUB_ENV") < SIGN_IN.index("azd auth") < SIGN_IN.index("azd env new")


def test_addresses_for_alerts_reach_a_deployment_and_each_is_masked() -> None:
    """A called workflow gets the secrets of its environment if it inherits secrets."""
    for name in ("staging", "production"):
        assert DEPLOY[name]["secrets"] == "inherit"
    for job in ("plan", "deploy"):
        [inputs] = [step["with"] for step in STAGE[job]["steps"] if "sign-in" in str(step)]
        assert inputs["webhooks"] == "${{ secrets.SAS_OPERATOR_WEBHOOKS }}"
    steps = read_yaml(GITHUB / "actions" / "sign-in" / "action.yml")["runs"]["steps"]
    [settings] = [step for step in steps if "sas azd settings" in step.get("run", "")]
    assert settings["env"]["SAS_OPERATOR_WEBHOOKS"] == "${{ inputs.webhooks }}"
    [mask] = [step["run"] for step in steps if "::add-mask::" in step.get("run", "")]
    bash = shutil.which("bash")
    assert bash
    addresses = "https://a.example/?key=1, https://b.example/2"
    masked = subprocess.check_output([bash, "-c", mask], env={"WEBHOOKS": addresses}, text=True)
    expected = ["::add-mask::https://a.example/?key=1", "::add-mask::https://b.example/2"]
    assert masked.splitlines() == expected


# -- What is pinned ---------------------------------------------------------------------------


def test_a_pin_without_a_tag_or_with_another_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As azd 1.28.2, which was pinned here, and was released as 1.29.0."""
    call_in_process(tmp_path, monkeypatch)
    releases: dict[str, Any] = {}
    for repository, tag, commit in pinned.pins():
        releases.setdefault(repository.lower(), {"tags": {}})["tags"][tag] = commit or "any"
    Cloud(tmp_path, repositories=releases)
    assert pinned.main() == 0
    actions = set(re.findall(r"@([0-9a-f]{40})", "".join((*TEXTS.values(), SIGN_IN))))
    assert capsys.readouterr().out == f"{len(actions) + 2} pins, 0 wrong\n"
    releases["azure/azure-dev"]["tags"] = {"azure-dev-cli_1.28.1": "any"}
    releases["actions/checkout"]["tags"]["v4.2.2"] = "moved"
    Cloud(tmp_path, repositories=releases)
    assert pinned.main() == 1
    printed = capsys.readouterr().out
    assert "Azure/azure-dev has no tag azure-dev-cli_1.29.0" in printed
    assert "actions/checkout: v4.2.2 is commit moved" in printed
