"""The hooks that azd runs: what they refuse before anything is created, and what they say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from sas.cli.main import main
from sas.deploy.azd import FORMS, parameter_variables
from tests.infra.fake_commands import Commands
from tests.infra.kit import ROOT

GIVEN = {
    "AZURE_ENV_NAME": "shop",
    "ORDERS_STOCK_URL": "https://stock.example",
    "ORDERS_PAYMENT_URL": "https://payment.example",
    "ORDERS_SHIPPING_URL": "https://shipping.example",
    "ORDERS_MAIL_URL": "https://mail.example",
    "ORDERS_CARRIER_URL": "https://carrier.example",
    "SAS_OPERATOR_MAIL": "ann@example.com, bob@example.com",
    "SAS_OPERATOR_PRINCIPAL_ID": "0f0c0f0c-0000-4000-8000-000000000001",
}
NEEDED = sorted(name for name in GIVEN if name.startswith("ORDERS_"))
SIGNED_IN = {"az account show": "a-subscription"}
NEW = {**SIGNED_IN, "az group exists": "false"}
STANDARD = {
    **SIGNED_IN,
    "az group exists": "true",
    "az servicebus namespace list": "Standard",
}
PREMIUM = {**STANDARD, "az servicebus namespace list": "Premium"}
REGISTERED = {"az provider show": "Registered"}


def hook(
    settings: dict[str, str], path: Path | None = None, name: str = "preprovision"
) -> subprocess.CompletedProcess[str]:
    """Run a hook with these settings, and with no command but those of ``path``."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, {"PATH": str(path or "/nowhere"), **settings}, clear=True),
        patch("sys.stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(["azd", name])
    return subprocess.CompletedProcess([name], code, out.getvalue(), err.getvalue())


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in GIVEN.items() if key != name}


def test_it_is_content_with_every_setting_given() -> None:
    done = hook(GIVEN)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", NEEDED)
def test_it_names_a_setting_that_is_missing(name: str) -> None:
    done = hook(without(name))
    assert done.returncode == 1
    assert f"azd env set {name}" in done.stderr


def test_it_refuses_an_address_of_http() -> None:
    done = hook({**GIVEN, "ORDERS_STOCK_URL": "http://stock.example"})
    assert done.returncode == 1
    assert "give an https address" in done.stderr


def test_it_warns_if_no_person_receives_alerts() -> None:
    done = hook(without("SAS_OPERATOR_MAIL"))
    assert done.returncode == 0
    assert "WARNING: NOBODY GETS ALERTS" in done.stderr
    assert "azd env set SAS_OPERATOR_MAIL" in done.stderr
    assert "WARNING: NOBODY GETS ALERTS" in hook({}, name="postdeploy").stderr


def test_it_refuses_an_invalid_mail_address() -> None:
    done = hook({**GIVEN, "SAS_OPERATOR_MAIL": "ann@example.com;bob@example.com"})
    assert done.returncode == 1
    assert "is not a mail address; put commas between" in done.stderr


def test_it_refuses_an_operator_and_an_application_that_share_a_principal() -> None:
    same = GIVEN["SAS_OPERATOR_PRINCIPAL_ID"]
    done = hook({**GIVEN, "SAS_PRINCIPAL_WEB_SHOP": same.upper()})
    assert done.returncode == 1
    assert "SAS_OPERATOR_PRINCIPAL_ID and SAS_PRINCIPAL_WEB_SHOP are the same" in done.stderr


@pytest.mark.parametrize(
    "choice", [{"SAS_VNET_ENABLED": "true"}, {"SAS_SERVICE_BUS_SKU": "Premium"}]
)
def test_it_refuses_to_make_a_standard_namespace_premium_and_names_the_migration(
    choice: dict[str, str], tmp_path: Path
) -> None:
    commands = Commands(tmp_path, STANDARD)
    done = hook({**GIVEN, **choice}, tmp_path)
    assert done.returncode == 1
    assert "refuses to make it Premium in place. It is a migration" in done.stderr
    assert "az servicebus migration" in done.stderr
    [listed] = commands.called("az servicebus namespace list")
    assert "rg-shop" in listed
    assert commands.called("az provider") == []


