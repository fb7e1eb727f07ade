"""The carrier: a service whose work takes longer than a call.

The first call starts a delivery and gets 202 with the time for the next call. After the delivery
a call with the same key gets 201. If the request has an ``answer_to`` address, the carrier posts
the result there. It repeats the post while there is no answer or a server error. The answer 410
takes the delivery back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from samples.services.contract import Body, Contract, Delivery, fingerprint
from samples.services.faults import Faults, Verb
from samples.services.ledger import KeyState
from samples.services.service import Service

CHECK_AFTER_S_MIN = 0.5
"""Shortest pause that the answer 202 asks for. It asks for half of the remaining time, but for
``Faults.check_after`` at most."""

CALLBACK_RETRY_S = 0.5
CALLBACK_TIMEOUT = aiohttp.ClientTimeout(total=10)


class Carrier(Service):
    """Delivers ``Faults.delivery`` seconds after the first call."""

    def __init__(
        self, contract: Contract, faults: Faults, ledger_max: int, file: Path | None = None
    ) -> None:
        super().__init__(contract, faults, ledger_max, file)
        self._begun: dict[str, float] = {}
        self._deliveries: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        """Return the routes of this service. When the application ends, open deliveries end too."""
        app = super().app()
        app.cleanup_ctx.append(self._cancel_at_end)
        return app

    async def _cancel_at_end(self, _: web.Application) -> AsyncIterator[None]:
        yield
        for task in self._deliveries:
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    def _execute(self, key: str, body: Body) -> web.Response:
        """Answer 202 until the delivery is due, and 201 from then on.

        The callback address is no part of the content that a key stands for.
        """
        parcel, answer_to = body, None
        if isinstance(body, Delivery):
            parcel, answer_to = msgspec.structs.replace(body, answer_to=None), body.answer_to
        state = self._ledger.state_of(key, fingerprint(parcel))
        refused = self.faults.refuses(self.contract.service, Verb.DO, key)
        if state is not KeyState.NEW or refused:
            return super()._execute(key, parcel)
        now = time.monotonic()
        is_first = key not in self._begun
        seconds_left = self._begun.setdefault(key, now) + self.faults.delivery - now
        if seconds_left <= 0:
            return super()._execute(key, parcel)
        if is_first and answer_to is not None:
            task = asyncio.ensure_future(self._deliver(key, parcel, answer_to, seconds_left))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)
        check_after = min(max(seconds_left / 2, CHECK_AFTER_S_MIN), self.faults.check_after)
        return web.json_response(
            {"state": "on-its-way", "check_after": round(check_after, 3)}, status=202
        )

    async def _deliver(self, key: str, parcel: Body, answer_to: str, seconds: float) -> None:
        """Deliver when it is due, unless it was undone, and report the result."""
        await asyncio.sleep(seconds)
        delivered = super()._execute(key, parcel)
        if delivered.status != 201 or not isinstance(delivered.body, bytes):
            return
        result = {"outcome": "done", "result": msgspec.json.decode(delivered.body)}
        if await _report(answer_to, result) == 410:
            self._ledger.undo(key, datetime.now(UTC))


async def _report(answer_to: str, result: object) -> int:
    """Post the result until the receiver accepts or refuses it; return the last status."""
    while True:
        status = await _post(answer_to, result)
        if status < 500:
            return status
        await asyncio.sleep(CALLBACK_RETRY_S)


async def _post(answer_to: str, result: object) -> int:
    """Return the status of the answer; 599 if there is no answer."""
    try:
        async with (
            aiohttp.ClientSession(timeout=CALLBACK_TIMEOUT) as session,
            session.post(answer_to, json=result) as answer,
        ):
            return answer.status
    except (aiohttp.ClientError, TimeoutError):
        return 599
