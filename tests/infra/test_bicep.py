"""What the compiler refuses by ``infra/bicepconfig.json``, seen here before CI runs it."""

from __future__ import annotations

import re

from tests.infra.kit import MAIN, bicep_files

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


def test_everything_that_a_file_declares_is_used() -> None:
    for path in bicep_files():
        assert unused(path.read_text()) == [], path.name


def test_a_deployment_meets_the_resources_of_the_last_one() -> None:
    """Another suffix would make a second state store, without the orders of the first."""
    assert "targetScope = 'resourceGroup'\n" in MAIN
    suffix = "toLower(uniqueString(subscription().id, environmentName, location))"
    assert f"var suffix = {suffix}\n" in MAIN
    names = set(re.findall(r"ame(?:: | = )'(\w+-?)\$\{suffix\}'", MAIN))
    assert {"ststate", "sthost", "sb-", "func-", "kv-", "id-"} <= names
