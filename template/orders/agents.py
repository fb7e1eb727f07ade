"""The agents of this business: each wraps one remote service, and makes one attempt."""

from __future__ import annotations

from typing import Any

from sas import Call, HttpService


class StockAgent:
    """Reserves what was ordered."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def do(self, call: Call) -> Any:
        """Reserve."""
        return await self._service.call("POST", "/reservations", key=call.key, body=call.order)

    async def undo(self, call: Call) -> Any:
        """Give back what was reserved under the key, and refuse it from now on."""
        return await self._service.call("DELETE", "/reservations", key=call.key)

    async def close(self) -> None:
        """Close connections."""
        await self._service.close()


class PaymentAgent:
    """Charges the card for what was reserved."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def do(self, call: Call) -> Any:
        """Charge."""
        body = {"card": call.order["card"], "amount": call.results["reserve"]["price"]}
        return await self._service.call("POST", "/charges", key=call.key, body=body)

    async def undo(self, call: Call) -> Any:
        """Pay back what was charged under the key, and refuse it from now on."""
        return await self._service.call("DELETE", "/charges", key=call.key)

    async def close(self) -> None:
        """Close connections."""
        await self._service.close()
