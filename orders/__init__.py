"""The business of the sample: three sagas of an order. Replace this file with your own.

Each step is a function that makes one attempt. ``sas`` does the rest: retries, CompleteBy, the
idempotency key, and the undo of what was done.
"""

import os
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Literal

import msgspec

from sas import Call, OnFailure, Saga, SettingError

CURRENCY = "USD"
AMOUNT_MAX = 1_000_000_000
"""Highest unit price and highest freight. Sums of higher amounts would not be exact."""
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Address(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where an order is sent."""

    name: Text
    address: Text
    city: Text
    country: Text
    postal_code: str | None = None
    region: str | None = None


class Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A product and its quantity. ``discount`` is a share from 0 to 1."""

    product_id: Annotated[int, msgspec.Meta(ge=1)]
    product: Text
    unit_price: Decimal
    quantity: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    discount: Decimal = Decimal(0)


class OrderContent(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The ``order`` member of an order message."""

    customer_id: Text
    ship_to: Address
    lines: Annotated[list[Line], msgspec.Meta(min_length=1, max_length=1000)]
    ordered_on: str | None = None
    required_on: str | None = None
    freight: Decimal = Decimal(0)


class Reservation(msgspec.Struct, frozen=True):
    """What the stock service has reserved."""

    reservation_id: str


class Charge(msgspec.Struct, frozen=True):
    """What the payment service has charged."""

    charge_id: str


class Shipment(msgspec.Struct, frozen=True):
    """What the shipping service has sent."""

    shipment_id: str
    tracking: str


class Mail(msgspec.Struct, frozen=True):
    """The mail with the invoice."""

    mail_id: str


class Parcel(msgspec.Struct, frozen=True):
    """Where the parcel is. ``check_after`` is in seconds."""

    state: Literal["on-its-way", "delivered"]
    delivery_id: str | None = None
    check_after: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0


def check(order: OrderContent) -> None:
    """Check what the types do not say.

    Raises:
        ValueError: with the sentence that the application gets.
    """
    for number, line in enumerate(order.lines):
        _check_between(line.unit_price, AMOUNT_MAX, f"lines[{number}].unit_price")
        _check_between(line.discount, 1, f"lines[{number}].discount")
    _check_between(order.freight, AMOUNT_MAX, "freight")


def _check_between(value: Decimal, maximum: int, where: str) -> None:
    if not value.is_finite() or not 0 <= value <= maximum:
        raise ValueError(f"Expected a number from 0 to {maximum:,} - at `$.{where}`")


def amount_due(order: OrderContent) -> str:
    """Return what an order costs with freight, as decimal text with two places."""
    lines = (line.unit_price * line.quantity * (1 - line.discount) for line in order.lines)
    total = sum(lines, start=order.freight)
    return str(total.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))


def _seconds(setting: str, default: float) -> float:
    text = os.environ.get(setting, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise SettingError(f"{setting}={text!r}: give seconds, more than 0 and at most a day")
    return value


TIME = timedelta(seconds=_seconds("ORDERS_TIME_ALLOWED_SECONDS", 30.0))
ATTEMPT = _seconds("ORDERS_ATTEMPT_SECONDS", 10.0)
INLINE = os.environ.get("ORDERS_INLINE_AGENTS", "").split(",")

orders = Saga("order", OrderContent, check=check)
"""One step after another. A failed order is undone."""
with_care = Saga(
    "order-with-care", OrderContent, check=check, on_failure=OnFailure.HOLD, notify_steps=True
)
"""Reserve and charge in parallel, then ship. A failed order waits in Error for an operator."""
delivered = Saga("order-delivered", OrderContent, check=check)
"""The order ends when the parcel has arrived. The invoice is mailed in parallel to shipping."""

stock = orders.service("ORDERS_STOCK_URL", name="stock", attempt_seconds=ATTEMPT)
payment = orders.service("ORDERS_PAYMENT_URL", name="payment", attempt_seconds=ATTEMPT)
shipping = orders.service("ORDERS_SHIPPING_URL", name="shipping", attempt_seconds=ATTEMPT)
mail = delivered.service("ORDERS_MAIL_URL", name="mail", attempt_seconds=ATTEMPT)
carrier = delivered.service("ORDERS_CARRIER_URL", name="carrier", attempt_seconds=ATTEMPT)


@delivered.step(time_allowed=TIME)
@with_care.step(time_allowed=TIME)
@orders.step(time_allowed=TIME, agent="inventory", inline="inventory" in INLINE)
async def reserve_stock(call: Call[OrderContent]) -> Reservation:
    """Reserve every line of the order."""
    lines = [
        {"product_id": line.product_id, "quantity": line.quantity} for line in call.order.lines
    ]
    body = {"order_id": call.order_id, "lines": lines}
    return await stock.post(call, "/reservations", body, Reservation)


@reserve_stock.undo
async def free_stock(call: Call[OrderContent]) -> None:
    """Free the reservation."""
    await stock.delete(call, "/reservations")


async def _charge(call: Call[OrderContent]) -> Charge:
    body = {
        "order_id": call.order_id,
        "customer_id": call.order.customer_id,
        "amount": amount_due(call.order),
        "currency": CURRENCY,
    }
    return await payment.post(call, "/charges", body, Charge)


@delivered.step(after=reserve_stock, time_allowed=TIME)
@orders.step(after=reserve_stock, time_allowed=TIME, agent="payment", inline="payment" in INLINE)
async def take_payment(call: Call[OrderContent], _reserved: Reservation) -> Charge:
    """Charge the amount due."""
    return await _charge(call)


@take_payment.undo
async def refund(call: Call[OrderContent]) -> None:
    """Refund the charge."""
    await payment.delete(call, "/charges")


@with_care.step(time_allowed=TIME, name="take-payment", agent="payment")
async def take_payment_at_once(call: Call[OrderContent]) -> Charge:
    """Charge the amount due, in parallel to the reservation."""
    return await _charge(call)


@take_payment_at_once.undo
async def refund_at_once(call: Call[OrderContent]) -> None:
    """Refund the charge."""
    await payment.delete(call, "/charges")


@delivered.step(after=(reserve_stock, take_payment), time_allowed=TIME)
@with_care.step(after=(reserve_stock, take_payment_at_once), time_allowed=TIME)
@orders.step(
    after=(reserve_stock, take_payment),
    time_allowed=TIME,
    agent="shipping",
    inline="shipping" in INLINE,
)
async def ship(call: Call[OrderContent], reserved: Reservation, _charged: Charge) -> Shipment:
    """Ship the reservation to the order's address."""
    body = {
        "order_id": call.order_id,
        "ship_to": call.order.ship_to,
        "reservation_id": reserved.reservation_id,
    }
    return await shipping.post(call, "/shipments", body, Shipment)


@ship.undo
async def call_back(call: Call[OrderContent]) -> None:
    """Call the shipment back."""
    await shipping.delete(call, "/shipments")


@delivered.step(after=take_payment, time_allowed=TIME, agent="invoice")
async def send_invoice(call: Call[OrderContent], charged: Charge) -> Mail:
    """Mail the amount that was charged."""
    body = {
        "order_id": call.order_id,
        "customer_id": call.order.customer_id,
        "charge_id": charged.charge_id,
        "amount": amount_due(call.order),
    }
    return await mail.post(call, "/mails", body, Mail)


@send_invoice.undo
async def send_credit_note(call: Call[OrderContent]) -> None:
    """Mail a credit note: a mail cannot be taken back."""
    await mail.delete(call, "/mails")


@delivered.step(after=(ship, send_invoice), time_allowed=TIME, agent="delivery")
async def deliver(call: Call[OrderContent], shipment: Shipment, _invoice: Mail) -> Parcel:
    """Hand the parcel over, or ask where it is: the key is the same. It may take days."""
    body = {"order_id": call.order_id, "tracking": shipment.tracking}
    parcel = await carrier.post(call, "/deliveries", body, Parcel)
    if parcel.state != "delivered":
        call.later(timedelta(seconds=parcel.check_after), "on its way")
    return parcel


@deliver.undo
async def send_back(call: Call[OrderContent]) -> None:
    """Have the parcel sent back."""
    await carrier.delete(call, "/deliveries")
