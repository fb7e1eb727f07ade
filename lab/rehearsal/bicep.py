"""The app settings as Bicep computes them, by a small evaluator of its expressions.

1. ``main.parameters.json`` gives the parameters of ``main.bicep``, with ``${NAME=default}`` taken
   from the environment of azd, as azd does. The others have their defaults.
2. From there the modules are followed to ``function-app.bicep``. A parameter of it is the
   expression that the calling module gives, or an address of this machine in its place: a resource
   that only Azure makes has no other value here.
3. There the expression after ``appSettings:`` is evaluated.

Only what is asked for is evaluated, and an expression that the evaluator does not know is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FUNCTION_APP = "function-app.bicep"
_TOKEN = re.compile(
    r"\s*(?://[^\n]*\s*)*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<text>'(?:\\.|\$\{(?:[^}']|'[^']*')*\}|[^'\\])*')|(?P<sign>==|!=|=>|[][{}():?.,]))"
)
_VARIABLE = re.compile(r"\$\{(\w+)(?:=([^}]*))?\}")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {r"\'": "'", r"\\": "\\", r"\n": "\n"}


class UnknownExpressionError(Exception):
    """An expression of Bicep that this evaluator does not know."""


@dataclass(frozen=True)
class File:
    """A Bicep file: its parameters by name, as functions that give their values."""

    path: Path
    values: Mapping[str, Callable[[], Any]]

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def value(self, name: str) -> Any:
        """Return a parameter or a variable."""
        if name in self.values:
            return self.values[name]()
        header = re.search(rf"^(?:param {name} \w+|var {name}) = ", self.text, re.MULTILINE)
        if not header:
            raise UnknownExpressionError(f"{self.path.name}: {name} has no value here")
        return self.evaluate(self.text[header.end() :])

    def evaluate(self, text: str, names: Mapping[str, Any] | None = None) -> Any:
        """Return the value of the expression at the start of a text."""
        return _Expression(self, text, names or {}).whole()

    def module(self, target: str, addresses: Mapping[str, Any]) -> File | None:
        """Return the file of a module that this file, or one of its modules, calls."""
        calls = re.findall(r"^module \w+ '([^']+)'.*?^\}", self.text, re.MULTILINE | re.DOTALL)
        blocks = re.findall(r"^module \w+ '[^']+'.*?^\}", self.text, re.MULTILINE | re.DOTALL)
        for path, block in zip(calls, blocks, strict=True):
            body = re.search(r"^  params: \{\n(.*?)^  \}", block, re.MULTILINE | re.DOTALL)
            pairs = re.findall(r"^    (\w+): ", body[1], re.MULTILINE) if body else []
            values = {name: _later(self, block, name) for name in pairs}
            values |= {name: _constant(value) for name, value in addresses.items()}
            called = File((self.path.parent / path).resolve(), values)
            if called.path.name == target:
                return called
            if inner := called.module(target, addresses):
                return inner
        return None


def app_settings(
    infra: Path, environment: Mapping[str, str], addresses: Mapping[str, Any]
) -> dict[str, str]:
    """Return the app settings of a deployment.

    ``environment`` is that of azd. ``addresses`` has the parameters of ``function-app.bicep`` that
    are about resources.

    Raises:
        UnknownExpressionError: an expression cannot be evaluated here.
    """
    text = (infra / "main.parameters.json").read_text(encoding="utf-8")
    content = _substituted(json.loads(text)["parameters"], environment)
    values = {name: _constant(parameter["value"]) for name, parameter in content.items()}
    app = File(infra / "main.bicep", values).module(FUNCTION_APP, addresses)
    if app is None:
        raise UnknownExpressionError(f"main.bicep leads to no {FUNCTION_APP}")
    settings = app.evaluate(app.text.partition("appSettings: ")[2])
    return {setting["name"]: setting["value"] for setting in settings}


def _later(file: File, block: str, name: str) -> Callable[[], Any]:
    text = re.split(rf"^    {name}: ", block, maxsplit=1, flags=re.MULTILINE)[1]
    return lambda: file.evaluate(text)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _substituted(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _substituted(item, environment) for name, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, environment) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[2] or "", value)
    return value


class _Expression:
    """Reads tokens from the left and evaluates while it reads. A side not taken is only read."""

    def __init__(self, file: File, text: str, names: Mapping[str, Any]) -> None:
        self._file, self._text, self._names = file, text, names
        self._position = 0
        self._reading = False
        """Whether the value is not needed, so that no name has to have one."""

    def whole(self) -> Any:
        condition = self._compared()
        if not self._take("?"):
            return condition
        yes = self._side(self._reading or not condition)
        self._need(":")
        no = self._side(self._reading or bool(condition))
        return yes if condition else no

    def _side(self, reading: bool) -> Any:
        before, self._reading = self._reading, reading
        value = self.whole()
        self._reading = before
        return value

    def _compared(self) -> Any:
        value = self._member()
        if self._take("=="):
            return value == self._member()
        if self._take("!="):
            return value != self._member()
        return value

    def _member(self) -> Any:
        value = self._primary()
        while self._take("."):
            name = self._next()["name"]
            value = None if self._reading else value[name]
        return value

    def _primary(self) -> Any:
        token = self._next()
        if token["number"]:
            return int(token["number"])
        if token["text"]:
            return self._filled(token["text"][1:-1])
        if token["name"]:
            return self._named(token["name"])
        match token["sign"]:
            case "[":
                return self._list()
            case "{":
                return self._object()
        raise self._unknown(token[0])

    def _named(self, name: str) -> Any:
        if self._take("("):
            return self._call(name)
        if name in _WORDS:
            return _WORDS[name]
        if name in self._names:
            return self._names[name]
        return None if self._reading else self._file.value(name)

    def _filled(self, text: str) -> str:
        parts = re.split(r"(\\.|\$\{(?:[^}']|'[^']*')*\})", text)
        return "".join(self._part(part) for part in parts)

    def _part(self, part: str) -> str:
        if part.startswith("${"):
            return "" if self._reading else _text(self._file.evaluate(part[2:-1], self._names))
        if part.startswith("\\"):
            return _ESCAPES[part]
        return part

    def _list(self) -> list[Any]:
        if self._take("for"):
            return self._for()
        items = []
        while not self._take("]"):
            items.append(self.whole())
            self._take(",")
        return items

    def _for(self) -> list[Any]:
        """Read ``[for item in items: value]``, behind the ``for``."""
        name = self._next()["name"]
        self._need("in")
        values = self.whole()
        self._need(":")
        start, items = self._position, []
        for item in values:
            inner = _Expression(self._file, self._text[start:], {**self._names, name: item})
            items.append(inner.whole())
        self._side(reading=True)
        self._need("]")
        return items

    def _object(self) -> dict[str, Any]:
        members = {}
        while not self._take("}"):
            token = self._next()
            self._need(":")
            members[token["name"] or self._filled(token["text"][1:-1])] = self.whole()
            self._take(",")
        return members

    def _call(self, name: str) -> Any:
        arguments = []
        while not self._take(")"):
            arguments.append(self.whole())
            self._take(",")
        if self._reading:
            return None
        match name, arguments:
            case "string", [value]:
                return _text(value)
            case "empty", [value]:
                return not value
            case "concat", lists:
                return [item for items in lists for item in items]
            case "items", [members]:
                return [{"key": key, "value": members[key]} for key in sorted(members)]
            case "loadJsonContent", [path]:
                return json.loads((self._file.path.parent / path).read_text(encoding="utf-8"))
        raise self._unknown(f"{name}()")

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._position)
        if not token:
            raise self._unknown(self._text[self._position :][:40].strip())
        self._position = token.end()
        return token

    def _take(self, word: str) -> bool:
        token = _TOKEN.match(self._text, self._position)
        if not token or word not in {token["sign"], token["name"]}:
            return False
        self._position = token.end()
        return True

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._unknown(self._text[self._position :][:40].strip())

    def _unknown(self, text: str) -> UnknownExpressionError:
        return UnknownExpressionError(f"{self._file.path.name}: cannot evaluate {text!r}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))
