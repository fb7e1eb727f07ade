"""Who may do what: known roles only, each on the least scope, each with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.infra.kit import ACCESS, APP, INFRA, MAIN, PARAMETERS, Declared, bicep_files, declared

ALLOWED = {
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Azure Service Bus Data Receiver",
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Azure Service Bus Data Sender",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
    "4633458b-17de-408a-b874-0445c86b69e6": "Key Vault Secrets User",
    "b86a8fe4-44ce-4948-aee5-eccb2c155cd7": "Key Vault Secrets Officer",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": "Monitoring Reader",
    "73c42c96-874c-492b-b04d-ab87d138a893": "Log Analytics Reader",
}
"""Contributor, Owner and the like are missing on purpose."""

ON_QUEUES = {
    "app-receives": ("serviceBusDataReceiver", "workingQueues"),
    "app-sends": (
        "serviceBusDataSender",
        "concat(list.access.appSends, responseQueues, ownOrdersQueues)",
    ),
    "${operator.name}-receives": (
        "serviceBusDataReceiver",
        "concat(list.access.operatorReceives, operatorReadsQueues ? workingQueues : [])",
    ),
    "${operator.name}-sends": (
        "serviceBusDataSender",
        "concat(list.access.operatorSends, ownOrdersQueues)",
    ),
    "sends-${sender.name}": (
        "serviceBusDataSender",
        "sender.bound ? sender.ownQueues : sender.sharedQueues",
    ),
    "receives-${sender.name}": (
        "serviceBusDataReceiver",
        "['${list.responsePrefix}${sender.name}']",
    ),
}
"""Every right on queues: the role, and which queues. Add a new one here too."""

ON_RESOURCES = {
    "appScales": ("reader", "namespace", "appPrincipalId"),
    "appHosts": ("storageBlobDataOwner", "hostAccount", "appPrincipalId"),
    "appStores": ("storageTableDataContributor", "stateAccount", "appPrincipalId"),
    "appReports": ("monitoringMetricsPublisher", "component", "appPrincipalId"),
    "operatorsRead": ("storageTableDataReader", "stateAccount::tables::orders", "operator.id"),
    "operatorsExport": (
        "storageBlobDataContributor",
        "hostAccount::blobs::exports",
        "operator.id",
    ),
    "operatorsLook": ("each of readerRoles", "the resource group", "operatorPrincipalId"),
}
"""Every other right: the role, its scope and whose it is."""

ROLES: dict[str, dict[str, Any]] = json.loads((INFRA / "roles.json").read_text())


def assignments(path: Path) -> list[Declared]:
    kind = "Microsoft.Authorization/roleAssignments@"
    return [each for each in declared(path, "resource") if each.target.startswith(kind)]


def test_the_roles_are_on_the_allow_list() -> None:
    assert {role["id"]: role["name"] for role in ROLES.values()} == ALLOWED
    assert all(len(role["why"]) > 20 for role in ROLES.values())


def test_nothing_is_granted_on_queues_beyond_the_table() -> None:
    row = (
        r"    name: '(.+)'\n    principal: .+\n    role: roles\.(\w+)\n    queues: (.+)\n    reason"
    )
    text = re.sub(r"\[\s+('.+')\s+\]", r"[\1]", ACCESS)  # a list of one, on one line
    rows = re.findall(row, text)
    assert {name: (role, queues) for name, role, queues in rows} == ON_QUEUES
    assert len(rows) == ACCESS.count("\n    role: ")
    assert "var onQueues = concat(ofApp, flatten(ofOperators), flatten(ofApplications))" in ACCESS


def test_nothing_is_granted_on_resources_beyond_the_table() -> None:
    grants = {}
    for each in assignments(Path("access/access.bicep")):
        role = re.search(r"subscriptionResourceId\(roleIds, (?:roles\.)?(\w+)", each.text)
        scope = re.search(r"^  scope: (.+)$", each.text, re.MULTILINE)
        principal = re.search(r"principalId: (.+)\n", each.text)
        assert role is not None
        assert principal is not None
        grants[each.symbol] = (
            "each of readerRoles" if role[1] == "role" else role[1],
            scope[1] if scope else "the resource group",
            principal[1],
        )
    assert grants == ON_RESOURCES


def test_roles_are_assigned_in_the_folder_access_only_each_with_its_reason() -> None:
    """The description begins with sas: so that the hook knows what it may take away."""
    for path in bicep_files():
        for each in assignments(path):
            assert path.parent.name == "access", path
            assert re.search(r"    description: 'sas: [\w$]", each.text), each.symbol


def test_an_assignment_keeps_its_name_at_the_next_deployment() -> None:
    """Azure refuses a second assignment of a role to a principal at one scope (409)."""
    queues = (INFRA / "access" / "queue-roles.bicep").read_text()
    assert "name: guid(namespace.id, queueName, principalKey, roleId)\n" in queues
    for each in assignments(Path("access/access.bicep")):
        _, scope, principal = ON_RESOURCES[each.symbol]
        place = "resourceGroup()" if scope == "the resource group" else scope
        key = "appIdentityId" if principal == "appPrincipalId" else principal
        assert f"  name: guid({place}.id, {key}, " in each.text


def test_a_preview_shows_every_right_because_no_name_waits_for_a_deployment() -> None:
    """what-if skips a module whose names or counts come from what another one makes."""
    modules = {each.symbol: each.text for each in declared(Path("main.bicep"), "module")}
    assert not [name for name in ("access", "network", "alerts") if "outputs." in modules[name]]
    assert set(re.findall(r"^ *(.*\bappPrincipalId\b.*)$", ACCESS, re.MULTILINE)) == {
        "param appPrincipalId string",
        "principalId: appPrincipalId",
        "principalId: grant.principal.id == appIdentityId ? appPrincipalId : grant.principal.id",
    }


def test_every_assignment_that_is_given_is_in_the_output() -> None:
    """The hook after a deployment removes the others."""
    symbols = {each.symbol for each in assignments(Path("access/access.bicep"))}
    outputs = "\n".join(re.findall(r"^output names\w+ array = .+$", ACCESS, re.MULTILINE))
    assert set(re.findall(r"(\w+)(?:\[index\])?\.name\b", outputs)) == symbols
    assert "[for (grant, index) in onQueues: queueRoles[index].outputs.names]" in outputs
    read = set(re.findall(r"access\.outputs\.(\w+)", MAIN[MAIN.index("SAS_ROLE_ASSIGNMENTS") :]))
    assert read == set(re.findall(r"output (\w+)", outputs))


def test_a_deployment_grants_no_role_that_reads_secrets() -> None:
    """So the condition on the right of the deploying identity has none either."""
    owned = {name for name, role in ROLES.items() if role.get("owner")}
    assert owned == {name for name, role in ROLES.items() if "Key Vault" in role["name"]}
    assert not [name for name in owned if f"roles.{name}" in ACCESS]


def test_principals_that_are_given_twice_are_refused_by_the_template_too() -> None:
    assert "concat([operatorPrincipalId, deployerPrincipalId], applicationPrincipals)" in MAIN
    assert "principalsGivenTwice: length(principals) - length(union(principals, []))" in MAIN
    assert "@minValue(0)\n@maxValue(0)\nparam principalsGivenTwice int" in ACCESS


def test_the_identity_that_deploys_from_github_has_the_rights_of_an_operator() -> None:
    """It sends an order after a deployment, and stores exports of all rows every night."""
    operators = re.search(r"var operators = filter\(\[\n(.+?)\n\]", ACCESS, re.DOTALL)
    assert operators is not None
    assert re.findall(r"name: '(\w+)', id: (\w+)", operators[1]) == [
        ("operator", "operatorPrincipalId"),
        ("deployer", "deployerPrincipalId"),
    ]


def test_a_deployment_makes_its_author_no_operator() -> None:
    assert PARAMETERS["operatorPrincipalId"]["value"] == "${SAS_OPERATOR_PRINCIPAL_ID=}"
    assert "AZURE_PRINCIPAL" not in json.dumps(PARAMETERS)


def test_keys_and_old_protocols_are_off_and_no_file_asks_for_a_key() -> None:
    for file, texts in {
        "modules/messaging.bicep": ("disableLocalAuth: true", "minimumTlsVersion: '1.2'"),
        "modules/storage-account.bicep": (
            *("allowSharedKeyAccess: false", "minimumTlsVersion: 'TLS1_2'"),
            "allowBlobPublicAccess: false",
        ),
        "main.bicep": ("    DisableLocalAuth: true",),
        "modules/key-vault.bicep": ("enableRbacAuthorization: true", "enablePurgeProtection: true"),
        "modules/function-app.bicep": ("httpsOnly: true",),
    }.items():
        content = (INFRA / file).read_text()
        assert [text for text in texts if text not in content] == []
    key_request = re.compile(r"\blist[A-Z]\w*\(|AccountKey=|SharedAccessKey")
    assert [path for path in bicep_files() if key_request.search(path.read_text())] == []


def test_nothing_is_set_that_flex_consumption_refuses() -> None:
    """Azure answers 51021 (terraform-azurerm-avm-res-web-site issue 360, functions host 10643)."""
    refused = (
        *("ftpsState", "linuxFxVersion", "alwaysOn", "use32BitWorkerProcess"),
        *("netFrameworkVersion", "preWarmedInstanceCount", "functionAppScaleLimit"),
        *("functionsRuntimeScaleMonitoringEnabled", "FUNCTIONS_EXTENSION_VERSION"),
        "WEBSITE_RUN_FROM_PACKAGE",
    )
    assert [name for name in refused if name in APP] == []
