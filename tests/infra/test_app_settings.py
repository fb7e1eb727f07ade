"""The app in Azure has every setting that is read or bound, and no connection string."""

from __future__ import annotations

import json
import re

import pytest

from sas.config import SettingError, read_config
from sas.environment import CONNECTION
from sas.features.callbacks.codec import CALLBACK_BYTES_MAX
from tests.indexed_functions import bindings
from tests.infra.kit import APP, INFRA, LOCAL, MAIN, PARAMETERS, ROOT

DEFAULTS = dict(re.findall(r"^param (\w+) \w+ = '?([^'\n]+)'?$", MAIN, re.MULTILINE))
"""The parameters that go into settings as they are, with their defaults."""
STAND_INS = {
    **DEFAULTS,
    **{f"string({name})": value for name, value in DEFAULTS.items()},
    "boundApplications": "web,desk",
    "hostAccountName": "sthost1",
    "namespaceHostName": "ns.servicebus.windows.net",
    "identityClientId": "00000000-0000-0000-0000-000000000001",
    "stateTableEndpoint": "https://state.table.core.windows.net",
}
LOCALLY_OTHERWISE = {
    *("FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage", CONNECTION),
    "SAS_CALLBACK_KEY",
}
"""The runtime is functionAppConfig's; connections are by identity; a key is a secret setting."""


def business() -> dict[str, str]:
    return dict(PARAMETERS["businessSettings"]["value"])


def in_azure() -> dict[str, str]:
    """Return the app's settings; what is only known in Azure is a stand-in."""
    fixed = re.findall(r"\{ name: '([^']+)', value: ([^}]+?) \}", APP)
    listed = json.loads((INFRA / "queues.json").read_text())["settings"]
    settings = {name: STAND_INS.get(value, value.strip("'")) for name, value in fixed}
    settings["SAS_CALLBACK_URL"] = "https://app.example/api/callbacks"
    return settings | {each["name"]: each["value"] for each in listed} | business()


def test_every_local_setting_is_given_in_azure_too() -> None:
    assert set(LOCAL) - LOCALLY_OTHERWISE <= set(in_azure())


ELSEWHERE = {
    *("ServiceBus", "SAS_TABLES", "AzureWebJobsStorage"),  # by identity
    *("SAS_CALLBACK_KEY", "SAS_PAYLOAD_KEYS"),  # secret settings
    *("SAS_INSTANCE", "WEBSITE_INSTANCE_ID"),  # Azure names instances
    *("SAS_REPLY_QUEUE", "SAS_OPERATOR"),  # of the command sas
    # These have a default, and businessSettings may give them.
    *("SAS_SHARDS", "SAS_SOURCE", "SAS_MESSAGE_BYTES_MAX", "SAS_AGENT_LIMITS"),
    *("SAS_BREAKER_FAILURES", "SAS_FUNCTION_SECONDS", "SAS_QUEUE_DELAY_SECONDS"),
    *("ORDERS_ATTEMPT_SECONDS", "ORDERS_INLINE_AGENTS"),
}
"""Every setting that the app reads and Bicep does not give."""


def test_every_setting_that_is_read_has_one_place_where_it_is_given() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    read = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert read - set(in_azure()) == ELSEWHERE


def test_no_setting_is_given_twice() -> None:
    """Azure refuses a list of settings that has a name twice."""
    fixed = re.findall(r"\{ name: '([^']+)', value:", APP)
    listed = [each["name"] for each in json.loads((INFRA / "queues.json").read_text())["settings"]]
    names = [*fixed, *listed, *business(), "SAS_CALLBACK_KEY", "SAS_PAYLOAD_KEYS"]
    assert sorted(names) == sorted(set(names))


def test_every_setting_that_a_binding_names_is_given() -> None:
    texts = [str(value) for binding in bindings().values() for value in binding.values()]
    named = {name for text in texts for name in re.findall(r"%([^%]+)%", text)}
    assert named
    assert named <= set(in_azure())


