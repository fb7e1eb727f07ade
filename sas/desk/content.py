"""Content of orders as an operator sees it: indented, with encrypted fields masked.

The text is never parsed and written again: that would change its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_ENCRYPTED = re.compile(r'(\{\s*"\$encrypted"\s*:\s*")([^"]*)("\s*\})')
_HIDDEN = re.compile(r"hidden-(\d+)")


def masked(text: str) -> str:
    """Return JSON text with each encrypted field as ``hidden-N``."""
    count = iter(range(1, len(text) + 1))
    return _ENCRYPTED.sub(lambda found: f"{found[1]}hidden-{next(count)}{found[3]}", text)


def unmasked(text: str, original: str) -> str:
    """Return text whose masked fields are again as ``original`` has them.

    Raises:
        ValueError: a masked field is not in the original.
    """
    kept = [found[2] for found in _ENCRYPTED.finditer(original)]

    def back(found: re.Match[str]) -> str:
        hidden = _HIDDEN.fullmatch(found[2])
        if hidden is None:
            return found[0]
        number = int(hidden[1])
        if not 1 <= number <= len(kept):
            raise ValueError(f"the input has {found[2]}, and the original has {len(kept)} of them")
        return f"{found[1]}{kept[number - 1]}{found[3]}"

    return _ENCRYPTED.sub(back, text)


def compact(text: str) -> str:
    """Return JSON text without white space between its tokens."""
    return "".join(_TOKEN.findall(text))


def indented(text: str) -> str:
    """Return JSON text with each member on a line of its own."""
    return "".join(_indented(_TOKEN.findall(text)))


def _indented(parts: list[str]) -> Iterator[str]:
    depth = 0
    for number, part in enumerate(parts):
        after = parts[number + 1] if number + 1 < len(parts) else ""
        if part in "{[":
            depth += 1
            yield part if after in {"}", "]"} else f"{part}\n{'  ' * depth}"
        elif part in "}]":
            depth -= 1
            empty = number > 0 and parts[number - 1] in {"{", "["}
            yield part if empty else f"\n{'  ' * depth}{part}"
        elif part == ",":
            yield f",\n{'  ' * depth}"
        else:
            yield ": " if part == ":" else part
