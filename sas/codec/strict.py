"""JSON as this system accepts it: UTF-8, no duplicate keys, no NaN, no deep nesting.

Every refusal is bounded in time and in size: what a sender wrote comes back in a sentence
of at most ``DESCRIPTION_LENGTH_MAX`` characters, whatever it was.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")
DEPTH_MAX = 32
PLAIN = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
"""What a text of one line matches: no control characters."""
DESCRIPTION_LENGTH_MAX = 500
# Possessive, and a string need not end: whatever the text, each character is read once.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class MalformedError(ValueError):
    """A message cannot be used. ``reason`` is a short code; the text says what to change."""

    def __init__(self, reason: str, description: str) -> None:
        if len(description) > DESCRIPTION_LENGTH_MAX:
            description = description[: DESCRIPTION_LENGTH_MAX - 1] + "…"
        super().__init__(description)
        self.reason = reason
        self.description = description


def parse(body: bytes) -> Any:
    """Return what the bytes say, with every looseness of JSON refused.

    Raises:
        MalformedError: not-utf-8, not-json, too-deep, duplicate-key, not-finite or
            not-unicode.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise MalformedError(
            "not-utf-8", f"the body is not UTF-8 (byte {wrong.start}): encode it as UTF-8"
        ) from None
    check_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_float=_float
        )
    except MalformedError:
        raise
    except json.JSONDecodeError as wrong:
        raise MalformedError("not-json", f"the body is not JSON: {str(wrong)[:200]}") from None
    except ValueError:  # Python's own limit: such a number costs quadratic time to read
        raise MalformedError(
            "not-finite", "a whole number has over 4,300 digits: send a smaller one, or text"
        ) from None
    _check_surrogates(text, value)
    return value


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


def check_depth(text: str, depth_max: int = DEPTH_MAX) -> None:
    """Refuse text whose brackets nest deeper than ``depth_max``; it need not be JSON."""
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case "{" | "[":
                depth += 1
                if depth > depth_max:
                    raise MalformedError(
                        "too-deep", f"the body nests deeper than {depth_max} levels: flatten it"
                    )
            case "}" | "]":
                depth -= 1


def _check_surrogates(text: str, value: Any) -> None:
    """Refuse half a character: no UTF-8 can carry it on, to a queue or to a remote service."""
    if not _SURROGATE.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedError(
            "not-unicode",
            "a text holds half of a character (a lone \\ud800 to \\udfff): send both halves",
        ) from None


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
        raise MalformedError("not-finite", "a number is too large: send a finite one")
    return value
