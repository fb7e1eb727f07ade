"""Orders and messages that were stored before sagas were functions: the sample plays them on.

``recorded_orders.json`` has the rows of a table and the requests in queues, as instances wrote them
whose agents were classes. Three orders wait for their first request, three for their second.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.data.tables.aio import TableClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.azurite import Azurite
from devstack.functions.host import Host
from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from samples.services.remote import RemoteServices
from sas.adapters.tables.store import TableStore
from tests.indexed_functions import ROOT, local_settings

RECORDED = Path(__file__).with_name("recorded_orders.json").read_text(encoding="utf-8")
WORKFLOWS = ("order", "order-delivered", "order-with-care")
ORDERS = [f"{name}-{stage}" for name in WORKFLOWS for stage in ("first", "later")]
TABLE = "recorded"


async def test_orders_that_were_stored_before_sagas_were_functions_go_on_to_their_end() -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT")
    recorded = json.loads(RECORDED.replace("2026-11-27T", tomorrow))  # the end of the time allowed
    async with AsyncExitStack() as stack:
        azurite = stack.enter_context(Azurite())
        queues = (ROOT / "infra" / "emulator" / "Config.json").read_text(encoding="utf-8")
        broker = await stack.enter_async_context(Broker(parse_config(queues)))
        remote = await stack.enter_async_context(RemoteServices())
        table = TableClient.from_connection_string(azurite.connection_string, TABLE)
        async with table:
            await table.create_table()
            for entity in recorded["entities"]:
                await table.create_entity(entity)
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        await stack.enter_async_context(client)
        for queue, messages in recorded["messages"].items():
            async with client.get_queue_sender(queue) as sender:
                for message in messages:
                    copy = ServiceBusMessage(message["body"], message_id=message["id"])
                    await sender.send_messages(copy)
        settings = {
            **local_settings(),
            "ServiceBus": broker.connection_string,
            "AzureWebJobsStorage": azurite.connection_string,
            "SAS_TABLE": TABLE,
            **{f"ORDERS_{name.upper()}_URL": url for name, url in remote.urls.items()},
        }
        host = Host(ROOT, settings=settings)
        await host.start()
        store = TableStore.connect(azurite.connection_string, TABLE)
        try:
            states = {"": ""}
            async with asyncio.timeout(120):
                while set(states.values()) != {"Processed"}:
                    await asyncio.sleep(0.2)
                    orders = [await store.load(order_id) for order_id in ORDERS]
                    states = {o.order_id: o.process_state.value for o in orders if o is not None}
        finally:
            await store.close()
            await host.stop()
    assert sorted(states) == sorted(ORDERS)
