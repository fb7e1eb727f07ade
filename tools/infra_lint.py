"""Checks the Bicep files of ``infra`` without the compiler. It finds much of what a build finds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tools.infra_bicep import BicepFile, Declared, Node, members

LINES_MAX = 300
GUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)

FUNCTIONS = frozenset(
    [
        *(
            "concat",
            "contains",
            "empty",
            "environment",
            "filter",
            "guid",
            "items",
            "join",
            "length",
        ),
        *("loadJsonContent", "loadTextContent", "replace", "split", "string", "subscription"),
        *("subscriptionResourceId", "tenant", "toLower", "union", "uniqueString"),
    ]
)
"""The functions of Bicep that these files may call; add a new one here."""

DECORATORS = frozenset(
    [
        *("allowed", "batchSize", "description", "maxLength", "maxValue", "metadata"),
        *("minLength", "minValue", "secure"),
    ]
)

Files = Mapping[Path, BicepFile]


def lint(files: Files) -> list[str]:
    """Return every problem, a sentence each."""
    problems: list[str] = []
    for file in files.values():
        problems += syntax(file) + size(file) + unused(file) + undeclared(file)
        problems += calls(file, files) + outputs(file, files) + loaded(file)
        problems += json_paths(file) + guids(file)
    return problems


def syntax(file: BicepFile) -> list[str]:
    """Return the lines that the grammar refuses."""
    return [_at(file, line, "the grammar refuses this") for line in file.broken]


def size(file: BicepFile) -> list[str]:
    """Return a problem if the file has too many lines."""
    lines = file.root.text.count("\n")
    return [_at(file, lines, f"more than {LINES_MAX} lines")] if lines > LINES_MAX else []


def unused(file: BicepFile) -> list[str]:
    """Return the parameters and variables that are never used."""
    used = _used(file)
    declared = {name: each.line for name, each in file.parameters.items()}
    declared |= {name: value.line for name, value in file.variables.items()}
    return [
        _at(file, line, f"{name} is declared and never used")
        for name, line in declared.items()
        if name not in used
    ]


def undeclared(file: BicepFile) -> list[str]:
    """Return the names that are used and not declared, and the functions that are not known."""
    known = set(file.parameters) | set(file.variables) | _locals(file)
    known |= {each.symbol for each in [*file.resources, *file.modules]}
    problems = [
        _at(file, line, f"{name} is used and never declared")
        for name, line in _used(file).items()
        if name not in known
    ]
    for statement in file.root.children:
        allowed = DECORATORS if statement.kind == "decorators" else FUNCTIONS
        for call in (node for node in statement.walk() if node.kind == "call_expression"):
            name = call.children[0]
            if name.kind == "identifier" and name.text not in allowed:
                said = f"{name.text}() is not among the known functions"
                problems.append(_at(file, call.line, said))
    return problems


def calls(file: BicepFile, files: Files) -> list[str]:
    """Return the parameters that a module call lacks, and those that its module does not have."""
    problems: list[str] = []
    for module in file.modules:
        callee = _callee(file, module, files)
        if callee is None:
            problems.append(_at(file, module.line, f"there is no module {module.target}"))
            continue
        body = module.properties()
        given = set(members(body["params"])) if "params" in body else set()
        needed = {name for name, each in callee.parameters.items() if not each.has_default}
        problems += [
            _at(file, module.line, f"module {module.symbol} is not given {name}")
            for name in sorted(needed - given)
        ]
        problems += [
            _at(file, module.line, f"module {module.symbol} has no parameter {name}")
            for name in sorted(given - set(callee.parameters))
        ]
    return problems


def outputs(file: BicepFile, files: Files) -> list[str]:
    """Return the outputs that are read and that their module does not have."""
    problems: list[str] = []
    modules = {module.symbol: module for module in file.modules}
    for node in _nodes(file, "member_expression"):
        parts = re.fullmatch(r"(\w+)!?(?:\[[^\]]*\])?\.outputs\.(\w+)", node.text)
        if parts is None or parts[1] not in modules:
            continue
        callee = _callee(file, modules[parts[1]], files)
        if callee is not None and parts[2] not in callee.outputs:
            said = f"module {parts[1]} has no output {parts[2]}"
            problems.append(_at(file, node.line, said))
    return problems


def loaded(file: BicepFile) -> list[str]:
    """Return the files that are loaded and do not exist."""
    problems = []
    for call in _nodes(file, "call_expression"):
        if call.children[0].text in {"loadJsonContent", "loadTextContent"}:
            name = call.children[1].text.strip("()'")
            if not (file.path.parent / name).is_file():
                problems.append(_at(file, call.line, f"there is no file {name}"))
    return problems


def json_paths(file: BicepFile) -> list[str]:
    """Return the members that are read from a JSON file and are not in it."""
    problems: list[str] = []
    for name, value in file.variables.items():
        asked = re.fullmatch(r"loadJsonContent\('([^']+)'\)", value.text)
        if asked is None or not (file.path.parent / asked[1]).is_file():
            continue
        content = json.loads((file.path.parent / asked[1]).read_text())
        shape = re.compile(rf"{name}((?:\.\w+)+)")
        asked_for = {shape.fullmatch(node.text) for node in _nodes(file, "member_expression")}
        paths = {found[1][1:] for found in asked_for if found}
        problems += [
            _at(file, value.line, f"{asked[1]} has no {path}")
            for path in sorted(paths)
            if not _has(content, path.split("."))
        ]
    return problems


def _has(content: object, path: list[str]) -> bool:
    for key in path:
        if not isinstance(content, dict) or key not in content:
            return False
        content = content[key]
    return True


def guids(file: BicepFile) -> list[str]:
    """Return every GUID in a Bicep file: role ids come from roles.json."""
    return [
        _at(file, file.root.text[: found.start()].count("\n") + 1, f"a GUID of its own: {found[0]}")
        for found in GUID.finditer(file.root.text)
    ]


def _callee(file: BicepFile, module: Declared, files: Files) -> BicepFile | None:
    return files.get((file.path.parent / module.target).resolve())


def _nodes(file: BicepFile, kind: str) -> list[Node]:
    return [node for node in file.root.walk() if node.kind == kind]


def _used(file: BicepFile) -> dict[str, int]:
    """Return the identifiers that are read, each with a line."""
    found: dict[str, int] = {}
    for statement in file.root.children:
        if statement.kind in {"decorators", "metadata_declaration"}:
            continue
        declares = statement.kind.endswith("_declaration")
        for part in statement.children[1:] if declares else statement.children:
            _read(part, found)
    return found


def _read(node: Node, found: dict[str, int]) -> None:
    inner = node.children
    match node.kind:
        case "identifier":
            found.setdefault(node.text, node.line)
            return
        case "object_property":
            inner = inner[1:] if inner[0].kind == "identifier" else inner
        case "call_expression":
            inner = inner[1:] if inner[0].kind == "identifier" else inner
    for child in inner:
        _read(child, found)


def _locals(file: BicepFile) -> set[str]:
    """Return the names that loops and lambdas bind."""
    bound: set[str] = set()
    for node in file.root.walk():
        if node.kind in {"for_statement", "lambda_expression"} and node.children:
            bound.add(node.children[0].text)
        if node.kind in {"loop_variable", "loop_enumerator"}:
            bound.add(node.text)
    return bound


def _at(file: BicepFile, line: int, said: str) -> str:
    return f"{file.path.name}:{line}: {said}"
