"""Urgent orders and limits in flight, through the real functions, SDKs, tables and broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.client import NewOrder, OrdersClient
from sas.domain.queues import Queues
from sas.ports import AgentCall
from tests.business import AGENTS, PaymentAgent
from tests.functions_rig import SHOP, Rig, northwind, rig

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]

LANES = ("submission", "scheduler", *(f"agent_{name}" for name in AGENTS))
URGENT = tuple(f"{name}_urgent" for name in LANES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def submit(system: Rig, *order_ids: str, urgent: bool) -> None:
    queues = Queues().urgent if urgent else Queues()
    connection = system.broker.connection_string
    async with OrdersClient(connection, reply_queue=SHOP, queues=queues) as client:
        await client.submit_many(
            NewOrder(order_id=order_id, order=northwind()) for order_id in order_ids
        )


async def test_an_urgent_order_is_done_while_every_ordinary_function_stands_still(
    system: Rig,
) -> None:
    await submit(system, *(f"L-{number}" for number in range(5)), urgent=False)
    await submit(system, "U-1", urgent=True)
    async with system.host(*URGENT):
        assert await system.ends("U-1", "Processed", "Error", "Compensated") == "Processed"
    assert system.broker.counts("orders").active == 5
    assert (await system.order("U-1")).details.urgent
    assert (await system.kinds("U-1"))[-1] == "completed"
    async with system.host(*LANES):
        for number in range(5):
            assert await system.ends(f"L-{number}", "Processed") == "Processed"
    await system.quiet()


class Counted:
    """How many calls of the payment service are out, and how many were at most."""

    def __init__(self, waits_s: float) -> None:
        self.waits_s = waits_s
        self.in_flight = self.in_flight_max = self.calls = 0
        self.together = asyncio.Event()
        self._do = PaymentAgent.do

    async def do(self, agent: PaymentAgent, call: AgentCall) -> Any:
        self.calls += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        if self.in_flight > 1:
            self.together.set()
        try:
            with suppress(TimeoutError):  # others have that long to come between
                await asyncio.wait_for(self.together.wait(), self.waits_s)
            return await self._do(agent, call)
        finally:
            self.in_flight -= 1


async def paid(
    system: Rig, monkeypatch: pytest.MonkeyPatch, *order_ids: str, limits: str
) -> Counted:
    """Have orders processed under these limits; return what was seen of their payments."""
    counted = Counted(0.5 if limits else 60.0)

    async def do(agent: PaymentAgent, call: AgentCall) -> Any:
        return await counted.do(agent, call)

    monkeypatch.setattr(PaymentAgent, "do", do)
    async with system.host(*LANES, SAS_AGENT_LIMITS=limits):
        await submit(system, *order_ids, urgent=False)
        for order_id in order_ids:
            assert await system.ends(order_id, "Processed") == "Processed"
    await system.quiet()
    return counted


async def test_no_more_calls_of_a_service_are_in_flight_than_the_setting_allows(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = await paid(system, monkeypatch, *(f"F-{n}" for n in range(6)), limits="")
    assert free.in_flight_max > 1, (
        "without a limit nothing keeps them apart, or this test shows nothing"
    )
    monkeypatch.undo()
    bound = await paid(system, monkeypatch, *(f"B-{n}" for n in range(6)), limits="payment:1")
    assert (bound.in_flight_max, bound.calls) == (1, 6)