def test_it_refuses_to_make_a_premium_namespace_standard(tmp_path: Path) -> None:
    Commands(tmp_path, PREMIUM)
    done = hook(GIVEN, tmp_path)
    assert done.returncode == 1
    assert "azd env set SAS_SERVICE_BUS_SKU Premium" in done.stderr


@pytest.mark.parametrize("answers", [NEW, STANDARD])
def test_it_lets_a_standard_namespace_be_made_and_stay(
    answers: dict[str, str], tmp_path: Path
) -> None:
    Commands(tmp_path, {**answers})
    done = hook(GIVEN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_registers_the_provider_of_the_delegated_subnet_and_reports_it(tmp_path: Path) -> None:
    answers = {**NEW, "az provider show": "NotRegistered", "az provider register": ""}
    commands = Commands(tmp_path, {**answers})
    done = hook({**GIVEN, "SAS_VNET_ENABLED": "true", "AZURE_SUBSCRIPTION_ID": "s-1"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Registering the resource provider Microsoft.App" in done.stderr
    [call] = commands.called("az provider register --namespace Microsoft.App --wait")
    assert call[-4:] == ["--subscription", "s-1", "--output", "tsv"]


@pytest.mark.parametrize("answers", [{}, {"az account show": None}])
def test_it_does_not_guess_about_premium_without_a_signed_in_az(
    answers: dict[str, str | None], tmp_path: Path
) -> None:
    Commands(tmp_path, answers)
    done = hook({**GIVEN, "SAS_VNET_ENABLED": "true"}, tmp_path)
    assert done.returncode == 1
    assert "az login" in done.stderr


def test_the_last_hook_says_where_everything_is() -> None:
    outputs = {
        "SERVICE_ORDERS_NAME": "func-1",
        "AZURE_RESOURCE_GROUP": "rg-shop",
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://st.table.core.windows.net/",
        "SAS_RESPONSE_QUEUES": '["responses-web-shop"]',
        "SAS_IDENTITY_PRINCIPAL_ID": "0f0c",
        "SAS_OPERATOR_MAIL": "ann@example.com",
    }
    done = hook(outputs, name="postdeploy")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(value in done.stdout for key, value in outputs.items() if key != "SAS_OPERATOR_MAIL")
    bicep = (ROOT / "infra" / "main.bicep").read_text()
    for name in outputs.keys() - {"SAS_OPERATOR_MAIL"}:
        assert f"output {name} " in bicep, name


def test_the_last_hook_says_which_secrets_the_app_waits_for() -> None:
    secret = {
        "SAS_SECRET_SETTINGS": "SAS_CALLBACK_KEY, TRIPS_API_KEY",
        "SAS_KEY_VAULT_NAME": "kv-1",
    }
    output = hook(secret, name="postdeploy").stdout
    for name in ("sas-callback-key", "trips-api-key"):
        assert f"az keyvault secret set --vault-name kv-1 --name {name}" in output
    assert "az keyvault" not in hook({}, name="postdeploy").stdout
    assert "output SAS_KEY_VAULT_NAME " in (ROOT / "infra" / "main.bicep").read_text()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SAS_KEY_VAULT_URI", "https://kv-1.vault.azure.net/", "not even a slash"),
        ("SAS_KEY_VAULT_URI", "kv-1", "give https://NAME.vault.azure.net"),
        ("SAS_SECRET_SETTINGS", "TRIPS_KEY,", "one comma between two names"),
        ("SAS_SECRET_SETTINGS", "TRIPS_KEY;OTHER_KEY", "one comma between two names"),
        ("SAS_SECRET_SETTINGS", "TRIPS_KEY, TRIPS_KEY", "has TRIPS_KEY twice: remove one"),
        ("SAS_SECRET_SETTINGS", "ORDERS_STOCK_URL", "already has as a plain setting"),
        ("SAS_SECRET_SETTINGS", "SAS_TABLE", "already has as a plain setting"),
        ("SAS_SECRET_SETTINGS", "SAS_QUEUE_ORDERS", "already has as a plain setting"),
        ("SAS_VNET_ENABLED", "True", "give true or false"),
        ("SAS_SCALER_READS_COUNTS", "yes", "give true or false"),
        ("SAS_ORDERS_PER_DAY", "100,000", "give a whole number from 1 to 10000000"),
        ("SAS_TELEMETRY_SHARE", "0", "above 0 and at most 1"),
        ("SAS_TELEMETRY_SHARE", "10", "above 0 and at most 1"),
        ("SAS_OPERATOR_PRINCIPAL_ID", "ann@example.com", "give an object id"),
        ("SAS_PRINCIPAL_WEB_SHOP", "web-shop", "give an object id"),
        ("SAS_OPERATOR_PRINCIPAL_TYPE", "group", "give User, Group or ServicePrincipal"),
        ("SAS_SERVICE_BUS_SKU", "premium", "give Standard or Premium"),
        ("SAS_STATE_REPLICATION", "Standard_LRS", "give Standard_ZRS"),
        ("SAS_CALLBACK_URL", "callbacks.example", "give an https address"),
        ("SAS_OPERATOR_WEBHOOKS", "http://events.example/key", "SAS_OPERATOR_WEBHOOKS=..."),
    ],
)
@pytest.mark.parametrize("command", ["check", "preprovision"])
def test_it_refuses_what_azure_would_refuse_and_says_what_to_give(
    command: str, name: str, value: str, sentence: str
) -> None:
    done = hook({**GIVEN, name: value}, name=command)
    assert done.returncode == 1
    assert name in done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SAS_KEY_VAULT_URI", "https://kv-1.vault.azure.net"),
        ("SAS_KEY_VAULT_URI", "https://kv-1.vault.usgovcloudapi.net"),
        ("SAS_SECRET_SETTINGS", "SAS_CALLBACK_KEY, TRIPS_API_KEY"),
        ("SAS_VNET_ENABLED", "false"),
        ("SAS_ORDERS_PER_DAY", "10000000"),
        ("SAS_TELEMETRY_SHARE", "0.05"),
        ("SAS_TELEMETRY_SHARE", "1.0"),
        ("SAS_TELEMETRY_SHARE", ""),
        ("SAS_PRINCIPAL_WEB_SHOP", "0F0C0F0C-0000-4000-8000-00000000000F"),
        ("SAS_CALLBACK_URL", "https://orders.example/api/callbacks"),
        ("SAS_STATE_REPLICATION", "Standard_GZRS"),
    ],
)
def test_it_takes_what_azure_takes(name: str, value: str) -> None:
    done = hook({**GIVEN, name: value}, name="check")
    assert (done.returncode, done.stderr) == (0, "")


