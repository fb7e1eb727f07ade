"""Every page that a text of the package names is one that `sas docs` prints."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_group

from sas.cli.main import app, main
from sas.cli.project import page_of, pages
from tests.command_line import wrong_in

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"\bdocs/(?!(?:site|images)\b)[\w/.-]*\w|\b(?:infra|contract)/README(?:\.md)?")
COMMAND = re.compile(r"`?\bsas docs ([a-z][\w/-]+)")
FILES = ("sas/**/*.py", "infra/**/*.*", "template/**/*.*", "function_app.py", "orders/*.py")


def names_in(text: str) -> list[str]:
    return [*NAMED.findall(text), *COMMAND.findall(text)]


def texts(path: Path) -> Iterator[str]:
    """Yield the text of a file, and the strings of a module as they are joined."""
    text = path.read_text(encoding="utf-8")
    yield text
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_page_that_a_text_of_the_wheel_names_is_in_the_wheel() -> None:
    files = {file for pattern in FILES for file in ROOT.glob(pattern) if file.is_file()}
    named = {
        (name, file.relative_to(ROOT).as_posix())
        for file in files
        for text in texts(file)
        for name in names_in(text)
    }
    assert {"docs/operating.md", "docs/adr/0012", "upgrading"} <= {name for name, _ in named}
    assert [(name, file) for name, file in sorted(named) if page_of(name) is None] == []


def test_the_helps_name_pages_that_there_are() -> None:
    group = get_group(app())
    helps = [each.help or "" for each in (group, *group.commands.values())]
    names = {name for text in helps for name in names_in(text)}
    assert "operating" in names
    assert [name for name in names if page_of(name) is None] == []


def test_the_pages_that_devstack_names_are_in_its_package() -> None:
    for path in (ROOT / "devstack").rglob("*.py"):
        if {"tests", "node_modules"}.isdisjoint(path.parts):
            for name in re.findall(r"docs/[\w/.-]*\w", path.read_text(encoding="utf-8")):
                assert (ROOT / "devstack" / name).is_file(), f"{path.name}: {name}"


def test_a_page_is_printed_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(pages())
    assert f"{'operating':<44}Operating" in lines
    for name, text in (("adr/0012", "# 0012 "), ("test_claim", "from sas.testing import Kit")):
        assert main(["docs", name]) == 0
        assert text in capsys.readouterr().out
    for name in ("claim", "samples/claim", "samples/claim/claim.py"):
        assert page_of(name) == "samples/claim/claim.py"
    assert main(["docs", "nowhere"]) == 2


COMMANDS_IN_TEXT = re.compile(
    r"^ +(?:\$ )?sas (.+)|`sas ([^`]+)`|\.venv/bin/sas ([^`\n]+)", re.MULTILINE
)
PAGES_OF_COMMANDS = (
    "README.md",
    "docs/*.md",
    "infra/README.md",
    "template/README.md",
    "samples/README.md",
    ".github/*/*.yml",
    "azure.yaml",
)
HISTORY = ("upgrading.md",)


def test_each_command_of_a_page_is_one_that_can_be_typed() -> None:
    """A text may name a verb alone, without its arguments."""
    pages_of: dict[str, set[str]] = {}
    for page in [page for names in PAGES_OF_COMMANDS for page in ROOT.glob(names)]:
        if page.name not in HISTORY:
            for texts in COMMANDS_IN_TEXT.findall(page.read_text(encoding="utf-8")):
                line = re.split(r" #| \| |>|&&", "".join(texts))[0].strip(" .\\")
                pages_of.setdefault(line, set()).add(page.name)
    problems = {line: wrong_in(shlex.split(line)) for line in pages_of}
    assert {
        f"{', '.join(pages_of[line])}: sas {line}: {problem}"
        for line, problem in problems.items()
        if problem and not re.search("Missing argument|requires an argument", problem)
    } == set()
