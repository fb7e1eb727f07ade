from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.codec.strict import MalformedError
from sas.features.field_encryption.paths import (
    ENCRYPTED,
    Path,
    Place,
    about,
    encrypted_places,
    encrypted_text,
    parse_path,
    parse_paths,
    places,
    texts_in,
)

ORDER: dict[str, Any] = {
    "customer": {"card": "4111", "name": "Ann"},
    "lines": [{"note": "n-1"}, {"other": 1}, {"note": None}],
    "grid": [[1, 2], [3]],
    "gone": None,
}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("card", ("card",)),
        ("customer.card", ("customer", "card")),
        ("lines[].note", ("lines", None, "note")),
        ("grid[][]", ("grid", None, None)),
        ("a-b c.$d.é", ("a-b c", "$d", "é")),
    ],
)
def test_a_path_is_read(text: str, path: Path) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[0]", "a[", "a]", "[]", "[].a"])
def test_an_invalid_path_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not a path: write member names with dots"):
        parse_path(text)


@pytest.mark.parametrize(
    "texts", [["a", "a"], ["a", "a.b"], ["a[].b.c", "a[].b"], ["x", "l[]", "l[].note"]]
)
def test_a_path_within_another_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="one contains the other; keep one"):
        parse_paths(texts)


def test_paths_beside_each_other_are_taken() -> None:
    assert len(parse_paths(["a.b", "a.c", "ab", "l[].x", "l[].y"])) == 5


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("customer.card", [("customer", "card")]),
        ("lines[].note", [("lines", 0, "note"), ("lines", 2, "note")]),
        ("grid[][]", [("grid", 0, 0), ("grid", 0, 1), ("grid", 1, 0)]),
        ("lines[]", [("lines", 0), ("lines", 1), ("lines", 2)]),
        ("absent", []),
        ("absent.deeper[].still", []),
        ("customer.absent", []),
        ("gone", [("gone",)]),
        ("gone.deeper", []),
    ],
)
def test_a_field_is_found_wherever_it_is_and_nowhere_where_it_is_absent(
    path: str, found: list[Place]
) -> None:
    assert [at for _, _, at in places(ORDER, parse_path(path))] == found


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("customer[].card", r"Expected a list - at `\$\.order\.customer`"),
        ("lines.note", r"Expected an object - at `\$\.order\.lines`"),
        ("customer.card.number", r"Expected an object - at `\$\.order\.customer\.card`"),
        ("grid[].x", r"Expected an object - at `\$\.order\.grid\[0\]`"),
    ],
)
def test_a_wrong_value_in_place_of_a_secret_field_is_refused_and_not_quoted(
    path: str, why: str
) -> None:
    with pytest.raises(MalformedError, match=why) as refused:
        list(places(ORDER, parse_path(path)))
    assert "4111" not in str(refused.value)


def test_what_is_encrypted_is_found_at_any_depth() -> None:
    encrypted = {ENCRYPTED: "k:x"}
    value = {"a": encrypted, "l": [1, {"b": encrypted}], "odd": {ENCRYPTED: 1, "more": 2}}
    assert {at for _, _, at in encrypted_places(value)} == {("a",), ("l", 1, "b"), ("odd",)}
    assert encrypted_text(encrypted) == "k:x"
    for other in (value["odd"], {ENCRYPTED: 1}, "k:x", None, [encrypted]):
        assert encrypted_text(other) is None


def test_every_place_has_its_own_spelling() -> None:
    spelled = {
        about("O-1", "s", at)
        for at in [("a", "b"), ("a.b",), ("a", 1), ("a", "1"), ("a[1]",), ('a","b',), ()]
    }
    others = {about("O-2", "s", ("a", "b")), about("O-1", "t", ("a", "b"))}
    assert len(spelled | others) == 9


@given(st.recursive(st.text() | st.integers() | st.none() | st.booleans(), st.lists))
def test_every_text_and_number_of_a_value_is_found(value: Any) -> None:
    texts = list(texts_in(value))
    flat = [value]
    while flat:
        one = flat.pop()
        if isinstance(one, list):
            flat += one
        elif isinstance(one, str):
            assert {one, json.dumps(one)[1:-1]} <= set(texts)
        elif isinstance(one, int) and not isinstance(one, bool):
            assert str(one) in texts
