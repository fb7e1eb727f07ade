"""Resources have the properties that Azure's published definitions give them; nothing else."""

# ruff: noqa: E501  # tables: a case a line

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.kit import INFRA, SHARED, bicep, broken_copy, need_module, need_shared
from tools.infra_queues import read_list
from tools.infra_types import Catalogue, catalogue, check_file
from tools.infra_values import Object, plain

need_module("tree_sitter")
need_module("tree_sitter_bicep")
TYPES = SHARED / "bicep-types"
need_shared(TYPES)

UNPUBLISHED = {
    "Microsoft.Resources/resourceGroups@2024-11-01",
    "Microsoft.KeyVault/vaults@2024-11-01",
}
"""Not in the published files beside the project; `az bicep build` in the workflow knows them."""

QUEUE = "Microsoft.ServiceBus/namespaces/queues@2024-01-01"
BUS, APP = "modules/service-bus.bicep", "modules/function-app.bicep"
STORE, ALERTS = "modules/storage-account.bicep", "operations/queue-alerts.bicep"
BREAKS = [
    ("an unknown property", BUS, "disableLocalAuth: true", "disableLocalAuthentication: true", "no such property"),
    ("an unknown property deep inside", APP, "instanceMemoryMB: instanceMemoryMB", "memory: instanceMemoryMB", "no such property"),
    ("a wrong scalar", BUS, "disableLocalAuth: true", "disableLocalAuth: 'true'", "bool is wanted"),
    ("a wrong scalar through a parameter", "modules/monitoring.bicep", "retentionInDays: retentionDays", "retentionInDays: location", "int is wanted"),
    ("a wrong scalar through a variable", STORE, "allowSharedKeyAccess: false", "allowSharedKeyAccess: containers", "bool is wanted"),
    ("a literal outside its union", STORE, "'TLS1_2'", "'TLS1.2'", "is none of"),
    ("an allowed value outside its union", BUS, "  'Premium'\n", "  'Gold'\n", "is none of"),
    ("a branch outside its union", STORE, "publicAccess ? 'Enabled'", "publicAccess ? 'On'", "is none of"),
    ("a missing member", STORE, "  kind: 'StorageV2'\n", "", "kind: is required"),
    ("a missing member in a loop", ALERTS, "    severity: rule.severity\n", "", "severity: is required"),
    ("a criterion without its type", ALERTS, "          criterionType: 'StaticThresholdCriterion'\n", "", "criterionType: is required"),
    ("a read-only property", BUS, "disableLocalAuth: true", "status: 'Active'\n    disableLocalAuth: true", "is read-only"),
    ("a version that is none", BUS, "namespaces@2024-01-01", "namespaces@2024-13-01", "there is no type"),
    ("an object instead of an array", "operations/action-group.bicep", "'operator-${index}'", "{}", "string is wanted"),
    ("an array instead of an object", BUS, "  sku: {", "  sku: []\n  zones: {", "an object is wanted"),
]  # fmt: skip


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return catalogue(TYPES)


def problems(known: Catalogue, root: Path | None = None) -> list[str]:
    files = bicep(root) if root else bicep()
    return [said for file in files.values() for said in check_file(file, known, UNPUBLISHED)]


def test_every_resource_matches_its_type(known: Catalogue) -> None:
    assert problems(known) == []


def test_the_check_really_looks_at_resources(known: Catalogue) -> None:
    looked_at = {r.target for file in bicep().values() for r in file.resources} - UNPUBLISHED
    assert len(looked_at) >= 20
    assert all(target in known for target in looked_at)


@pytest.mark.parametrize("case", BREAKS, ids=[case[0] for case in BREAKS])
def test_a_resource_broken_on_purpose_is_refused(
    case: tuple[str, str, str, str, str], known: Catalogue, tmp_path: Path
) -> None:
    _, file, old, new, said = case
    found = problems(known, broken_copy(tmp_path, file, old, new))
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    "kind", ["orders", "internal", "request", "response", "kept", "deadLetters"]
)
def test_the_properties_of_the_queue_list_are_those_of_a_queue(kind: str, known: Catalogue) -> None:
    properties = read_list(INFRA)["kinds"][kind]["properties"]
    queue = Object({"name": "q", "properties": plain(properties)})
    assert known.check(QUEUE, queue) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"maxDeliveryCount": 5', '"maxDeliveries": 5'),
        ('"lockDuration": "PT1M"', '"lockDurations": "PT1M"'),
        ('"deadLetteringOnMessageExpiration": true', '"deadLetterOnMessageExpiration": true'),
    ],
)
def test_a_misspelt_property_of_the_queue_list_is_refused_although_union_hides_it(
    old: str, new: str, known: Catalogue, tmp_path: Path
) -> None:
    """The compiler sees the result of union() as any object."""
    root = broken_copy(tmp_path, "queues.json", old, new)
    kinds = read_list(root)["kinds"].values()
    queues = [Object({"name": "q", "properties": plain(kind["properties"])}) for kind in kinds]
    found = [said for queue in queues for said in known.check(QUEUE, queue)]
    assert any("there is no such property" in said for said in found), found


def test_a_wrong_value_of_an_open_enum_is_refused(known: Catalogue, tmp_path: Path) -> None:
    """The type takes any string; the compiler takes 'Enable' as well."""
    root = broken_copy(tmp_path, BUS, "publicAccess ? 'Enabled'", "publicAccess ? 'Enable'")
    assert any("'Enable' is none of" in said for said in problems(known, root))


@pytest.mark.parametrize(
    "wrong", [{"maxDeliveries": 5}, {"lockDuration": 60}, {"maxDeliveryCount": "5"}]
)
def test_a_queue_property_that_is_none_is_refused(
    wrong: dict[str, object], known: Catalogue
) -> None:
    queue = Object({"name": "q", "properties": plain(wrong)})
    assert known.check(QUEUE, queue)
