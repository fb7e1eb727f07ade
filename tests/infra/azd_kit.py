"""What the tests of ``sas azd`` share: an environment of azd, and how a hook is run in it."""

from __future__ import annotations

import contextlib
import io
import subprocess
from pathlib import Path

import pytest

from sas.cli.main import main
from tests.infra.stand_ins.az_resources import SUBSCRIPTION, group_id
from tests.infra.stand_ins.in_process import call_in_process

GIVEN = {
    "AZURE_ENV_NAME": "shop",
    "AZURE_LOCATION": "swedencentral",
    "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
    "ORDERS_STOCK_URL": "https://stock.example",
    "ORDERS_PAYMENT_URL": "https://payment.example",
    "ORDERS_SHIPPING_URL": "https://shipping.example",
    "ORDERS_MAIL_URL": "https://mail.example",
    "ORDERS_CARRIER_URL": "https://carrier.example",
    "SAS_OPERATOR_MAIL": "ann@example.com, bob@example.com",
    "SAS_OPERATOR_PRINCIPAL_ID": "0f0c0f0c-0000-4000-8000-000000000001",
}
"""What a person gives before the first deployment."""
OURS = {"azd-env-name": "shop"}
GROUP = {"rg-shop": {"location": "swedencentral", "tags": OURS}}
DEPLOYED = {
    "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
    "AZURE_RESOURCE_GROUP": "rg-shop",
    "SERVICE_ORDERS_NAME": "func-1",
}
"""What a deployment of the code needs of it."""
FUNCTIONS = "0f0c0f0c-0000-4000-8000-00000000000f"
OUTPUTS = {
    "AZURE_RESOURCE_GROUP": "rg-shop",
    "SAS_KEY_VAULT_NAME": "kv-1",
    "SAS_IDENTITY_PRINCIPAL_ID": FUNCTIONS,
    "SAS_TABLES__endpoint": "https://stshop.table.core.windows.net/",
}
"""What the template put out, as far as an owner's steps need it."""
VAULT = group_id("rg-shop") + "/providers/Microsoft.KeyVault/vaults/kv-1"
ACCOUNT = group_id("rg-shop") + "/providers/Microsoft.Storage/storageAccounts/stshop"


def hook(
    settings: dict[str, str], path: Path | None = None, name: str = "preprovision"
) -> subprocess.CompletedProcess[str]:
    """Run a hook with these settings, and with no command but those of ``path``."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patching,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        if path:
            call_in_process(path, patching)
        patching.setattr("sys.stdin", io.StringIO())
        patching.setattr("os.environ", {"PATH": str(path or "/nowhere"), **settings})
        code = main(["azd", name])
    return subprocess.CompletedProcess([name], code, out.getvalue(), err.getvalue())
