"""Small apps that know nothing of this project see here what they would see in Azure."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from yarl import URL

from devstack.functions.host import Host
from devstack.functions.settings import HostError
from devstack.servicebus import Broker, QueueProperties
from devstack.tests.host_kit import until

HEAD = """
import threading, time, typing
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
Msg = func.ServiceBusMessage
seen, gate = [], threading.Event()
def queue(name, **more):
    return app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name=name, **more)
def sends(name):
    return app.service_bus_queue_output(arg_name=name, connection="SB", queue_name="out")
"""
SLEEPS = """
@queue("in")
def sleeps(msg: str) -> None:
    seen.append(msg)
    if msg == "for ever":
        gate.wait(300)
"""
WRITES = """
@queue("in")
@sends("text")
@sends("binary")
def writes(msg: str, text: func.Out[str], binary: func.Out[bytes]) -> None:
    text.set("a text")
    binary.set(b"some bytes")
"""
READS = """
@queue("in")
def reads(msg: Msg, context: func.Context) -> None:
    seen.append((msg.application_properties, context.trace_context))

@queue("other", cardinality=func.Cardinality.MANY)
def batch(msg: typing.List[Msg], context: func.Context) -> None:
    seen.append((msg[0].application_properties, context.trace_context))
"""
WEB = """
@app.route("parts/{name}/{*rest}")
def part(req: func.HttpRequest, context: func.Context) -> str:
    return str([*req.route_params.values(), context.trace_context.trace_parent])
"""
REMOTE = (
    "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=R;SharedAccessKey=s3cret"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-00"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    once = QueueProperties(max_delivery_count=1)
    async with Broker(dict.fromkeys(("in", "other", "out"), once)) as broker:
        yield broker


def host_of(app_dir: Path, code: str, broker: Broker | None = None, **options: Any) -> Host:
    (app_dir / "function_app.py").write_text(HEAD + code)
    config = {"version": "2.0", **options.pop("config", {})}
    (app_dir / "host.json").write_text(json.dumps(config))
    settings = {"SB": broker.connection_string} if broker else {}
    return Host(app_dir, settings=settings | options.pop("settings", {}), drain_s=1, **options)


def seen() -> list[Any]:
    notes: list[Any] = sys.modules["function_app"].seen
    return notes


async def send(broker: Broker, queue: str, *messages: ServiceBusMessage) -> None:
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages([*messages])


async def test_a_sync_function_past_its_timeout_does_not_keep_its_thread_from_the_next(
    tmp_path: Path, broker: Broker
) -> None:
    settings = {"PYTHON_THREADPOOL_THREAD_COUNT": "1"}
    bus = {"serviceBus": {"maxConcurrentCalls": 1}}
    config = {"functionTimeout": "00:00:01", "extensions": bus}
    async with host_of(tmp_path, SLEEPS, broker, settings=settings, config=config):
        await send(broker, "in", ServiceBusMessage("for ever"))
        try:
            await until(lambda: seen() == ["for ever"])
            await send(broker, "in", ServiceBusMessage("next"))
            await until(lambda: "next" in seen())
        finally:
            sys.modules["function_app"].gate.set()


async def test_an_output_carries_the_content_type_of_its_kind(
    tmp_path: Path, broker: Broker
) -> None:
    async with (
        host_of(tmp_path, WRITES, broker),
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("out") as receiver,
    ):
        await send(broker, "in", ServiceBusMessage("x"))
        content_types: dict[str, str | None] = {}
        async with asyncio.timeout(120):
            while len(content_types) < 2:
                for message in await receiver.receive_messages(2, max_wait_time=5):
                    content_types[str(message)] = message.content_type
        assert content_types == {"a text": "text/plain", "some bytes": "application/octet-stream"}


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
async def test_a_function_gets_a_span_of_its_own_in_the_trace_of_its_message(
    tmp_path: Path, broker: Broker, name: str
) -> None:
    async with host_of(tmp_path, READS, broker):
        await send(broker, "in", ServiceBusMessage("x", application_properties={name: PARENT}))
        await until(lambda: len(seen()) == 1)
        await send(broker, "in", ServiceBusMessage("y", application_properties={name: "nonsense"}))
        await send(broker, "other", ServiceBusMessage("z"))
        await until(lambda: len(seen()) == 3)
        of_message, *new_parents = (trace.trace_parent for _, trace in seen())
    assert re.fullmatch(rf"00-{TRACE}-(?!00f067aa0ba902b7)[0-9a-f]{{16}}-00", of_message)
    for parent in new_parents:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", parent)
    assert len({parent.split("-")[1] for parent in new_parents}) == 2


async def test_an_encoded_slash_in_a_route_parameter_stays_a_part_of_it(tmp_path: Path) -> None:
    async with host_of(tmp_path, WEB) as host, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{host.http_port}/api/parts/a%2Fb%20c/d/e%2Ff"
        async with session.get(URL(url, encoded=True), headers={"traceparent": PARENT}) as answer:
            assert answer.status == 200
            text = await answer.text()
    assert text.startswith(f"['a%2Fb c', 'd/e%2Ff', '00-{TRACE}-")


async def test_all_functions_that_cannot_run_are_named_at_once(tmp_path: Path) -> None:
    code = """
