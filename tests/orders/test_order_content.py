"""The schema of what an order of this business holds, held to the code that takes it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from orders import AMOUNT_MAX, OrderContent, amount_due
from tests.sample import BUSINESS
from tests.unit.codec_cases import body
from tests.unit.contract_files import load, validator

NORTHWIND = Path(__file__).parents[2] / "samples" / "northwind-orders.jsonl"
MESSAGE = validator("order-message.schema.json")
CONTENT = validator("order-content.schema.json")


def content_taken(content: Any) -> bool:
    try:
        order = BUSINESS.checks["order", 1](json.dumps(content).encode())
    except ValueError:
        return False
    assert isinstance(order, OrderContent)
    assert re.fullmatch(r"\d+\.\d\d", amount_due(order))
    return True


def test_the_content_schema_names_the_members_that_the_code_reads_and_no_other() -> None:
    code = msgspec.json.schema(OrderContent)["$defs"]
    schema = load("order-content.schema.json")
    pairs = [
        (code["OrderContent"], schema),
        (code["Address"], schema["$defs"]["address"]),
        (code["Line"], schema["$defs"]["line"]),
    ]
    for ours, published in pairs:
        assert published["properties"].keys() == ours["properties"].keys()
        assert set(published["required"]) == set(ours["required"])
        assert published["additionalProperties"] is ours["additionalProperties"] is False
    assert schema["$defs"]["amount"]["anyOf"][0]["maximum"] == AMOUNT_MAX


CONTENT_EXAMPLE: dict[str, Any] = load("order-content.schema.json")["examples"][0]


def changed(path: tuple[str | int, ...], change: Callable[[Any, Any], None]) -> Any:
    """Return the example with ``change(parent, key)`` made at a path."""
    content = copy.deepcopy(CONTENT_EXAMPLE)
    parent: Any = content
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return content


PARTS = load("order-content.schema.json")["$defs"]
PATHS: list[tuple[str | int, ...]] = [
    ("customer_id",),
    ("ship_to",),
    ("lines",),
    ("ordered_on",),
    ("required_on",),
    ("freight",),
    ("surprise",),
    ("lines", 0),
    *(("ship_to", name) for name in PARTS["address"]["properties"]),
    ("ship_to", "surprise"),
    *(("lines", 0, name) for name in PARTS["line"]["properties"]),
    ("lines", 0, "surprise"),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, 1.5, -0.5, 1e-7, 10**9, 10**9 + 1, 10**9 + 0.5, 10**30,
    10**6, 10**6 + 1,
    "", "x", "x" * 200, "x" * 201, "0", "1", "1.0", "1.01", "-1", "0.05", "18.00", "NaN", "sNaN",
    "-NaN", "1e400", "1e999999", "9" * 30,
    "Infinity", "-Infinity", "1e30", "1000000000", "1000000000.00", "1000000000.01", "9999999999",
    "0x1", "1,5", ".", [], {}, [1], [{}], {"x": 1}, ["x"] * 3,
]  # fmt: skip


def test_code_and_schema_agree_on_every_value_at_every_place_of_the_content() -> None:
    for path in PATHS:
        for value in VALUES:

            def put(parent: Any, key: Any, value: Any = value) -> None:
                parent[key] = value

            content = changed(path, put)
            assert content_taken(content) is CONTENT.is_valid(content), (path, value)


def test_code_and_schema_agree_on_what_may_be_missing_and_on_how_many_lines_there_may_be() -> None:
    for path in [path for path in PATHS if path[-1] != "surprise"]:
        content = changed(path, lambda parent, key: parent.pop(key, None) if key else parent.pop())
        assert content_taken(content) is CONTENT.is_valid(content), path
    for lines in (0, 1, 1000, 1001):
        content = CONTENT_EXAMPLE | {"lines": CONTENT_EXAMPLE["lines"] * lines}
        assert content_taken(content) is CONTENT.is_valid(content) is (1 <= lines <= 1000)


@given(st.decimals(-2, 2 * AMOUNT_MAX, places=3) | st.floats(allow_nan=False, allow_infinity=False))
def test_code_and_schema_agree_on_any_price(price: Any) -> None:
    written = format(price, "f") if not isinstance(price, float) else price
    content = CONTENT_EXAMPLE | {"freight": written}
    assert content_taken(content) is CONTENT.is_valid(content)


def test_of_decimal_text_the_contract_promises_less_than_the_code_takes() -> None:
    for spelling in ("1_000", " 1 ", "\u0663", "1e2", "+1", ".5", "1.", "-0"):
        content = CONTENT_EXAMPLE | {"freight": spelling}
        assert content_taken(content), spelling
        assert not CONTENT.is_valid(content), spelling


def test_every_order_of_the_sample_keeps_to_the_contract() -> None:
    for line in NORTHWIND.read_text("utf-8").splitlines():
        content = json.loads(line)
        order_id = content.pop("order_id")
        message = body(order_id=order_id, order=content)
        assert MESSAGE.is_valid(json.loads(message))
        assert CONTENT.is_valid(content)
        assert content_taken(content)
