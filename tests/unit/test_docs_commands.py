"""What README and the other pages tell a newcomer to type is understood."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from sas.cli.main import build_parser

ROOT = Path(__file__).parents[2]
TYPED = [
    (page, line)
    for page in ("README.md", "docs/your-own-workflow.md")
    for line in re.findall(
        r"^(?: {4})?\.venv/bin/sas (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
    )
]
[EXAMPLE] = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)


def test_commands_are_shown() -> None:
    assert {page for page, _ in TYPED} == {"README.md", "docs/your-own-workflow.md"}


@pytest.mark.parametrize(("page", "line"), TYPED)
def test_a_command_of_a_page_can_be_typed(page: str, line: str) -> None:
    arguments = build_parser().parse_args(shlex.split(line, comments=True))
    assert arguments.verb.summary, page


def test_the_example_in_the_readme_imports_what_there_is() -> None:
    tree = compile(EXAMPLE, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Module)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        assert node.module
        module = importlib.import_module(node.module)
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
