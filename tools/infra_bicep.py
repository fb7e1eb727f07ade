"""Reads Bicep files as plain data: declarations, uses, calls. It does not need the compiler."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

COMMENTS = {"comment", "line_comment", "block_comment"}


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the syntax tree: named children only, comments left out."""

    kind: str
    text: str
    line: int
    children: tuple[Node, ...]
    tokens: frozenset[str]
    broken: bool

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def first(self, kind: str) -> Node | None:
        """Return the first child of a kind."""
        return next((child for child in self.children if child.kind == kind), None)


@dataclass(slots=True)
class Parameter:
    """A parameter: its declared type, its decorators by name, and whether it may be left out."""

    name: str
    type: str
    line: int
    has_default: bool
    decorators: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Declared:
    """A resource or a module: its symbol, its type or file (``target``), and its body."""

    symbol: str
    target: str
    line: int
    body: Node
    existing: bool = False

    def properties(self) -> dict[str, Node]:
        """Return the top members of the body."""
        return members(self.body)


@dataclass(slots=True)
class BicepFile:
    """All that one file declares."""

    path: Path
    root: Node
    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Node] = field(default_factory=dict)
    resources: list[Declared] = field(default_factory=list)
    modules: list[Declared] = field(default_factory=list)
    outputs: dict[str, Node] = field(default_factory=dict)

    @property
    def broken(self) -> list[int]:
        """The lines that the grammar refuses."""
        return sorted({node.line for node in self.root.walk() if node.broken})


@cache
def _parser() -> Any:
    tree_sitter = importlib.import_module("tree_sitter")
    grammar = importlib.import_module("tree_sitter_bicep")
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


def read(path: Path) -> BicepFile:
    """Parse one file."""
    tree = _parser().parse(path.read_bytes())
    found = BicepFile(path, _plain(tree.root_node))
    decorators: dict[str, Node] = {}
    for node in found.root.children:
        if node.kind == "decorators":
            decorators = {call.children[0].text: call for call in _calls(node)}
            continue
        _declare(found, node, decorators)
        decorators = {}
    return found


def read_all(root: Path) -> dict[Path, BicepFile]:
    """Parse every Bicep file below a directory."""
    return {path: read(path) for path in sorted(root.rglob("*.bicep"))}


def members(value: Node) -> dict[str, Node]:
    """Return the members of an object, or of the body of a loop or condition, by key."""
    for inner in value.walk():
        if inner.kind == "object":
            return {
                key_of(member): member.children[1]
                for member in inner.children
                if member.kind == "object_property" and len(member.children) > 1
            }
    return {}


def key_of(member: Node) -> str:
    """Return the key of an object's member."""
    return member.children[0].text.strip("'")


def _calls(node: Node) -> list[Node]:
    return [call for child in node.children for call in child.children]


def _declare(found: BicepFile, node: Node, decorators: dict[str, Node]) -> None:
    inner = node.children
    match node.kind:
        case "parameter_declaration":
            name = inner[0].text
            made = Parameter(name, inner[1].text, node.line, len(inner) > 2, decorators)
            found.parameters[name] = made
        case "variable_declaration":
            found.variables[inner[0].text] = inner[-1]
        case "output_declaration":
            found.outputs[inner[0].text] = inner[-1]
        case "resource_declaration" | "module_declaration":
            target = inner[1].text.strip("'")
            made_of = Declared(
                inner[0].text, target, node.line, inner[-1], "existing" in node.tokens
            )
            kind = found.resources if node.kind == "resource_declaration" else found.modules
            kind.append(made_of)


def _plain(node: Any) -> Node:
    return Node(
        kind=node.type,
        text=node.text.decode(),
        line=node.start_point[0] + 1,
        children=tuple(
            _plain(child)
            for child in node.children
            if child.is_named and child.type not in COMMENTS
        ),
        tokens=frozenset(child.type for child in node.children if not child.is_named),
        broken=bool(node.is_error or node.is_missing or any(c.is_missing for c in node.children)),
    )
