"""Who may do what: known roles only, each on the least scope, each with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.infra.kit import INFRA, bicep_files, declared

ALLOWED = {
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Azure Service Bus Data Receiver",
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Azure Service Bus Data Sender",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
    "4633458b-17de-408a-b874-0445c86b69e6": "Key Vault Secrets User",
    "b86a8fe4-44ce-4948-aee5-eccb2c155cd7": "Key Vault Secrets Officer",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
}
"""Contributor, Owner and the like are missing on purpose."""

GRANTS = {
    # file, module -> role, and the scope's module
    ("app-access.bicep", "receives"): ("serviceBusDataReceiver", "queue-roles.bicep"),
    ("app-access.bicep", "counts"): ("serviceBusDataOwner", "queue-roles.bicep"),
    ("app-access.bicep", "sends"): ("serviceBusDataSender", "queue-roles.bicep"),
    ("app-access.bicep", "host"): ("storageBlobDataOwner", "storage-role.bicep"),
    ("app-access.bicep", "state"): ("storageTableDataContributor", "storage-role.bicep"),
    ("app-access.bicep", "telemetry"): ("monitoringMetricsPublisher", "telemetry-role.bicep"),
    ("operator-access.bicep", "receives"): ("serviceBusDataReceiver", "queue-roles.bicep"),
    ("operator-access.bicep", "sends"): ("serviceBusDataSender", "queue-roles.bicep"),
    ("operator-access.bicep", "reads"): ("storageTableDataReader", "table-role.bicep"),
    ("secrets.bicep", "appReads"): ("keyVaultSecretsUser", "vault-role.bicep"),
    ("secrets.bicep", "operatorSets"): ("keyVaultSecretsOfficer", "vault-role.bicep"),
    ("application.bicep", "receives"): ("serviceBusDataReceiver", "queue-roles.bicep"),
    ("application.bicep", "sends"): ("serviceBusDataSender", "queue-roles.bicep"),
}
"""Every role that is granted. Add a new role here too."""


def granted() -> dict[tuple[str, str], tuple[str, str]]:
    """Return every grant: the module calls that hand over a role."""
    grants = {}
    for path in bicep_files():
        for module in declared(path, "module"):
            role = re.search(r"roleId: roles\.(\w+)\.id", module.text)
            if role:
                grants[path.name, module.symbol] = (role[1], Path(module.target).name)
    return grants


def test_the_roles_are_on_the_allow_list() -> None:
    roles = json.loads((INFRA / "roles.json").read_text())
    assert {role["id"]: role["name"] for role in roles.values()} == ALLOWED
    assert all(len(role["why"]) > 20 for role in roles.values())


def test_nothing_is_granted_beyond_the_table() -> None:
    assert granted() == GRANTS


def test_roles_are_assigned_in_the_access_modules_only_each_with_its_reason() -> None:
    for path in bicep_files():
        for resource in declared(path, "resource"):
            if resource.target.startswith("Microsoft.Authorization/roleAssignments@"):
                assert path.parent.name == "access", path
                body = resource.text
                assert "description: reason" in body
                assert re.search(r"scope: (queues\[index\]|account|table|component|vault)\n", body)


def test_operator_and_applications_that_share_a_principal_are_refused_by_the_template_too() -> None:
    main = (INFRA / "main.bicep").read_text()
    assert "concat([operatorPrincipalId], applicationPrincipals)" in main
    assert "principalsGivenTwice: length(principals) - length(union(principals, []))" in main
    platform = (INFRA / "modules" / "platform.bicep").read_text()
    assert "@minValue(0)\n@maxValue(0)\nparam principalsGivenTwice int" in platform


def test_a_deployment_makes_its_author_no_operator() -> None:
    parameters = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
    assert parameters["operatorPrincipalId"]["value"] == "${SAS_OPERATOR_PRINCIPAL_ID=}"
    assert "AZURE_PRINCIPAL" not in (INFRA / "main.parameters.json").read_text()


def test_service_bus_roles_are_given_on_single_queues() -> None:
    for role, scope in GRANTS.values():
        if role.startswith("serviceBus"):
            assert scope == "queue-roles.bicep"


def test_owner_of_a_queue_is_granted_only_on_trigger_queues_and_only_if_asked_for() -> None:
    modules = declared(Path("access/app-access.bicep"), "module")
    calls = {module.symbol: module.text for module in modules}
    assert calls["counts"].startswith("if (scalerReadsCounts)")
    queues = "queueNames: concat(list.access.appReceives, ownOrdersQueues)"
    assert queues in calls["counts"]
    assert queues in calls["receives"]
    assert "param scalerReadsCounts bool = false" in (INFRA / "main.bicep").read_text()


def test_modules_that_are_called_twice_do_not_share_names_of_deployments() -> None:
    """Two deployments of one name in a resource group meet, and one of them fails."""
    fixed = [
        name
        for path in bicep_files()
        if path.parent.name in {"modules", "access"}
        for module in declared(path, "module")
        for name in re.findall(r"^  name: '([^'$]+)'$", module.text, re.MULTILINE)
    ]
    assert sorted(set(fixed)) == sorted(fixed)


def test_an_application_reads_its_own_queue_and_no_other() -> None:
    modules = declared(Path("modules/application.bicep"), "module")
    [receives] = [module.text for module in modules if module.symbol == "receives"]
    assert re.search(r"queueNames: \[\s*responses\.name\s*\]", receives)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("modules/service-bus.bicep", "disableLocalAuth: true"),
        ("modules/service-bus.bicep", "minimumTlsVersion: '1.2'"),
        ("modules/storage-account.bicep", "allowSharedKeyAccess: false"),
        ("modules/storage-account.bicep", "minimumTlsVersion: 'TLS1_2'"),
        ("modules/storage-account.bicep", "allowBlobPublicAccess: false"),
        ("modules/monitoring.bicep", "DisableLocalAuth: true"),
        ("modules/key-vault.bicep", "enableRbacAuthorization: true"),
        ("modules/key-vault.bicep", "enablePurgeProtection: true"),
        ("modules/function-app.bicep", "httpsOnly: true"),
        ("modules/function-app.bicep", "ftpsState: 'Disabled'"),
    ],
)
def test_keys_and_old_protocols_are_off(file: str, text: str) -> None:
    assert text in (INFRA / file).read_text()


def test_no_bicep_file_asks_for_a_key() -> None:
    key_request = re.compile(r"\blist[A-Z]\w*\(|AccountKey=|SharedAccessKey")
    assert [path for path in INFRA.rglob("*.bicep") if key_request.search(path.read_text())] == []
