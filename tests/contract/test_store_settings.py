"""The store on Table Storage as it is set up: its table, its rows, its price, its complaints."""

from __future__ import annotations

import asyncio
import socket

import pytest
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import keys
from sas.adapters.tables.store import AZURITE, TableStore
from sas.adapters.tables.table import RetryBudget
from sas.domain.ids import key_time, shard_of
from sas.ports import StoreMismatchError, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW
from tests.contract.conftest import new_table


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


async def test_orders_are_spread_over_the_configured_number_of_shards(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table(), 3)
    assert list(store.shards) == ["00", "01", "02"]
    for number in range(9):
        await store.commit(cases.submitted(f"order-{number}"))
    counts = {s: len(await store.due(s, NOW + 3600 * cases.SECOND, 99)) for s in store.shards}
    expected = [shard_of(f"order-{number}", 3) for number in range(9)]
    assert counts == {s: expected.count(s) for s in store.shards}
    await store.close()


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
