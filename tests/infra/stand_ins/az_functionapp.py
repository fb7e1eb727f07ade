"""``az`` for a function app: its functions, and what it reads from a Key Vault.

The state has ``functions`` (names), ``references`` (by the name of a secret, its status now),
``read`` (the statuses after a refresh; without it, they stay) and ``slow`` (so many answers have
the older statuses even then).

Sources: azure-cli 2.91, ``appservice/custom.py``, ``list_functions`` (it prints what the SDK
returns: each name is APP/FUNCTION); azure-mgmt-web 11.0, ``ApiKVReferenceProperties`` and
``ResolveStatus``, and Learn, "Web Apps - Get App Settings Key Vault References" (the answer);
Learn, "Use Key Vault references", section *Rotation* (the call ``refresh``, and that what was read
or could not be read is kept for 24 hours).
"""

from __future__ import annotations

from typing import Any

from tests.infra.stand_ins import Call, Refused, Rules, State
from tests.infra.stand_ins.az_resources import group_id

REFERENCES = "/config/configreferences/appsettings"


def _list(state: State, call: Call) -> list[dict[str, Any]]:
    app = call.options["--name"]
    return [{"name": f"{app}/{name}", "isDisabled": False} for name in state["functions"]]


def _refresh(state: State, call: Call) -> None:
    if f"{REFERENCES}/refresh?api-version=" not in call.options["--url"]:
        raise Refused(f"Not Found({call.options['--url']})")
    state["refreshed"] = True


def _references(state: State, call: Call) -> dict[str, Any]:
    site = call.options["--url"].partition("?")[0]
    if state.get("slow"):
        state["slow"] -= 1
    elif state.get("refreshed"):
        state["references"] |= state.get("read", {})
    return {
        "value": [
            {
                "id": f"{site}/{name.upper().replace('-', '_')}",
                "properties": {"vaultName": "kv-1", "secretName": name, "status": status},
            }
            for name, status in state["references"].items()
        ],
        "nextLink": None,
    }


SITE = f"{group_id('rg-shop')}/providers/Microsoft.Web/sites/func-1"
"""The one app."""
RULES: Rules = {
    "az functionapp function list": _list,
    f"az rest --method post --url {SITE}": _refresh,
    f"az rest --method get --url {SITE}": _references,
}
