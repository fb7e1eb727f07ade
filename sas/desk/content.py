"""The content of orders as indented JSON for an operator.

The text is only split into tokens. Parsing and writing it again would change numbers such as
0.10000000000000000001.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sas.domain.texts import visible_json

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def compact(text: str) -> str:
    """Return JSON text without white space between its tokens."""
    return "".join(_TOKEN.findall(text))


def indented(text: str) -> str:
    """Return JSON text with each member on a line of its own, and invisible characters escaped.

    It is the same JSON.
    """
    return "".join(_indented(_TOKEN.findall(visible_json(text))))


def _indented(parts: list[str]) -> Iterator[str]:
    depth = 0
    for number, part in enumerate(parts):
        next_part = parts[number + 1] if number + 1 < len(parts) else ""
        if part in "{[":
            depth += 1
            yield part if next_part in {"}", "]"} else f"{part}\n{'  ' * depth}"
        elif part in "}]":
            depth -= 1
            empty = number > 0 and parts[number - 1] in {"{", "["}
            yield part if empty else f"\n{'  ' * depth}{part}"
        elif part == ",":
            yield f",\n{'  ' * depth}"
        else:
            yield ": " if part == ":" else part
