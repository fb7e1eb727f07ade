"""The agents of this business: each wraps one remote service, one attempt at a time.

Retries, CompleteBy and the idempotency key are the pattern's (``sas.actors.agent``); here
stands only what is called with what.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orders.content import CURRENCY, amount_due
from sas.adapters.remote import HttpService
from sas.ports import AwaitCallback, Call, StillRunning


class _ServiceAgent:
    """One remote service, wrapped."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def close(self) -> None:
        """Let go of connections."""
        await self._service.close()


class InventoryAgent(_ServiceAgent):
    """Reserves stock."""

    async def do(self, call: Call) -> Any:
        """Reserve every line of the order."""
        lines = [
            {"product_id": line["product_id"], "quantity": line["quantity"]}
            for line in call.order["lines"]
        ]
        body = {"order_id": call.order_id, "lines": lines}
        return await self._service.call("POST", "/reservations", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Free the reservation."""
        return await self._service.call("DELETE", "/reservations", key=call.key)


class PaymentAgent(_ServiceAgent):
    """Charges the customer."""

    async def do(self, call: Call) -> Any:
        """Charge what the order costs."""
        body = {
            "order_id": call.order_id,
            "customer_id": call.order["customer_id"],
            "amount": amount_due(call.order),
            "currency": CURRENCY,
        }
        return await self._service.call("POST", "/charges", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Refund the charge."""
        return await self._service.call("DELETE", "/charges", key=call.key)


class ShippingAgent(_ServiceAgent):
    """Ships what was reserved."""

    async def do(self, call: Call) -> Any:
        """Ship the reservation to the order's address."""
        body = {
            "order_id": call.order_id,
            "ship_to": call.order["ship_to"],
            "reservation_id": call.results["reserve-stock"]["reservation_id"],
        }
        return await self._service.call("POST", "/shipments", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Call the shipment back."""
        return await self._service.call("DELETE", "/shipments", key=call.key)


class InvoiceAgent(_ServiceAgent):
    """Mails the invoice."""

    async def do(self, call: Call) -> Any:
        """Mail what was charged."""
        body = {
            "order_id": call.order_id,
            "customer_id": call.order["customer_id"],
            "charge_id": call.results["take-payment"]["charge_id"],
            "amount": amount_due(call.order),
        }
        return await self._service.call("POST", "/mails", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Mail a credit note: what was read cannot be taken back."""
        return await self._service.call("DELETE", "/mails", key=call.key)


class DeliveryAgent(_ServiceAgent):
    """Has the parcel delivered, which takes the carrier as long as it takes.

    By itself it asks again when the carrier says to. With ``tells`` the carrier is given a
    callback instead, and has that long to say that the parcel has arrived.
    """

    def __init__(self, service: HttpService, tells: timedelta | None = None) -> None:
        super().__init__(service)
        self._tells = tells

    async def do(self, call: Call) -> Any:
        """Hand the parcel over, or ask how far it is: the key is the same."""
        body = {"order_id": call.order_id, "tracking": call.results["ship"]["tracking"]}
        if self._tells is not None:
            body["answer_to"] = call.callback(self._tells).url
        said = await self._service.call("POST", "/deliveries", key=call.key, body=body)
        if said["state"] == "delivered":
            return said
        if self._tells is not None:
            return AwaitCallback(self._tells, "on its way; the carrier will tell")
        return StillRunning(timedelta(seconds=said["check_after"]), "on its way")

    async def undo(self, call: Call) -> Any:
        """Have the parcel sent back."""
        return await self._service.call("DELETE", "/deliveries", key=call.key)
