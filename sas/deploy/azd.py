"""The hooks of azd (azure.yaml): ``sas azd preprovision`` and ``sas azd postdeploy``.

``sas azd check`` makes the same checks as ``preprovision``, and changes nothing. Run it before a
preview, because a preview runs no hook. The hooks read the project in this directory, and call
Azure with the command ``az``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

INFRA = Path("infra")
"""In the directory of the project, where azd runs its hooks."""
MAIL = "SAS_OPERATOR_MAIL"
WEBHOOKS = "SAS_OPERATOR_WEBHOOKS"
OPERATOR = "SAS_OPERATOR_PRINCIPAL_ID"
APPLICATION = "SAS_PRINCIPAL_"
SECRETS = "SAS_SECRET_SETTINGS"
PRIVATE = "SAS_VNET_ENABLED"
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
    "SAS_SCALER_READS_COUNTS": _SWITCH,
    "SAS_SECRET_SETTINGS": (
        f"{_SETTING}(,{_SETTING})*",
        "give names of settings (letters, digits, underscores), one comma between two names",
    ),
    "SAS_SERVICE_BUS_SKU": ("Standard|Premium", "give Standard or Premium"),
    "SAS_STATE_REPLICATION": (
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
_MAIL = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")


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
    """
    _check_complete(env)
    _check_forms(env)
    _check_secrets(env)
    _check_principals(env)
    _check_platform(env)
    _check_mail(env.get(MAIL, ""))


def preprovision(env: Mapping[str, str]) -> None:
    """Check, register the provider of a virtual network, and ask for the addresses of alerts.

    Raises:
        DeploymentRefusedError: as ``check``, or the provider cannot be registered.
    """
    check(env)
    if env.get(PRIVATE) == "true":
        _register(env, "Microsoft.App")
    _ask_mail(env)


def postdeploy(env: Mapping[str, str]) -> None:
    """Print where everything is, and what to try first."""
    print(
        f"""The functions run in {env.get("SERVICE_ORDERS_NAME", "?")}, \
resource group {env.get("AZURE_RESOURCE_GROUP", "?")}.
Service Bus: {env.get("ServiceBus__fullyQualifiedNamespace", "?")}
State store: {env.get("SAS_TABLES__endpoint", "?")}
Response queues: {env.get("SAS_RESPONSE_QUEUES", "?")}
The identity of the functions: {env.get("SAS_IDENTITY_PRINCIPAL_ID", "?")}
Roles on Service Bus take up to a minute to spread: the first messages may wait that long.
Look at the workbook "Orders: Scheduler Agent Supervisor" in the resource group, and at alerts."""
    )
    names = _secrets(env)
    if names:
        vault = env.get("SAS_KEY_VAULT_NAME") or "VAULT"
        print("The app does not start before each of these secrets is there; restart it then:")
        for name in names:
            secret = name.lower().replace("_", "-")
            print(f"    az keyvault secret set --vault-name {vault} --name {secret} --file ...")
    if not env.get(MAIL) and not env.get(WEBHOOKS):
        _warn_of_silence()


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


def _secrets(env: Mapping[str, str]) -> list[str]:
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
    return name == OPERATOR or name.startswith(APPLICATION)


def _check_secrets(env: Mapping[str, str]) -> None:
    """Refuse a secret setting that the app has already, because Azure takes each name once."""
    names: set[str] = set()
    plain = _plain_settings()
    for name in _secrets(env):
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


def _check_platform(env: Mapping[str, str]) -> None:
    """Refuse a change of the tier that Service Bus refuses."""
    tier = "Premium" if env.get(PRIVATE) == "true" else env.get("SAS_SERVICE_BUS_SKU") or "Standard"
    if _az(env, "account", "show", "--query", "id") is None:
        if tier == "Premium":
            raise DeploymentRefusedError(
                "Premium or SAS_VNET_ENABLED: this hook must look at the subscription first. "
                "Install the Azure CLI and run `az login`"
            )
        return
    present = _tier(env)
    if present and present != tier:
        raise DeploymentRefusedError(_other_tier(present, tier))


def _tier(env: Mapping[str, str]) -> str:
    """Return the tier of the environment's namespace; an empty text if there is none."""
    name = env.get("AZURE_ENV_NAME", "")
    if _az(env, "group", "exists", "--name", f"rg-{name}") != "true":
        return ""
    query = f"[?tags.\"azd-env-name\"=='{name}'].sku.name | [0]"
    tier = _az(
        env, "servicebus", "namespace", "list", "--resource-group", f"rg-{name}", "--query", query
    )
    if tier is None:
        raise DeploymentRefusedError(
            f"The namespaces of rg-{name} could not be read: run `az servicebus namespace list "
            f"--resource-group rg-{name}` to see why"
        )
    return tier


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


def _register(env: Mapping[str, str], provider: str) -> None:
    """Register a resource provider. A delegated subnet needs it, and ARM does not register it."""
    show = ("provider", "show", "--namespace", provider, "--query", "registrationState")
    if _az(env, *show) == "Registered":
        return
    _say(f"Registering the resource provider {provider} in the subscription: a minute or two ...")
    if _az(env, "provider", "register", "--namespace", provider, "--wait") is None:
        raise DeploymentRefusedError(
            f"{provider} could not be registered. Ask a Contributor of the subscription to run "
            f"`az provider register --namespace {provider} --wait`"
        )


def _ask_mail(env: Mapping[str, str]) -> None:
    """Ask for the mail addresses of alerts; warn if there are none."""
    text = env.get(MAIL, "")
    if not text and sys.stdin.isatty():
        text = input("Mail addresses for alerts, commas between (empty: none): ").strip()
        azd = shutil.which("azd")
        if text and azd:
            _check_mail(text)
            subprocess.run([azd, "env", "set", MAIL, text], check=True)  # noqa: S603  # found above
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
        f"    azd env set {MAIL} ann@example.com,bob@example.com && azd provision\n"
        "************************************************************************"
    )


def _az(env: Mapping[str, str], *arguments: str) -> str | None:
    """Return the output of az; None if az is missing, not signed in, or fails."""
    az = shutil.which("az", path=env.get("PATH"))
    if az is None:
        return None
    subscription = env.get("AZURE_SUBSCRIPTION_ID")
    options = ("--subscription", subscription) if subscription else ()
    process = subprocess.run(  # noqa: S603  # no shell
        [az, *arguments, *options, "--output", "tsv"], capture_output=True, text=True, check=False
    )
    printed = process.stdout.strip().removesuffix("None")  # az prints None for null
    return printed if process.returncode == 0 else None


def _say(text: str) -> None:
    print(text, file=sys.stderr)


HOOKS: Mapping[str, Callable[[Mapping[str, str]], None]] = {
    "check": check,
    "preprovision": preprovision,
    "postdeploy": postdeploy,
}
