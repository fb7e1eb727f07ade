"""The hooks that azd runs: what they refuse before anything is created, and what they say."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from pathlib import Path

import pytest

from sas.cli.main import main
from sas.deploy.azd import (
    FORMS,
    WITHOUT_PAIR,
    WITHOUT_ZONES,
    parameter_variables,
    show_places,
    with_azd,
)
from tests.infra.kit import ROOT
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_resources import SUBSCRIPTION
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
NEEDED = sorted(name for name in GIVEN if name.startswith("ORDERS_"))
OURS = {"azd-env-name": "shop"}
GROUP = {"rg-shop": {"location": "swedencentral", "tags": OURS}}


def namespace(tier: str) -> dict[str, object]:
    return {"group": "rg-shop", "sku": {"name": tier}, "tags": OURS, "queues": {}}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """A subscription without any resource."""
    return Cloud(tmp_path)


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


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in GIVEN.items() if key != name}


def test_it_is_content_with_every_setting_given(cloud: Cloud) -> None:
    done = hook(GIVEN, cloud.path)
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


def test_it_warns_if_no_person_receives_alerts(cloud: Cloud) -> None:
    done = hook(without("SAS_OPERATOR_MAIL"), cloud.path)
    assert done.returncode == 0
    assert "WARNING: NOBODY GETS ALERTS" in done.stderr
    assert "azd env set SAS_OPERATOR_MAIL" in done.stderr


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
    cloud = Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Standard")})
    done = hook({**GIVEN, **choice}, tmp_path)
    assert done.returncode == 1
    assert "refuses to make it Premium in place. It is a migration" in done.stderr
    assert "az servicebus migration" in done.stderr
    assert cloud.called("az provider") == []


@pytest.mark.parametrize("command", ["check", "preprovision"])
def test_it_refuses_to_make_a_premium_namespace_standard(command: str, tmp_path: Path) -> None:
    Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Premium")})
    done = hook(GIVEN, tmp_path, command)
    assert done.returncode == 1
    assert "azd env set SAS_SERVICE_BUS_SKU Premium" in done.stderr


def test_the_namespace_of_another_project_in_the_group_does_not_matter(tmp_path: Path) -> None:
    other = {**namespace("Premium"), "tags": None}
    Cloud(tmp_path, groups=GROUP, namespaces={"sb-1": namespace("Standard"), "sb-2": other})
    assert hook(GIVEN, tmp_path, "check").returncode == 0


def test_it_reads_the_resource_group_that_azd_was_given(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, groups={"orders": {"tags": None}}, namespaces={})
    assert hook({**GIVEN, "AZURE_RESOURCE_GROUP": "orders"}, tmp_path).returncode == 0
    assert {call.options["--name"] for call in cloud.called("az group show")} == {"orders"}
    assert cloud.state["groups"]["orders"]["tags"] == OURS


def test_it_refuses_the_resource_group_of_another_environment(tmp_path: Path) -> None:
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
    assert "Registered the resource provider microsoft.insights" in done.stdout
    calls = cloud.called("az provider register")
    names = ["Microsoft.App", "microsoft.insights"]
    assert [call.options["--namespace"] for call in calls] == names
    assert all({"--wait", "--subscription"} <= call.options.keys() for call in calls)


def test_who_may_not_register_providers_gets_the_commands_of_an_owner(tmp_path: Path) -> None:
    refused = ["microsoft.insights/register/action"]
    cloud = Cloud(
        tmp_path,
        groups=GROUP,
        providers={"microsoft.insights": "NotRegistered"},
        forbidden=refused,
    )
    done = hook(GIVEN, tmp_path)
    command = "az provider register --namespace microsoft.insights --wait"
    assert f"    {command} --subscription {SUBSCRIPTION}" in done.stderr.splitlines()
    assert "AuthorizationFailed" not in done.stderr
    assert cloud.state["providers"] == {"microsoft.insights": "NotRegistered"}


@pytest.mark.parametrize(
    "forbidden",
    ["Microsoft.App/register/action", "Microsoft.Resources/subscriptions/providers/read"],
)
def test_who_may_not_register_providers_sees_nothing_of_it_if_all_are(
    tmp_path: Path, forbidden: str
) -> None:
    Cloud(tmp_path, groups=GROUP, providers={"Microsoft.App": "Registered"}, forbidden=[forbidden])
    done = hook(GIVEN, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_does_not_guess_without_a_signed_in_az(tmp_path: Path) -> None:
    done = hook(GIVEN)
    assert done.returncode == 1
    assert "az was not found on PATH: install it" in done.stderr

    Cloud(tmp_path, signed_out=True)
    done = hook(GIVEN, tmp_path)
    assert done.returncode == 1
    assert "az login" in done.stderr


@pytest.mark.parametrize("name", ["AZURE_LOCATION", "AZURE_SUBSCRIPTION_ID"])
def test_it_asks_for_the_place_which_azd_would_ask_for_too_late(name: str) -> None:
    done = hook(without(name))
    assert done.returncode == 1
    assert f"azd env set {name} ..." in done.stderr


@pytest.mark.parametrize(
    ("region", "replication", "advice"),
    [
        ("westus", "", "azd env set SAS_STATE_REPLICATION Standard_GRS"),
        ("ukwest", "Standard_GZRS", "or deploy to uksouth"),
        ("UK West", "", "or deploy to uksouth"),
        ("uk_west", "", "or deploy to uksouth"),
        ("spaincentral", "Standard_RAGRS", "azd env set SAS_STATE_REPLICATION Standard_ZRS"),
    ],
)
def test_it_refuses_a_replication_that_the_region_does_not_have(
    region: str, replication: str, advice: str
) -> None:
    done = hook({**GIVEN, "AZURE_LOCATION": region, "SAS_STATE_REPLICATION": replication})
    assert done.returncode == 1
    assert f" has no {replication or 'Standard_ZRS'}" in done.stderr
    assert advice in done.stderr


@pytest.mark.parametrize(
    ("region", "replication"), [("westus", "Standard_GRS"), ("italynorth", "Standard_ZRS")]
)
def test_it_takes_a_replication_that_the_region_has(
    region: str, replication: str, cloud: Cloud
) -> None:
    settings = {**GIVEN, "AZURE_LOCATION": region, "SAS_STATE_REPLICATION": replication}
    assert hook(settings, cloud.path).returncode == 0


def test_regions_of_the_checks_are_regions_of_the_template() -> None:
    bicep = (ROOT / "infra" / "main.bicep").read_text()
    for region in (*WITHOUT_ZONES, *WITHOUT_ZONES.values(), *WITHOUT_PAIR):
        assert f"'{region}'" in bicep, region


def test_a_deployment_ends_with_where_everything_is(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {
        "SERVICE_ORDERS_NAME": "func-1",
        "AZURE_RESOURCE_GROUP": "rg-shop",
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://st.table.core.windows.net/",
        "SAS_RESPONSE_QUEUES": '["responses-web-shop"]',
        "SAS_IDENTITY_PRINCIPAL_ID": "0f0c",
        "SAS_OPERATOR_MAIL": "ann@example.com",
    }
    show_places(outputs)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(value in printed.out for key, value in outputs.items() if key != "SAS_OPERATOR_MAIL")
    bicep = (ROOT / "infra" / "main.bicep").read_text()
    for name in outputs.keys() - {"SAS_OPERATOR_MAIL"}:
        assert f"output {name} " in bicep, name


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
        ("SAS_DEPLOYER_PRINCIPAL_ID", "deploy-shop", "give an object id"),
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
def test_it_takes_what_azure_takes(name: str, value: str, cloud: Cloud) -> None:
    done = hook({**GIVEN, name: value}, cloud.path, "check")
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


def test_a_check_changes_nothing_and_says_that_nothing_is_wrong(cloud: Cloud) -> None:
    settings = {**without("SAS_OPERATOR_MAIL"), "SAS_VNET_ENABLED": "true"}
    done = hook(settings, cloud.path, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Nothing is wrong: `azd provision` can run\n"
    assert [call.words[:3] for call in cloud.called("az ")] == [["az", "group", "show"]]
    assert cloud.called("azd env set") == []


def test_a_person_may_run_the_check_outside_of_a_hook(tmp_path: Path) -> None:
    Cloud(tmp_path, azd={**GIVEN, "SAS_VNET_ENABLED": "yes"})
    assert "SAS_VNET_ENABLED=yes" in hook({}, tmp_path, "check").stderr
    assert hook({"SAS_VNET_ENABLED": "true"}, tmp_path, "check").returncode == 0


def test_a_person_may_run_the_hooks_too(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, azd=GIVEN)
    done = hook({}, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert cloud.state["groups"] == GROUP
    done = hook({}, tmp_path, "postprovision")
    assert done.returncode == 1
    assert "azd's environment does not say what was made: run `azd provision` first" in done.stderr


@pytest.mark.parametrize("action", ["check", "owner", "preprovision", "postprovision", "smoke"])
def test_an_azd_that_is_missing_is_named(action: str) -> None:
    done = hook({}, name=action)
    assert done.returncode == 1
    assert "azd was not found on PATH: install it" in done.stderr
    assert "azd env set" not in done.stderr


def test_what_azd_deployed_wins_over_the_stack_of_the_shell(tmp_path: Path) -> None:
    deployed = {
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://stshop.table.core.windows.net/",
    }
    Cloud(tmp_path, azd=GIVEN | deployed)
    shell = {
        "ServiceBus": "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b",
        "SAS_TABLES": "UseDevelopmentStorage=true",
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "SAS_VNET_ENABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patching:
        call_in_process(tmp_path, patching)
        assert with_azd(shell) == GIVEN | deployed | {"SAS_VNET_ENABLED": "true"}
        Cloud(tmp_path, azd=GIVEN)
        assert with_azd(shell) == GIVEN | shell
