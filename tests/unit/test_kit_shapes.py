"""Values drawn from types: they fit the type, respect its bounds, and repeat themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from sas.testing.shapes import UndrawableError, drawn


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    S = 1
    L = 2


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True, rename="camel"):
    has_bone: bool


class Pair(NamedTuple):
    first: int
    second: str


class Options(TypedDict, total=False):
    depth: int


@dataclass
class Point:
    x: float
    y: Annotated[float, Meta(ge=-1, le=1)]
    labels: list[str] = field(default_factory=list)


class Tree(msgspec.Struct):
    children: list[Tree]
    parent: Tree | None = None


class Row(msgspec.Struct, array_like=True):
    number: int
    text: str = ""


SHAPES: list[Any] = [
    None,
    bool,
    int,
    float,
    str,
    bytes,
    Decimal,
    UUID,
    date,
    datetime,
    time,
    timedelta,
    Colour,
    Size,
    Literal["a", 3],
    int | None,
    Cat | Dog,
    Pair,
    Options,
    Point,
    Tree,
    Row,
    dict,
    list[int],
    set[int],
    tuple[int, str],
    tuple[int, ...],
    dict[str, list[Cat]],
    Any,
    Annotated[int, Meta(gt=10, lt=13)],
    Annotated[int, Meta(le=-5)],
    Annotated[int, Meta(ge=0, multiple_of=250)],
    Annotated[str, Meta(min_length=40, max_length=50)],
    Annotated[str, Meta(max_length=3)],
    Annotated[list[int], Meta(min_length=4, max_length=4)],
    Annotated[datetime, Meta(tz=False)],
    Annotated[str, Meta(pattern="^[A-Z]{2}[0-9]{2}( [0-9]{4}){3,5}$")],
    Annotated[str, Meta(pattern=r"^[^@\s]+@(example|test)\.(com|org)$")],
    Annotated[str, Meta(pattern=r"^\w+-\d{4}$")],
]


def test_a_drawn_value_fits_its_type_and_the_same_seed_draws_it_again() -> None:
    for shape in SHAPES:
        for number in range(20):
            value = drawn(shape, f"seed {number}", number)
            msgspec.json.decode(msgspec.json.encode(value), type=shape)
            assert value == drawn(shape, f"seed {number}", number), shape


class Parcel(msgspec.Struct):
    number: str
    state: Literal["on-its-way", "delivered"]
    note: str = ""


def test_a_repeated_answer_keeps_its_ids_and_changes_its_state() -> None:
    answers = [drawn(Parcel, "POST /parcels key", number) for number in range(20)]
    assert {answer["state"] for answer in answers} == {"on-its-way", "delivered"}
    assert len({answer["number"] for answer in answers}) == 1
    assert len({"note" in answer for answer in answers}) == 2
    assert drawn(Parcel, "another key")["number"] != answers[0]["number"]


class Odd:
    pass


class HasOdd(msgspec.Struct):
    odd: Odd


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (HasOdd, "odd cannot be drawn"),
        (Annotated[str, Meta(pattern=r"^(a|b)\1(?=c)$")], "has the pattern"),
        (Annotated[str, Meta(pattern="^abc$", min_length=5)], "min_length|length >= 5"),
    ],
)
def test_a_type_that_cannot_be_drawn_is_named(shape: Any, text: str) -> None:
    with pytest.raises(UndrawableError, match=text):
        drawn(shape, "seed")
