"""Named fields of an order: where they are, and what stands in their place once they are encrypted.

A path is member names with dots between them; ``[]`` after a name means every element of that
list: ``customer.card``, ``lines[].note``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sas.codec.strict import MalformedError, Reason

ENCRYPTED = "$encrypted"
"""The one member of what stands in an encrypted field's place."""

Path = tuple[str | None, ...]
"""Member names; None for every element of a list."""

Place = tuple[str | int, ...]


_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\])*)")


def parse_path(text: str) -> Path:
    """Return a path as it was written.

    Raises:
        ValueError: it is none.
    """
    path: list[str | None] = []
    for segment in text.split("."):
        found = _SEGMENT.fullmatch(segment)
        if found is None:
            raise ValueError(
                f"{text!r} is no path: write member names with dots between them, and [] after a "
                "list's name for each of its elements (customer.card, lines[].note)"
            )
        path += [found[1], *[None] * (len(found[2]) // 2)]
    return tuple(path)


def parse_paths(texts: Iterable[str]) -> tuple[Path, ...]:
    """Return paths of which none lies within another.

    Raises:
        ValueError: one is none, or lies within another.
    """
    by_path: dict[Path, str] = {}
    for text in texts:
        path = parse_path(text)
        for other, written in by_path.items():
            common = min(len(path), len(other))
            if path[:common] == other[:common]:
                raise ValueError(f"{text!r} and {written!r}: one lies within the other; keep one")
        by_path[path] = text
    return tuple(by_path)


def places(value: Any, path: Path, at: Place = ()) -> Iterator[tuple[Any, str | int, Place]]:
    """Yield what holds a field, under which name or number, and its place; nothing where it is
    absent.

    Raises:
        MalformedError: there is no list, or no object, where the path says that there is one: what
            is there instead may be as secret.
    """
    head, rest = path[0], path[1:]
    if not isinstance(value, list if head is None else dict):
        kind = "a list" if head is None else "an object"
        raise MalformedError(
            Reason.INVALID_ORDER,
            f"Expected {kind} - at `{_spelled(at)}`, which holds a field that is kept secret",
        )
    keys: Iterable[Any] = range(len(value)) if head is None else [head] if head in value else []
    for key in keys:
        if not rest:
            yield value, key, (*at, key)
        elif value[key] is not None:
            yield from places(value[key], rest, (*at, key))


def encrypted_places(value: Any) -> Iterator[tuple[Any, str | int, Place]]:
    """Yield what holds something encrypted, under which name or number, and its place."""
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
    """Return the encrypted text that stands in a field's place; None where it is anything else."""
    if not isinstance(value, dict) or value.keys() != {ENCRYPTED}:
        return None
    text = value[ENCRYPTED]
    return text if isinstance(text, str) else None


def about(order_id: str, at: Place) -> str:
    """Return what a field is encrypted for: this place of this order, and no other."""
    return json.dumps(["order", order_id, *at])


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text and number of a value, as it may be quoted."""
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
