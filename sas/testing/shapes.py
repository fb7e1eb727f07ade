"""Values drawn from a type: what a service answers, what an order holds.

The same seed draws the same value. What a text or a number is depends on the seed alone. What is
chosen (a member of an enum, of a literal or of a union, whether a member with a default is there)
also depends on a number. So the answers to a repeated request keep their ids, and their states
change.
"""

from __future__ import annotations

import base64
import random
import re
import string
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from re import _parser as re_parser  # type: ignore[attr-defined]  # no public module parses
from typing import Any

import msgspec
from msgspec import inspect

from sas.testing.clock import START

DEPTH_MAX = 8
"""Deepest nesting that is drawn, where the type allows a value without more of it."""
ITEMS_MAX = 3


class UndrawableError(Exception):
    """No value of a type can be drawn. The text names the member and says why."""


def drawn(shape: Any, seed: str, number: int = 0) -> Any:
    """Return a value of a type, as JSON holds it.

    Raises:
        UndrawableError: a member has a type that only its own code can make, or an odd pattern.
    """
    value = _Draw(seed, number).value(inspect.type_info(shape), "", 0)
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise UndrawableError(f"{getattr(shape, '__name__', shape)}: {error}") from None
    return value


def drawn_answer(shape: Any, seed: str, number: int) -> Any:
    """Return the answer of a service to the request of this number with one key.

    Raises:
        UndrawableError: as above, with what to do.
    """
    try:
        return drawn(shape, seed, number)
    except UndrawableError as error:
        raise UndrawableError(f"{error}: set an answer, with StandIn.answer") from None


@dataclass(frozen=True, slots=True)
class _Draw:
    seed: str
    number: int

    def value(self, kind: Any, path: str, depth: int) -> Any:  # noqa: C901, PLR0911, PLR0912  a case for each
        """Return a value of a kind of type. ``path`` leads to it."""
        chance = self._chance(path)
        match kind:
            case inspect.Metadata():
                return self.value(kind.type, path, depth)
            case inspect.NoneType():
                return None
            case inspect.BoolType():
                return self._choice([True, False], path)
            case inspect.IntType():
                return _whole(kind, chance)
            case inspect.FloatType():
                low, high = _bounds(kind, 1)
                return round(chance.uniform(low, high), 2)
            case inspect.DecimalType():
                return f"{chance.randint(100, 10_000) / 100:.2f}"
            case inspect.StrType() | inspect.AnyType():
                return _text(kind, path, chance)
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                size = max(kind.min_length or 0, min(8, kind.max_length or 8))
                return base64.b64encode(chance.randbytes(size)).decode()
            case inspect.DateTimeType() | inspect.DateType() | inspect.TimeType():
                return _moment(kind, chance)
            case inspect.TimeDeltaType():
                return f"PT{chance.randint(1, 7200)}S"
            case inspect.UUIDType():
                return str(uuid.UUID(int=chance.getrandbits(128), version=4))
            case inspect.EnumType():
                return self._choice([member.value for member in kind.cls], path)
            case inspect.LiteralType():
                return self._choice(kind.values, path)
            case inspect.UnionType():
                return self._of_union(kind.types, path, depth)
            case inspect.TupleType():
                return self._items(kind.item_types, path, depth)
            case (
                inspect.ListType()
                | inspect.SetType()
                | inspect.FrozenSetType()
                | inspect.VarTupleType()
                | inspect.CollectionType()
            ):
                return self._items([kind.item_type] * _length(kind, chance, depth), path, depth)
            case inspect.DictType():
                keys = range(_length(kind, chance, depth))
                return {
                    self.value(kind.key_type, f"{path}.key-{key}", depth + 1): self.value(
                        kind.value_type, f"{path}.{key}", depth + 1
                    )
                    for key in keys
                }
            case (
                inspect.StructType()
                | inspect.DataclassType()
                | inspect.TypedDictType()
                | inspect.NamedTupleType()
            ):
                return self._record(kind, path, depth)
        raise UndrawableError(f"{path.strip('.') or 'the value'} cannot be drawn ({kind})")

    def _record(self, kind: Any, path: str, depth: int) -> Any:
        is_array = isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False)
        members = {}
        for member in kind.fields:
            place = f"{path}.{member.encode_name}"
            if member.required or is_array or self._choice([True, False], f"{place} is there"):
                members[member.encode_name] = self.value(member.type, place, depth + 1)
        tag = getattr(kind, "tag", None)
        if is_array:
            return [*([] if tag is None else [tag]), *members.values()]
        return members if tag is None else {kind.tag_field: tag, **members}

    def _items(self, kinds: Sequence[Any], path: str, depth: int) -> list[Any]:
        return [self.value(kind, f"{path}.{place}", depth + 1) for place, kind in enumerate(kinds)]

    def _of_union(self, kinds: Sequence[Any], path: str, depth: int) -> Any:
        is_deep = depth >= DEPTH_MAX and any(isinstance(kind, inspect.NoneType) for kind in kinds)
        return None if is_deep else self.value(self._choice(kinds, path), path, depth)

    def _choice(self, choices: Sequence[Any], path: str) -> Any:
        chance = random.Random(f"{self.seed}/{path}/choice {self.number}")  # noqa: S311
        return chance.choice(list(choices))

    def _chance(self, path: str) -> random.Random:
        return random.Random(f"{self.seed}/{path}")  # noqa: S311  it repeats itself


