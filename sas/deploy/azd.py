"""The hooks of azd (azure.yaml): ``sas azd preprovision`` and ``sas azd postprovision``.

``sas azd check`` makes the same checks as ``preprovision``, and changes nothing. Run it before a
preview, because a preview runs no hook. ``sas azd owner`` takes the steps of an owner. All read the
project in this directory, and call Azure with the command ``az``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from sas.deploy import owner as steps
from sas.deploy.commands import CommandFailedError, az, executable, run
from sas.deploy.owner import INFRA
from sas.deploy.tidying import tidy
from sas.environment import OF_BUS, OF_TABLES, names_a_system

MAIL = "SAS_OPERATOR_MAIL"
WEBHOOKS = "SAS_OPERATOR_WEBHOOKS"
OPERATOR = "SAS_OPERATOR_PRINCIPAL_ID"
DEPLOYER = "SAS_DEPLOYER_PRINCIPAL_ID"
APPLICATION = "SAS_PRINCIPAL_"
REPLICATION = "SAS_STATE_REPLICATION"
SECRETS = "SAS_SECRET_SETTINGS"
PRIVATE = "SAS_VNET_ENABLED"
WITHOUT_ZONES = {
    "australiasoutheast": "australiaeast",
    "northcentralus": "southcentralus",
    "southindia": "centralindia",
    "ukwest": "uksouth",
    "westcentralus": "westus2",
    "westus": "westus2",
}
"""Regions whose storage has no ZRS and no GZRS, and a near one that has both.

