"""Resources checked against the definitions that Microsoft publishes (Azure/bicep-types-az)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.infra_bicep import BicepFile
from tools.infra_values import Choice, Kind, Object, Unknown, Value, value_of

REQUIRED, READ_ONLY = 1, 2
OF_BICEP = {"parent", "scope", "dependsOn"}
"""Members of a resource that are the language's own."""

PYTHON: Mapping[str, tuple[type, str]] = {
    "StringType": (str, "string"),
    "IntegerType": (int, "int"),
    "BooleanType": (bool, "bool"),
}


@dataclass(frozen=True, slots=True)
class Types:
    """One provider's definitions at one version; ``$ref`` counts from their beginning."""

    items: list[dict[str, Any]]

    def at(self, reference: Mapping[str, str]) -> dict[str, Any]:
        """Return what a reference means."""
        return self.items[int(reference["$ref"].removeprefix("#/"))]


class Catalogue:
    """Every resource type below a directory, by ``Type@version`` in lower case."""

    def __init__(self, root: Path) -> None:
        self._types: dict[str, tuple[Types, dict[str, Any]]] = {}
        for path in sorted(root.rglob("types.json")):
            types = Types(json.loads(path.read_text()))
            for item in types.items:
                if item["$type"] == "ResourceType":
                    self._types[item["name"].lower()] = (types, types.at(item["body"]))

    def __contains__(self, name: str) -> bool:
        """Return whether a type is known at that version."""
        return name.lower() in self._types

    def definition(self, name: str) -> tuple[Types, dict[str, Any]]:
        """Return a type's definition of a resource's body."""
        return self._types[name.lower()]

    def check(self, name: str, value: Value) -> list[str]:
        """Return what is wrong with a resource's body."""
        types, body = self.definition(name)
        given = {"type", "apiVersion", "id"}
        if isinstance(value, Object):
            kept = {key: each for key, each in value.members.items() if key not in OF_BICEP}
            value = Object(kept, value.whole)
        return check(types, body, value, "", given)


@cache
def catalogue(root: Path) -> Catalogue:
    """Return the catalogue of a directory, read once."""
    return Catalogue(root)


def check_file(file: BicepFile, known: Catalogue, unpublished: Iterable[str]) -> list[str]:
    """Return what is wrong with a file's resources; ``unpublished`` ones are not looked at."""
    problems: list[str] = []
    for resource in file.resources:
        at = f"{file.path.name}:{resource.line}: {resource.symbol}"
        if resource.target in unpublished:
            continue
        if resource.target not in known:
            problems.append(f"{at}: there is no type {resource.target}")
        elif not resource.existing:
            found = known.check(resource.target, _body(value_of(resource.body, file)))
            problems += [f"{at}{problem}" for problem in found]
    return problems


def check(  # noqa: PLR0911  # one return per kind of type
    types: Types, wanted: Mapping[str, Any], value: Value, at: str, given: set[str] | None = None
) -> list[str]:
    """Return what is wrong with a value of a type."""
    if isinstance(value, Unknown) or value is None:
        return []
    if isinstance(value, Choice):
        return [said for each in value.values for said in check(types, wanted, each, at, given)]
    match wanted["$type"]:
        case "ObjectType":
            return _object(types, wanted, value, at, given or set())
        case "DiscriminatedObjectType":
            return _discriminated(types, wanted, value, at)
        case "ArrayType":
            return _array(types, wanted, value, at)
        case "UnionType":
            return _union(types, wanted, value, at)
        case "StringLiteralType":
            return [] if value in (wanted["value"], Kind("string")) else [f"{at}: {value!r}"]
        case "StringType" | "IntegerType" | "BooleanType":
            return _scalar(wanted, value, at)
        case _:
            return []


def _body(value: Value) -> Value:
    """Return the body of a resource, also if a loop declares it."""
    return value[0] if isinstance(value, list) else value


def _object(
    types: Types, wanted: Mapping[str, Any], value: Value, at: str, given: set[str]
) -> list[str]:
    if value == Kind("object"):
        return []
    if not isinstance(value, Object):
        return [f"{at}: an object is wanted, not {_said(value)}"]
    properties: dict[str, Any] = wanted["properties"]
    problems = []
    for key, each in value.members.items():
        if key in properties:
            if properties[key]["flags"] & READ_ONLY:
                problems.append(f"{at}.{key}: is read-only")
            problems += check(types, types.at(properties[key]["type"]), each, f"{at}.{key}")
        elif "additionalProperties" in wanted:
            more = types.at(wanted["additionalProperties"])
            problems += check(types, more, each, f"{at}.{key}")
        else:
            problems.append(f"{at}.{key}: there is no such property")
    if value.whole:
        required = {key for key, each in properties.items() if each["flags"] & REQUIRED}
        missing = sorted(required - set(value.members) - given)
        problems += [f"{at}.{key}: is required and missing" for key in missing]
    return problems


def _discriminated(types: Types, wanted: Mapping[str, Any], value: Value, at: str) -> list[str]:
    if not isinstance(value, Object):
        return []
    key = wanted["discriminator"]
    told = value.members.get(key)
    if not isinstance(told, str):
        return [f"{at}.{key}: is required and missing"]
    if told not in wanted["elements"]:
        return [f"{at}.{key}: {told!r} is none of {sorted(wanted['elements'])}"]
    chosen = types.at(wanted["elements"][told])
    properties = dict(wanted["baseProperties"]) | dict(chosen["properties"])
    return check(types, {**chosen, "properties": properties}, value, at)


def _array(types: Types, wanted: Mapping[str, Any], value: Value, at: str) -> list[str]:
    if value == Kind("array"):
        return []
    if not isinstance(value, list):
        return [f"{at}: an array is wanted, not {_said(value)}"]
    inner = types.at(wanted["itemType"])
    return [said for item in value for said in check(types, inner, item, f"{at}[]")]


def _union(types: Types, wanted: Mapping[str, Any], value: Value, at: str) -> list[str]:
    """Check literals even where the union also takes any string: the list is what is documented."""
    elements = [types.at(element) for element in wanted["elements"]]
    literals = {each["value"] for each in elements if each["$type"] == "StringLiteralType"}
    if value == Kind("string"):
        return []
    if isinstance(value, str):
        return [] if value in literals else [f"{at}: {value!r} is none of {sorted(literals)}"]
    others = [each for each in elements if each["$type"] not in {"StringLiteralType", "StringType"}]
    if any(not check(types, each, value, at) for each in others):
        return []
    return [f"{at}: {_said(value)} is none of {sorted(literals)}"]


def _scalar(wanted: Mapping[str, Any], value: Value, at: str) -> list[str]:
    python, name = PYTHON[wanted["$type"]]
    if value == Kind(name):
        return []
    if type(value) is not python:
        return [f"{at}: {name} is wanted, not {_said(value)}"]
    size = len(value) if isinstance(value, str) else value
    least = wanted.get("minLength", wanted.get("minValue"))
    most = wanted.get("maxLength", wanted.get("maxValue"))
    low = least is not None and isinstance(size, int) and size < least
    high = most is not None and isinstance(size, int) and size > most
    if low or high:
        return [f"{at}: {value!r} is outside {least} to {most}"]
    pattern = wanted.get("pattern")
    if pattern and isinstance(value, str) and not re.search(pattern, value):
        return [f"{at}: {value!r} does not match {pattern}"]
    return []


def _said(value: Value) -> str:
    return value.name if isinstance(value, Kind) else repr(value)
