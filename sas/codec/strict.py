"""JSON as this system accepts it: UTF-8, no duplicate keys, no NaN, no deep nesting."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")
DEPTH_MAX = 32
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class MalformedError(ValueError):
    """A message cannot be used. ``reason`` is a short code; the text says what to change."""

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(description)
        self.reason = reason
        self.description = description


def parse(body: bytes) -> Any:
    """Return what the bytes say, with every looseness of JSON refused.

    Raises:
        MalformedError: not-utf-8, not-json, too-deep, duplicate-key or not-finite.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise MalformedError(
            "not-utf-8", f"the body is not UTF-8 (byte {wrong.start}): encode it as UTF-8"
        ) from None
    _check_depth(text)
    try:
        return json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_float=_float
        )
    except MalformedError:
        raise
    except (ValueError, RecursionError) as wrong:
        raise MalformedError("not-json", f"the body is not JSON: {str(wrong)[:200]}") from None


def convert(body: bytes, shape: type[T]) -> T:
    """Return the bytes as ``shape``; unknown members and wrong types are refused by name."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as wrong:
        raise MalformedError("invalid", str(wrong)) from None
    except msgspec.DecodeError as wrong:
        raise MalformedError("not-json", f"the body is not JSON: {wrong}") from None


def canonical(value: Any) -> str:
    """Return one spelling for equal JSON values, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case "{" | "[":
                depth += 1
                if depth > DEPTH_MAX:
                    raise MalformedError(
                        "too-deep", f"the body nests deeper than {DEPTH_MAX} levels: flatten it"
                    )
            case "}" | "]":
                depth -= 1


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedError(
                "duplicate-key", f"the member {key[:80]!r} stands twice in one object: say it once"
            )
        found[key] = value
    return found


def _constant(name: str) -> NoReturn:
    raise MalformedError("not-finite", f"{name} is no JSON number: send a finite one")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(
            "not-finite", f"the number {text[:40]} is too large: send a finite one"
        )
    return value
