"""The agents of this business. Each wraps one remote service and makes one attempt.

``sas.actors.agent`` does the rest: retries, CompleteBy and the idempotency key.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orders.content import CURRENCY, amount_due
from sas import AwaitCallback, Call, HttpService, RefusedError, StillRunning


def _member(call: Call, step: str, name: str) -> Any:
    """Return a member of an earlier step's result.

    Raises:
        RefusedError: the result has no such member: an operator skipped the step without it.
    """
    result = call.results.get(step)
    if not isinstance(result, dict) or name not in result:
        text = (
            f"the result of {step} has no {name} (was the step skipped without --input?): "
            f"undo the order, or do this step by hand and skip it with its result"
        )
        raise RefusedError("missing-result", text)
    return result[name]


class _ServiceAgent:
    """One remote service, wrapped."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def close(self) -> None:
        """Close the connections."""
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
        """Charge the amount due."""
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
            "reservation_id": _member(call, "reserve-stock", "reservation_id"),
        }
        return await self._service.call("POST", "/shipments", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Call the shipment back."""
        return await self._service.call("DELETE", "/shipments", key=call.key)


class InvoiceAgent(_ServiceAgent):
    """Mails the invoice."""

    async def do(self, call: Call) -> Any:
        """Mail the amount that was charged."""
        body = {
            "order_id": call.order_id,
            "customer_id": call.order["customer_id"],
            "charge_id": _member(call, "take-payment", "charge_id"),
            "amount": amount_due(call.order),
        }
        return await self._service.call("POST", "/mails", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Mail a credit note: a mail cannot be taken back."""
        return await self._service.call("DELETE", "/mails", key=call.key)


class DeliveryAgent(_ServiceAgent):
    """Has the parcel delivered, which may take days.

    The agent asks the carrier again at the time that the carrier names. With ``callback_time`` it
    gives the carrier a callback instead, and the carrier has that time to report the arrival.
    """

    def __init__(self, service: HttpService, callback_time: timedelta | None = None) -> None:
        super().__init__(service)
        self._callback_time = callback_time

    async def do(self, call: Call) -> Any:
        """Hand the parcel over, or ask where it is: the key is the same."""
        body = {"order_id": call.order_id, "tracking": _member(call, "ship", "tracking")}
        if self._callback_time is not None:
            body["answer_to"] = call.callback(self._callback_time).url
        answer = await self._service.call("POST", "/deliveries", key=call.key, body=body)
        if answer["state"] == "delivered":
            return answer
        if self._callback_time is not None:
            return AwaitCallback(self._callback_time, "on its way; the carrier reports the arrival")
        return StillRunning(timedelta(seconds=answer["check_after"]), "on its way")

    async def undo(self, call: Call) -> Any:
        """Have the parcel sent back."""
        return await self._service.call("DELETE", "/deliveries", key=call.key)
