"""Prepares deployments by ``.github/workflows/deploy.yml``.

sas azd sign-in OWNER/REPO    once, by a person: identity, roles, variables
sas azd settings              in the workflow: the variables, for azd

``sign-in`` needs az (an owner of the subscription), gh (an administrator of the repository) and azd
with a chosen environment. It can run again: after ``azd env set``, after a change of roles.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sas.deploy.azd import INFRA, parameter_variables

ENVIRONMENT = "production"
"""The ``environment`` of the workflow's job. The subject that GitHub signs names it."""
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
ACCESS_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
"""Role Based Access Control Administrator; a condition limits it to the roles of roles.json."""
ROLES = INFRA / "roles.json"
OF_SIGN_IN = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_SUBSCRIPTION_ID")


def subject(repository: str) -> str:
    """Return the subject that GitHub signs for the job. It names ``environment``, no branch."""
    return f"repo:{repository}:environment:{ENVIRONMENT}"


def condition(roles: Path = ROLES) -> str:
    """Return the condition on the right to grant roles: those of roles.json and no other."""
    ids = ", ".join(sorted(role["id"] for role in json.loads(roles.read_text()).values()))
    role_ids = "ForAnyOfAnyValues:GuidEquals {" + ids + "}"
    role = "[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
    action = "Microsoft.Authorization/roleAssignments"
    return (
        f"((!(ActionMatches{{'{action}/write'}})) OR (@Request{role} {role_ids})) AND "
        f"((!(ActionMatches{{'{action}/delete'}})) OR (@Resource{role} {role_ids}))"
    )


def sign_in(repository: str) -> None:
    """Make the identity that the workflow signs in as, its rights, and the variables."""
    values = _azd_values()
    subscription = values["AZURE_SUBSCRIPTION_ID"]
    tenant = _run("az", "account", "show", "--subscription", subscription, "--query", "tenantId")
    client = _application(f"deploy-{values['AZURE_ENV_NAME']}")
    _trust(client, subject(repository))
    _grant(_principal(client), f"/subscriptions/{subscription}")
    _environment(repository)
    values |= {"AZURE_CLIENT_ID": client, "AZURE_TENANT_ID": tenant}
    _set_variables(repository, values)
    print(f"{subject(repository)} may deploy as {client}.")


def settings(variables: Mapping[str, str]) -> str:
    """Return the lines for GITHUB_ENV: each variable that main.parameters.json asks for.

    Raises:
        ValueError: a value has a line break, and could define another variable.
    """
    lines = []
    for name in sorted(parameter_variables()):
        value = variables.get(name, "")
        if "\n" in value or "\r" in value:
            raise ValueError(f"the variable {name} has a line break: give it in one line")
        if value:
            lines.append(f"{name}={value}\n")
    return "".join(lines)


def _azd_values() -> dict[str, str]:
    values = json.loads(_run("azd", "env", "get-values", form="json"))
    lacking = {"AZURE_ENV_NAME", "AZURE_LOCATION", "AZURE_SUBSCRIPTION_ID"} - set(values)
    if lacking:
        sys.exit(f"azd does not know {', '.join(sorted(lacking))}: run `azd provision` first")
    return dict(values)


def _application(name: str) -> str:
    client = _run("az", "ad", "app", "list", "--display-name", name, "--query", "[0].appId")
    return client or _run("az", "ad", "app", "create", "--display-name", name, "--query", "appId")


def _principal(client: str) -> str:
    query = ("--query", "[0].id")
    principal = _run("az", "ad", "sp", "list", "--filter", f"appId eq '{client}'", *query)
    return principal or _run("az", "ad", "sp", "create", "--id", client, "--query", "id")


def _trust(client: str, subject_text: str) -> None:
    """Trust only this subject, so that no branch or pull request can deploy without a review."""
    app = ("az", "ad", "app", "federated-credential")
    credentials = json.loads(_run(*app, "list", "--id", client, form="json") or "[]")
    for credential in credentials:
        if credential["subject"] != subject_text:
            _run(*app, "delete", "--id", client, "--federated-credential-id", credential["id"])
    if subject_text in {credential["subject"] for credential in credentials}:
        return
    parameters = {
        "name": ENVIRONMENT,
        "issuer": ISSUER,
        "subject": subject_text,
        "audiences": [AUDIENCE],
    }
    _run(*app, "create", "--id", client, "--parameters", json.dumps(parameters))


def _grant(principal: str, scope: str) -> None:
    """Grant what a deployment needs, and remove every other role, such as azd's broader one."""
    roles = ("az", "role", "assignment")
    of = ("--assignee-object-id", principal, "--assignee-principal-type", "ServicePrincipal")
    assignments = json.loads(
        _run(*roles, "list", "--assignee", principal, "--scope", scope, form="json") or "[]"
    )
    for assignment in assignments:
        if not assignment["roleDefinitionId"].endswith(CONTRIBUTOR):
            _run(*roles, "delete", "--ids", assignment["id"])
    _run(*roles, "create", *of, "--role", CONTRIBUTOR, "--scope", scope)
    limited = ("--condition", condition(), "--condition-version", "2.0")
    _run(*roles, "create", *of, "--role", ACCESS_ADMINISTRATOR, "--scope", scope, *limited)


def _environment(repository: str) -> None:
    """Make the environment, to which only protected branches deploy. People add its reviewers."""
    rule = {
        "deployment_branch_policy": {"protected_branches": True, "custom_branch_policies": False}
    }
    path = f"repos/{repository}/environments/{ENVIRONMENT}"
    _run("gh", "api", "--method", "PUT", path, "--input", "-", stdin=json.dumps(rule), form="")


def _set_variables(repository: str, values: Mapping[str, Any]) -> None:
    """Give the environment's variables the values of azd. Remove a variable that azd lacks."""
    of = ("--repo", repository, "--env", ENVIRONMENT)
    printed = _run("gh", "variable", "list", *of, "--json", "name", form="")
    present = {variable["name"] for variable in json.loads(printed or "[]")}
    for name in sorted({*parameter_variables(), *OF_SIGN_IN}):
        if values.get(name):
            _run("gh", "variable", "set", name, *of, "--body", str(values[name]), form="")
        elif name in present:
            _run("gh", "variable", "delete", name, *of, form="")


def _run(*command: str, stdin: str | None = None, form: str = "tsv") -> str:
    """Run a command and return what it prints.

    ``form`` is the output format of az and azd. Each call gives it, because people may have set
    another default. gh has no such option, so its ``form`` is empty.
    """
    output = ("--output", form) if form else ()
    executable = shutil.which(command[0])
    if executable is None:
        sys.exit(f"{command[0]} was not found on PATH: install it and sign in")
    process = subprocess.run(  # noqa: S603  # no shell
        [executable, *command[1:], *output],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{process.stderr.strip()}")
    printed = process.stdout.strip()
    return "" if printed == "None" else printed