From learn.microsoft.com, azure/storage/common/redundancy-regions-zrs and -gzrs.
"""
WITHOUT_PAIR = ("italynorth", "spaincentral")
"""Regions that have ZRS, and no other region to copy to (azure/reliability/regions-list)."""
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(=?)")
_GUID = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_SETTING = r" *[A-Za-z][A-Za-z0-9_]* *"
_SWITCH = ("true|false", "give true or false")
FORMS: Mapping[str, tuple[str, str]] = {
    "SAS_CALLBACK_URL": (r"https://\S+", "give an https address"),
    "SAS_KEY_VAULT_URI": (
        r"https://[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]\.vault(\.[a-z]+)+",
        "give https://NAME.vault.azure.net, with nothing after it, not even a slash",
    ),
    "SAS_OPERATOR_PRINCIPAL_TYPE": (
        "User|Group|ServicePrincipal",
        "give User, Group or ServicePrincipal",
    ),
    "SAS_OPERATOR_READS_QUEUES": _SWITCH,
    WEBHOOKS: (
        r" *https://[^\s,]+ *(, *https://[^\s,]+ *)*",
        "give https addresses, one comma between two of them",
    ),
    "SAS_ORDERS_PER_DAY": ("[1-9][0-9]{0,6}|10000000", "give a whole number from 1 to 10000000"),
    "SAS_SECRET_SETTINGS": (
        f"{_SETTING}(,{_SETTING})*",
        "give names of settings (letters, digits, underscores), one comma between two names",
    ),
    "SAS_SERVICE_BUS_SKU": ("Standard|Premium", "give Standard or Premium"),
    REPLICATION: (
        "Standard_(ZRS|GRS|RAGRS|GZRS|RAGZRS)",
        "give Standard_ZRS, Standard_GRS, Standard_RAGRS, Standard_GZRS or Standard_RAGZRS",
    ),
    "SAS_TELEMETRY_SHARE": (
        r"(?!0\.0+$)0\.[0-9]{1,4}|1(\.0{1,4})?",
        "give a number above 0 and at most 1, such as 0.25",
    ),
    "SAS_VNET_ENABLED": _SWITCH,
}
"""For each variable the pattern of a value that is not empty, and the advice for other values."""
PRINCIPAL_FORM = (
    _GUID,
    "give an object id (a GUID); `az ad signed-in-user show --query id --output tsv` prints yours",
)
VALUES = ("azd", "env", "get-values", "--output", "json", "--no-prompt")
"""If none is chosen, azd asks which (azure-dev, cmd/env.go), and nobody would see the question."""
_MAIL = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")
ENVIRONMENTS = Path(".azure")
"""Where azd keeps the environments of a project: azure-dev, local_file_data_store.go."""
NO_OUTPUTS = (
    "azd's environment does not say what was made: run `azd provision` first, or "
    "`azd env refresh` if GitHub made it"
)


class DeploymentRefusedError(Exception):
    """Nothing is deployed. The text says what to change."""


def parameter_variables() -> dict[str, bool]:
    """Return every variable that main.parameters.json reads, and whether it has a default.

    Raises:
        DeploymentRefusedError: there is no such file.
    """
    path = INFRA / "main.parameters.json"
    if not path.is_file():
        raise DeploymentRefusedError(f"{path} is missing here: run `sas infra` first")
    text = path.read_text(encoding="utf-8")
    return {name: bool(default) for name, default in _VARIABLE.findall(text)}


def check(env: Mapping[str, str]) -> None:
    """Refuse a deployment that would fail, or change more than people expect. Change nothing.

    Raises:
        DeploymentRefusedError: a setting is missing or wrong, or Azure would refuse the change.
        CommandFailedError: az is missing or not signed in, or cannot read the resource group.
    """
    _check(with_azd(env))
    print("Nothing is wrong: `azd provision` can run")


def preprovision(env: Mapping[str, str]) -> None:
    """Check, take the steps of an owner, and ask for the addresses of alerts.

    Raises:
        DeploymentRefusedError: as ``check``, or there is no resource group and Azure refuses one.
        CommandFailedError: as ``check``, or another command failed.
    """
    env = with_azd(env)
    _check(env)
    _hand_over(steps.before(env))
    if steps.group(env) is None:
        raise DeploymentRefusedError(f"There is no resource group {steps.group_name(env)}")
    _ask_mail(env)


def postprovision(env: Mapping[str, str]) -> None:
    """Take the steps of an owner that need what was made, and take away what is not given any more.

    Raises:
        DeploymentRefusedError: azd does not know what was made.
        CommandFailedError: a command failed.
    """
    env = with_azd(env)
    _check_place(env)
    if not env.get("SAS_TABLES__endpoint"):
        raise DeploymentRefusedError(NO_OUTPUTS)
    _hand_over(steps.after(env))
    tidy(env, now=datetime.now(UTC))


def owner(env: Mapping[str, str]) -> None:
    """Take every step of an owner that is needed now. It can run again.

    Raises:
        DeploymentRefusedError: azd does not know the place, or who runs this is no owner.
        CommandFailedError: a command failed.
    """
    shell, env = env, with_azd(env)
    _check_place(env)
    has_group = _check_group(env)
    refused = steps.before(env)
    if has_group:  # GitHub may have deployed since
        env = _refreshed(shell)
    if env.get("SAS_TABLES__endpoint"):
        refused += steps.after(env)
    elif not refused:
        print("The first half is done. Run this again after `azd provision`, or let its hook do it")
    if refused:
        raise DeploymentRefusedError("\n    ".join(["Azure refused these to you:", *refused]))


def show_places(env: Mapping[str, str]) -> None:
    """Print where everything is."""
    print(
        f"""The functions run in {env.get("SERVICE_ORDERS_NAME", "?")}, \
resource group {env.get("AZURE_RESOURCE_GROUP", "?")}.
Service Bus: {env.get("ServiceBus__fullyQualifiedNamespace", "?")}
State store: {env.get("SAS_TABLES__endpoint", "?")}
Response queues: {env.get("SAS_RESPONSE_QUEUES", "?")}
The identity of the functions: {env.get("SAS_IDENTITY_PRINCIPAL_ID", "?")}
Look at the workbook "Orders: Scheduler Agent Supervisor" in the resource group, and at alerts."""
    )
    if not env.get(MAIL) and not env.get(WEBHOOKS):
        _warn_of_silence()


def with_azd(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``env`` with the values of azd's environment, which a hook has and a shell has not.

    If azd names a namespace and a table, those of the shell are left out: `make up` has others.

    Raises:
        CommandFailedError: as ``azd_values``, or azd is missing and ``env`` is not that of a hook.
    """
    if not env.get("AZURE_ENV_NAME"):
        executable("azd")
    values = azd_values()
    others = (*OF_BUS, *OF_TABLES) if names_a_system(values) else ()
    return {**values, **{name: text for name, text in env.items() if name not in others}}


def azd_values() -> dict[str, str]:
    """Return the values of azd's environment; nothing if this project has none.

    Raises:
        CommandFailedError: azd is missing, or has chosen none of the project's environments.
    """
    try:
        return dict(json.loads(run(*VALUES)))
    except CommandFailedError:
        if any(ENVIRONMENTS.glob("*/.env")):
            raise
        return {}


