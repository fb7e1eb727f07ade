"""Lets the workflows of a GitHub repository deploy an environment of azd.

sas azd sign-in OWNER/REPO    once for each environment, by a person: identity, rights, variables
sas azd settings              in the workflow: the variables, for azd

``sign-in`` needs az (an owner of the resource group, or of the subscription if there is no group
or a resource provider is missing), gh (an administrator of the repository) and azd with the
environment chosen. It can run again: after ``azd env set``, after a change of roles.json, after the
repository was renamed.

1. An application in Entra ID. It is found by the id that azd remembers, else by its exact name. One
   that somebody else could sign in as is refused, because it gets the right to grant roles.
2. What only an owner may do (``sas.deploy.owner``), and rights on the resource group alone.
3. Two environments on GitHub, NAME and NAME-plan, each for the branch main and for tags v*. People
   add reviewers to NAME. NAME-plan has none, because it only shows what NAME would do.
4. The identity trusts these two environments, by the subject that GitHub signs.
5. The variables of both environments are the values of azd. The addresses for alerts are a secret.
   businessSettings are variables, although Bicep has them secure for the sake of the history of
   deployments: they are addresses of services and numbers, and a key belongs into the vault.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from sas.deploy import owner
from sas.deploy.azd import VALUES, WEBHOOKS, DeploymentRefusedError, parameter_variables
from sas.deploy.commands import CommandFailedError, az, run
from sas.domain.texts import visible

ENVIRONMENT = "production"
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
ACCESS_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
"""Role Based Access Control Administrator; a condition limits it to the roles of roles.json."""
ROLES = owner.INFRA / "roles.json"
CLIENT = "SAS_DEPLOY_CLIENT_ID"
"""Where azd remembers the application."""
DEPLOYER = "SAS_DEPLOYER_PRINCIPAL_ID"
OF_SIGN_IN = (
    "AZURE_CLIENT_ID",
    "AZURE_RESOURCE_GROUP",
    "AZURE_SUBSCRIPTION_ID",
    "AZURE_TENANT_ID",
)
SECRETS = (WEBHOOKS,)
"""Those that are secrets on GitHub: who has such an address may post to it."""
POLICIES = (("main", "branch"), ("v*", "tag"))
"""What deploys: names of branches and tags, and the kind of each."""


def subject(prefix: str, environment: str) -> str:
    """Return the subject that GitHub signs for a job in an environment. It names no branch."""
    return f"{prefix}:environment:{environment}"


def condition() -> str:
    """Return the condition on the right to grant roles: those of roles.json, but for an owner's."""
    listed = json.loads(ROLES.read_text(encoding="utf-8")).values()
    ids = ", ".join(sorted(role["id"] for role in listed if not role.get("owner")))
    role_ids = "ForAnyOfAnyValues:GuidEquals {" + ids + "}"
    role = "[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
    action = "Microsoft.Authorization/roleAssignments"
    return (
        f"((!(ActionMatches{{'{action}/write'}})) OR (@Request{role} {role_ids})) AND "
        f"((!(ActionMatches{{'{action}/delete'}})) OR (@Resource{role} {role_ids}))"
    )


