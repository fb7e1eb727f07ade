"""Large orders and results over a real broker and a real table: the claim check at work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.client import NewOrder, OrdersClient
from sas.domain.content import PayloadRef
from sas.ports import Agent, AgentCall, Business
from tests import business
from tests.functions_rig import SHOP, WORKED, Rig, northwind, rig

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]

PREMIUM_BYTES = 4 * 1024 * 1024
PREMIUM = {"SAS_MESSAGE_BYTES_MAX": "5242880"}
SAID = "r" * 900_000


class Wordy:
    """An agent whose results are large."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.undo, self.close = agent.undo, agent.close

    async def do(self, call: AgentCall) -> Any:
        for result in call.results.values():
            assert result["said"] == SAID
        return {**await self._agent.do(call), "said": SAID}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    real = business.business

    def changed(environ: Mapping[str, str] | None = None) -> Business:
        plain_business = real(environ)
        return replace(
            plain_business,
            agents={name: Wordy(agent) for name, agent in plain_business.agents.items()},
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(business, "business", changed)
        async with rig(**PREMIUM) as running:
            running.broker.update_queue("orders", max_message_kilobytes=5 * 1024)
            yield running
            running.nothing_lost()


async def test_an_order_of_megabytes_and_its_large_results_go_from_function_to_function(
    system: Rig,
) -> None:
    (line, *_) = northwind()["lines"]
    content = {**northwind(), "lines": [{**line, "product": "é" * 200}] * 1000, "freight": 0}
    async with OrdersClient(
        system.broker.connection_string, reply_queue=SHOP, order_bytes_max=PREMIUM_BYTES
    ) as client:
        await client.submit(
            NewOrder(order_id="L-1", order={**content, "required_on": "x" * 3_400_000})
        )
    async with system.host():
        await system.ends("L-1", "Processed")
        await system.quiet()
    order = await system.order("L-1")
    values = [order.details.payload, *(step.result for step in order.steps)]
    assert [type(value) for value in values] == [PayloadRef] * 4
    assert (await system.content("L-1"))["lines"] == content["lines"]
    notifications = await system.notifications("L-1")
    assert [event.data.results_omitted for event in notifications] == [False, True]
    queues = {system.broker.namespace.queue(name).properties for name in WORKED if name != "orders"}
    sizes = {queue.max_message_kilobytes for queue in queues}
    assert sizes == {256}  # nothing else needs more
