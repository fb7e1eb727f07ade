"""Paths of secret fields: where a field is in an order, and how it looks once it is encrypted.

A path is member names with dots between them. ``[]`` after a name means every element of that
list: ``customer.card``, ``lines[].note``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sas.codec.strict import MalformedError, Reason

ENCRYPTED = "$encrypted"
"""The only member of the object that replaces an encrypted field."""
Path = tuple[str | None, ...]
"""Member names; None for every element of a list."""
Place = tuple[str | int, ...]
"""Member names and list indexes: one field of one order."""
_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\])*)")


def parse_path(text: str) -> Path:
    """Return a parsed path.

    Raises:
        ValueError: the text is not a path.
    """
    path: list[str | None] = []
    for segment in text.split("."):
        found = _SEGMENT.fullmatch(segment)
        if found is None:
            raise ValueError(
                f"{text!r} is not a path: write member names with dots between them, and [] after "
                "a list's name for each of its elements (customer.card, lines[].note)"
            )
        path += [found[1], *[None] * (len(found[2]) // 2)]
    return tuple(path)


def parse_paths(texts: Iterable[str]) -> tuple[Path, ...]:
    """Return parsed paths, none of which contains another.

    Raises:
        ValueError: a text is not a path, or one path contains another.
    """
    by_path: dict[Path, str] = {}
    for text in texts:
        path = parse_path(text)
        for other, written in by_path.items():
            common = min(len(path), len(other))
            if path[:common] == other[:common]:
                raise ValueError(f"{text!r} and {written!r}: one contains the other; keep one")
        by_path[path] = text
    return tuple(by_path)


def places(value: Any, path: Path, at: Place = ()) -> Iterator[tuple[Any, str | int, Place]]:
    """Yield each field of a path: its container, its name or index there, and its place.

    Raises:
        MalformedError: the order has no list or object where the path needs one. The value there
            may be secret too.
    """
    head, rest = path[0], path[1:]
    if not isinstance(value, list if head is None else dict):
        kind = "a list" if head is None else "an object"
        raise MalformedError(
            Reason.INVALID_ORDER,
            f"Expected {kind} - at `{_spelled(at)}`, which holds a secret field",
        )
    keys: Iterable[Any] = range(len(value)) if head is None else [head] if head in value else []
    for key in keys:
        if not rest:
            yield value, key, (*at, key)
        elif value[key] is not None:
            yield from places(value[key], rest, (*at, key))


def encrypted_places(value: Any) -> Iterator[tuple[Any, str | int, Place]]:
    """Yield each encrypted field: its container, its name or index there, and its place."""
    waiting: list[tuple[Any, Place]] = [(value, ())]
    while waiting:
        holder, at = waiting.pop()
        if not isinstance(holder, dict | list):
            continue
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in pairs:
            if isinstance(inner, dict) and ENCRYPTED in inner:
                yield holder, key, (*at, key)
            else:
                waiting.append((inner, (*at, key)))


def encrypted_text(value: Any) -> str | None:
    """Return the encrypted text of a field; None if the value is not an encrypted field."""
    if not isinstance(value, dict) or value.keys() != {ENCRYPTED}:
        return None
    text = value[ENCRYPTED]
    return text if isinstance(text, str) else None


def about(order_id: str, submission: str, at: Place) -> str:
    """Return the context of an encrypted field.

    It is valid only in this place of this order, and not in a later order under the same id.
    """
    return json.dumps(["order", order_id, submission, *at])


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text and number of a value, in the forms in which an error may quote it."""
    match value:
        case dict():
            for inner in value.values():
                yield from texts_in(inner)
        case list():
            for inner in value:
                yield from texts_in(inner)
        case str():
            yield from {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
        case bool() | None:
            pass
        case _:
            yield str(value)


def _spelled(at: Place) -> str:
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)
    return "$.order" + "".join(parts)
