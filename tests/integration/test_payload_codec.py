"""A payload codec over a real table, a real broker and the real functions: what rests there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from azure.data.tables.aio import TableServiceClient

from sas.codec.payloads import decode_content
from sas.config import read_payload_codec
from sas.ports import Agent, AgentCall, Business
from tests import business
from tests.functions_rig import SHOP, Rig, body_of, northwind, rig, until
from tests.integration.broker_sdk_kit import short_pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # fixtures of every test here

KEYS = {"SAS_PAYLOAD_KEYS": "pT4hO8C6m1uXw0k2vZ9sJd7rQf3yLb5nEgAiKcMeRtU="}
PLAIN = ("VINET", "Vins et alcools", "Chevalier", "59 rue", "Queso", "Cabrales", "paid-by")


class Watched:
    """An agent that notes its calls, and adds to its results."""

    calls: ClassVar[list[AgentCall]] = []

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.undo, self.close = agent.undo, agent.close

    async def do(self, call: AgentCall) -> Any:
        self.calls.append(call)
        return {"paid-by": "VINET", **await self._agent.do(call)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    real = business.business

    def changed(environ: Mapping[str, str] | None = None) -> Business:
        plain_business = real(environ)
        return replace(
            plain_business,
            agents={name: Watched(agent) for name, agent in plain_business.agents.items()},
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(business, "business", changed)
        async with rig(**KEYS) as running:
            yield running
            running.nothing_lost()


async def raw_table(system: Rig) -> str:
    """Return every column of every row of the table as text."""
    cells: list[str] = []
    async with TableServiceClient.from_connection_string(
        system.azurite.connection_string
    ) as tables:
        table = tables.get_table_client(system.settings["SAS_TABLE"])
        async for row in table.list_entities():
            for name, value in row.items():
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                cells.append(f"{name}={text}")
    return "\n".join(cells)


async def waiting(system: Rig, queue: str) -> str:
    """Return the bodies that lie on a queue, taking none."""

    async def there() -> list[Any]:
        return list(await receiver.peek_messages(20))

    async with system.client.get_queue_receiver(queue) as receiver:
        messages = await until(there, f"a message on {queue}")
    return "\n".join(body_of(message).decode() for message in messages)


def quoted(text: str) -> list[str]:
    return [word for word in PLAIN if word in text]


async def test_neither_the_table_nor_a_queue_between_the_functions_has_content(system: Rig) -> None:
    async with system.host("submission", "scheduler"):
        await system.submit("S-1")
        request = await waiting(system, "agent-inventory")
    assert '{"$encoded": "gAAAAA' in request
    assert quoted(request) == []
    async with system.host():
        await system.ends("S-1", "Processed")
        await system.quiet()
    table = await raw_table(system)
    assert table.count('{"$encoded": "gAAAAA') == 4  # what was ordered, and three results
    assert quoted(table) == []
    assert [call.order for call in Watched.calls] == [northwind()] * 3
    assert [len(call.results) for call in Watched.calls] == [0, 1, 2]
    answers = [body_of(message).decode() for message in await system.receive(SHOP)]
    assert quoted("\n".join(answers)) == []
    results = (await system.notifications("S-1"))[-1].data.results
    assert results is not None
    texts = [
        decode_content(bytes(raw).decode(), read_payload_codec(KEYS)) for raw in results.values()
    ]
    assert {json.loads(text)["paid-by"] for text in texts} == {"VINET"}
