"""Evaluates Bicep expressions as far as possible without the compiler."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from tools.infra_bicep import BicepFile, Node, key_of


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown value."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A value of which only the kind is known: string, int, bool, array or object."""

    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several possible values."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """An object; ``whole`` unless members may come from elsewhere (union, computed keys)."""

    members: dict[str, Value] = field(default_factory=dict)
    whole: bool = True


Value = Unknown | Kind | Choice | Object | list["Value"] | str | int | bool | None
UNKNOWN: Final = Unknown()


def value_of(node: Node, file: BicepFile) -> Value:  # noqa: C901, PLR0911, PLR0912  # one a kind
    """Return the value of an expression, as far as it is known."""
    match node.kind:
        case "object":
            return _object(node, file)
        case "array":
            return [value_of(child, file) for child in node.children]
        case "string":
            plain = all(child.kind != "interpolation" for child in node.children)
            return node.text[1:-1] if plain else Kind("string")
        case "number":
            return int(node.text)
        case "boolean":
            return node.text == "true"
        case "null":
            return None
        case "identifier":
            return _named(node.text, file)
        case "ternary_expression":
            return Choice(tuple(value_of(child, file) for child in node.children[1:]))
        case "for_statement":
            return [value_of(node.children[-1], file)]
        case "if_statement" | "parenthesized_expression":
            return value_of(node.children[-1], file)
        case "member_expression":
            return _loaded(node, file)
        case "call_expression":
            return _called(node, file)
        case "unary_expression":
            return Kind("bool") if node.text.startswith("!") else _negative(node.text)
        case _:
            return UNKNOWN


def plain(content: object) -> Value:
    """Return a JSON value as a known one."""
    if isinstance(content, dict):
        return Object({key: plain(value) for key, value in content.items()})
    if isinstance(content, list):
        return [plain(item) for item in content]
    if content is None or isinstance(content, (str, int, bool)):
        return content
    return UNKNOWN


def _negative(text: str) -> Value:
    return int(text) if re.fullmatch(r"-\d+", text) else UNKNOWN


def _object(node: Node, file: BicepFile) -> Object:
    made = Object()
    whole = True
    for member in node.children:
        if member.kind != "object_property":
            continue
        key = key_of(member)
        if "${" in key:
            whole = False
        elif len(member.children) > 1:
            made.members[key] = value_of(member.children[1], file)
    return Object(made.members, whole)


def _named(name: str, file: BicepFile) -> Value:
    if name in file.variables:
        return value_of(file.variables[name], file)
    parameter = file.parameters.get(name)
    if parameter is None:
        return UNKNOWN
    allowed = parameter.decorators.get("allowed")
    if allowed is not None:
        choices = value_of(allowed.children[1].children[0], file)
        if isinstance(choices, list):
            return Choice(tuple(choices))
    return Kind(parameter.type)


def _called(node: Node, file: BicepFile) -> Value:
    name = node.children[0].text
    arguments = node.children[1].children if len(node.children) > 1 else ()
    if name in {"guid", "toLower", "string", "uniqueString", "loadTextContent"}:
        return Kind("string")
    if name == "concat":
        return Kind("array")
    if name == "union":
        parts = [value_of(argument, file) for argument in arguments]
        known = [part for part in parts if isinstance(part, Object)]
        merged = {key: value for part in known for key, value in part.members.items()}
        return Object(merged, whole=all(isinstance(p, Object) and p.whole for p in parts))
    if name == "loadJsonContent":
        path = file.path.parent / arguments[0].text.strip("'")
        return plain(json.loads(path.read_text()))
    return UNKNOWN


def _loaded(node: Node, file: BicepFile) -> Value:
    """Return a member of a loaded JSON file, where the path to it is fixed."""
    if not re.fullmatch(r"\w+(\.\w+)+", node.text):
        return UNKNOWN
    name, *path = node.text.split(".")
    if name not in file.variables:
        return UNKNOWN
    value = value_of(file.variables[name], file)
    for key in path:
        if not isinstance(value, Object):
            return UNKNOWN
        value = value.members.get(key, UNKNOWN)
    return value
