"""What ``sas`` offers to a module of an adopter: few names, typed, documented, loaded late."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import sas

ROOT = Path(__file__).resolve().parents[2]


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for name in sas.__all__:
        assert inspect.getdoc(getattr(sas, name)), name
        assert f"``{name}``" in str(sas.__doc__)


def test_the_types_that_a_checker_sees_are_those_that_python_loads() -> None:
    tree = ast.parse((ROOT / "sas" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    modules: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        modules.update((alias.name, str(node.module)) for alias in node.names)
    assert sorted(modules) == sas.__all__
    assert modules == sas._WHERE


def test_a_name_that_is_not_there_is_refused_with_where_to_look() -> None:
    with pytest.raises(AttributeError, match=r"'sas' has no attribute 'Workflw': see help\(sas\)"):
        _ = sas.Workflw  # type: ignore[attr-defined]


def test_a_new_project_imports_from_sas_and_its_testing_only() -> None:
    for file in (ROOT / "template").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {name for name in names if name.startswith("sas.")} <= {"sas.testing"}
