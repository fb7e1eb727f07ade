"""The host does what host.json says about receiving, retrying and HTTP."""

import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devstack.functions.host import Host
from devstack.functions.hostjson import parse_host_json
from devstack.functions.service_bus import Clients
from devstack.servicebus import Broker
from devstack.tests.host_kit import put, until

APP = """
import typing
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
Msg = func.ServiceBusMessage
seen = []

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="one")
async def one(msg: Msg) -> None:
    seen.append(msg.delivery_count)

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="own",
                               auto_complete_messages=True)
async def own(msg: Msg) -> None:
    seen.append(msg.delivery_count)

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="batch",
                               cardinality=func.Cardinality.MANY)
async def batch(msg: typing.List[Msg]) -> None:
    seen.append(len(msg))
"""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["own", "batch"]) as broker:
        broker.create_queue("one", lock_duration_s=0.5, max_delivery_count=1000)
        yield broker


def host_of(app_dir: Path, broker: Broker, only: str, **extensions: Any) -> Host:
    (app_dir / "function_app.py").write_text(APP)
    config = {"version": "2.0", "extensions": extensions}
    (app_dir / "host.json").write_text(json.dumps(config))
    return Host(app_dir, settings={"SB": broker.connection_string}, only=[only], drain_s=60)


def seen() -> list[Any]:
    notes: list[Any] = sys.modules["function_app"].seen
    return notes


async def test_without_auto_complete_a_message_stays_until_its_lock_ends_and_comes_again(
    tmp_path: Path, broker: Broker
) -> None:
    options = {"autoCompleteMessages": False}
    async with host_of(tmp_path, broker, "one", serviceBus=options):
        put(broker, "one", "x")
        await until(lambda: seen()[:2] == [1, 2])
        assert broker.counts("one").active == 1


async def test_a_trigger_may_say_otherwise_than_the_file(tmp_path: Path, broker: Broker) -> None:
    options = {"autoCompleteMessages": False}
    async with host_of(tmp_path, broker, "own", serviceBus=options):
        put(broker, "own", "x")
        await until(lambda: broker.counts("own").active == 0)
        assert seen() == [1]


async def test_a_batch_waits_for_its_least_size_up_to_its_time(
    tmp_path: Path, broker: Broker
) -> None:
    options = {"minMessageBatchSize": 3, "maxBatchWaitTime": "00:00:01", "maxMessageBatchSize": 4}
    async with host_of(tmp_path, broker, "batch", serviceBus=options):
        began = time.monotonic()
        put(broker, "batch", *"xx")
        await until(lambda: bool(seen()))
        assert seen() == [2]
        assert time.monotonic() - began >= 0.9
        put(broker, "batch", *"xxxxxxxxx")
        await until(lambda: sum(seen()) == 11)
        assert max(seen()) == 4


async def test_the_retry_options_reach_the_client() -> None:
    retry = {
        "mode": "fixed",
        "tryTimeout": "00:00:07",
        "delay": "00:00:02",
        "maxDelay": "00:00:09",
        "maxRetries": 5,
    }
    bus = {"clientRetryOptions": retry}
    config = parse_host_json({"version": "2.0", "extensions": {"serviceBus": bus}})
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;"
    clients = Clients(config.service_bus)
    client_config = clients.client(text)._config
    assert client_config.try_timeout == 7
    assert (
        client_config.retry_total,
        client_config.retry_backoff_factor,
        client_config.retry_backoff_max,
    ) == (5, 2, 9)
    assert str(client_config.retry_mode).lower().endswith("fixed")
    await clients.close()