def test_the_code_reads_the_settings_as_they_are_in_azure() -> None:
    config = read_config(in_azure())
    assert config.retention.days == 30
    assert config.service_bus.connection_string is None
    assert config.service_bus.address == STAND_INS["namespaceHostName"]
    assert config.service_bus.client_id == STAND_INS["identityClientId"]
    assert config.tables.address == STAND_INS["stateTableEndpoint"]
    assert config.queues.applications == ("web", "desk")
    assert config.tables.client_id == STAND_INS["identityClientId"]


def reference(name: str) -> str:
    """Return the reference that the template makes for a setting, in a vault of its own."""
    template = re.search(r"value: '(@Microsoft.*)'\n", APP)
    assert template is not None
    text = template[1].replace("${vaultUri}", "https://kv-1.vault.azure.net/")
    return text.replace("${toLower(replace(secret, '_', '-'))}", name.lower().replace("_", "-"))


def test_a_secret_setting_is_a_reference_to_the_vault_that_the_app_refuses_unresolved() -> None:
    uri = "https://kv-1.vault.azure.net/secrets/sas-callback-key"
    assert reference("SAS_CALLBACK_KEY") == f"@Microsoft.KeyVault(SecretUri={uri})"
    for name in ("SAS_CALLBACK_KEY", "PAYMENT_API_KEY"):
        with pytest.raises(SettingError, match=f"{name} is a Key Vault reference"):
            read_config(in_azure() | {name: reference(name)})


def test_no_secret_is_a_parameter_in_clear() -> None:
    """Settings of the business may hold one although they should not: they are secure."""
    for text in (MAIN, APP):
        assert re.search(r"@secure\(\)\n(@description.*\n)?param businessSettings object", text)


def test_the_host_s_connections_say_that_they_are_by_identity() -> None:
    settings = in_azure()
    for connection in ("AzureWebJobsStorage", CONNECTION):
        assert connection not in settings
        assert settings[f"{connection}__credential"] == "managedidentity"
        assert settings[f"{connection}__clientId"] == STAND_INS["identityClientId"]


def test_the_host_finds_its_storage_by_name_and_by_address() -> None:
    """With the address alone its client is sometimes not made at a start (host issue 11787)."""
    settings = in_azure()
    assert settings["AzureWebJobsStorage__accountName"] == "sthost1"
    assert settings["AzureWebJobsStorage__blobServiceUri"] == "hostBlobEndpoint"
    assert "hostAccountName: hostAccountName\n    hostBlobEndpoint: host.outputs.blob" in MAIN


def test_sampling_is_set_where_it_is_obeyed() -> None:
    """If telemetryMode is OpenTelemetry, the host ignores samplingSettings."""
    host = json.loads((ROOT / "host.json").read_text())
    assert host["telemetryMode"] == "OpenTelemetry"
    assert "applicationInsights" not in host["logging"]
    assert "SAS_TELEMETRY_SHARE" in in_azure()
    # The worker would sample by it too, and lose spans that failed.
    assert "OTEL_TRACES_SAMPLER" not in APP


def test_the_host_bounds_what_anybody_may_post() -> None:
    """A callback fits, and the endpoint itself can still say of a longer body what to change."""
    name = "FUNCTIONS_REQUEST_BODY_SIZE_LIMIT"
    http = json.loads((ROOT / "host.json").read_text())["extensions"]["http"]
    assert CALLBACK_BYTES_MAX < int(in_azure()[name]) <= 2 * CALLBACK_BYTES_MAX
    assert LOCAL[name] == in_azure()[name]
    assert f"perInstanceConcurrency: {http['maxConcurrentRequests']} " in APP
    assert http["maxOutstandingRequests"] == 2 * http["maxConcurrentRequests"]


def test_the_app_runs_the_python_of_the_workflow_and_the_devcontainer() -> None:
    version = re.search(r"name: 'python', version: '([\d.]+)'", APP)
    assert version is not None
    assert f'python-version: "{version[1]}"' in (ROOT / ".github/workflows/ci.yml").read_text()
    assert f"python:{version[1]}" in (ROOT / ".devcontainer/devcontainer.json").read_text()
    assert f"python:{version[1]}" in (ROOT / ".devcontainer/emulator/compose.yaml").read_text()
