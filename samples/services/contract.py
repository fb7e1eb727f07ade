"""The HTTP contract of the services: requests, answers and problems (RFC 9457).

The services check the fields that they know and ignore all others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

KEY_HEADER = "Idempotency-Key"
KEY_LENGTH_MAX = 255
REPLAYED_HEADER = "Idempotent-Replayed"
BODY_BYTES_MAX = 512 * 1024

Identifier = Annotated[str, Meta(min_length=1, max_length=200)]
Address = dict[str, str | int | float | None]


class Line(msgspec.Struct, frozen=True):
    """A quantity of one product."""

    product_id: Annotated[int, Meta(ge=1)] | Identifier
    quantity: Annotated[int, Meta(ge=1, le=1_000_000)]


class Reservation(msgspec.Struct, frozen=True):
    """The body of ``POST /reservations``."""

    order_id: Identifier
    lines: Annotated[list[Line], Meta(min_length=1)]


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /charges``; the amount is text, because floats are not exact."""

    order_id: Identifier
    customer_id: Identifier
    amount: Annotated[str, Meta(pattern=r"^[0-9]{1,12}\.[0-9]{2}$")]
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]


class Shipment(msgspec.Struct, frozen=True):
    """The body of ``POST /shipments``."""

    order_id: Identifier
    ship_to: Annotated[Address, Meta(min_length=1)]
    reservation_id: Identifier


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /mails``: an invoice."""

    order_id: Identifier
    customer_id: Identifier
    charge_id: Identifier
    amount: Annotated[str, Meta(pattern=r"^[0-9]{1,12}\.[0-9]{2}$")]


class Delivery(msgspec.Struct, frozen=True):
    """The body of ``POST /deliveries``; ``answer_to`` is an optional callback address."""

    order_id: Identifier
    tracking: Identifier
    answer_to: Annotated[str, Meta(pattern=r"^https?://")] | None = None


Body = Reservation | Charge | Shipment | Mail | Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The differences between the services."""

    service: str
    collection: str
    body: type[Body]
    number_prefix: str
    answer: Callable[[str], dict[str, str]]
    refusal: str
    refusal_detail: str


CONTRACTS = {
    contract.service: contract
    for contract in (
        Contract(
            service="stock",
            collection="reservations",
            body=Reservation,
            number_prefix="R",
            answer=lambda number: {"reservation_id": number},
            refusal="out-of-stock",
            refusal_detail="a product of this order is out of stock",
        ),
        Contract(
            service="payment",
            collection="charges",
            body=Charge,
            number_prefix="C",
            answer=lambda number: {"charge_id": number},
            refusal="card-declined",
            refusal_detail="the customer's card was declined",
        ),
        Contract(
            service="shipping",
            collection="shipments",
            body=Shipment,
            number_prefix="S",
            answer=lambda number: {"shipment_id": number, "tracking": f"NWTRACK{number[2:]}"},
            refusal="address-refused",
            refusal_detail="no carrier delivers to this address",
        ),
        Contract(
            service="mail",
            collection="mails",
            body=Mail,
            number_prefix="M",
            answer=lambda number: {"mail_id": number},
            refusal="no-mailbox",
            refusal_detail="the customer has no mailbox",
        ),
        Contract(
            service="carrier",
            collection="deliveries",
            body=Delivery,
            number_prefix="D",
            answer=lambda number: {"delivery_id": number, "state": "delivered"},
            refusal="undeliverable",
            refusal_detail="nobody lives at this address",
        ),
    )
}
SERVICES = tuple(CONTRACTS)


class ProblemError(Exception):
    """A refused call; ``detail`` says what the client can do."""

    def __init__(
        self, status: int, name: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        """Return the problem as application/problem+json; its type is ``urn:sample:<name>``."""
        content = {
            "type": f"urn:sample:{self.name}",
            "title": self.name.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
        }
        return web.Response(
            status=self.status,
            body=json.dumps(content).encode(),
            content_type="application/problem+json",
            headers=self.headers,
        )


def key_of(request: web.Request) -> str:
    """Return the idempotency key of a request, or raise ProblemError 400."""
    key = request.headers.get(KEY_HEADER, "")
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise ProblemError(
            400, "malformed", f"{KEY_HEADER} is not UTF-8: encode it as UTF-8"
        ) from None
    if not key:
        raise ProblemError(400, "idempotency-key-missing", f"send an {KEY_HEADER} with every call")
    if length > KEY_LENGTH_MAX:
        raise ProblemError(
            400,
            "malformed",
            f"{KEY_HEADER} has {length} bytes: at most {KEY_LENGTH_MAX} are allowed",
        )
    return key


def decode(raw: bytes, contract: Contract) -> Body:
    """Return the decoded body of a do, or raise ProblemError 400."""
    try:
        return msgspec.json.decode(raw, type=contract.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProblemError(
            400, "malformed", f"this is not a body for /{contract.collection}: {error}"
        ) from error


def fingerprint(body: Body) -> str:
    """Return a digest of the content that does not depend on the JSON's layout."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
