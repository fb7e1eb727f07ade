"""What the pages tell a reader to type is understood."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from sas.cli.main import build_parser
from tests.unit.test_docs_links import PAGES

ROOT = Path(__file__).parents[2]
TEXTS = {str(page): (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
TYPED = [
    (page, line.partition(" && ")[0])
    for page, text in TEXTS.items()
    for line in re.findall(r"^(?: {4})?(?:\$ )?(?:\.venv/bin/)?sas ([a-z].+)$", text, re.MULTILINE)
]
NAMED = sorted(
    {
        (page, words, option)
        for page, text in TEXTS.items()
        for words, rest in re.findall(r"`sas ((?:[a-z]+ )*[a-z]+)\b([^`]*)`", text)
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest)
    }
)
"""Options of ``sas`` in the text of a page, with their verb."""
OF_TOOLS = sorted(
    (page, module, option)
    for page, text in TEXTS.items()
    for module, rest in re.findall(r"python -m ((?:devstack|samples|tools|lab)[\w.]*)(.*)", text)
    for option in re.findall(r"(?<=[\s\[])--[a-z-]+", rest.partition("`")[0])
    if option != "--help"
)
[EXAMPLE] = re.findall(r"^```python\n(.*?)^```$", TEXTS["README.md"], re.DOTALL | re.MULTILINE)


def test_commands_are_shown() -> None:
    assert {page for page, _ in TYPED} >= {
        *("README.md", "docs/your-own-workflow.md", "docs/operating.md"),
        "docs/reliability.md",
    }
    assert len(NAMED) > 15
    assert len(OF_TOOLS) > 10


@pytest.mark.parametrize(("page", "line"), TYPED)
def test_a_command_of_a_page_can_be_typed(page: str, line: str) -> None:
    arguments = build_parser().parse_args(shlex.split(line, comments=True))
    assert arguments.verb.summary, page


@pytest.mark.parametrize(("page", "words", "option"), NAMED)
def test_an_option_that_a_page_names_is_one_of_its_verb(page: str, words: str, option: str) -> None:
    parser = build_parser()
    known = options(parser)
    for word in words.split():
        found = [
            action.choices[word]
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction) and word in action.choices
        ]
        if not found:
            break
        [parser] = found
        known |= options(parser)
    assert option in known, page


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings}


@pytest.mark.parametrize(("page", "module", "option"), OF_TOOLS)
def test_an_option_that_a_page_gives_a_tool_is_in_its_code(
    page: str, module: str, option: str
) -> None:
    path = ROOT / module.rstrip(".").replace(".", "/")
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
    assert any(f'"{option}"' in file.read_text(encoding="utf-8") for file in files), page


def test_the_example_in_the_readme_imports_what_there_is() -> None:
    tree = compile(EXAMPLE, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Module)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        assert node.module
        module = importlib.import_module(node.module)
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
