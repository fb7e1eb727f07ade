"""Deploys a zip of ``sas azd package``: ``sas azd deploy FILE``. A rollback names an earlier zip.

1. Secrets. Azure reads each secret of the app from the vault and keeps for a day that it could not.
   So it is asked to read them again, and if one is missing, nothing is deployed.
2. Upload. While the roles that a first ``azd provision`` gave still spread, Azure refuses the zip
   with 403 (azure-dev #8026), and it is uploaded again.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sas.deploy.azd import DeploymentRefusedError, secrets
from sas.deploy.commands import CommandFailedError, az, show
from sas.deploy.owner import group_id

API = "2024-11-01"
READ_AGAIN_S = (0, 5, 5, 10, 10, 30, 30)
"""The pauses before each look at the secrets: Azure reads them after the call has returned."""
UPLOAD_AGAIN_S = (15, 30, 60, 60, 60, 60)
"""The pauses before an upload that was refused is tried again. A role needs up to five minutes."""
_REFUSED = re.compile(r"\b403\b")


def site_of(env: Mapping[str, str]) -> str:
    """Return the resource id of the function app.

    Raises:
        DeploymentRefusedError: azd knows none.
    """
    name = env.get("SERVICE_ORDERS_NAME")
    if not name:
        raise DeploymentRefusedError(
            "azd knows no function app: run `azd provision` first, `azd env select`, or "
            "`azd env refresh` if GitHub made it"
        )
    return f"{group_id(env)}/providers/Microsoft.Web/sites/{name}"


def deploy(zip_path: Path, env: Mapping[str, str]) -> None:
    """Deploy a zip.

    Raises:
        DeploymentRefusedError: there is no function app, or a secret is missing.
        CommandFailedError: az or azd failed.
    """
    site = site_of(env)
    if secrets(env):
        _check_secrets(env, f"{site}/config/configreferences/appsettings")
    for pause_s in (*UPLOAD_AGAIN_S, None):
        # azd removes a zip that it finds in the folder for temporary files, so it gets a copy.
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(zip_path, folder)
            command = ("azd", "deploy", "orders", "--from-package", copy, "--no-prompt")
            try:
                show(*command)
            except CommandFailedError as error:
                if pause_s is None or not _REFUSED.search(error.text):
                    raise
            else:
                return
        _say(f"Azure refused the upload: the roles may not have spread. Again in {pause_s} s ...")
        time.sleep(pause_s)


def _check_secrets(env: Mapping[str, str], url: str) -> None:
    """Have Azure read the secrets of the app again, and refuse to go on without one of them."""
    _say("Azure reads the secrets of the app again ...")
    az(env, "rest", "--method", "post", "--url", f"{url}/refresh?api-version={API}")
    unread: list[dict[str, Any]] = []
    for pause_s in READ_AGAIN_S:
        time.sleep(pause_s)
        answer = az(env, "rest", "--method", "get", "--url", f"{url}?api-version={API}")
        references = [reference["properties"] for reference in answer["value"]]
        unread = [each for each in references if each.get("status") != "Resolved"]
        if not unread:
            return
    lines = ["Azure cannot read these secrets of the app. Nothing was deployed:"]
    for each in unread:
        name, vault = each.get("secretName"), each.get("vaultName")
        lines.append(f"  {name}: {each.get('status')}. {each.get('details') or ''}".rstrip())
        if each.get("status") == "AccessToKeyVaultDenied":
            lines.append("    sas azd owner      (gives the app its role; it needs some minutes)")
        else:
            lines.append(
                f"    az keyvault secret set --vault-name {vault} --name {name} --file ..."
            )
    raise DeploymentRefusedError("\n".join(lines))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
