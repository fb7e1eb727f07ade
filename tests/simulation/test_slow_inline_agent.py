"""The service of an inline agent became slow: it holds up no submission, and its orders end whole.

The functions of one instance have 16 slots. A call that runs on holds a slot of the orders' queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from sas.codec import external
from sas.domain.order import OrderState
from sas.ports import AgentCall
from sas.testing.plan import Faults
from sas.testing.platform import REPLIES_TO
from sas.testing.remote import ModelService
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

SLOW_S = 20
SLOW_ORDERS = 30
OTHERS = 20
QUICK = timedelta(seconds=1)


class OftenSlow(ModelService):
    """Takes long for the payment of an order whose content asks for it."""

    async def do(self, call: AgentCall) -> Any:
        """See ``Agent.do``."""
        if call.step == "take-payment" and call.order.get("slow"):
            await self._clock.sleep(SLOW_S)
        return await super().do(call)


def slowed(seed: int) -> System:
    """Return a system of one instance whose agents are all inline."""
    system = build(seed, Faults(), agent=OftenSlow, failures_max_seconds=60)
    for host in system.hosts:
        host.business = replace(host.business, inline=tuple(host.business.agents))
        host.start()
    return system


async def delays(system: System) -> dict[str, timedelta]:
    """Submit slow orders at once, and then others; return after what time each was received."""
    submitted: dict[str, datetime] = {}

    async def submit() -> None:
        for number in range(SLOW_ORDERS):
            system.submit(f"slow-{number}", content={"lines": [], "slow": True})
        for number in range(OTHERS):
            await system.world.clock.sleep(0.5)
            submitted[f"other-{number}"] = system.world.clock.now()
            system.submit(f"other-{number}")

    submitting = asyncio.ensure_future(submit())
    try:
        await system.world.run(lambda: submitting.done() and system.at_rest())
        check_end(system)
    finally:
        await system.close()
    received: dict[str, timedelta] = {}
    for queued in system.bus.queues[REPLIES_TO].waiting:
        event = external.decode_notification(queued.message.body)
        order_id = event.data.order_id
        if external.notice_of(event.type) == "received" and order_id in submitted:
            received[order_id] = queued.enqueued_at - submitted[order_id]
    return received


@pytest.mark.parametrize("seeds", ranges(1, 4))
async def test_a_slow_inline_service_holds_up_no_submission(seeds: Seeds) -> None:
    for seed in seeds:
        system = slowed(seed)
        received = await delays(system)
        assert len(received) == OTHERS
        assert max(received.values()) < QUICK
        assert set(system.states().values()) == {OrderState.PROCESSED}