@app.blob_trigger(arg_name="blob", path="a/{name}", connection="S")
def of_a_blob(blob): ...

@app.queue_trigger(arg_name="item", queue_name="q", connection="S")
def of_a_storage_queue(item): ...

@queue("%NOWHERE%")
def unset(msg): ...
"""
    with pytest.raises(HostError) as refusal:
        await host_of(tmp_path, code).start()
    assert [line.split(":")[0] for line in str(refusal.value).splitlines()] == [
        "Function of_a_blob",
        "Function of_a_storage_queue",
        "The trigger of function unset needs the setting 'NOWHERE'",
    ]


async def test_all_mistakes_of_the_app_are_reported_at_once(tmp_path: Path) -> None:
    code = '@queue("a")\ndef one(other): ...\n\n@queue("b")\ndef two(msg: int): ...\n'
    with pytest.raises(HostError) as refusal:
        await host_of(tmp_path, code).start()
    assert [line.split(":")[0] for line in str(refusal.value).splitlines()] == [
        "Function one",
        "Function two",
    ]


@pytest.mark.xfail(strict=True, reason="routes are compiled only when HTTP starts (host.py, 2)")
async def test_a_wrong_route_is_found_by_the_check(tmp_path: Path) -> None:
    code = '@app.route("items/{id")\ndef items(req: func.HttpRequest) -> str: ...\n'
    with pytest.raises(HostError, match="cannot be read at"):
        await host_of(tmp_path, code).check()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (
            {"SB__fullyQualifiedNamespace": "contoso.servicebus.windows.net"},
            ["SB__fullyQualifiedNamespace names contoso.servicebus.windows.net"],
        ),
        (
            {"B": "BlobEndpoint=https://c.blob.core.windows.net;SharedAccessSignature=s3cret",
             "A": REMOTE},
            ["A names sb://contoso.servicebus.windows.net/ and B names https://c.blob.core.windows.net"],
        ),
        (
            {"SAS_TABLES__endpoint": "https://c.table.core.usgovcloudapi.net", "COSMOS":
             "https://c.documents.azure.com:443/", "SQL": "Server=tcp:c.database.windows.net,1433"},
            ["COSMOS names c.documents.azure.com", "SQL names c.database.windows.net",
             "SAS_TABLES__endpoint names c.table.core.usgovcloudapi.net"],
        ),
    ],
)  # fmt: skip
async def test_a_real_connection_in_the_local_settings_is_refused_unless_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], named: list[str]
) -> None:
    for name in values:  # the environment would win
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": values}))
    code = '@app.route("x")\ndef x(req: func.HttpRequest) -> str:\n    return "x"\n'
    with pytest.raises(HostError, match="this is not on this machine") as refusal:
        await host_of(tmp_path, code).start()
    assert all(word in str(refusal.value) for word in [*named, "--allow-remote"])
    assert "s3cret" not in str(refusal.value)
    async with host_of(tmp_path, code, allow_remote=True) as host:
        assert host.http_port


async def test_local_connections_and_overridden_ones_are_fine(
    tmp_path: Path, broker: Broker
) -> None:
    values = {
        "SB": REMOTE,
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "OTHER": "AccountName=a;AccountKey=k;TableEndpoint=http://127.0.0.1:10002/a",
        "CONTAINER": "Endpoint=sb://emulator;SharedAccessKeyName=R;SharedAccessKey=K;"
        "UseDevelopmentEmulator=true",
        "TELEMETRY": "InstrumentationKey=1;IngestionEndpoint=https://in.azure.com/",
        "DOCS": "https://learn.microsoft.com/azure/core.windows.net",
    }
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": values}))
    async with host_of(tmp_path, SLEEPS, broker):  # the broker's connection overrides SB
        await send(broker, "in", ServiceBusMessage("x"))
        await until(lambda: seen() == ["x"])


async def test_a_real_connection_in_the_environment_is_refused_where_a_function_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SB", REMOTE)
    with pytest.raises(HostError, match="this is not on this machine"):
        await host_of(tmp_path, SLEEPS).start()
