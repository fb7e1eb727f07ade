"""The deploy workflow signs in as the identity that the script makes, with the least rights."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sas.deploy.azd import parameter_variables
from sas.deploy.github import ISSUER, condition, settings, subject
from tests.infra.fake_commands import Commands
from tests.infra.kit import INFRA, ROOT

yaml: Any = importlib.import_module("yaml")

TEXT = (ROOT / ".github" / "workflows" / "deploy.yml").read_text()
JOB: dict[str, Any] = yaml.safe_load(TEXT)["jobs"]["deploy"]
VALUES = {
    "AZURE_ENV_NAME": "shop",
    "AZURE_LOCATION": "westeurope",
    "AZURE_SUBSCRIPTION_ID": "s-1",
    "ORDERS_STOCK_URL": "https://stock.example",
    "UNRELATED": "stays here",
}
BRANCH = {"id": "f-1", "subject": "repo:me/shop:ref:refs/heads/main"}
PULL = {"id": "f-2", "subject": "repo:me/shop:pull_request"}
OURS = {"id": "f-3", "subject": "repo:me/shop:environment:production"}
BROAD = {"id": "a-1", "roleDefinitionId": "/x/18d7d88d-d35e-4fb5-a5c3-7773c20a72d9"}
ANSWERS = {
    "azd env get-values": json.dumps(VALUES),
    "az account show": "t-1",
    "az ad app list": "c-1",
    "az ad app federated-credential list": "[]",
    "az ad sp list": "p-1",
    "az role assignment list": "[]",
    "gh variable list": "[]",
}


def signed_in(path: Path, **answers: str) -> Commands:
    named = {name.replace("_", " ").replace("  ", "-"): text for name, text in answers.items()}
    commands = Commands(path, {**ANSWERS, **named})
    done = subprocess.run(
        [sys.executable, "-m", "sas.cli", "azd", "sign-in", "me/shop"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return commands


def after(call: list[str], option: str) -> str:
    return call[call.index(option) + 1]


def subject_of_the_workflow(repository: str) -> str:
    """Return what GitHub signs for a job on main: its environment takes the branch's place."""
    environment = JOB.get("environment")
    if environment:
        return f"repo:{repository}:environment:{environment}"
    return f"repo:{repository}:ref:refs/heads/main"


def test_the_credential_is_for_the_subject_that_the_workflow_has(tmp_path: Path) -> None:
    [call] = signed_in(tmp_path).called("az ad app federated-credential create")
    credential = json.loads(after(call, "--parameters"))
    assert credential["subject"] == subject_of_the_workflow("me/shop") == subject("me/shop")
    assert credential["issuer"] == ISSUER
    assert credential["audiences"] == ["api://AzureADTokenExchange"]


def test_branches_and_pull_requests_are_no_longer_trusted(tmp_path: Path) -> None:
    credentials = json.dumps([BRANCH, PULL, OURS])
    commands = signed_in(tmp_path, az_ad_app_federated__credential_list=credentials)
    deleted = commands.called("az ad app federated-credential delete")
    assert [after(call, "--federated-credential-id") for call in deleted] == ["f-1", "f-2"]
    assert commands.called("az ad app federated-credential create") == []


def test_the_identity_may_contribute_and_grant_our_roles_and_nothing_more(tmp_path: Path) -> None:
    commands = signed_in(tmp_path, az_role_assignment_list=json.dumps([BROAD]))
    granted = commands.called("az role assignment create")
    roles = {after(call, "--role"): call for call in granted}
    assert set(roles) == {
        "b24988ac-6180-42a0-ab88-20f7382dd24c",  # Contributor
        "f58310d9-a9f6-439a-9e8d-f62e7b41a168",  # Role Based Access Control Administrator
    }
    assert {after(call, "--scope") for call in granted} == {"/subscriptions/s-1"}
    assert after(roles["f58310d9-a9f6-439a-9e8d-f62e7b41a168"], "--condition") == condition()
    [deletion] = commands.called("az role assignment delete")
    assert after(deletion, "--ids") == "a-1"


def test_the_condition_names_the_roles_of_the_list_and_no_other() -> None:
    listed = {role["id"] for role in json.loads((INFRA / "roles.json").read_text()).values()}
    halves = condition().split(" AND ")
    assert len(halves) == 2
    for half in halves:
        inside = re.search(r"GuidEquals \{(.+)\}", half)
        assert inside is not None
        assert set(inside[1].split(", ")) == listed
    assert condition().count("(") == condition().count(")")


def test_the_workflow_has_the_values_of_azd_and_no_older_ones(tmp_path: Path) -> None:
    stale = json.dumps([{"name": "SAS_SERVICE_BUS_SKU"}, {"name": "THEIR_OWN"}])
    commands = signed_in(tmp_path, gh_variable_list=stale)
    variables = {call[3]: after(call, "--body") for call in commands.called("gh variable set")}
    assert variables == {
        "AZURE_CLIENT_ID": "c-1",
        "AZURE_TENANT_ID": "t-1",
        **{name: text for name, text in VALUES.items() if name != "UNRELATED"},
    }
    assert [call[3] for call in commands.called("gh variable delete")] == ["SAS_SERVICE_BUS_SKU"]


def test_the_workflow_hands_over_every_variable_that_the_parameters_ask_for(
    tmp_path: Path,
) -> None:
    variables = {name: f"value of {name}" for name in parameter_variables()} | {"PATH": "/theirs"}
    done = subprocess.run(
        [sys.executable, "-m", "sas.cli", "azd", "settings"],
        cwd=ROOT,
        env={**os.environ, "VARS": json.dumps(variables)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert lines == {name: f"value of {name}" for name in parameter_variables()}


def test_a_variable_cannot_define_another_one() -> None:
    with pytest.raises(ValueError, match="line break"):
        settings({"ORDERS_STOCK_URL": "https://stock.example\nLD_PRELOAD=x"})


def test_the_workflow_signs_in_with_federated_identity_and_keeps_no_secret() -> None:
    assert JOB["permissions"] == {"contents": "read", "id-token": "write"}
    assert "--federated-credential-provider github" in TEXT
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert "secrets." not in path.read_text()


def test_before_a_preview_azd_has_an_environment_and_the_settings_are_checked() -> None:
    """A preview runs no hook, so the check is a step of its own. It changes nothing."""
    runs = [step.get("run", "") for step in JOB["steps"]]
    uses = [step.get("uses", "").partition("@")[0] for step in JOB["steps"]]
    creation = next(place for place, run in enumerate(runs) if "azd env new" in run)
    checked = runs.index(".venv/bin/sas azd check")
    settings_given = next(place for place, run in enumerate(runs) if "GITHUB_ENV" in run)
    assert uses.index("azure/login") < checked
    assert runs.index("make .venv/.ready PYTHON=python") < settings_given
    assert settings_given < creation < checked < runs.index("azd provision --preview --no-prompt")
    assert all("if" not in JOB["steps"][place] for place in (creation, checked))
    assert 'azd env new "$AZURE_ENV_NAME"' in runs[creation]
