"""What only an owner of the resource group may do, and the identity that deploys may not.

That identity has rights on the resource group alone, and none to grant a role that reads secrets.
So an owner takes these steps, each only if it is needed. The first comes before the first
deployment, the others after it, because they need what it has made.

1. The resource group, tagged with the azd environment. A group belongs to one environment.
   Then the resource providers that the subscription lacks. Both need rights on the subscription.
2. Roles on the vault: the functions read secrets, operators set them.
3. A lock that forbids to delete the account of the orders.

``sas azd owner`` takes them. The hooks of azd try them too, because the person who deploys is often
an owner. What Azure refuses there is printed as the commands that an owner runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sas.deploy.commands import CommandFailedError, az, run

INFRA = Path("infra")
"""In the directory of the project, where azd runs its hooks."""
GROUP = "AZURE_RESOURCE_GROUP"
TAG = "azd-env-name"
SECRETS_USER = "4633458b-17de-408a-b874-0445c86b69e6"
SECRETS_OFFICER = "b86a8fe4-44ce-4948-aee5-eccb2c155cd7"
MARK = "sas owner: "
"""Begins the description of each role assignment that is made here."""
LOCK = "orders-stay"


class Steps:
    """Takes steps until Azure refuses one. ``refused`` has the commands of that and all later."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.refused: list[str] = []

    def take(self, text: str, *words: str) -> Any:
        """Run an az command and print what it has done; return its value, None if refused."""
        if not self.refused:
            try:
                value = az(self._env, *words)
            except CommandFailedError as error:
                if "AuthorizationFailed" not in error.text:
                    raise
            else:
                print(text)
                return value
        subscription = ("--subscription", self._env["AZURE_SUBSCRIPTION_ID"])
        self.refused.append(shlex.join(("az", *words, *subscription)))
        return None


def group_name(env: Mapping[str, str]) -> str:
    """Return the name of the environment's resource group."""
    return env.get(GROUP) or f"rg-{env.get('AZURE_ENV_NAME', '')}"


def group_id(env: Mapping[str, str]) -> str:
    """Return the resource id of that group."""
    return f"/subscriptions/{env['AZURE_SUBSCRIPTION_ID']}/resourceGroups/{group_name(env)}"


