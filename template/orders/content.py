"""What an order holds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sas import convert


class Order(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The `order` member of an order message."""

    product: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    quantity: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    card: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


def check(payload: bytes) -> Order:
    """Return the order, or raise ValueError: the application receives the text."""
    return convert(payload, Order)
