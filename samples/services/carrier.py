"""The carrier: a service whose work takes longer than a call.

Asked the first time it takes the parcel and answers 202, with when to ask again. Once
delivered, the same key is answered 201; and who gave an address is told there, until they
have taken it. 410 means that nobody counts on it any more: it is taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import msgspec
from aiohttp import web

from samples.services.contract import Body, Contract, Delivery, fingerprint
from samples.services.faults import Faults, Verb
from samples.services.ledger import Standing
from samples.services.service import Service

CHECK_AFTER_S_MIN = 0.5
"""Asked how far a parcel is, it is asked to be asked again after half of what is left."""

TELL_AGAIN_S = 0.5
TELL_TIMEOUT = aiohttp.ClientTimeout(total=10)


class Carrier(Service):
    """Delivers in its own time: ``Faults.delivery`` seconds after it was first asked."""

    def __init__(self, contract: Contract, faults: Faults, ledger_max: int) -> None:
        super().__init__(contract, faults, ledger_max)
        self._due: dict[str, float] = {}
        self._rounds: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        """Return the routes of this service; parcels still on their way end with it."""
        app = super().app()
        app.cleanup_ctx.append(self._until_the_end)
        return app

    async def _until_the_end(self, _: web.Application) -> AsyncIterator[None]:
        yield
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)

    def _execute(self, key: str, body: Body) -> web.Response:
        """Deliver, if it is time; the address to tell is no part of what is delivered."""
        parcel, answer_to = body, None
        if isinstance(body, Delivery):
            parcel, answer_to = msgspec.structs.replace(body, answer_to=None), body.answer_to
        standing = self._ledger.standing(key, fingerprint(parcel))
        refused = self.faults.refuses(self.contract.service, Verb.DO, key)
        if standing is not Standing.NEW or refused:
            return super()._execute(key, parcel)
        now = time.monotonic()
        first = key not in self._due
        left = self._due.setdefault(key, now + self.faults.delivery) - now
        if left <= 0:
            return super()._execute(key, parcel)
        if first and answer_to is not None:
            task = asyncio.ensure_future(self._round(key, parcel, answer_to, left))
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)
        return web.json_response(
            {"state": "on-its-way", "check_after": round(max(left / 2, CHECK_AFTER_S_MIN), 3)},
            status=202,
        )

    async def _round(self, key: str, parcel: Body, answer_to: str, seconds: float) -> None:
        """Deliver, unless it was called back meanwhile; tell, until it is taken."""
        await asyncio.sleep(seconds)
        delivered = super()._execute(key, parcel)
        if delivered.status != 201 or not isinstance(delivered.body, bytes):
            return
        said = {"outcome": "done", "result": msgspec.json.decode(delivered.body)}
        if await _taken(answer_to, said) == 410:
            self._ledger.undo(key, datetime.now(UTC))


async def _taken(answer_to: str, said: object) -> int:
    """Tell until it is taken; return the status of the last answer."""
    while True:
        status = await _told(answer_to, said)
        if status < 500:
            return status
        await asyncio.sleep(TELL_AGAIN_S)


async def _told(answer_to: str, said: object) -> int:
    """Return the status of the answer; 599 where there was none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TELL_TIMEOUT) as session,
            session.post(answer_to, json=said) as answer,
        ):
            return answer.status
    except (aiohttp.ClientError, TimeoutError):
        return 599
