"""Properties with a documented list of values have one of them, although Azure's types take any.

``open-enums.json`` has those lists for the properties that the template sets, so this runs without
the published types. Where they are beside the project, a test holds the file to them:
``python -m tests.infra.test_open_enums`` writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kit import INFRA, SHARED, bicep, broken_copy, need_module, need_shared
from tools.infra_types import Types, catalogue
from tools.infra_values import Choice, Object, Value, value_of

need_module("tree_sitter")
need_module("tree_sitter_bicep")
FILE = Path(__file__).parent / "open-enums.json"
TYPES = SHARED / "bicep-types"
LISTED: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text()) if FILE.is_file() else {}


def resources(root: Path) -> Iterator[tuple[str, Value]]:
    """Return every resource that is made: its type, and its body as far as it is known."""
    for file in bicep(root).values():
        for resource in file.resources:
            if not resource.existing:
                body = value_of(resource.body, file)
                yield resource.target, body[0] if isinstance(body, list) else body


def literals(value: Value, at: str = "") -> Iterator[tuple[str, str]]:
    """Return every text in a value that is known, with its place."""
    if isinstance(value, str):
        yield at, value
    for key, each in value.members.items() if isinstance(value, Object) else ():
        yield from literals(each, f"{at}.{key}" if at else key)
    for each in value.values if isinstance(value, Choice) else ():
        yield from literals(each, at)
    for each in value if isinstance(value, list) else ():
        yield from literals(each, f"{at}[]")


def wrong(root: Path) -> list[str]:
    """Return the values that are none of their property's list."""
    return [
        f"{target}: {at}: {text!r} is none of {LISTED[target][at]}"
        for target, body in resources(root)
        for at, text in literals(body)
        if text not in LISTED.get(target, {}).get(at, [text])
    ]


def published(types: Types, wanted: Mapping[str, Any], value: Value, at: str) -> dict[str, Any]:
    """Return the open lists of the properties that a value sets, by place."""
    found: dict[str, Any] = {}
    for each in value.values if isinstance(value, Choice) else ():
        found |= published(types, wanted, each, at)
    if wanted["$type"] == "UnionType" and not isinstance(value, Choice):
        elements = [types.at(element) for element in wanted["elements"]]
        if any(each["$type"] == "StringType" for each in elements):
            texts = [each["value"] for each in elements if each["$type"] == "StringLiteralType"]
            found[at] = sorted(texts)
    if wanted["$type"] == "ArrayType" and isinstance(value, list):
        for each in value:
            found |= published(types, types.at(wanted["itemType"]), each, f"{at}[]")
    if isinstance(value, Object):
        properties = dict(wanted.get("properties", wanted.get("baseProperties", {})))
        if wanted["$type"] == "DiscriminatedObjectType":
            chosen = value.members.get(wanted["discriminator"])
            properties |= types.at(wanted["elements"][chosen])["properties"]
        for key, each in value.members.items():
            if key in properties:
                inner = types.at(properties[key]["type"])
                found |= published(types, inner, each, f"{at}.{key}" if at else key)
    return found


def of_the_types() -> dict[str, dict[str, Any]]:
    """Return what the file has to say, from the published types."""
    known = catalogue(TYPES)
    found: dict[str, dict[str, Any]] = {}
    for target, body in resources(INFRA):
        if target in known:
            types, wanted = known.definition(target)
            found[target] = found.get(target, {}) | published(types, wanted, body, "")
    return {
        target: dict(sorted(found[target].items())) for target in sorted(found) if found[target]
    }


def test_every_value_is_one_of_its_property_s_list() -> None:
    assert wrong(INFRA) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("modules/service-bus.bicep", "publicAccess ? 'Enabled'", "publicAccess ? 'Enable'"),
        ("modules/storage-account.bicep", "publicAccess ? 'Enabled'", "publicAccess ? 'On'"),
        ("modules/storage-account.bicep", "'TLS1_2'", "'TLS1.2'"),
    ],
)
def test_a_value_outside_its_list_is_refused_without_the_published_types(
    file: str, old: str, new: str, tmp_path: Path
) -> None:
    assert len(wrong(broken_copy(tmp_path, file, old, new))) == 1


def test_the_file_matches_the_published_types() -> None:
    need_shared(TYPES)
    assert of_the_types() == LISTED


if __name__ == "__main__":
    FILE.write_text(json.dumps(of_the_types(), indent=2) + "\n")
