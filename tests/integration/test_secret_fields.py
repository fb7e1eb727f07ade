"""Secret fields over a real table, a real broker and the real functions: what rests there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from azure.data.tables.aio import TableServiceClient

from sas.domain.content import PayloadRef
from sas.ports import Agent, Business, Call
from tests import business
from tests.functions_rig import SHOP, Rig, body_of, northwind, rig, until
from tests.integration.broker_sdk_kit import short_pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # fixtures of every test here

FIELDS = {"order": ("ship_to", "customer_id", "lines[].product")}
KEYS = "k1:K5AviRHoGBj4yZ1dXZgxlXUE2Q6UXeLo9U7ngcx19jY="
PLAIN = ("VINET", "Vins et alcools", "Chevalier", "59 rue", "Queso", "Cabrales", "Giovanni")


class Watched:
    """An agent that notes what it is given."""

    given: ClassVar[list[Call]] = []

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.undo, self.close = agent.undo, agent.close

    async def do(self, call: Call) -> Any:
        self.given.append(call)
        return await self._agent.do(call)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Rig]:
    real = business.business

    def changed(environ: Mapping[str, str] | None = None) -> Business:
        made = real(environ)
        watched = {name: Watched(agent) for name, agent in made.agents.items()}
        return replace(made, secret_fields=FIELDS, agents=watched)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(business, "business", changed)
        async with rig(SAS_ENCRYPTION_KEYS=KEYS) as running:
            yield running
            running.nothing_lost()


async def raw_table(made: Rig) -> tuple[str, int]:
    """Return every column of every row of the table as text, and how many rows there are."""
    said: list[str] = []
    async with TableServiceClient.from_connection_string(made.azurite.connection_string) as tables:
        table = tables.get_table_client(made.settings["SAS_TABLE"])
        async for row in table.list_entities():
            for name, value in row.items():
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                said.append(f"{name}={text}")
            said.append("")
    return "\n".join(said), said.count("")


async def waiting(made: Rig, queue: str) -> str:
    """Return the bodies that lie on a queue, taking none."""

    async def there() -> list[Any]:
        return list(await receiver.peek_messages(20))

    async with made.client.get_queue_receiver(queue) as receiver:
        messages = await until(there, f"a message on {queue}")
    return "\n".join(body_of(message).decode() for message in messages)


def quoted(text: str) -> list[str]:
    return [one for one in PLAIN if one in text]


async def test_neither_the_table_nor_a_queue_between_the_functions_holds_a_secret(
    made: Rig,
) -> None:
    async with made.host("submission", "scheduler"):
        await made.submit("S-1")
        request = await waiting(made, "agent-inventory")
    assert '"$encrypted":"k1:' in request
    assert quoted(request) == []
    async with made.host():
        await made.ends("S-1", "Processed")
        await made.quiet()
    table, rows = await raw_table(made)
    assert rows > 12
    assert '"$encrypted":"k1:' in table
    assert quoted(table) == []
    assert [call.order for call in Watched.given] == [northwind()] * 3
    answers = [body_of(message).decode() for message in await made.receive(SHOP)]
    assert len(answers) == 2
    assert quoted("\n".join(answers)) == []


async def test_a_large_order_rests_encrypted_in_its_chunks_too(made: Rig) -> None:
    (line, *_) = northwind()["lines"]
    async with made.host():
        await made.submit("S-2", order={**northwind(), "lines": [line] * 500, "freight": 0})
        await made.ends("S-2", "Processed")
        await made.quiet()
    assert isinstance((await made.order("S-2")).details.payload, PayloadRef)
    table, _ = await raw_table(made)
    assert "|d|payload|" in table
    assert table.count('"$encrypted":"k1:') > 500
    assert quoted(table) == []