def _bounds(kind: Any, step: float) -> tuple[Any, Any]:
    """Return the least and the greatest number: from 1 to 100, if the type allows that."""
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    low = low + step if low is not None and kind.ge is None else low
    high = high - step if high is not None and kind.le is None else high
    if low is None:
        low = 1 if high is None or high >= 1 else high - 99
    return low, low + 99 if high is None else high


def _whole(kind: Any, chance: random.Random) -> int:
    low, high = _bounds(kind, 1)
    number = chance.randint(low, high)
    factor = kind.multiple_of or 1
    return (
        -(-low // factor) * factor if number - number % factor < low else number - number % factor
    )


def _text(kind: Any, path: str, chance: random.Random) -> str:
    name = path.rpartition(".")[2] or "text"
    text = f"{name}-{chance.randrange(16**4):04x}"
    if isinstance(kind, inspect.AnyType):
        return text
    if kind.pattern is not None:
        text = "".join(_matching(re_parser.parse(kind.pattern), chance))
        if re.search(kind.pattern, text) is None:
            raise UndrawableError(f"{path.strip('.')} has the pattern {kind.pattern!r}")
        return text
    if kind.max_length is not None and len(text) > kind.max_length:
        text = text[len(text) - kind.max_length :]
    return text.ljust(kind.min_length or 0, "x")


def _matching(parts: Any, chance: random.Random) -> Iterator[str]:
    """Yield the pieces of a text that a parsed pattern describes, where it is a simple one."""
    for operator, argument in parts:
        match str(operator):
            case "LITERAL":
                yield chr(argument)
            case "ANY":
                yield "x"
            case "IN":
                signs = [sign for sign in string.printable if _is_in(argument, sign)]
                yield chance.choice(signs or ["x"])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, repeated = argument
                for _ in range(chance.randint(max(low, min(1, high)), min(high, low + ITEMS_MAX))):
                    yield from _matching(repeated, chance)
            case "SUBPATTERN":
                yield from _matching(argument[-1], chance)
            case "BRANCH":
                yield from _matching(chance.choice(argument[1]), chance)


def _is_in(choices: Any, sign: str) -> bool:
    """Return whether a class of characters, as it is parsed, has this one."""
    is_negated, is_there = False, False
    for operator, argument in choices:
        match str(operator):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                is_there = is_there or ord(sign) == argument
            case "RANGE":
                is_there = is_there or argument[0] <= ord(sign) <= argument[1]
            case "CATEGORY":
                name = str(argument)
                has = {"DIGIT": str.isdigit, "WORD": str.isalnum, "SPACE": str.isspace}
                kind = name.rpartition("_")[2]
                is_there = is_there or has[kind](sign) != ("NOT" in name)
    return is_there != is_negated


def _moment(kind: Any, chance: random.Random) -> str:
    moment = START + timedelta(seconds=chance.randrange(365 * 86_400))
    if getattr(kind, "tz", None) is False:
        moment = moment.replace(tzinfo=None)
    if isinstance(kind, inspect.DateType):
        return moment.date().isoformat()
    if isinstance(kind, inspect.TimeType):
        return moment.timetz().isoformat()
    return moment.isoformat()


def _length(kind: Any, chance: random.Random, depth: int) -> int:
    low = kind.min_length or 0
    if depth >= DEPTH_MAX:
        return low
    low = low if kind.max_length == 0 else max(low, 1)
    high = low + ITEMS_MAX - 1
    return chance.randint(low, high if kind.max_length is None else min(high, kind.max_length))
