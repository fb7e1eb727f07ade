"""The hooks that azd runs: what they refuse before anything is created, and what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sas.deploy.azd import (
    FORMS,
    WITHOUT_PAIR,
    WITHOUT_ZONES,
    parameter_variables,
    show_places,
    with_azd,
)
from tests.infra.azd_kit import GIVEN, GROUP, OURS, hook
from tests.infra.kit import INFRA
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_resources import SUBSCRIPTION
from tests.infra.stand_ins.in_process import call_in_process

MAIN = (INFRA / "main.bicep").read_text()
PARAMETERS = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]


def namespace(tier: str) -> dict[str, object]:
    return {"group": "rg-shop", "sku": {"name": tier}, "tags": OURS, "queues": {}}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in GIVEN.items() if key != name}


def test_what_is_missing_is_named_with_the_command_that_gives_it(tmp_path: Path) -> None:
    needed = [name for name in GIVEN if name.startswith("ORDERS_")]
    for name in (*needed, "AZURE_LOCATION", "AZURE_SUBSCRIPTION_ID"):
        done = hook(without(name))
        assert done.returncode == 1
        assert f"azd env set {name}" in done.stderr
    Cloud(tmp_path)
    done = hook(without("SAS_OPERATOR_MAIL"), tmp_path)
    assert done.returncode == 0
    assert "WARNING: NOBODY GETS ALERTS" in done.stderr
    done = hook(GIVEN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


REFUSED = [
    ("SAS_KEY_VAULT_URI", "https://kv-1.vault.azure.net/", "not even a slash"),
    ("SAS_KEY_VAULT_URI", "kv-1", "give https://NAME.vault.azure.net"),
    ("SAS_SECRET_SETTINGS", "TRIPS_KEY,", "one comma between two names"),
    ("SAS_SECRET_SETTINGS", "TRIPS_KEY;OTHER_KEY", "one comma between two names"),
    ("SAS_SECRET_SETTINGS", "TRIPS_KEY, TRIPS_KEY", "has TRIPS_KEY twice: remove one"),
    ("SAS_SECRET_SETTINGS", "ORDERS_STOCK_URL", "already has as a plain setting"),
    ("SAS_SECRET_SETTINGS", "SAS_TABLE", "already has as a plain setting"),
    ("SAS_SECRET_SETTINGS", "SAS_QUEUE_ORDERS", "already has as a plain setting"),
    ("SAS_VNET_ENABLED", "True", "give true or false"),
    ("SAS_DEPLOYER_PRINCIPAL_ID", "deploy-shop", "give an object id"),
    ("SAS_ORDERS_PER_DAY", "100,000", "give a whole number from 1 to 10000000"),
    ("SAS_TELEMETRY_SHARE", "0", "above 0 and at most 1"),
    ("SAS_TELEMETRY_SHARE", "10", "above 0 and at most 1"),
    ("SAS_OPERATOR_PRINCIPAL_ID", "ann@example.com", "give an object id"),
    ("SAS_PRINCIPAL_WEB_SHOP", "web-shop", "give an object id"),
    ("SAS_PRINCIPAL_WEB_SHOP", GIVEN["SAS_OPERATOR_PRINCIPAL_ID"].upper(), "are the same"),
    ("SAS_OPERATOR_PRINCIPAL_TYPE", "group", "give User, Group or ServicePrincipal"),
    ("SAS_OPERATOR_MAIL", "a@example.com;b@example.com", "is not a mail address; put commas"),
    ("SAS_SERVICE_BUS_SKU", "premium", "give Standard or Premium"),
    ("SAS_STATE_REPLICATION", "Standard_LRS", "give Standard_ZRS"),
    ("SAS_CALLBACK_URL", "callbacks.example", "give an https address"),
    ("SAS_OPERATOR_WEBHOOKS", "http://events.example/key", "SAS_OPERATOR_WEBHOOKS=..."),
    ("ORDERS_STOCK_URL", "http://stock.example", "give an https address"),
]
TAKEN = [
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
]


def test_what_azure_would_refuse_is_refused_first_with_what_to_give(tmp_path: Path) -> None:
    for name, value, sentence in REFUSED:
        for command in ("check", "preprovision"):
            done = hook({**GIVEN, name: value}, name=command)
            assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), (name, value)
            assert name in done.stderr
            assert sentence in done.stderr
    Cloud(tmp_path)
    for name, value in TAKEN:
        done = hook({**GIVEN, name: value}, tmp_path, "check")
        assert (done.returncode, done.stderr) == (0, ""), (name, value)


def test_a_replication_that_the_region_lacks_is_refused(tmp_path: Path) -> None:
    Cloud(tmp_path)
    for region, replication, advice in (
        ("westus", "", "azd env set SAS_STATE_REPLICATION Standard_GRS"),
        ("ukwest", "Standard_GZRS", "or deploy to uksouth"),
        ("UK West", "", "or deploy to uksouth"),
        ("uk_west", "", "or deploy to uksouth"),
        ("spaincentral", "Standard_RAGRS", "azd env set SAS_STATE_REPLICATION Standard_ZRS"),
        ("westus", "Standard_GRS", ""),
        ("italynorth", "Standard_ZRS", ""),
    ):
        choice = {"AZURE_LOCATION": region, "SAS_STATE_REPLICATION": replication}
        done = hook(GIVEN | choice, tmp_path, "check")
        assert done.returncode == int(advice != ""), choice
        assert advice in done.stderr


def test_forms_regions_and_outputs_are_those_of_the_template(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for region in (*WITHOUT_ZONES, *WITHOUT_ZONES.values(), *WITHOUT_PAIR):
        assert f"'{region}'" in MAIN, region
    business = PARAMETERS["businessSettings"]["value"]
    ours = {n for n in parameter_variables() if n.startswith("SAS_") and n not in business}
    others = {name for name in ours if "PRINCIPAL_" in name and not name.endswith("_TYPE")}
    assert ours - others - {"SAS_OPERATOR_MAIL"} == set(FORMS)
    for parameter, name in (
        ("operatorPrincipalType", "SAS_OPERATOR_PRINCIPAL_TYPE"),
        ("serviceBusSku", "SAS_SERVICE_BUS_SKU"),
        ("stateReplication", "SAS_STATE_REPLICATION"),
    ):
        before = MAIN.partition(f"param {parameter} ")[0]
        for word in re.findall(r"'(\w+)'", before[before.rindex("@allowed(") :]):
            assert re.fullmatch(FORMS[name][0], word)
            assert word in FORMS[name][1]
    outputs = {
        "SERVICE_ORDERS_NAME": "func-1",
        "AZURE_RESOURCE_GROUP": "rg-shop",
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://st.table.core.windows.net/",
        "SAS_RESPONSE_QUEUES": '["responses-web-shop"]',
        "SAS_IDENTITY_PRINCIPAL_ID": "0f0c",
    }
    show_places({**outputs, "SAS_OPERATOR_MAIL": "ann@example.com"})
    printed = capsys.readouterr()
    assert printed.err == ""
    for name, value in outputs.items():
        assert value in printed.out
        assert f"output {name} " in MAIN, name


def test_the_tier_of_a_namespace_is_never_changed_in_place(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Standard")})
    for choice in ({"SAS_VNET_ENABLED": "true"}, {"SAS_SERVICE_BUS_SKU": "Premium"}):
        done = hook({**GIVEN, **choice}, tmp_path)
        assert done.returncode == 1
        assert "az servicebus migration" in done.stderr
    assert cloud.called("az provider") == []
    Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Premium")})
    for command in ("check", "preprovision"):
        done = hook(GIVEN, tmp_path, command)
        assert done.returncode == 1
        assert "azd env set SAS_SERVICE_BUS_SKU Premium" in done.stderr
    other = {**namespace("Premium"), "tags": None}  # of another project in the group
    Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Standard"), "sb-2": other})
    assert hook(GIVEN, tmp_path, "check").returncode == 0


def test_the_resource_group_is_the_one_that_was_given_and_of_no_other_environment(
    tmp_path: Path,
) -> None:
    cloud = Cloud(tmp_path, groups={"orders": {"tags": None}}, namespaces={})
    assert hook({**GIVEN, "AZURE_RESOURCE_GROUP": "orders"}, tmp_path).returncode == 0
    assert {call.options["--name"] for call in cloud.called("az group show")} == {"orders"}
    assert cloud.state["groups"]["orders"]["tags"] == OURS
    Cloud(tmp_path, groups={"rg-shop": {"tags": {"azd-env-name": "staging"}}})
    done = hook(GIVEN, tmp_path, "check")
    assert done.returncode == 1
    assert "rg-shop belongs to the azd environment staging" in done.stderr


def test_the_providers_of_a_fresh_subscription_are_registered(tmp_path: Path) -> None:
    """In the spelling of Azure, which has one in lower case: azure-docs issue 85190."""
    fresh = dict.fromkeys(["Microsoft.App", "microsoft.insights", "Microsoft.Quantum"], "No")
    cloud = Cloud(tmp_path, providers={**fresh, "Microsoft.Storage": "Registered"})
    done = hook(GIVEN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    calls = cloud.called("az provider register")
    names = ["Microsoft.App", "microsoft.insights"]
    assert [call.options["--namespace"] for call in calls] == names
    assert all({"--wait", "--subscription"} <= call.options.keys() for call in calls)


def test_who_may_not_register_providers_gets_the_commands_if_there_are_any(
    tmp_path: Path,
) -> None:
    state = {"groups": GROUP, "forbidden": ["microsoft.insights/register/action"]}
    Cloud(tmp_path, providers={"microsoft.insights": "NotRegistered"}, **state)
    done = hook(GIVEN, tmp_path)
    command = "az provider register --namespace microsoft.insights --wait"
    assert f"    {command} --subscription {SUBSCRIPTION}" in done.stderr.splitlines()
    for forbidden in ("register/action", "Microsoft.Resources/subscriptions/providers/read"):
        state["forbidden"] = [forbidden]
        Cloud(tmp_path, providers={"Microsoft.App": "Registered"}, **state)
        done = hook(GIVEN, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_does_not_guess_without_azd_or_a_signed_in_az(tmp_path: Path) -> None:
    assert "az was not found on PATH: install it" in hook(GIVEN).stderr
    for action in ("check", "owner", "preprovision", "postprovision", "smoke"):
        done = hook({}, name=action)
        assert done.returncode == 1
        assert "azd was not found on PATH: install it" in done.stderr
    Cloud(tmp_path, signed_out=True)
    done = hook(GIVEN, tmp_path)
    assert (done.returncode, "az login" in done.stderr) == (1, True)


def test_a_check_changes_nothing_and_a_person_may_run_it_and_the_hooks(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    settings = {**without("SAS_OPERATOR_MAIL"), "SAS_VNET_ENABLED": "true"}
    done = hook(settings, tmp_path, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert [call.words[:3] for call in cloud.called("az ")] == [["az", "group", "show"]]
    assert cloud.called("azd env set") == []

    cloud = Cloud(tmp_path, azd={**GIVEN, "SAS_VNET_ENABLED": "yes"})
    assert "SAS_VNET_ENABLED=yes" in hook({}, tmp_path, "check").stderr
    assert hook({"SAS_VNET_ENABLED": "true"}, tmp_path).returncode == 0
    assert cloud.state["groups"] == GROUP
    done = hook({"SAS_VNET_ENABLED": "true"}, tmp_path, "postprovision")
    assert done.returncode == 1
    assert "azd's environment does not say what was made: run `azd provision` first" in done.stderr


def test_what_azd_deployed_wins_over_the_stack_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = {
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://stshop.table.core.windows.net/",
    }
    shell = {
        "ServiceBus": "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b",
        "SAS_TABLES": "UseDevelopmentStorage=true",
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "SAS_VNET_ENABLED": "true",
    }
    call_in_process(tmp_path, monkeypatch)
    Cloud(tmp_path, azd=GIVEN | deployed)
    assert with_azd(shell) == GIVEN | deployed | {"SAS_VNET_ENABLED": "true"}
    Cloud(tmp_path, azd=GIVEN)
    assert with_azd(shell) == GIVEN | shell