def sign_in(repository: str, environment: str = ENVIRONMENT) -> None:
    """Make the identity that the workflows sign in as, its rights, and the variables.

    Raises:
        DeploymentRefusedError: something is not as it must be. The text says what to change.
        CommandFailedError: az, azd or gh is missing, or refuses.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", environment):
        raise DeploymentRefusedError(f"{environment!r}: use lower-case letters, digits and -")
    if not re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+", repository):
        raise DeploymentRefusedError(f"{repository}: give OWNER/REPO, such as ann/shop")
    environments = (environment, f"{environment}-plan")
    values = _azd_values()
    tenant = _tenant(values["AZURE_SUBSCRIPTION_ID"])
    prefix = _prefix(repository)
    refused = owner.before(values)
    if refused:
        commands = "".join(f"\n    {command}" for command in refused)
        raise DeploymentRefusedError(f"Ask an owner to run this first:{commands}")
    client = _application(values)
    principal = _principal(client)
    for name, value in ((CLIENT, client), (DEPLOYER, principal)):
        run("azd", "env", "set", name, value)
    values = _azd_values()
    _grant(principal, values)
    for name in environments:
        try:
            _protect(f"repos/{repository}/environments/{name}")
        except CommandFailedError as error:
            raise _explained(error, name) from None
    _trust(client, {f"sas-{name}": subject(prefix, name) for name in environments})
    for name in environments:
        _set_variables(
            ("--repo", repository, "--env", name),
            {**values, "AZURE_CLIENT_ID": client, "AZURE_TENANT_ID": tenant},
        )
    print(
        f"{repository} deploys as {client}, from main and from tags v*, in {environment}.\n"
        "On GitHub (Settings, Rules), add a rule for main and one for tags v*: who may change main "
        "or push such a tag may deploy.\n"
        f"Add reviewers to {environment} (Settings, Environments). A private repository has them "
        "with GitHub Enterprise only."
    )


def settings(environ: Mapping[str, str]) -> str:
    """Return the lines for GITHUB_ENV: each variable that a deployment reads.

    ``VARS`` has the variables of the job's environment, as JSON. Each secret is on its own.

    Raises:
        ValueError: a value has a line break, and could define another variable.
    """
    variables = json.loads(environ.get("VARS") or "{}")
    variables |= {name: environ[name] for name in SECRETS if environ.get(name)}
    lines = []
    for name in sorted({*parameter_variables(), *OF_SIGN_IN}):
        value = variables.get(name, "")
        if "\n" in value or "\r" in value:
            raise ValueError(f"the variable {name} has a line break: give it in one line")
        if value:
            lines.append(f"{name}={value}\n")
    return "".join(lines)


def _azd_values() -> dict[str, str]:
    values = json.loads(run(*VALUES))
    lacking = {"AZURE_ENV_NAME", "AZURE_LOCATION", "AZURE_SUBSCRIPTION_ID"} - set(values)
    if lacking:
        hints = "".join(f"\n    azd env set {name} ..." for name in sorted(lacking))
        raise DeploymentRefusedError(f"The environment of azd lacks:{hints}")
    return dict(values)


def _tenant(subscription: str) -> str:
    """Return the tenant of the subscription, in which the application is made.

    The commands ``az ad`` work in the tenant of the subscription that az has chosen.
    """
    account = az({}, "account", "show")
    if account["id"] != subscription:
        raise DeploymentRefusedError(
            f"az has chosen another subscription than azd: az account set --subscription "
            f"{subscription}"
        )
    return str(account["tenantId"])


def _prefix(repository: str) -> str:
    """Return what the subjects of a repository begin with.

    Since July 2026 it has the ids of owner and repository in it, if the repository is new or was
    renamed or transferred. GitHub says it in ``sub_claim_prefix``, which is missing in older
    answers. Then it is the name as GitHub spells it: Entra ID compares upper and lower case.
    """
    path = f"repos/{repository}/actions/oidc/customization/sub"
    try:
        answer = json.loads(run("gh", "api", path))
    except CommandFailedError as error:
        if "HTTP 404" not in error.text:
            raise
        raise DeploymentRefusedError(
            f"{repository}: no such repository, or you are no administrator of it"
        ) from None
    if not answer.get("use_default", True):
        raise DeploymentRefusedError(
            f"{repository} has a subject of its own for OIDC, so it would name no environment. "
            f"Use the default: gh api --method PUT {path} -F use_default=true"
        )
    prefix = answer.get("sub_claim_prefix")
    return str(prefix or f"repo:{json.loads(run('gh', 'api', f'repos/{repository}'))['full_name']}")


def _application(values: Mapping[str, str]) -> str:
    """Return the appId of the application: the remembered one, the only namesake, or a new one."""
    name, remembered = f"deploy-{values['AZURE_ENV_NAME']}", values.get(CLIENT)
    # --display-name would list each application whose name begins so (azure-cli issue 23053).
    query = f"appId eq '{remembered}'" if remembered else f"displayName eq '{name}'"
    applications = az({}, "ad", "app", "list", "--filter", query)
    if len(applications) > 1:
        ids = ", ".join(application["appId"] for application in applications)
        raise DeploymentRefusedError(
            f"{len(applications)} applications have the name {name}: {ids}. Name yours: "
            f"azd env set {CLIENT} ..."
        )
    if applications:
        [application] = applications
        _check_alone("app", application["appId"], application)
        return str(application["appId"])
    if remembered:
        raise DeploymentRefusedError(
            f"There is no application {remembered} any more. To make a new one: "
            f'azd env set {CLIENT} ""'
        )
    return str(az({}, "ad", "app", "create", "--display-name", name)["appId"])


def _principal(client: str) -> str:
    principals = az({}, "ad", "sp", "list", "--filter", f"appId eq '{client}'")
    if not principals:
        return str(az({}, "ad", "sp", "create", "--id", client)["id"])
    [principal] = principals
    _check_alone("sp", principal["id"], principal)
    return str(principal["id"])


def _check_alone(kind: str, object_id: str, properties: Mapping[str, Any]) -> None:
    """Refuse an application (or its principal) that others can sign in as, or let others do so."""
    for member in ("passwordCredentials", "keyCredentials"):
        if properties.get(member):
            raise DeploymentRefusedError(
                f"{properties['displayName']} ({object_id}) has {member}: who knows them would "
                f"deploy. Remove them (az ad {kind} credential list --id {object_id}), or let this "
                f'make a new application: azd env set {CLIENT} "", and rename that one'
            )
    me = az({}, "ad", "signed-in-user", "show")["id"]
    owners = az({}, "ad", kind, "owner", "list", "--id", object_id) or []
    others = [each.get("displayName") or each["id"] for each in owners if each["id"] != me]
    if others:
        raise DeploymentRefusedError(
            f"{properties['displayName']} ({object_id}) has other owners, who could let anybody "
            f"deploy: {', '.join(others)}. Let them run this, or remove them as owners"
        )


def _grant(principal: str, values: Mapping[str, str]) -> None:
    """Grant what a deployment needs on the resource group; remove the older rights above it."""
    subscription = f"/subscriptions/{values['AZURE_SUBSCRIPTION_ID']}"
    group = owner.group_id(values)
    needed = {CONTRIBUTOR: None, ACCESS_ADMINISTRATOR: condition()}
    for assignment in _rights(principal, subscription, group):
        properties = assignment["properties"]
        scope = properties["scope"].lower()
        role = properties["roleDefinitionId"].rpartition("/")[2].lower()
        if scope == group.lower() and role in needed:
            if properties.get("condition") == needed[role]:
                del needed[role]
                continue
        elif scope != subscription.lower() or role not in (CONTRIBUTOR, ACCESS_ADMINISTRATOR):
            # The template describes its own assignments so.
            if not str(properties.get("description")).startswith("sas: "):
                print(f"It has this right too; remove it if nothing needs it: {assignment['id']}")
            continue
        _revoke(assignment["id"])
    for role, limit in needed.items():
        limited = ("--condition", limit, "--condition-version", "2.0") if limit else ()
        az(
            {},
            *("role", "assignment", "create", "--role", role, "--scope", group),
            *("--assignee-object-id", principal, "--assignee-principal-type", "ServicePrincipal"),
            *limited,
        )


def _rights(principal: str, subscription: str, group: str) -> list[dict[str, Any]]:
    """Return the role assignments of a principal in the subscription, or at least in the group."""
    try:
        listed = owner.assignments({}, subscription)
    except CommandFailedError as error:
        if "AuthorizationFailed" not in error.text:
            raise
        print("Older rights of it outside the resource group could not be looked at.")
        listed = owner.assignments({}, group)
    return [each for each in listed if each["properties"]["principalId"] == principal]


def _revoke(assignment: str) -> None:
    command = ("role", "assignment", "delete", "--ids", assignment)
    try:
        az({}, *command)
    except CommandFailedError as error:
        if "AuthorizationFailed" not in error.text:
            raise
        print("It has an older right, which an owner of the subscription removes:")
        print(f"    az {shlex.join(command)}")


def _protect(path: str) -> None:
    """Make an environment, to which only ``POLICIES`` deploy. Keep the rules that people made."""
    environment = _environment(path)
    policy = environment.get("deployment_branch_policy") or {}
    if not policy.get("custom_branch_policies"):
        _gh("PUT", path, _rules(environment))
    listed = json.loads(run("gh", "api", f"{path}/deployment-branch-policies?per_page=100"))
    present = {(each["name"], each.get("type", "branch")) for each in listed["branch_policies"]}
    for name, kind in POLICIES:
        if (name, kind) not in present:
            _gh("POST", f"{path}/deployment-branch-policies", {"name": name, "type": kind})
    for name, kind in sorted(present.difference(POLICIES)):
        text = f"{path.rpartition('/')[2]} lets the {kind} {name} deploy too: a rule of yours?"
        print(visible(text))


def _explained(error: CommandFailedError, environment: str) -> Exception:
    """Return the error, with what to do if GitHub refused for the plan, or the rights of a person.

    docs.github.com, actions/managing-workflow-runs/reviewing-deployments, says which plan has what.
    An answer 422 names the billing plan (backstage issue 28977). 403 and 404 give no cause.
    """
    if not re.search(r"HTTP 40[34]|billing plan", error.text):
        return error
    return DeploymentRefusedError(
        f"GitHub refused the environment {environment}: {error.text}\n"
        "You must be an administrator of the repository. In a private one, environments need "
        "GitHub Pro, Team or Enterprise, and their reviewers and wait timers GitHub Enterprise: "
        "take that plan, or make it public"
    )


def _environment(path: str) -> dict[str, Any]:
    try:
        return dict(json.loads(run("gh", "api", path)))
    except CommandFailedError as error:
        if "HTTP 404" in error.text:
            return {}
        raise


def _rules(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that sets the policy. A member that is left out would be cleared."""
    body: dict[str, Any] = {
        "deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True}
    }
    for rule in environment.get("protection_rules", ()):
        if rule["type"] == "wait_timer":
            body["wait_timer"] = rule["wait_timer"]
        if rule["type"] == "required_reviewers":
            body["prevent_self_review"] = rule.get("prevent_self_review", False)
            body["reviewers"] = [
                {"type": each["type"], "id": each["reviewer"]["id"]} for each in rule["reviewers"]
            ]
    return body