def test_every_variable_of_ours_has_a_form() -> None:
    parameters = json.loads((ROOT / "infra" / "main.parameters.json").read_text())["parameters"]
    business = parameters["businessSettings"]["value"]
    ours = {
        name for name in parameter_variables() if name.startswith("SAS_") and name not in business
    }
    others = {name for name in ours if "PRINCIPAL_" in name and not name.endswith("_TYPE")}
    assert ours - others - {"SAS_OPERATOR_MAIL"} == set(FORMS)


def test_forms_and_the_template_allow_the_same_words() -> None:
    bicep = (ROOT / "infra" / "main.bicep").read_text()
    for parameter, name in (
        ("operatorPrincipalType", "SAS_OPERATOR_PRINCIPAL_TYPE"),
        ("serviceBusSku", "SAS_SERVICE_BUS_SKU"),
        ("stateReplication", "SAS_STATE_REPLICATION"),
    ):
        before = bicep.partition(f"param {parameter} ")[0]
        allowed = re.findall(r"'(\w+)'", before[before.rindex("@allowed(") :])
        assert all(re.fullmatch(FORMS[name][0], word) for word in allowed)
        assert all(word in FORMS[name][1] for word in allowed)


def test_a_check_changes_nothing_and_refuses_another_tier(tmp_path: Path) -> None:
    answers = {**NEW, "az provider show": "NotRegistered", "az provider register": ""}
    commands = Commands(tmp_path, {**answers, "azd env set": ""})
    done = hook({**without("SAS_OPERATOR_MAIL"), "SAS_VNET_ENABLED": "true"}, tmp_path, "check")
    assert (done.returncode, done.stderr) == (0, "")
    reads = (["az", "account", "show"], ["az", "group", "exists"])
    assert [call[:3] for call in commands.called()] == list(reads)

    Commands(tmp_path, PREMIUM)
    done = hook(GIVEN, tmp_path, "check")
    assert done.returncode == 1
    assert "azd env set SAS_SERVICE_BUS_SKU Premium" in done.stderr
