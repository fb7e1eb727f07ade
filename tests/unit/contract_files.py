"""The published contract, as the tests read it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

FOLDER = Path(__file__).parents[2] / "docs" / "contract"
SCHEMAS = sorted(FOLDER.glob("*.schema.json"))

FORMATS = FormatChecker(formats=())
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_URI_REFERENCE = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")


def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return bool(_DATE_TIME.fullmatch(value)) and datetime.fromisoformat(value) is not None


def _is_uri_reference(value: object) -> bool:
    return not isinstance(value, str) or bool(_URI_REFERENCE.fullmatch(value))


FORMATS.checks("date-time", raises=ValueError)(_is_date_time)
FORMATS.checks("uri-reference")(_is_uri_reference)


def load(name: str) -> dict[str, Any]:
    """Return a file of the contract."""
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text("utf-8"))
    return loaded


def registry() -> Registry[Any]:
    """Return all schemas by their file names, as they refer to each other."""
    files = ((path.name, Resource.from_contents(load(path.name))) for path in SCHEMAS)
    return Registry().with_resources(files)


def validator(schema: str | dict[str, Any]) -> Draft202012Validator:
    """Return a validator that checks formats too."""
    contents = load(schema) if isinstance(schema, str) else schema
    return Draft202012Validator(contents, registry=registry(), format_checker=FORMATS)


def closed(name: str) -> Draft202012Validator:
    """Return a validator for what we send: members that the contract does not name are errors.

    The published schemas are open there, because members may be added later.
    """
    schema = copy.deepcopy(load(name))
    schema["additionalProperties"] = False
    if data := schema.get("$defs", {}).get("data"):
        data["additionalProperties"] = False
        data["properties"]["error"]["additionalProperties"] = False
    return validator(schema)


def errors(checker: Draft202012Validator, value: Any) -> list[str]:
    """Return what is wrong with a value, in short."""
    return [f"{e.json_path}: {e.message[:200]}" for e in checker.iter_errors(value)]


def references(value: Any) -> Iterator[str]:
    """Yield every reference of a schema to another one."""
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
