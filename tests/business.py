"""A business for the tests of the pattern: ``function_app.py`` is given it as ``orders``.

``orders/`` belongs to the adopter, and its own tests are in ``tests/orders``. These workflows
and agents call the services of ``samples.remote_services``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import msgspec

from sas.adapters.remote import HttpService
from sas.codec.strict import convert
from sas.config import SettingError
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import AgentCall, AwaitCallback, Business, StillRunning

PRICE_MAX = 1_000_000_000
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """So many pieces of one product."""

    product_id: Annotated[int, msgspec.Meta(ge=1)]
    product: Text
    unit_price: Annotated[float, msgspec.Meta(ge=0, le=PRICE_MAX)]
    quantity: Annotated[int, msgspec.Meta(ge=1)]
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0


class Content(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The ``order`` member of an order message."""

    customer_id: Text
    ship_to: dict[str, str | None]
    lines: Annotated[list[Line], msgspec.Meta(min_length=1, max_length=1000)]
    ordered_on: str | None = None
    required_on: str | None = None
    freight: Annotated[float, msgspec.Meta(ge=0)] = 0


def check(payload: bytes) -> Content:
    """Return an order's content, or raise ValueError with what to change."""
    return convert(payload, Content)


def workflows(time: timedelta = timedelta(seconds=30)) -> Workflows:
    """Return one workflow of steps in a row, one held for an operator, one with long steps.

    The one that is held for an operator tells its application of each step.
    """
    undo = Undo(time)
    reserve = Step("reserve-stock", agent="inventory", time_allowed=time, undo=undo)
    pay = Step("take-payment", agent="payment", time_allowed=time, undo=undo)
    ship = Step("ship", agent="shipping", time_allowed=time, undo=undo)
    side_by_side = (
        Step("reserve-stock", agent="inventory", time_allowed=time, after=(), undo=undo),
        Step("take-payment", agent="payment", time_allowed=time, after=(), undo=undo),
        Step(
            "ship",
            agent="shipping",
            time_allowed=time,
            after=("reserve-stock", "take-payment"),
            undo=undo,
        ),
    )
    delivered = (
        *(reserve, pay, ship),
        Step(
            "send-invoice", agent="invoice", time_allowed=time, after=("take-payment",), undo=undo
        ),
        Step(
            "deliver",
            agent="delivery",
            time_allowed=time,
            after=("ship", "send-invoice"),
            undo=undo,
        ),
    )
    return Workflows(
        [
            Workflow("order", version=1, steps=(reserve, pay, ship), on_failure=OnFailure.UNDO),
            Workflow(
                "order-with-care",
                version=1,
                steps=side_by_side,
                on_failure=OnFailure.HOLD,
                notify_steps=True,
            ),
            Workflow("order-delivered", version=1, steps=delivered, on_failure=OnFailure.UNDO),
        ]
    )


class ServiceAgent:
    """Calls one remote service, with what the service asks for."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    def body(self, call: AgentCall) -> dict[str, Any]:
        """Return the body of the call; every service takes the order's id."""
        return {"order_id": call.order_id}

    async def do(self, call: AgentCall) -> Any:
        """Call the service once."""
        return await self._post(call, self.body(call))

    async def undo(self, call: AgentCall) -> Any:
        """Undo everything that was done under the key."""
        return await self._service.call("DELETE", self.path, key=call.key)

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    path = ""

    async def _post(self, call: AgentCall, body: dict[str, Any]) -> Any:
        return await self._service.call("POST", self.path, key=call.key, body=body)


class InventoryAgent(ServiceAgent):
    """Reserves stock."""

    path = "/reservations"

    def body(self, call: AgentCall) -> dict[str, Any]:
        """Return the products and how many of each."""
        fields = ("product_id", "quantity")
        lines = [{name: line[name] for name in fields} for line in call.order["lines"]]
        return {**super().body(call), "lines": lines}


class PaymentAgent(ServiceAgent):
    """Charges the customer; what, does not matter here."""

    path = "/charges"

    def body(self, call: AgentCall) -> dict[str, Any]:
        """Return whom to charge."""
        customer = call.order["customer_id"]
        return {**super().body(call), "customer_id": customer, "amount": "1.00", "currency": "USD"}


class ShippingAgent(ServiceAgent):
    """Ships what was reserved."""

    path = "/shipments"

    def body(self, call: AgentCall) -> dict[str, Any]:
        """Return the address and the reservation."""
        reserved = call.results["reserve-stock"]["reservation_id"]
        ship_to = call.order["ship_to"]
        return {**super().body(call), "ship_to": ship_to, "reservation_id": reserved}


class InvoiceAgent(ServiceAgent):
    """Mails the invoice."""

    path = "/mails"

    def body(self, call: AgentCall) -> dict[str, Any]:
        """Return whom to mail and what was charged."""
        charged = call.results["take-payment"]["charge_id"]
        customer = call.order["customer_id"]
        return {
            **super().body(call), "customer_id": customer, "charge_id": charged, "amount": "1.00",
        }  # fmt: skip


class DeliveryAgent(ServiceAgent):
    """Has the parcel delivered: asks again, or is told by callback within ``tells``."""

    path = "/deliveries"

    def __init__(self, service: HttpService, tells: timedelta | None) -> None:
        super().__init__(service)
        self._tells = tells

    async def do(self, call: AgentCall) -> Any:
        """Hand the parcel over, or ask how far it is: the key is the same."""
        body = {**self.body(call), "tracking": call.results["ship"]["tracking"]}
        if self._tells is not None:
            body["answer_to"] = call.callback(self._tells).url
        answer = await self._post(call, body)
        if answer["state"] == "delivered":
            return answer
        if self._tells is not None:
            return AwaitCallback(self._tells, "on its way; the carrier will tell")
        return StillRunning(timedelta(seconds=answer["check_after"]), "on its way")


AGENTS = ("inventory", "payment", "shipping", "invoice", "delivery")


def business(environ: Mapping[str, str] | None = None) -> Business:
    """Return workflows, agents and checks, by the settings of ``tests.functions_rig``."""
    env = os.environ if environ is None else environ
    attempt = float(env.get("TESTS_ATTEMPT_SECONDS", "10"))

    def service(name: str) -> HttpService:
        setting = f"TESTS_{name.upper()}_URL"
        if setting not in env:
            raise SettingError(f"{setting}: give the address of the {name} service")
        return HttpService(env[setting], name=name, attempt_seconds=attempt)

    tells = env.get("TESTS_CARRIER_TELLS_SECONDS")
    within = timedelta(seconds=float(tells)) if tells else None
    definitions = workflows(timedelta(seconds=float(env.get("TESTS_TIME_ALLOWED_SECONDS", "30"))))
    agents: dict[str, ServiceAgent] = {
        "inventory": InventoryAgent(service("stock")),
        "payment": PaymentAgent(service("payment")),
        "shipping": ShippingAgent(service("shipping")),
        "invoice": InvoiceAgent(service("mail")),
        "delivery": DeliveryAgent(service("carrier"), within),
    }
    return Business(
        workflows=definitions,
        agents=agents,
        checks=dict.fromkeys(((item.name, item.version) for item in definitions), check),
    )
