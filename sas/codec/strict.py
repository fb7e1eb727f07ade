"""JSON as this system accepts it: UTF-8, no duplicate members, no NaN, no deep nesting.

Errors quote the text of a sender, so every error text is cut to ``DESCRIPTION_LENGTH_MAX``
characters.
"""

from __future__ import annotations

import json
import math
import re
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import msgspec

from sas.domain.texts import shortened

T = TypeVar("T")

DEPTH_MAX = 32
"""Deepest nesting of a message."""
CONTENT_DEPTH_MAX = DEPTH_MAX - 2
"""Deepest nesting of a result or of an operator's input. In a message they are two levels down."""
SALVAGE_DEPTH_MAX = 200
"""Deepest nesting of a refused message that is still read to find its sender."""
PLAIN = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
"""Pattern of a text without control characters."""
DESCRIPTION_LENGTH_MAX = 500
# The quantifiers are possessive, and a string need not end. So the search reads each character of
# any text only once.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Reason(StrEnum):
    """Why a message was refused. The values are part of the public contract."""

    NOT_UTF8 = "not-utf-8"
    NOT_JSON = "not-json"
    NOT_UNICODE = "not-unicode"
    NOT_FINITE = "not-finite"
    DUPLICATE_KEY = "duplicate-key"
    TOO_DEEP = "too-deep"
    TOO_LARGE = "too-large"
    RESULT_TOO_LARGE = "result-too-large"
    INVALID = "invalid"
    INVALID_ORDER = "invalid-order"
    INVALID_ORDER_ID = "invalid-order-id"
    ORDER_ID_TAKEN = "order-id-taken"
    FORBIDDEN_REPLY_QUEUE = "forbidden-reply-queue"
    UNKNOWN_WORKFLOW = "unknown-workflow"
    UNKNOWN_ORDER = "unknown-order"
    FORGED_TOKEN = "forged-token"  # noqa: S105  a reason, no secret
    EXPIRED = "expired"
    TOO_LATE = "too-late"
    DEAD_LETTERED = "dead-lettered"
    UNDELIVERABLE = "undeliverable"
    NOT_A_NOTIFICATION = "not-a-notification"


class MalformedError(ValueError):
    """A message cannot be used. The text says what to change."""

    def __init__(self, reason: Reason, description: str) -> None:
        description = shortened(description, DESCRIPTION_LENGTH_MAX)
        super().__init__(description)
        self.reason = reason
        self.description = description


def parse(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        MalformedError: the body is not UTF-8 or not JSON, nests too deep, repeats a member, or
            holds a number or a text that cannot be passed on.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(
            Reason.NOT_UTF8, f"the body is not UTF-8 (byte {error.start}): encode it as UTF-8"
        ) from None
    check_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_float=_float
        )
    except MalformedError:
        raise
    except json.JSONDecodeError as error:
        raise MalformedError(
            Reason.NOT_JSON, f"the body is not JSON: {shortened(str(error), 200)}"
        ) from None
    except ValueError:  # Python's own limit: reading such a number takes quadratic time
        raise MalformedError(
            Reason.NOT_FINITE,
            "a whole number has over 4,300 digits: send a smaller one, or send it as text",
        ) from None
    _check_surrogates(text, value)
    return value


def convert(body: bytes, shape: type[T]) -> T:
    """Return the bytes as ``shape``.

    Raises:
        MalformedError: naming the member that is unknown or of the wrong type.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise MalformedError(Reason.INVALID, str(error)) from None
    except msgspec.DecodeError as error:
        raise MalformedError(Reason.NOT_JSON, f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise MalformedError(Reason.NOT_UTF8, "the body is not UTF-8: encode it so") from None
    except RecursionError:
        raise MalformedError(Reason.TOO_DEEP, "the body nests too deep: flatten it") from None


def canonical(value: Any) -> str:
    """Return the same text for equal JSON values, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def check_depth(text: str, depth_max: int = DEPTH_MAX) -> None:
    """Refuse text whose brackets nest deeper than ``depth_max``. It need not be JSON.

    Raises:
        MalformedError: it nests deeper.
    """
    if text.count("{") + text.count("[") <= depth_max:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case "{" | "[":
                depth += 1
                if depth > depth_max:
                    raise MalformedError(
                        Reason.TOO_DEEP,
                        f"the body nests deeper than {depth_max} levels: flatten it",
                    )
            case "}" | "]":
                depth -= 1


def _check_surrogates(text: str, value: Any) -> None:
    """Refuse half of a surrogate pair: UTF-8 cannot encode it."""
    if not _SURROGATE.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedError(
            Reason.NOT_UNICODE,
            "a text holds half of a character (a lone \\ud800 to \\udfff): send both halves",
        ) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            break
        keys.add(key)
    raise MalformedError(
        Reason.DUPLICATE_KEY,
        f"the member {key[:80]!r} is there twice in one object: send it once",
    )


def _constant(name: str) -> NoReturn:
    raise MalformedError(Reason.NOT_FINITE, f"{name} is not a JSON number: send a finite number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(Reason.NOT_FINITE, "a number is too large: send a finite number")
    return value
