"""The table of the store: its name, shards and rows, its price, its complaints; and opening it.

What an operator's tool opens must be there already, and be a state store.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import keys
from sas.adapters.tables.store import (
    AZURITE,
    NoStoreError,
    TableStore,
    connect_existing,
    service_time,
)
from sas.adapters.tables.table import RetryBudget
from sas.domain.change import DeferredDue
from sas.domain.ids import key_time, shard_of
from sas.ports import FORMAT, HeldMessage, Message, StoreMismatchError, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW
from tests.contract.conftest import new_table

KEY = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint={};"


async def test_a_table_made_with_another_number_of_shards_is_refused(azurite: Azurite) -> None:
    table = new_table()
    first = TableStore.connect(azurite.connection_string, table, 16)
    await first.commit(cases.submitted("order-1"))
    other = TableStore.connect(azurite.connection_string, table, 8)
    sentence = "created with 16 shards, this start asks for 8.*Set the number of shards back to 16"
    for ask in (other.load("order-1"), other.finished(1), other.due("00", NOW, 1)):
        with pytest.raises(StoreMismatchError, match=sentence):
            await ask
    await first.close()
    await other.close()


async def test_sixteen_first_uses_at_once_make_one_table(azurite: Azurite) -> None:
    table = new_table()
    stores = [TableStore.connect(azurite.connection_string, table) for _ in range(4)]
    ids = [f"order-{number}" for number in range(16)]
    commits = [stores[n % 4].commit(cases.submitted(i)) for n, i in enumerate(ids)]
    await asyncio.gather(*commits)
    assert [order.seq for order in await asyncio.gather(*map(stores[0].load, ids)) if order] == (
        [1] * 16
    )
    for store in stores:
        await store.close()


async def test_rows_keep_the_names_of_the_pattern(azurite: Azurite) -> None:
    table = new_table()
    store = TableStore.connect(azurite.connection_string, table)
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    shard = shard_of("order-1", 16)
    async with TableClient.from_connection_string(azurite.connection_string, table) as client:
        state = await client.get_entity(shard, keys.state("order-1"))
        step = await client.get_entity(shard, keys.step("order-1", 0))
        blocked = await client.get_entity(shard, keys.step("order-1", 1))
        meta = await client.get_entity(keys.META_PARTITION, keys.META_ROW)
        names = [row["RowKey"] async for row in client.list_entities()]
    complete_by = key_time(NOW + 60 * cases.SECOND)
    five = {
        "OrderID": "order-1",
        "LockedBy": "scheduler-1",
        "CompleteBy": complete_by,
        "ProcessState": "Processing",
        "FailureCount": 0,
    }
    assert five.items() <= state.items()
    assert five.items() <= step.items()
    assert "LockedBy" not in blocked
    assert blocked["ProcessState"] == "Pending"
    assert (meta["Shards"], meta["Format"]) == (16, 1)
    due = f"due|{complete_by}|order-1|00|{order.steps[0].epoch}"
    assert [name for name in names if name.startswith("due|")] == [due]
    assert "order|order-1|b|journal|0000000002" in names
    await store.close()


async def test_a_transition_costs_one_request_and_a_load_one(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table())
    await store.open()
    spent: list[int] = [store.requests]

    def cost() -> int:
        spent.append(store.requests)
        return spent[-1] - spent[-2]

    order = await store.commit(cases.submitted("order-1", cause="orders:1"))
    assert cost() == 1
    await store.load("order-1")
    assert cost() == 1
    await store.recorded("order-1", "scheduler:1")
    assert cost() == 1
    await store.recorded("order-1", "orders:1")
    assert cost() == 2
    written = store.table.meter.entities_written
    await store.commit(cases.claimed(order))
    assert cost() == 1
    assert store.table.meter.entities_written - written == 6
    await store.due(shard_of("order-1", 16), NOW, 100)
    assert cost() == 1
    await store.close()


async def test_a_store_that_is_not_there_is_named_with_what_to_check() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = listener.getsockname()[1]
        retry_budget = RetryBudget(attempts=2, wait_s=0.01)
        address = AZURITE.replace("10002", str(port))
        store = TableStore.connect(address, "orders", retry_budget=retry_budget)
        sentence = rf"127.0.0.1:{port}/devstoreaccount1/orders did not answer .* Azurite\) runs"
        with pytest.raises(StoreUnavailableError, match=sentence):
            await store.load("order-1")
        with pytest.raises(StoreUnavailableError, match=sentence):
            await store.commit(cases.submitted("order-1"))
        await store.close()


@pytest.mark.filterwarnings(
    "ignore:Testing an element's truth value:DeprecationWarning"  # the SDK's, reading XML errors
)
async def test_a_wrong_key_is_distinguished_from_a_busy_store_and_not_tried_again(
    azurite: Azurite,
) -> None:
    address = azurite.connection_string.replace("AccountKey=Eby8", "AccountKey=AAAA")
    store = TableStore.connect(address, new_table())
    with pytest.raises(StoreUnavailableError, match="Check the key in the connection string"):
        await store.load("order-1")
    assert store.requests == 1
    await store.close()


async def test_a_table_that_is_deleted_under_way_is_reported_as_gone(azurite: Azurite) -> None:
    table = new_table()
    store = TableStore.connect(azurite.connection_string, table)
    order = await store.commit(cases.submitted("order-1"))
    async with TableClient.from_connection_string(azurite.connection_string, table) as client:
        await client.delete_table()
    with pytest.raises(StoreUnavailableError, match="The table is gone"):
        await store.load("order-1")
    with pytest.raises(StoreUnavailableError, match="The table is gone"):
        await store.commit(cases.claimed(order))
    await store.close()


async def test_endpoints_are_read_as_settings_give_them(azurite: Azurite) -> None:
    store = TableStore.connect(Endpoint(azurite.connection_string), new_table())
    assert await store.load("order-1") is None
    await store.close()
    with pytest.raises(ValueError, match="needs a connection string or an address"):
        TableStore.connect(Endpoint())
    emulator = TableStore.connect("UseDevelopmentStorage=true")
    assert emulator.table.client.url.startswith("http://127.0.0.1:10002/devstoreaccount1")
    await emulator.close()


async def test_an_address_alone_is_asked_as_the_managed_identity() -> None:
    address = Endpoint(address="https://example.table.core.windows.net", client_id="0000-1111")
    store = TableStore.connect(address, "orders")
    assert store.table.client.url == "https://example.table.core.windows.net"
    assert type(store.table.client.credential).__name__ == "ManagedIdentityCredential"
    await store.close()


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


async def test_an_address_that_is_not_table_storage_is_reported() -> None:
    for status in (400, 404, 405, 501):
        async with answering(status=status, text="<html>Nothing to see</html>") as address:
            sentence = f"{address} does not answer as Table Storage does .*: check the address"
            with pytest.raises(NoStoreError, match=sentence):
                await connect_existing(Endpoint(connection_string=KEY.format(address)), "orders")


async def test_a_service_whose_date_is_none_tells_no_time() -> None:
    for date in ("", "now", "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"):
        async with answering(status=404, headers={"Date": date}) as address:
            where = Endpoint(connection_string=KEY.format(address))
            assert await service_time(where, "orders") is None, date


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
