"""`prefetchCount` of host.json: messages wait in the host's own buffer, locked."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devstack.functions.host import Host
from devstack.servicebus import Broker
from devstack.tests.host_kit import put, until

APP = """
import asyncio, typing
import azure.functions as func
app = func.FunctionApp()
Msg = func.ServiceBusMessage
seen = []
gate = asyncio.Event()
fails = []

def queue(name, **more):
    return app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name=name, **more)

@queue("plain")
async def plain(msg: Msg) -> None:
    await gate.wait()
    seen.append((msg.get_body().decode(), msg.delivery_count))

@queue("batch", cardinality=func.Cardinality.MANY)
async def batch(msg: typing.List[Msg]) -> None:
    seen.append([one.get_body().decode() for one in msg])

@queue("lots", is_sessions_enabled=True, cardinality=func.Cardinality.MANY)
async def lots(msg: typing.List[Msg]) -> None:
    await gate.wait()
    seen.append([one.session_id + one.get_body().decode() for one in msg])
    if fails and len(seen) == 1:
        raise ValueError("the first batch fails")

@queue("lanes", is_sessions_enabled=True)
async def lanes(msg: Msg) -> None:
    await gate.wait()
    seen.append(msg.session_id + msg.get_body().decode())
"""
OPTIONS = {
    "prefetchCount": 20,
    "maxConcurrentCalls": 2,
    "maxConcurrentSessions": 1,
    "maxMessageBatchSize": 4,
    "sessionIdleTimeout": "00:00:01",
}
BODIES = [str(number) for number in range(30)]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["plain", "batch"]) as broker:
        broker.create_queue("lanes", requires_session=True)
        broker.create_queue("lots", requires_session=True)
        yield broker


def host_of(app_dir: Path, broker: Broker, only: str, **options: Any) -> Host:
    (app_dir / "function_app.py").write_text(APP)
    config = {"version": "2.0", "extensions": {"serviceBus": OPTIONS | options}}
    (app_dir / "host.json").write_text(json.dumps(config))
    settings = {"SB": broker.connection_string}
    return Host(app_dir, settings=settings, only=[only], drain_s=60)


def app() -> Any:
    return sys.modules["function_app"]


async def test_the_buffer_fills_beyond_the_calls_and_each_message_is_handled_once(
    tmp_path: Path, broker: Broker
) -> None:
    async with host_of(tmp_path, broker, "plain") as host:
        put(broker, "plain", *BODIES)
        await until(lambda: broker.counts("plain").locked >= 20)
        await until(lambda: "plain" in host.counts and host.counts["plain"].running == 2)
        app().gate.set()
        await until(lambda: broker.counts("plain").active == 0)
        assert sorted(app().seen, key=lambda entry: int(entry[0])) == [(b, 1) for b in BODIES]


async def test_what_waits_in_the_buffer_is_free_and_uncounted_when_the_host_stops(
    tmp_path: Path, broker: Broker
) -> None:
    async with host_of(tmp_path, broker, "plain") as host:
        put(broker, "plain", *BODIES)
        await until(lambda: broker.counts("plain").locked >= 20)
        await until(lambda: "plain" in host.counts and host.counts["plain"].running == 2)
        asyncio.get_running_loop().call_later(0.2, app().gate.set)
        await host.stop()
    counts = broker.counts("plain")
    assert (counts.locked, counts.active) == (0, 28)
    async with host_of(tmp_path, broker, "plain"):
        app().gate.set()
        await until(lambda: broker.counts("plain").active == 0)
        assert {count for _, count in app().seen} == {1}
        assert len(app().seen) == 28


async def test_batches_are_taken_from_the_buffer_in_order(tmp_path: Path, broker: Broker) -> None:
    async with host_of(tmp_path, broker, "batch"):
        put(broker, "batch", *BODIES)
        await until(lambda: broker.counts("batch").active == 0)
        assert [body for batch in app().seen for body in batch] == BODIES
        assert max(len(batch) for batch in app().seen) <= 4


@pytest.mark.parametrize("prefetch", [0, 20])
async def test_batches_of_a_session_are_of_one_session_and_in_order(
    tmp_path: Path, broker: Broker, prefetch: int
) -> None:
    async with host_of(tmp_path, broker, "lots", prefetchCount=prefetch):
        for lane in ("a", "b"):
            put(broker, "lots", *BODIES[:6], session_id=lane)
        app().gate.set()
        await until(lambda: broker.counts("lots").active == 0)
        batches = app().seen
        assert [body for batch in batches for body in batch] == [
            lane + body for lane in ("a", "b") for body in BODIES[:6]
        ]
        assert all(len({body[0] for body in batch}) == 1 for batch in batches)
        assert max(len(batch) for batch in batches) in {2, 3, 4}


async def test_a_batch_of_a_session_that_failed_comes_again_before_what_follows_it(
    tmp_path: Path, broker: Broker
) -> None:
    async with host_of(tmp_path, broker, "lots", prefetchCount=0):
        put(broker, "lots", *BODIES[:6], session_id="a")
        app().fails.append(True)
        app().gate.set()
        await until(lambda: broker.counts("lots").active == 0)
        failed, *batches = app().seen
        assert len(failed) > 1
        assert [body for batch in batches for body in batch] == ["a" + body for body in BODIES[:6]]
