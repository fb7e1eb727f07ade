"""The rules of names that ruff does not have: ``python -m tools.names`` (part of ``make check``).

1. A name is a noun. A pronoun or a participle (``one``, ``found``) says nothing about the value.
2. A call passes at most four positional arguments. The reader of the fifth has to count.
3. A record (a dataclass or a struct) with more than three fields takes them by keyword.
4. In one house a public class has a name of its own, so that one search finds one thing.
5. No file imports from a test file: what tests share is in a kit or in ``conftest.py``.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_NOUNS = frozenset(
    {"one", "ones", "found", "said", "wrong", "own", "made", "left", "given", "known", "told"}
    | {"lacks", "away", "asked", "kept", "gone", "seen", "sent", "wanted", "held", "taken"}
    | {"meant", "got"}
)
POSITIONAL_MAX = 4
FIELDS_MAX = 3
ANY_NUMBER = {
    *("Group", "az", "create_subprocess_exec", "datetime", "gather", "prctl", "print", "run"),
    "suppress",
}
"""Calls that take any number of like arguments (words of a command), or have a customary order."""
LOGS = {"debug", "error", "exception", "info", "warning"}
HOUSES = {
    "the pattern": ("sas", "orders", "tools"),
    "devstack": ("devstack",),
    "lab": ("lab", "samples"),
}
TESTS = ("tests", "devstack/tests", "lab/tests")


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a file binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def long_calls(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls with too many positional arguments."""
    variadic = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.vararg
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_MAX:
            callee = node.func
            name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
            if name not in ANY_NUMBER | LOGS | variadic:
                yield node.lineno


def positional_records(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the records that take more than three fields by position, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and _is_positional_record(node):
            yield node.name, node.lineno


def _is_positional_record(node: ast.ClassDef) -> bool:
    makers = [ast.unparse(maker) for maker in (*node.decorator_list, *node.bases, *node.keywords)]
    is_record = any("dataclass" in maker or "Struct" in maker for maker in makers)
    if not is_record or any("kw_only=True" in maker for maker in makers):
        return False
    lines = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    if any(line.endswith(": KW_ONLY") for line in lines):
        return False
    keyword = ("kw_only=True", "init=False", "ClassVar")
    return sum(not any(mark in line for mark in keyword) for line in lines) > FIELDS_MAX


def problems(paths: list[Path]) -> Iterator[str]:
    """Yield what is wrong in some files, a line each."""
    for path in paths:
        tree, where = ast.parse(path.read_text("utf-8")), path.relative_to(ROOT)
        for name, line in bindings(tree):
            if name in NO_NOUNS:
                yield f"{where}:{line}: {name!r} is no noun: say what the value is"
        for module, line in imports_of_tests(tree):
            yield f"{where}:{line}: {module} is a test file: move what others need to a kit"
        if "tests" in where.parts:
            continue
        for line in long_calls(tree):
            yield f"{where}:{line}: pass at most {POSITIONAL_MAX} arguments by position"
        for name, line in positional_records(tree):
            yield f"{where}:{line}: {name} has more than {FIELDS_MAX} fields: add kw_only=True"


def imports_of_tests(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the test files that a file imports from, with the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                path = f"{package}{alias.name}".split(".")
                modules = [name for name in path if name.startswith("test_")]
                yield from ((name, node.lineno) for name in modules if "tests" in path)


def shared_names(paths: list[Path]) -> Iterator[str]:
    """Yield the public classes of a house that share a name."""
    classes: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path.relative_to(ROOT))
    for name, places in sorted(classes.items()):
        if len(places) > 1:
            yield f"{', '.join(map(str, places))}: each has a class {name}: rename all but one"


def sources(folders: tuple[str, ...], *, tests: bool) -> list[Path]:
    """Return the Python files of some folders: the tests among them, or the others."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [path for path in paths if ("tests" in path.relative_to(ROOT).parts) is tests]


def main(chosen: list[str]) -> int:
    """Print every problem (of the chosen folders only, if any); return 1 if there is one."""
    lines: list[str] = []
    for folders in HOUSES.values():
        product = sources(folders, tests=False)
        lines += [*problems(product), *shared_names(product)]
    lines += [*problems(sources(TESTS, tests=True)), *problems(sources(("template",), tests=False))]
    lines = sorted({line for line in lines if not chosen or any(name in line for name in chosen)})
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
