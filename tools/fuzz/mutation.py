"""Make inputs of valid ones: change a value, a member, the nesting or the bytes of one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[Any, ...]
Tree = Any


class Raw(str):
    """Text that is written into a JSON text as it is, valid or not."""

    __slots__ = ()


ODD: tuple[Tree, ...] = (
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
"""Values that some reader may not expect."""
BYTES = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80",
    b"{", b"}", b"]", b'"', b"\\", b"\\u", b",", b":", b"\n", b"\r\n", b"1e999", b"NaN", b"//",
    b"%",
)  # fmt: skip
NAMES = (
    "",
    "id",
    "format",
    "kind",
    "order_id",
    "DeadLetterSource",
    "message_id",
    "__class__",
    "x",
    "É",
)


def written(tree: Tree) -> str:
    """Return a tree as JSON text, with the raw parts in it as they are."""
    match tree:
        case Raw():
            return str(tree)
        case dict():
            members = (f"{json.dumps(name)}:{written(one)}" for name, one in tree.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(written, tree)) + "]"
        case _:
            return json.dumps(tree)


def places(tree: Tree, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value of a tree, the tree itself first."""
    yield path
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, one in inner:
        yield from places(one, (*path, name))


def at(tree: Tree, path: Path) -> Tree:
    """Return the value at a path."""
    for name in path:
        tree = tree[name]
    return tree


def put(tree: Tree, path: Path, value: Tree) -> Tree:
    """Return a tree with another value at a path."""
    if not path:
        return value
    name, *rest = path
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[name] = put(copy[name], tuple(rest), value)
    return copy


def without(tree: Tree, path: Path) -> Tree:
    """Return a tree without the value at a path, which is not the tree itself."""
    *before, name = path
    inner = at(tree, tuple(before))
    copy = dict(inner) if isinstance(inner, dict) else list(inner)
    del copy[name]
    return put(tree, tuple(before), copy)


def mutated(tree: Tree, rng: random.Random) -> Tree:
    """Return a tree with one change."""
    path = rng.choice(list(places(tree)))
    found = at(tree, path)
    change = rng.choice(_CHANGES)
    if change is _removed and path:
        return without(tree, path)
    return put(tree, path, change(found, rng))


def _odd(_value: Tree, rng: random.Random) -> Tree:
    return rng.choice(ODD)


def _removed(_value: Tree, _rng: random.Random) -> Tree:
    return {}


def _similar(value: Tree, rng: random.Random) -> Tree:
    """Return a value of the same type, and another one."""
    match value:
        case Raw() | None:
            return rng.choice(ODD)
        case bool():
            return not value
        case int() | float():
            return rng.choice([value + 1, value - 1, -value, value * 1000, str(value), value + 0.5])
        case str():
            return _text(value, rng)
        case dict() | list():
            return _grown(value, rng)
        case _:
            return value


def _text(value: str, rng: random.Random) -> str:
    odd = rng.choice([one for one in ODD if isinstance(one, str) and not isinstance(one, Raw)])
    where = rng.randint(0, len(value))
    return rng.choice(
        [
            value[:where],
            value[:where] + odd + value[where:],
            value + value,
            value.upper(),
            value[::-1],
            f" {value} ",
            value[:where] + chr(rng.randint(0, 0xD7FF)) + value[where + 1 :],
        ]
    )


def _grown(value: Tree, rng: random.Random) -> Tree:
    """Return an object or an array with one thing more, or one of its members twice."""
    if isinstance(value, list):
        return [*value, rng.choice([*value, *ODD])]
    if value and rng.random() < 0.3:
        name = rng.choice(list(value))
        return Raw(written(value)[:-1] + f",{json.dumps(name)}:{written(rng.choice(ODD))}" + "}")
    if value and rng.random() < 0.5:
        old = rng.choice(list(value))
        name = rng.choice([old.upper(), old + "_", *NAMES])
        return {name if key == old else key: one for key, one in value.items()}
    return {**value, rng.choice(NAMES): rng.choice([*value.values(), *ODD])}


def _nested(value: Tree, rng: random.Random) -> Tree:
    depth = rng.choice([1, 2, 28, 31, 33, 400])
    text = written(value)
    return Raw(
        "[" * depth + text + "]" * depth
        if rng.random() < 0.5
        else '{"a":' * depth + text + "}" * depth
    )


_CHANGES: tuple[Callable[[Tree, random.Random], Tree], ...] = (
    _odd, _odd, _similar, _similar, _similar, _removed, _nested,
)  # fmt: skip


def body_of(tree: Tree, rng: random.Random) -> bytes:
    """Return a valid JSON tree as bytes, with up to three changes of its values or its bytes."""
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        tree = mutated(tree, rng)
    body = written(tree).encode("utf-8", "surrogatepass")
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


def shrunk(parts: Tree, fails: Callable[[Tree], bool], tries_max: int = 400) -> Tree:
    """Return the shortest parts that were found to fail still."""
    left = tries_max

    def still(candidate: Tree) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    while left > 0:
        for candidate in _shorter(parts):
            if still(candidate):
                parts = candidate
                break
        else:
            return parts
    return parts


def _shorter(parts: Tree) -> Iterator[Tree]:
    """Yield parts that are shorter in one place, the largest cuts first."""
    for path in list(places(parts)):
        found = at(parts, path)
        if path:
            yield without(parts, path)
        if isinstance(found, bytes):
            yield from (put(parts, path, one) for one in _shorter_bytes(found))
        elif isinstance(found, str) and found:
            yield from (put(parts, path, one) for one in {found[: len(found) // 2], found[:-1], ""})


def _shorter_bytes(data: bytes) -> Iterator[bytes]:
    size = len(data) // 2
    while size > len(data) // 16:
        yield from (data[:at] + data[at + size :] for at in range(0, len(data), size))
        size //= 2
    try:
        tree = json.loads(data, parse_constant=Raw, parse_float=Raw, parse_int=Raw)
    except (ValueError, RecursionError):
        tree = None
    if isinstance(tree, dict | list):
        for path in places(tree):
            for one in (without(tree, path) if path else None, put(tree, path, 0)):
                text = written(one).encode()
                if one is not None and len(text) < len(data):
                    yield text
    while size:
        yield from (data[:at] + data[at + size :] for at in range(0, len(data), size))
        size //= 2
