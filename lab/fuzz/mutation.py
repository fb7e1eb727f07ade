"""Change valid inputs: a token, a member, the nesting or the bytes of a JSON text."""

from __future__ import annotations

import json
import random
import re
from typing import Any


class Raw(str):
    """Text that is written into a JSON text as it is, valid or not."""

    __slots__ = ()


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 99, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, -(2**64),
    Raw("1" + "0" * 400), Raw("1" + "0" * 5000), Raw("1e999"), Raw("1e-999"), Raw("NaN"),
    Raw("-Infinity"), Raw("01"), Raw("+1"), Raw("{"), Raw("]"), Raw("'x'"), Raw(""), Raw("nul"),
    Raw('{"a":1,"a":2}'), Raw("[" * 31 + "]" * 31), Raw("[" * 40 + "]" * 40),
    Raw('{"a":' * 300 + "1" + "}" * 300), Raw("[" * 20_000), Raw('"\\ud800"'), Raw('"\\udc00x"'),
    Raw('"\\u0000"'), Raw("/* */ 1"), Raw('"tab\tin"'),
    "", " ", "\x00", "a\nb", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffd", "\u202ex", "e\u0301",
    "😀", "İ", "ß" * 50, "x" * 101, "x" * 300, "x" * 20_000, "0", "-1", "1e3", "null", "NaN", "²",
    "٣", "../..", "%2e%2f", "%", "'", '"', "|", "a|b", "#", "?", "\\", "/", "a/b", "${x}", "{0}",
    "2026-01-01T00:00:00Z", "2026-01-01T00:00:00",
    "2026-13-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00.000000Z", "-urgent", "orders", "responses-x",
    [], {}, [None], [[]], {"": None}, {"a": {"b": []}}, ["x"] * 200,
)  # fmt: skip
"""Values that a reader may not expect."""
BYTES = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80",
    b"{", b"}", b"]", b'"', b"\\", b"\\u", b",", b":", b"\n", b"\r\n", b"1e999", b"NaN", b"//",
    b"%",
)  # fmt: skip
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"{_STRING}|[-\w.+]+")
"""The name of a member, or a value that is no object and no array."""
_MEMBER = re.compile(rf"{_STRING}:(?:{_STRING}|[-\w.+]+)")


def written(value: Any) -> str:
    """Return a value as JSON text, or as it is if it is raw."""
    return str(value) if isinstance(value, Raw) else json.dumps(value, separators=(",", ":"))


def mutated(text: str, rng: random.Random) -> str:
    """Return a JSON text with one change: of a member as a whole, or of one token."""
    members = list(_MEMBER.finditer(text)) if rng.random() < 0.3 else []
    place = rng.choice(members or list(_TOKEN.finditer(text)) or [re.match("", text)])
    if place is None:  # an empty pattern matches any text
        return text
    new = _member(place[0], rng) if members else _token(place[0], rng)
    return text[: place.start()] + new + text[place.end() :]


def _member(member: str, rng: random.Random) -> str:
    """Return a member without its name, twice, with another value, or with another member."""
    name, odd = member[: member.index('":') + 1], written(rng.choice(ODD))
    return rng.choice(['"":0', f"{member},{name}:{odd}", f'{member},"x":{odd}', f"{name}:{odd}"])


def _token(token: str, rng: random.Random) -> str:
    """Return another token: an odd value, a similar one, or the same one nested."""
    kind = rng.random()
    if kind < 0.35:
        return written(rng.choice(ODD))
    if kind < 0.5:
        depth = rng.choice([1, 2, 28, 31, 33, 400])
        return "[" * depth + token + "]" * depth
    if token.startswith('"'):
        try:
            return json.dumps(_similar(json.loads(token), rng))
        except ValueError:  # an earlier change broke it
            return token[:-1]
    return rng.choice([f"{token}0", f"-{token}", f'"{token}"', "null", "true", "7"])


def _similar(text: str, rng: random.Random) -> str:
    odd = rng.choice(
        [value for value in ODD if isinstance(value, str) and not isinstance(value, Raw)]
    )
    position = rng.randint(0, len(text))
    letter = chr(rng.randint(0, 0xD7FF))
    return rng.choice(
        [
            text[:position],
            text[:position] + odd + text[position:],
            text + text,
            text.upper(),
            f" {text} ",
            text[:position] + letter + text[position + 1 :],
        ]
    )


def body_of(tree: Any, rng: random.Random) -> bytes:
    """Return a valid JSON tree as bytes, with up to three changes of its text or its bytes."""
    text = written(tree)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        text = mutated(text, rng)
    body = text.encode("utf-8", "surrogatepass")
    return broken(body, rng) if rng.random() < 0.2 else body


def broken(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one change."""
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice([0, 1, 1, 2, 8, 1000]))
    return rng.choice(
        [
            data[:start],
            data[:start] + data[end:],
            data[:start] + rng.choice(BYTES) + data[start:],
            data[:start] + rng.choice(BYTES) + data[end:],
            data[:end] + data[start:],
            data + data,
            data.decode("utf-8", "replace").encode("utf-16"),
            b"",
        ]
    )