def _refreshed(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``env`` with the outputs of a deployment that GitHub made, if there is one.

    azd finds it in the resource group by the name of the environment (azure-dev, env.go and
    deployment_manager.go).
    """
    try:
        run("azd", "env", "refresh", "--no-prompt")
    except CommandFailedError as error:
        if "no deployments found" not in error.text:
            raise
    return with_azd(env)


def _check(env: Mapping[str, str]) -> None:
    _check_complete(env)
    _check_forms(env)
    _check_secrets(env)
    _check_principals(env)
    _check_replication(env)
    _check_mail(env.get(MAIL, ""))
    _check_place(env)
    if _check_group(env):
        _check_tier(env)


def _check_complete(env: Mapping[str, str]) -> None:
    missing = [
        name
        for name, has_default in sorted(parameter_variables().items())
        if not has_default and not name.startswith("AZURE_") and not env.get(name)
    ]
    if missing:
        hints = "".join(f"\n    azd env set {name} ..." for name in missing)
        raise DeploymentRefusedError(f"These settings are missing:{hints}")
    for name in parameter_variables():
        if name.endswith("_URL") and env.get(name, "").startswith("http://"):
            raise DeploymentRefusedError(
                f"{name}={env[name]}: give an https address; http sends everything in clear"
            )


def secrets(env: Mapping[str, str]) -> list[str]:
    """Return the names of the settings whose values a Key Vault has."""
    return [name.strip() for name in env.get(SECRETS, "").split(",") if name.strip()]


def _check_forms(env: Mapping[str, str]) -> None:
    """Refuse a value that the template, azd or the app would refuse or misread."""
    for name in sorted(parameter_variables()):
        form = PRINCIPAL_FORM if _is_principal(name) else FORMS.get(name)
        value = env.get(name, "")
        if form and value and not re.fullmatch(form[0], value):
            shown = "..." if name == WEBHOOKS else value  # an address may be a secret
            raise DeploymentRefusedError(f"{name}={shown}: {form[1]}")


def _is_principal(name: str) -> bool:
    return name in (OPERATOR, DEPLOYER) or name.startswith(APPLICATION)


def _check_secrets(env: Mapping[str, str]) -> None:
    """Refuse a secret setting that the app has already, because Azure takes each name once."""
    names: set[str] = set()
    plain = _plain_settings()
    for name in secrets(env):
        if name in names:
            raise DeploymentRefusedError(f"{SECRETS} has {name} twice: remove one")
        if name in plain:
            raise DeploymentRefusedError(
                f"{SECRETS} has {name}, which the app already has as a plain setting: remove it "
                "there, or from businessSettings in infra/main.parameters.json"
            )
        names.add(name)


def _plain_settings() -> set[str]:
    """Return the names of the settings that the template gives the app."""
    parameters = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))
    app = (INFRA / "modules" / "function-app.bicep").read_text(encoding="utf-8")
    queues = json.loads((INFRA / "queues.json").read_text(encoding="utf-8"))["settings"]
    return {
        *parameters["parameters"]["businessSettings"]["value"],
        *(setting["name"] for setting in queues),
        *re.findall(r"\{ name: '(\w+)', value:", app),
    }


def _check_principals(env: Mapping[str, str]) -> None:
    """Refuse equal principals, because Azure takes an assignment of a role on a queue only once."""
    names: dict[str, str] = {}
    for name in sorted(parameter_variables()):
        principal = env.get(name, "").lower()
        if not principal or not _is_principal(name):
            continue
        if principal in names:
            raise DeploymentRefusedError(
                f"{names[principal]} and {name} are the same principal, {principal}. Two "
                "deployments would write one role assignment: give each an identity of its own"
            )
        names[principal] = name
    if not env.get(OPERATOR):
        _say(
            f"No operator: nobody may read orders or send commands. To become one:\n"
            f"    azd env set {OPERATOR} $(az ad signed-in-user show --query id --output tsv)"
        )


def _check_replication(env: Mapping[str, str]) -> None:
    """Refuse a replication that storage does not have in the region."""
    region = re.sub("[ _]", "", env.get("AZURE_LOCATION", "")).lower()  # as azd: UK West is ukwest
    value = env.get(REPLICATION) or "Standard_ZRS"
    if region in WITHOUT_ZONES and "ZRS" in value:
        raise DeploymentRefusedError(
            f"{region} has no {value}: run `azd env set {REPLICATION} Standard_GRS` (one place "
            f"there, and a copy in another region), or deploy to {WITHOUT_ZONES[region]}"
        )
    if region in WITHOUT_PAIR and "G" in value:
        raise DeploymentRefusedError(
            f"{region} has no {value}, because it has no paired region: run "
            f"`azd env set {REPLICATION} Standard_ZRS`"
        )


def _check_group(env: Mapping[str, str]) -> bool:
    """Refuse a resource group of another environment; return whether there is a group."""
    group = steps.group(env)
    name = ((group or {}).get("tags") or {}).get(steps.TAG)
    if name and name != env.get("AZURE_ENV_NAME"):
        raise DeploymentRefusedError(
            f"{steps.group_name(env)} belongs to the azd environment {name}. Each needs a group of "
            f"its own: `azd env set {steps.GROUP} ...`"
        )
    return group is not None


def _check_tier(env: Mapping[str, str]) -> None:
    """Refuse a change of the tier that Service Bus refuses."""
    tier = "Premium" if env.get(PRIVATE) == "true" else env.get("SAS_SERVICE_BUS_SKU") or "Standard"
    name = env.get("AZURE_ENV_NAME")
    of = ("--resource-group", steps.group_name(env))
    for namespace in az(env, "servicebus", "namespace", "list", *of):
        present = namespace["sku"]["name"]
        if (namespace.get("tags") or {}).get(steps.TAG) == name and present != tier:
            raise DeploymentRefusedError(_other_tier(present, tier))


def _check_place(env: Mapping[str, str]) -> None:
    """Refuse to go on before azd knows where. It asks for the place after this hook."""
    names = ("AZURE_ENV_NAME", "AZURE_SUBSCRIPTION_ID", "AZURE_LOCATION")
    missing = "".join(f"\n    azd env set {name} ..." for name in names if not env.get(name))
    if missing:
        raise DeploymentRefusedError(f"azd does not know the place yet:{missing}")


def _hand_over(refused: list[str]) -> None:
    """Print what only an owner may do."""
    if refused:
        commands = "".join(f"\n    {command}" for command in refused)
        _say(
            "Azure refused this to you. An owner of the resource group, or of the subscription to "
            f"make a group and register providers, runs{commands}\n"
            "or: .venv/bin/sas azd owner"
        )


def _other_tier(present: str, tier: str) -> str:
    if tier == "Standard":
        return (
            "The namespace is Premium, and Service Bus refuses to make it Standard: run "
            "`azd env set SAS_SERVICE_BUS_SKU Premium`, or deploy a new environment"
        )
    return (
        f"The namespace is {present}, and Service Bus refuses to make it Premium in place. It is a "
        "migration: deploy a new environment (`azd env new`) with SAS_SERVICE_BUS_SKU=Premium, "
        "point the applications at it, and let this one finish its orders. Service Bus's own "
        "`az servicebus migration start` moves queues to a Premium namespace that you create, "
        "but this template would not know that namespace. See infra/README.md"
    )


def _ask_mail(env: Mapping[str, str]) -> None:
    """Ask for the mail addresses of alerts; warn if there are none."""
    text = env.get(MAIL, "")
    if not text and sys.stdin.isatty():
        text = input("Mail addresses for alerts, commas between (empty: none): ").strip()
        if text:
            _check_mail(text)
            run("azd", "env", "set", MAIL, text)
    if not text and not env.get(WEBHOOKS):
        _warn_of_silence()


def _check_mail(text: str) -> None:
    for address in text.split(",") if text else ():
        if not _MAIL.fullmatch(address.strip()):
            raise DeploymentRefusedError(
                f"{MAIL}={text}: {address.strip()!r} is not a mail address; put commas between"
            )


def _warn_of_silence() -> None:
    _say(
        "************************************************************************\n"
        "WARNING: NOBODY GETS ALERTS. Failed orders wait unnoticed.\n"
        f"    azd env set {MAIL} ann@example.com,bob@example.com && azd provision --no-state\n"
        "************************************************************************"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


HOOKS: Mapping[str, Callable[[Mapping[str, str]], None]] = {
    "check": check,
    "preprovision": preprovision,
    "postprovision": postprovision,
    "owner": owner,
}
