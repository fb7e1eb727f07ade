"""At most N calls in flight for one remote service, over all instances together.

Each slot is a lease in the state store. A call takes one, any that is free, and gives it back;
one whose holder died is free again once the call is over for certain: its CompleteBy has passed,
or the time that a function has (and what clocks may be apart). Who finds none waits a little here,
and is then put back.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from sas.codec.internal import RequestMessage
from sas.domain.undo import SKEW
from sas.engine.context import Context
from sas.ports import StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


WAIT_HERE = timedelta(seconds=5)
"""How long a request waits in its function before it is put back."""


CALL_MAX = timedelta(minutes=10)
"""No call lasts longer: ``functionTimeout`` in host.json ends it, and its process."""


LOOKS_MAX = 5
"""Slots looked at before a waiting request rests."""


def lease_name(agent: str, slot: int) -> str:
    """Return the name of the lease that a slot is."""
    return f"slot|{agent}|{slot}"


class CallLimit:
    """One agent's slots; no limit where ``limit`` is 0."""

    def __init__(self, context: Context, agent: str, limit: int) -> None:
        self._context = context
        self._agent = agent
        self._limit = limit

    async def take(self, request: RequestMessage) -> int | None:
        """Return the slot taken for a request, -1 where there is no limit, None where none is
        free. Urgent requests look more often than others.
        """
        if not self._limit:
            return -1
        clock = self._context.clock
        until = clock.now() + WAIT_HERE
        rest, most = ((0.05, 0.15), 3.0) if request.urgent else ((0.2, 0.5), 3.0)
        longer = 1.0
        while True:
            slot = await self._free(request)
            if slot is not None:
                return slot
            pause = random.uniform(*rest) * longer  # noqa: S311  jitter, no secret
            longer = min(longer * 1.3, most)  # all leases are in one partition: spare it
            if clock.now() + timedelta(seconds=pause) >= min(until, request.complete_by):
                return None
            await clock.sleep(pause)

    async def give_back(self, slot: int, request: RequestMessage) -> None:
        """Free a slot. Where that fails it is free once its lease is over."""
        if slot < 0:
            return
        now = self._context.clock.now()
        try:
            await self._lease(slot, request, now, now)
        except StoreUnavailableError as down:
            log.warning(
                "slot %d of agent %s is not given back before its time: %s", slot, self._agent, down
            )

    async def extend(self, slot: int, request: RequestMessage) -> None:
        """Keep a slot for a call that was given more time. Where that fails another call may take
        it meanwhile: one more than the limit, for once.
        """
        if slot < 0:
            return
        now = self._context.clock.now()
        try:
            await self._lease(slot, request, _until(request, now), now)
        except StoreUnavailableError as down:
            log.warning("slot %d of agent %s is not kept: %s", slot, self._agent, down)

    def again_at(self, request: RequestMessage) -> datetime:
        """Return when a request that found no slot comes again."""
        rest = (0.2, 0.6) if request.urgent else (1.0, 3.0)
        seconds = random.uniform(*rest)  # noqa: S311  jitter, no secret
        return self._context.clock.now() + timedelta(seconds=seconds)

    async def _free(self, request: RequestMessage) -> int | None:
        now = self._context.clock.now()
        looks = min(LOOKS_MAX, self._limit)
        for slot in random.sample(range(self._limit), looks):
            if await self._lease(slot, request, _until(request, now), now):
                return slot
        return None

    async def _lease(
        self, slot: int, request: RequestMessage, until: datetime, now: datetime
    ) -> bool:
        name = lease_name(self._agent, slot)
        return await self._context.store.acquire_lease(name, request.id, until, now)


def _until(request: RequestMessage, now: datetime) -> datetime:
    """Return when a call that goes out now is over for certain."""
    return min(request.complete_by, now + CALL_MAX) + SKEW
