"""What one order costs in log records and telemetry, under Microsoft's own worker core."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from azure.servicebus.aio import ServiceBusClient

from devstack.functions import metadata
from devstack.tests.integration.test_host_worker_core import packed
from tests.functions_rig import ROOT, SHOP, Rig, own_app, rig

ORDERS = 10
RECORDS_AN_ORDER_MAX = 1
LOG_BYTES_AN_ORDER_MAX = 200
SPANS_AN_ORDER = 11
SPAN_BYTES_AN_ORDER_MAX = 9_700
METRIC_BYTES_MAX = 1_000
"""For one metric with one set of attributes. It is exported every ten seconds if it changed."""
FUNCTIONS = {
    "orders": "submission",
    "scheduler": "scheduler",
    "agent-inventory": "agent_inventory",
    "agent-payment": "agent_payment",
    "agent-shipping": "agent_shipping",
}


@dataclass
class Ingestion:
    """Stands for Application Insights: takes telemetry and keeps it."""

    endpoint: str = ""
    sizes: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)

    async def track(self, request: web.Request) -> web.Response:
        body = await request.read()
        envelopes = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        for envelope in envelopes:
            kind = envelope["data"]["baseType"]
            self.items[kind] += 1
            self.sizes[kind] += len(json.dumps(envelope))
        count = len(envelopes)
        return web.json_response({"itemsReceived": count, "itemsAccepted": count, "errors": []})


@asynccontextmanager
async def ingesting() -> AsyncIterator[Ingestion]:
    ingestion = Ingestion()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", ingestion.track)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ingestion.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield ingestion
    finally:
        await runner.cleanup()


@dataclass
class Worker:
    """The app in a process of its own. It gets the messages of its queues."""

    process: asyncio.subprocess.Process

    async def answer(self, work: object | None = None) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if work is not None:
            self.process.stdin.write(json.dumps(work).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), 120)
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        reply = await self.answer()
        await asyncio.wait_for(self.process.wait(), 60)
        return reply


@asynccontextmanager
async def worker(folder: Path, settings: dict[str, str]) -> AsyncIterator[Worker]:
    names = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.worker_core_app", str(own_app(folder))),
        cwd=ROOT,
        env={**os.environ, **names, **settings},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024,
    )
    try:
        core = Worker(process)
        assert set(FUNCTIONS.values()) <= set((await core.answer())["indexed"])
        yield core
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def work_off(running: Rig, client: ServiceBusClient, core: Worker) -> None:
    """Hand every message to its function until no queue has one."""
    receivers = {queue: client.get_queue_receiver(queue) for queue in FUNCTIONS}
    moved = True
    while moved:
        moved = False
        for queue, name in FUNCTIONS.items():
            while running.broker.counts(queue).active:
                for message in await receivers[queue].receive_messages(50, max_wait_time=60):
                    datum, properties = metadata.single(message, binary=True)
                    packed_properties = {key: packed(value) for key, value in properties.items()}
                    work = {"function": name, "datum": packed(datum), "metadata": packed_properties}
                    assert await core.answer(work) == {"status": "Success"}
                    await receivers[queue].complete_message(message)
                    moved = True
    await asyncio.gather(*(receiver.close() for receiver in receivers.values()))


async def test_an_order_makes_few_records_and_few_bytes_under_the_real_worker(
    tmp_path: Path,
) -> None:
    pytest.importorskip("azure_functions_runtime")
    async with rig() as running, ingesting() as ingestion:
        key = "00000000-0000-0000-0000-000000000001"
        settings = {
            **running.settings,
            "SAS_TELEMETRY": "azuremonitor",
            "PYTHON_ENABLE_OPENTELEMETRY": "true",
            "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
            "APPLICATIONINSIGHTS_CONNECTION_STRING": (
                f"InstrumentationKey={key};IngestionEndpoint={ingestion.endpoint}"
            ),
        }
        async with worker(tmp_path / "app", settings) as core:
            for number in range(ORDERS):
                await running.submit(f"L-{number}")
            await work_off(running, running.client, core)
            kinds = await running.kinds("L-0", SHOP)
            assert kinds[-1] == "completed"
            report = await core.end()
    records = [f"{name} {text}" for name, text in report["records"]]
    theirs = [record for record in records if record.startswith("azure")]
    size = sum(len(record.encode()) for record in records)
    assert report["capabilities"].get("WorkerOpenTelemetryEnabled") == "true"
    assert theirs == []
    assert len(records) <= RECORDS_AN_ORDER_MAX * ORDERS, records
    assert size <= LOG_BYTES_AN_ORDER_MAX * ORDERS
    items, sizes = ingestion.items, ingestion.sizes
    assert items["RequestData"] + items["RemoteDependencyData"] == SPANS_AN_ORDER * ORDERS
    spans = sizes["RequestData"] + sizes["RemoteDependencyData"]
    assert spans <= SPAN_BYTES_AN_ORDER_MAX * ORDERS
    assert items["MessageData"] == 0, "an order that goes well writes no log line of ours"
    assert 0 < sizes["MetricData"] <= METRIC_BYTES_MAX * items["MetricData"]
