"""What an operator's tool opens must be there already, and be a state store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import keys
from sas.adapters.tables.store import NoStoreError, TableStore, connect_existing, service_time
from sas.domain.change import DeferredDue
from sas.domain.ids import key_time, shard_of
from sas.ports import FORMAT, HeldMessage, Message, StoreMismatchError
from tests.contract import cases
from tests.contract.conftest import new_table

KEY = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint={};"


async def test_a_store_that_is_there_is_opened_with_its_own_number_of_shards(
    azurite: Azurite,
) -> None:
    table = new_table()
    first = TableStore.connect(azurite.connection_string, table, 4)
    await first.commit(cases.submitted("o"))
    await first.close()
    store = await connect_existing(Endpoint(connection_string=azurite.connection_string), table)
    assert len(store.shards) == 4
    assert await store.load("o") is not None
    await store.close()


async def test_a_message_that_the_version_before_held_in_a_due_row_is_moved_whole(
    azurite: Azurite,
) -> None:
    store = TableStore.connect(azurite.connection_string, new_table())
    due = DeferredDue(cases.NOW, "O'1", "0" * 32)
    await store.open()
    partition, at = shard_of("O'1", len(store.shards)), key_time(cases.NOW)
    row = {
        "RowKey": f"due|{at}|O=271|deferred|{due.key}",
        "OrderID": "O'1",
        "At": at,
        "Queue": "responses-shop",
        "MessageId": "m-1",
        "ContentType": "application/json",
        "Properties": '{"sas_event": "received"}',
        "Body00": b"{",
        "Body01": b"}",
    }
    await store.table.put(partition, row)
    assert await store.due(partition, cases.NOW, 9) == [due]
    for _ in range(2):
        await store.hold_deferred(due)
    assert await store.due(partition, cases.NOW, 9) == []
    message = Message("responses-shop", "m-1", b"{}", properties={"sas_event": "received"})
    item = HeldMessage(message=message, since=cases.NOW, order_id="O'1")
    assert await store.held("responses-shop", 9) == [item]
    await store.close()


async def test_a_missing_table_is_reported_and_not_created(
    azurite: Azurite,
) -> None:
    where = Endpoint(connection_string=azurite.connection_string)
    for _ in range(2):
        with pytest.raises(NoStoreError, match="there is no table 'nowhere1' with orders at"):
            await connect_existing(where, "nowhere1")


@asynccontextmanager
async def answering(**members: Any) -> AsyncIterator[str]:
    """A server with one answer for all; yields its address."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(**members)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/a"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_an_address_that_is_not_table_storage_is_reported(status: int) -> None:
    async with answering(status=status, text="<html>Nothing to see</html>") as address:
        sentence = f"{address} does not answer as Table Storage does .*: check the address"
        with pytest.raises(NoStoreError, match=sentence):
            await connect_existing(Endpoint(connection_string=KEY.format(address)), "orders")


@pytest.mark.parametrize("date", ["", "now", "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"])
async def test_a_service_whose_date_is_none_tells_no_time(date: str) -> None:
    async with answering(status=404, headers={"Date": date}) as address:
        where = Endpoint(connection_string=KEY.format(address))
        assert await service_time(where, "orders") is None


async def test_a_table_of_a_newer_format_is_not_worked_on(azurite: Azurite) -> None:
    table = new_table()
    first = TableStore.connect(azurite.connection_string, table)
    await first.commit(cases.submitted("o"))
    await first.close()
    async with TableClient.from_connection_string(azurite.connection_string, table) as client:
        meta = await client.get_entity(keys.META_PARTITION, keys.META_ROW)
        await client.update_entity({**meta, "Format": FORMAT + 1})
    store = TableStore.connect(azurite.connection_string, table)
    with pytest.raises(StoreMismatchError, match="format 2, and this version knows up to 1"):
        await store.load("o")
    await store.close()
    with pytest.raises(NoStoreError, match="format 2, and this version knows up to 1"):
        await connect_existing(Endpoint(azurite.connection_string), table)