def group(env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the resource group; None if there is none.

    Raises:
        CommandFailedError: it cannot be read.
    """
    try:
        return dict(az(env, "group", "show", "--name", group_name(env)))
    except CommandFailedError as error:
        if "ResourceGroupNotFound" in error.text:
            return None
        if "AuthorizationFailed" in error.text:  # the answer also for a group that is not there
            advice = "An owner makes the group and gives rights on it: .venv/bin/sas azd owner"
            raise CommandFailedError(error.command, f"{error.text}\n{advice}") from None
        raise


def assignments(env: Mapping[str, str], scope: str) -> list[dict[str, Any]]:
    """Return the role assignments at, above and below a scope, as the REST API has them.

    ``az role assignment list`` lists those at a group, or all of the subscription, which somebody
    with rights on the group may not read.

    Raises:
        CommandFailedError: Azure refuses to list them.
    """
    kind = "Microsoft.Authorization/roleAssignments"
    url: str | None = f"{scope}/providers/{kind}?api-version=2022-04-01"
    listed = []
    while url:
        page = az(env, "rest", "--method", "get", "--url", url)
        listed += page["value"]
        url = page.get("nextLink")
    return listed


def before(env: Mapping[str, str]) -> list[str]:
    """Take the steps before a deployment; return the commands that Azure refused.

    Raises:
        CommandFailedError: a command failed for another reason.
    """
    steps = Steps(env)
    name, tag = group_name(env), f"{TAG}={env['AZURE_ENV_NAME']}"
    present = group(env)
    if present is None:
        place = ("--location", env["AZURE_LOCATION"], "--tags", tag)
        steps.take(f"Made the resource group {name}", *("group", "create", "--name", name), *place)
    elif TAG not in (present.get("tags") or {}):
        change = ("--resource-id", group_id(env), "--operation", "Merge", "--tags", tag)
        steps.take(f"Tagged the resource group {name}", "tag", "update", *change)
    _register(env, steps)
    if not env.get(GROUP):
        run("azd", "env", "set", GROUP, name)
    return steps.refused


def after(env: Mapping[str, str]) -> list[str]:
    """Take the steps after a deployment; return the commands that Azure refused.

    Raises:
        CommandFailedError: a command failed for another reason.
    """
    steps = Steps(env)
    if env.get("SAS_KEY_VAULT_NAME"):
        _grant_secrets(env, steps)
    _lock(env, steps)
    return steps.refused


def _register(env: Mapping[str, str], steps: Steps) -> None:
    """Register what the template deploys, if the subscription never had it.

    Azure registers a provider by itself only for who may do so in the subscription, and none for a
    delegated subnet (bicep issue 16340). Names are compared without case, because the template has
    Microsoft.Insights and Azure microsoft.insights.
    """
    texts = (path.read_text(encoding="utf-8") for path in INFRA.rglob("*.bicep"))
    needed = {name.lower() for text in texts for name in re.findall(r"'(Microsoft\.\w+)/", text)}
    query = "[?registrationState != 'Registered'].namespace"
    try:
        listed = az(env, "provider", "list", "--query", query)
    except CommandFailedError as error:
        if "AuthorizationFailed" not in error.text:
            raise
        return  # nothing to register is known; Azure names what a deployment lacks
    lacking = sorted(name for name in listed if name.lower() in needed)
    if lacking:
        print(f"The subscription lacks resource providers ({len(lacking)}): a minute for each ...")
    for name in lacking:
        register = ("provider", "register", "--namespace", name, "--wait")
        steps.take(f"Registered the resource provider {name}", *register)


def _grant_secrets(env: Mapping[str, str], steps: Steps) -> None:
    """Grant the roles on the vault, and remove ours of former operators."""
    vault = env["SAS_KEY_VAULT_NAME"]
    scope = f"{group_id(env)}/providers/Microsoft.KeyVault/vaults/{vault}"
    needed = {
        (env["SAS_IDENTITY_PRINCIPAL_ID"], SECRETS_USER): ("ServicePrincipal", "functions read")
    }
    operator = env.get("SAS_OPERATOR_PRINCIPAL_ID")
    if operator:
        kind = env.get("SAS_OPERATOR_PRINCIPAL_TYPE") or "User"
        needed[operator, SECRETS_OFFICER] = (kind, "operators set")
    # `az role assignment list` also asks Graph for names, which a workflow cannot minutes after its
    # sign-in (azure-cli 28708).
    present = {
        (granted["principalId"].lower(), granted["roleDefinitionId"].rpartition("/")[2].lower()): (
            each["id"],
            granted,
        )
        for each in assignments(env, scope)
        if (granted := each["properties"])["scope"].lower() == scope.lower()
    }
    for (principal, role), (kind, who) in needed.items():
        if present.pop((principal.lower(), role), None) is None:
            steps.take(
                f"The {who} secrets of {vault}",
                *("role", "assignment", "create", "--role", role, "--scope", scope),
                *("--assignee-object-id", principal, "--assignee-principal-type", kind),
                *("--description", f"{MARK}{who} secrets."),
            )
    for assignment_id, granted in present.values():
        if str(granted.get("description", "")).startswith(MARK):
            text = f"{granted['principalId']} has no right on secrets of {vault} any more"
            steps.take(text, "role", "assignment", "delete", "--ids", assignment_id)


def _lock(env: Mapping[str, str], steps: Steps) -> None:
    """Forbid to delete the account of the orders."""
    account = env["SAS_TABLES__endpoint"].removeprefix("https://").partition(".")[0]
    of = (
        *("--resource-group", group_name(env), "--resource", account),
        *("--resource-type", "Microsoft.Storage/storageAccounts"),
    )
    locks = az(env, "lock", "list", *of)
    if any(lock["level"] == "CanNotDelete" for lock in locks):
        return
    notes = ("--notes", "Orders are here. infra/README.md says how to take all of it down.")
    kind = ("--name", LOCK, "--lock-type", "CanNotDelete")
    steps.take(f"Locked {account} against deletion", "lock", "create", *kind, *of, *notes)
