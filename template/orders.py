"""The business: an order reserves stock, then it is paid. Make it yours."""

from datetime import timedelta
from typing import Annotated

import msgspec

from sas import Call, Saga

TIME = timedelta(seconds=30)
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class Order(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The `order` member of an order message."""

    product: Text
    quantity: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    card: Text


class Reservation(msgspec.Struct, frozen=True):
    """What the stock service has reserved."""

    number: str
    price: int


class Charge(msgspec.Struct, frozen=True):
    """What the payment service has charged."""

    number: str


orders = Saga("order", Order)
stock = orders.service("STOCK_URL")
payment = orders.service("PAYMENT_URL")


@orders.step(time_allowed=TIME, agent="stock")
async def reserve(call: Call[Order]) -> Reservation:
    """Reserve what was ordered."""
    return await stock.post(call, "/reservations", call.order, Reservation)


@reserve.undo
async def give_back(call: Call[Order]) -> None:
    """Give back what was reserved under the key."""
    await stock.delete(call, "/reservations")


@orders.step(after=reserve, time_allowed=TIME, agent="payment")
async def pay(call: Call[Order], reserved: Reservation) -> Charge:
    """Charge the card for what was reserved."""
    body = {"card": call.order.card, "amount": reserved.price}
    return await payment.post(call, "/charges", body, Charge)


@pay.undo
async def pay_back(call: Call[Order]) -> None:
    """Pay back what was charged under the key."""
    await payment.delete(call, "/charges")
