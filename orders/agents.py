"""The agents of this business: each wraps one remote service, one attempt at a time.

Retries, CompleteBy and the idempotency key are the pattern's (``sas.actors.agent``); here
stands only what is called with what.
"""

from __future__ import annotations

from typing import Any

from orders.content import CURRENCY, amount_due
from sas.adapters.remote import HttpService
from sas.ports import Call


class InventoryAgent:
    """Reserves stock."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

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

    async def close(self) -> None:
        """Let go of connections."""
        await self._service.close()


class PaymentAgent:
    """Charges the customer."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

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

    async def close(self) -> None:
        """Let go of connections."""
        await self._service.close()


class ShippingAgent:
    """Ships what was reserved."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

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

    async def close(self) -> None:
        """Let go of connections."""
        await self._service.close()
