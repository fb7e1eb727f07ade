"""The Bicep files parse, and hang together; each rule is shown to bite."""

# ruff: noqa: E501  # tables: a case a line

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra.kit import INFRA, bicep, broken_copy, need_module
from tools.infra_calls import check_calls
from tools.infra_lint import lint

need_module("tree_sitter")
need_module("tree_sitter_bicep")

APP, MAIN, QUEUES = "modules/function-app.bicep", "main.bicep", "modules/queues.bicep"
BREAKS = [
    ("a bracket is missing", MAIN, "targetScope = 'subscription'", "var x = {", "grammar"),
    ("a parameter nobody uses", MAIN, "var abbreviations", "param idle int\n\nvar abbreviations", "idle is declared and never used"),
    ("a variable nobody uses", QUEUES, "var list", "var idle = 1\nvar list", "idle is declared and never used"),
    ("a name nobody declared", QUEUES, "name: namespaceName", "name: nameOfNamespace", "nameOfNamespace is used and never declared"),
    ("a function that is none", QUEUES, "union(", "merge(", "merge() is not among"),
    ("a decorator that is none", QUEUES, "@batchSize(1)", "@batch(1)", "batch() is not among"),
    ("a parameter is not given", MAIN, "    tags: tags\n", "", "is not given tags"),
    ("a parameter too many", MAIN, "    tags: tags\n", "    tags: tags\n    labels: tags\n", "no parameter labels"),
    ("a module that is not there", MAIN, "modules/platform.bicep", "modules/platforms.bicep", "there is no module"),
    ("an output that is not there", MAIN, "outputs.appName", "outputs.appTitle", "no output appTitle"),
    ("an output of a loop's module", "modules/platform.bicep", "network!.outputs.functionsSubnetId", "network!.outputs.subnet", "no output subnet"),
    ("a JSON file that is not there", QUEUES, "../queues.json", "../queue.json", "there is no file"),
    ("a query that is not there", "operations/query-alerts.bicep", "alert-breaker-open.kql", "alert-breaker.kql", "there is no file"),
    ("a member the JSON has not", QUEUES, "list.deadLetterQueue", "list.deadLetters", "has no deadLetters"),
    ("a role that is not listed", "access/app-access.bicep", "roles.storageBlobDataOwner.id", "roles.owner.id", "has no owner.id"),
    ("a role's id of its own", "access/app-access.bicep", "roles.storageBlobDataOwner.id", "'8e3af657-a8ff-443c-a75c-2fe8c4bcb635'", "a GUID of its own"),
    ("a file that has grown", QUEUES, "var list", "\n" * 300 + "var list", "more than 300 lines"),
]  # fmt: skip


def test_every_bicep_file_parses_and_hangs_together() -> None:
    assert lint(bicep()) == []


def test_no_bicep_file_is_left_out() -> None:
    assert set(bicep()) == {path.resolve() for path in INFRA.rglob("*.bicep")}
    assert len(bicep()) >= 20


@pytest.mark.parametrize("case", BREAKS, ids=[case[0] for case in BREAKS])
def test_a_copy_broken_on_purpose_is_refused(
    case: tuple[str, str, str, str, str], tmp_path: Path
) -> None:
    _, file, old, new, said = case
    problems = lint(bicep(broken_copy(tmp_path, file, old, new)))
    assert any(said in problem for problem in problems), problems


def test_no_module_comes_from_a_registry() -> None:
    targets = [module.target for file in bicep().values() for module in file.modules]
    assert targets
    assert [target for target in targets if target.startswith(("br:", "br/", "ts:"))] == []


CALLS = [
    ("a kind that is none of its", "operations/operations.bicep", "name: actionGroupName", "name: auditStateStore", "string is wanted, not bool"),
    ("a text for a number", "modules/platform.bicep", "queueDepthMax: queueDepthMax", "queueDepthMax: 'many'", "int is wanted"),
    ("a value that is not allowed", "access/operator-access.bicep", "principalType: principalType", "principalType: 'Robot'", "is none of"),
    ("one of several that is not allowed", "modules/platform.bicep", "'Premium' : serviceBusSku", "'Premium' : 5", "string is wanted"),
    ("a text that is too short", "access/app-access.bicep", "'Functions are triggered by this queue.'", "'why not'", "@minLength(10)"),
    ("an array that is too short", "modules/application.bicep", "[\n      responses.name\n    ]", "[]", "@minLength(1)"),
    ("a number that is too large", "modules/platform.bicep", "maximumInstanceCount: maximumInstanceCount", "maximumInstanceCount: 10000", "@maxValue(1000)"),
]  # fmt: skip


def test_modules_are_called_with_what_their_parameters_take() -> None:
    assert check_calls(bicep()) == []


@pytest.mark.parametrize("case", CALLS, ids=[case[0] for case in CALLS])
def test_a_call_broken_on_purpose_is_refused(
    case: tuple[str, str, str, str, str], tmp_path: Path
) -> None:
    _, file, old, new, said = case
    problems = check_calls(bicep(broken_copy(tmp_path, file, old, new)))
    assert any(said in problem for problem in problems), problems


SECRET = re.compile("password|pwd|secret|accountkey|acctkey", re.IGNORECASE)
"""What Bicep's linter takes for a secret (secure-secrets-in-params, an error in bicepconfig)."""


def test_no_parameter_is_named_like_a_secret_without_being_secure() -> None:
    for file in bicep().values():
        for name, each in file.parameters.items():
            assert "secure" in each.decorators or not SECRET.search(name), (file.path, name)


BOUNDED = {
    "environmentName": {"minLength", "maxLength"},
    "location": {"allowed"},
    "operatorPrincipalType": {"allowed"},
    "applications": {"minLength", "maxLength"},
    "serviceBusSku": {"allowed"},
    "messagingUnits": {"allowed"},
    "stateReplication": {"allowed"},
    "tableName": {"minLength", "maxLength"},
    "alwaysReadySubmission": {"minValue", "maxValue"},
    "alwaysReadyScheduler": {"minValue", "maxValue"},
    "instanceMemoryMB": {"allowed"},
    "maximumInstanceCount": {"minValue", "maxValue"},
    "supervisorSchedule": {"minLength"},
    "queueDepthMax": {"minValue"},
    "overdueMinutesMax": {"minValue", "maxValue"},
    "purgeSchedule": {"minLength"},
    "orderRetentionDays": {"minValue", "maxValue"},
    "purgeShards": {"minValue", "maxValue"},
    "purgeLagHoursMax": {"minValue", "maxValue"},
    "telemetryShare": {"minLength", "maxLength"},
    "logRetentionDays": {"minValue", "maxValue"},
    "ordersPerDay": {"minValue", "maxValue"},
    "dailyQuotaGb": {"minValue"},
    "settingsInVault": {"maxLength"},
    "keyVaultUri": {"maxLength"},
    "operatorMail": {"maxLength"},
    "networkOctets": {"minLength", "maxLength"},
}
UNBOUNDED = {
    *("operatorPrincipalId", "scalerReadsCounts", "businessSettings", "vnetEnabled"),
    "auditStateStore",
    *("callbackApp", "callbackUrl", "operatorReadsQueues"),
}
"""Empty is a value, an adopter's own, or a bool."""


def test_bad_parameters_are_refused_by_decorators() -> None:
    main = bicep()[(INFRA / "main.bicep").resolve()]
    assert set(main.parameters) == set(BOUNDED) | UNBOUNDED
    for name, wanted in BOUNDED.items():
        assert wanted <= set(main.parameters[name].decorators), name
