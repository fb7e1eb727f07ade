"""The content of an order, and the check that every submitted order must pass."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any

import msgspec

from sas import convert

CURRENCY = "USD"
AMOUNT_MAX = 1_000_000_000
"""Highest unit price and highest freight. Sums of higher amounts would not be exact."""
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Address(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where an order is sent."""

    name: _Text
    address: _Text
    city: _Text
    country: _Text
    postal_code: str | None = None
    region: str | None = None


class Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A product and its quantity. ``discount`` is a share from 0 to 1."""

    product_id: Annotated[int, msgspec.Meta(ge=1)]
    product: _Text
    unit_price: Decimal
    quantity: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    discount: Decimal = Decimal(0)


class OrderContent(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The ``order`` member of an order message, for the workflows of this business."""

    customer_id: _Text
    ship_to: Address
    lines: Annotated[list[Line], msgspec.Meta(min_length=1, max_length=1000)]
    ordered_on: str | None = None
    required_on: str | None = None
    freight: Decimal = Decimal(0)


def check(payload: bytes) -> OrderContent:
    """Return an order's content.

    Raises:
        ValueError: with the sentence that the application gets.
    """
    content = convert(payload, OrderContent)
    for number, line in enumerate(content.lines):
        _check_between(line.unit_price, AMOUNT_MAX, f"lines[{number}].unit_price")
        _check_between(line.discount, 1, f"lines[{number}].discount")
    _check_between(content.freight, AMOUNT_MAX, "freight")
    return content


def _check_between(value: Decimal, maximum: int, where: str) -> None:
    if not value.is_finite() or not 0 <= value <= maximum:
        raise ValueError(f"Expected a number from 0 to {maximum:,} - at `$.{where}`")


def amount_due(order: Any) -> str:
    """Return what an order costs with freight, as decimal text with two places."""
    content = msgspec.convert(order, OrderContent, strict=False)
    lines = (line.unit_price * line.quantity * (1 - line.discount) for line in content.lines)
    total = sum(lines, start=content.freight)
    return str(total.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))
