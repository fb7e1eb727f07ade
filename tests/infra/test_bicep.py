"""What the compiler refuses by ``infra/bicepconfig.json``, seen here before CI runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra.kit import bicep_files

_FILLED = r"\$\{((?:[^}']|'[^']*')*)\}"
_TEXT = re.compile(rf"//[^\n]*|'(?:\\.|{_FILLED}|[^'\\])*'")
_DECLARED = re.compile(r"^\s*(?:(?:param|var) (\w+)|resource (\w+)\s+existing\b)", re.MULTILINE)
_NO_REFERENCE = re.compile(r"^\s*output \w+|(?:^|[{,])\s*\w+:(?!:)|\.\??\w+", re.MULTILINE)


def code(text: str) -> str:
    """Return Bicep without comments and without the text in strings, ``${...}`` excepted."""
    return _TEXT.sub(lambda match: code(" ".join(re.findall(_FILLED, match[0]))), text)


def unused(text: str) -> list[str]:
    """Return the parameters, variables and existing resources that nothing refers to."""
    symbols = [parameter or resource for parameter, resource in _DECLARED.findall(code(text))]
    words = re.findall(r"\w+", _NO_REFERENCE.sub(" ", code(text)))
    return [symbol for symbol in symbols if words.count(symbol) == 1]


@pytest.mark.parametrize("path", bicep_files(), ids=lambda path: path.stem)
def test_everything_that_a_file_declares_is_used(path: Path) -> None:
    assert unused(path.read_text()) == []


def test_a_word_in_a_comment_a_text_a_member_or_a_decorator_is_no_use() -> None:
    text = """
@maxValue(0)
param twice int
param told string // twice
param inner string
param length int = 1
resource queue 'a/queue@1' existing = {
  name: 'twice of ${told}, ${toLower('${inner}')}'
}
var parts = { twice: [for part in told: part.twice], queue: 'queue' }
output parts object = { length: told.?parts }
"""
    assert unused(text) == ["twice", "length", "queue", "parts"]
