"""The app in Azure has every setting that is read or bound, and no connection string."""

from __future__ import annotations

import json
import re

import pytest

from sas.config import CONNECTION, SettingError, read_config
from tests.indexed_functions import bindings
from tests.infra.kit import INFRA, ROOT

APP = (INFRA / "modules" / "function-app.bicep").read_text()
LOCAL: dict[str, str] = json.loads((ROOT / "local.settings.json").read_text())["Values"]
STAND_INS = {
    "boundApplications": "web,desk",
    "namespaceHostName": "ns.servicebus.windows.net",
    "identityClientId": "00000000-0000-0000-0000-000000000001",
    "stateTableEndpoint": "https://state.table.core.windows.net",
}
CALLBACK_KEY = "OLTmUuRNp/I3DZ4mDicTZVCko6bQf1wMMy+LEiQIP9I="
LOCALLY_OTHERWISE = {"FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage", CONNECTION}
"""The runtime is functionAppConfig's; the connections are by identity."""


def business() -> dict[str, str]:
    parameters = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
    return dict(parameters["businessSettings"]["value"])


def in_azure() -> dict[str, str]:
    """Return the app's settings; what is only known in Azure is a stand-in."""
    fixed = re.findall(r"\{ name: '([^']+)', value: ([^}]+?) \}", APP)
    listed = json.loads((INFRA / "queues.json").read_text())["settings"]
    made = {name: STAND_INS.get(value, value.strip("'")) for name, value in fixed}
    made |= {
        "SAS_CALLBACK_KEY": CALLBACK_KEY,
        "SAS_CALLBACK_URL": "https://app.example/api/callbacks",
    }
    return made | {each["name"]: each["value"] for each in listed} | business()


def test_every_local_setting_is_given_in_azure_too() -> None:
    assert set(LOCAL) - LOCALLY_OTHERWISE <= set(in_azure())


def test_every_setting_that_a_binding_names_is_given() -> None:
    texts = [str(value) for one in bindings().values() for value in one.values()]
    named = {name for text in texts for name in re.findall(r"%([^%]+)%", text)}
    assert named
    assert named <= set(in_azure())


def test_the_code_reads_the_settings_as_they_are_in_azure() -> None:
    config = read_config(in_azure())
    assert config.service_bus.connection_string is None
    assert config.service_bus.address == STAND_INS["namespaceHostName"]
    assert config.service_bus.client_id == STAND_INS["identityClientId"]
    assert config.tables.address == STAND_INS["stateTableEndpoint"]
    assert config.queues.applications == ("web", "desk")
    assert config.tables.client_id == STAND_INS["identityClientId"]


def test_the_keys_of_secret_fields_are_a_reference_to_key_vault_and_only_where_one_is_given() -> (
    None
):
    given = re.search(r"var keys = (.+?)\n\]\n", APP, re.DOTALL)
    assert given is not None
    only_then, _, setting = given[1].partition(" ? [] : [")
    assert only_then == "empty(encryptionKeysSecretUri)"
    name, reference = re.findall(r"'([^']+)'", setting)
    assert reference == "@Microsoft.KeyVault(SecretUri=${encryptionKeysSecretUri})"
    with pytest.raises(SettingError, match=name):  # so it is the name that is read
        read_config(in_azure() | {name: "no key"})
    assert "concat(settings, keys, " in APP
    assert "keyVaultReferenceIdentity: identityId" in APP
    assert name not in LOCAL


@pytest.mark.parametrize(
    "name",
    ["FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage", CONNECTION, "WEBSITE_RUN_FROM_PACKAGE"],
)
def test_settings_that_flex_refuses_or_that_hold_keys_are_not_given(name: str) -> None:
    assert name not in in_azure()


def test_the_key_of_callbacks_is_a_secret_parameter_all_the_way_down() -> None:
    assert "{ name: 'SAS_CALLBACK_KEY', value: callbackKey }" in APP
    for file in ("main.bicep", "modules/platform.bicep", "modules/function-app.bicep"):
        text = (INFRA / file).read_text()
        assert re.search(r"@secure\(\)\n(@description.*\n)?param callbackKey string", text), file


def test_the_host_s_connections_say_that_they_are_by_identity() -> None:
    settings = in_azure()
    for connection in ("AzureWebJobsStorage", CONNECTION):
        assert settings[f"{connection}__credential"] == "managedidentity"
        assert settings[f"{connection}__clientId"] == STAND_INS["identityClientId"]


def test_the_app_runs_the_python_of_the_workflow_and_the_devcontainer() -> None:
    version = re.search(r"name: 'python'\s+version: '([\d.]+)'", APP)
    assert version is not None
    assert f'python-version: "{version[1]}"' in (ROOT / ".github/workflows/ci.yml").read_text()
    assert f"python:{version[1]}" in (ROOT / ".devcontainer/compose.yaml").read_text()
