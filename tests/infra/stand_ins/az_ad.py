"""``az account show`` and ``az ad``: who is signed in, applications of Entra ID, their principals.

The state has ``account``, ``me`` (who is signed in), ``apps`` and ``sps`` (lists), ``owners`` and
``credentials`` (lists by the id of an application or principal). Source, where none is named:
azure-cli, ``src/azure-cli/azure/cli/command_modules/role/custom.py``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.infra.stand_ins import Call, Refused, Rules, State
from tests.infra.stand_ins.az_resources import SUBSCRIPTION

TENANT = "7e4a4700-0000-4000-8000-000000000000"


def app(name: str, client: str, **members: Any) -> dict[str, Any]:
    """Return an application as ``az ad app list`` prints it: Microsoft Graph, type application."""
    return {
        "id": f"object-{client}",
        "appId": client,
        "displayName": name,
        "passwordCredentials": [],
        "keyCredentials": [],
        **members,
    }


def _account(state: State, _: Call) -> object:
    return {"id": SUBSCRIPTION, "tenantId": TENANT, **state.get("account", {})}


def _me(state: State, _: Call) -> object:
    return {"id": state.get("me", "me"), "displayName": "Me"}


def _filtered(items: list[dict[str, Any]], call: Call) -> object:
    """``list_applications``: ``--display-name`` is startswith, ``--filter`` is taken as it is."""
    name = call.options.get("--display-name")
    if name is not None:
        return [item for item in items if item["displayName"].startswith(name)]
    match = re.fullmatch(r"(\w+) eq '(.*)'", call.options["--filter"])
    if match is None:
        raise Refused("(Request_UnsupportedQuery) Unsupported or invalid query filter clause.")
    member, value = match.groups()  # OData compares strings without case: Graph, displayName
    return [item for item in items if str(item[member]).lower() == value.lower()]


def _app_create(state: State, call: Call) -> object:
    """A second run finds one application by the name and changes that: ``create_application``."""
    apps = state.setdefault("apps", [])
    name = call.options["--display-name"]
    for each in apps:
        if each["displayName"] == name:
            return each
    apps.append(app(name, f"client-{len(apps)}"))
    state.setdefault("owners", {})[apps[-1]["appId"]] = [_me(state, call)]
    return apps[-1]


def _sp_create(state: State, call: Call) -> object:
    client = call.options["--id"]
    [name] = [each["displayName"] for each in state["apps"] if each["appId"] == client]
    state.setdefault("sps", []).append(app(name, client, id=f"principal-{client}"))
    return state["sps"][-1]


def _owners(state: State, call: Call) -> object:
    return state.get("owners", {}).get(call.options["--id"], [])


def _credentials(state: State, call: Call) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = state.setdefault("credentials", {}).setdefault(
        call.options["--id"], []
    )
    return listed


def _credential_create(state: State, call: Call) -> object:
    """Names, and pairs of issuer and subject, are unique: Graph, federatedIdentityCredential."""
    new = json.loads(call.options["--parameters"])
    for each in _credentials(state, call):
        if each["name"] == new["name"]:
            raise Refused(f"FederatedIdentityCredential with name {new['name']} already exists.")
        if (each["issuer"], each["subject"]) == (new["issuer"], new["subject"]):
            raise Refused("Issuer and subject combination already exists for this Managed Identity")
    _credentials(state, call).append({"id": f"id-{new['name']}", **new})
    return new


def _credential_delete(state: State, call: Call) -> None:
    key = call.options["--federated-credential-id"]
    listed = _credentials(state, call)
    others = [each for each in listed if key not in (each["id"], each["name"])]
    if len(others) == len(listed):
        raise Refused(f"Resource '{key}' does not exist.")
    listed[:] = others


RULES: Rules = {
    "az account show": _account,
    "az ad signed-in-user show": _me,
    "az ad app list": lambda state, call: _filtered(state.get("apps", []), call),
    "az ad app create": _app_create,
    "az ad app owner list": _owners,
    "az ad app federated-credential list": _credentials,
    "az ad app federated-credential create": _credential_create,
    "az ad app federated-credential delete": _credential_delete,
    "az ad sp list": lambda state, call: _filtered(state.get("sps", []), call),
    "az ad sp create": _sp_create,
    "az ad sp owner list": _owners,
}
