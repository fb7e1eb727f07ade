"""Feature: call limits. At most N calls of one remote service are in flight, over all instances.

Each slot is a lease in the state store. A call takes any free slot, and gives it back. If an
instance dies, its slot is free once its call must have ended: after CompleteBy, or the longest run
of a function, plus the clock skew. A request that finds no free slot waits a few seconds here, and
is then put back. No attempt is counted for it.

A semaphore for each process would bound nothing, because Azure chooses the number of processes. A
row with a count would have every call contend for it. The price of leases: all are in one
partition, a call makes four requests, and waiting requests are in no order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from sas.codec.internal import RequestMessage
from sas.domain.order import CLOCK_SKEW
from sas.engine.context import Context
from sas.engine.hooks import Admission, CallEnd
from sas.engine.in_flight import InFlightRequest
from sas.ports import StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
WAIT_HERE = timedelta(seconds=5)
"""How long a request waits in its function before it is put back."""
CALL_MAX = timedelta(minutes=10)
"""No call lasts longer: ``functionTimeout`` in host.json ends the function."""
LOOKS_MAX = 5
"""Slots that a waiting request tries before it pauses."""


def lease_name(agent: str, slot: int) -> str:
    """Return the name of a slot's lease."""
    return f"slot|{agent}|{slot}"


def lease_end(complete_by: datetime, now: datetime) -> datetime:
    """Return the time by which a call that goes out now must have ended."""
    return min(complete_by, now + CALL_MAX) + CLOCK_SKEW


def pauses(*, urgent: bool) -> Iterator[tuple[float, float]]:
    """Yield the shortest and the longest pause, in seconds, before each further look for a slot.

    Urgent requests look more often. The pauses grow, because all leases share one partition.
    """
    shortest, longest = (0.05, 0.15) if urgent else (0.2, 0.5)
    factor = 1.0
    while True:
        yield shortest * factor, longest * factor
        factor = min(factor * 1.3, 3.0)


def put_back_for(*, urgent: bool) -> tuple[float, float]:
    """Return how long a request that found no slot is put back, at least and at most in seconds."""
    return (0.2, 0.6) if urgent else (1.0, 3.0)


class CallLimit:
    """One agent's slots. See ``sas.engine.hooks.CallGuard``."""

    def __init__(self, context: Context, agent: str, limit: int) -> None:
        self._context = context
        self._agent = agent
        self._limit = limit
        self._slots: dict[InFlightRequest, int] = {}

    async def admit(self, call: InFlightRequest) -> Admission | datetime:
        """See ``CallGuard.admit``: takes a slot, unless the call has one."""
        if call in self._slots:
            return Admission.CALL
        request, clock = call.request, self._context.clock
        until = min(clock.now() + WAIT_HERE, call.function_ends_at or request.complete_by)
        for bounds in pauses(urgent=request.urgent):
            slot = await self._free(request)
            if slot is not None:
                self._slots[call] = slot
                return Admission.CALL
            pause = _drawn(bounds)
            if clock.now() + pause >= until:
                break
            await clock.sleep(pause.total_seconds())
        return clock.now() + _drawn(put_back_for(urgent=request.urgent))

    async def ended(self, call: InFlightRequest, end: CallEnd, why: str) -> None:  # noqa: ARG002
        """See ``CallGuard.ended``. A slot that cannot be released is free after its lease."""
        slot = self._slots.pop(call, None)
        if slot is None:
            return
        now = self._context.clock.now()
        try:
            await self._lease(slot, call.request, now, now)
        except StoreUnavailableError as error:
            log.warning("slot %d of agent %s is not released: %s", slot, self._agent, error)

    async def _free(self, request: RequestMessage) -> int | None:
        now = self._context.clock.now()
        for slot in random.sample(range(self._limit), min(LOOKS_MAX, self._limit)):
            if await self._lease(slot, request, lease_end(request.complete_by, now), now):
                return slot
        return None

    async def _lease(
        self, slot: int, request: RequestMessage, until: datetime, now: datetime
    ) -> bool:
        name = lease_name(self._agent, slot)
        return await self._context.store.acquire_lease(name, request.id, until, now)


def _drawn(bounds: tuple[float, float]) -> timedelta:
    return timedelta(seconds=random.uniform(*bounds))  # noqa: S311  jitter, no secret