def _trust(client: str, subjects: Mapping[str, str]) -> None:
    """Trust these subjects, each by the name of its credential. Print what others trust."""
    credentials = ("ad", "app", "federated-credential")
    present = set()
    for credential in az({}, *credentials, "list", "--id", client):
        name, trusted = credential["name"], (credential["issuer"], credential["subject"])
        if name in subjects and trusted != (ISSUER, subjects[name]):
            of = ("--id", client, "--federated-credential-id", name)
            az({}, *credentials, "delete", *of)
            continue
        present.add(trusted)
        if name not in subjects:
            text = f"The credential {name} lets {trusted[1]} deploy too: remove it if it is yours"
            print(visible(text))
    for name, text in subjects.items():
        if (ISSUER, text) not in present:  # Entra ID refuses the same subject twice
            parameters = {"name": name, "issuer": ISSUER, "subject": text, "audiences": [AUDIENCE]}
            az({}, *credentials, "create", "--id", client, "--parameters", json.dumps(parameters))


def _set_variables(of: tuple[str, ...], values: Mapping[str, str]) -> None:
    """Give an environment the values of azd, as secrets or variables. Remove what azd lacks.

    gh reads a value from stdin, because the list of processes shows arguments.
    """
    kinds = ("secret", "variable")
    listed = {kind: json.loads(run("gh", kind, "list", *of, "--json", "name")) for kind in kinds}
    for name in sorted({*parameter_variables(), *OF_SIGN_IN}):
        for kind in kinds:
            if values.get(name) and (kind == "secret") == (name in SECRETS):
                run("gh", kind, "set", name, *of, stdin=values[name])
            elif {"name": name} in listed[kind]:
                run("gh", kind, "delete", name, *of)


def _gh(method: str, path: str, body: Mapping[str, Any]) -> None:
    run("gh", "api", "--method", method, path, "--input", "-", stdin=json.dumps(body))
