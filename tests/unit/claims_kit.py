"""A saga of two steps whose order and results have types."""

from typing import Any

import msgspec

from sas import Call, Saga
from sas.domain.workflow import OnFailure


class Address(msgspec.Struct):
    """A part of an order."""

    city: str


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """An order."""

    employee: str
    home: Address


class Scan(msgspec.Struct, forbid_unknown_fields=True):
    """A result."""

    total: int
    page: str | None = None


def claims(
    order_shape: Any = Claim, result_shape: Any = Scan, suffix: str = "", **options: Any
) -> Saga[Any]:
    saga = Saga("claim", order_shape, on_failure=OnFailure.HOLD, **options)

    @saga.step(agent=f"stock{suffix}")
    async def scan(call: Call[order_shape]) -> result_shape:
        raise NotImplementedError

    @scan.undo
    async def discard(call: Call[order_shape]) -> None:
        raise NotImplementedError

    @saga.step(after=scan, agent=f"payment{suffix}")
    async def pay(call: Call[order_shape], scanned: result_shape) -> str:
        raise NotImplementedError

    return saga


ORDER = {"employee": "Ann", "home": {"city": "Bern"}}
OLD = claims()


RESULT = {"total": 3, "page": "7"}

Street = msgspec.defstruct("Street", [("city", str), ("street", str)])


class Moved(msgspec.Struct):
    """An order with another address."""

    employee: str
    home: Street  # type: ignore[valid-type]
