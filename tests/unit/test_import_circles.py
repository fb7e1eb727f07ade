"""No package has a circle of imports, not even inside functions or for types."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("sas", "orders", "devstack", "samples", "tools", "lab")


def modules_of(package: Path) -> dict[str, Path]:
    """Give the modules of a package by their dotted names."""
    modules = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if "node_modules" not in parts:
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Give every statement; no expression holds an import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield node
            yield from statements(node)


def imported(path: Path, name: str) -> Iterator[str]:
    """Give every name that a module imports, at any place."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -(node.level - 1) or None] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def graph_of(package: Path) -> dict[str, set[str]]:
    modules = modules_of(package)
    return {
        name: {other for other in imported(path, name) if other in modules and other != name}
        for name, path in modules.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Give the groups of modules that import each other (Tarjan's strongly connected parts)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                groups.append(group)

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return groups


def test_a_package_has_no_circle_of_imports() -> None:
    for package in PACKAGES:
        graph = graph_of(ROOT / package)
        assert graph
        assert circles(graph) == []
