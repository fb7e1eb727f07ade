"""What one order costs in log records and telemetry, under Microsoft's own worker core.

The worker is a process that sees the packages of requirements.txt, as they are deployed, and none
of the development environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from devstack.functions import metadata
from devstack.tests import worker_core
from devstack.tests.sdk_kit import SHORT_PAUSES
from devstack.tests.worker_core import packed
from tests.functions_rig import ROOT, SHOP, Rig, own_app, rig
from tests.infra.kit import SPAN_BYTES_AN_ORDER_MAX
from tests.ingestion import ingesting

pytestmark = [SHORT_PAUSES, pytest.mark.long]
ORDERS = 3
RECORDS_AN_ORDER_MAX = 1
LOG_BYTES_AN_ORDER_MAX = 200
SPANS_AN_ORDER = 11
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
class Worker:
    """The app in a process of its own. It gets the messages of its queues."""

    process: asyncio.subprocess.Process

    async def answer(self, work: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work).encode() + b"\n")
        return await self._line()

    async def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 120)
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        reply = await self._line()
        await asyncio.wait_for(self.process.wait(), 60)
        return reply


@pytest.fixture(scope="module")
def packages() -> Path:
    """Return the folder with the packages that are deployed; make builds it if need be."""
    pytest.importorskip("azure_functions_runtime")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    subprocess.run(
        ["make", "build/package/.ready"],  # noqa: S607  # the make that runs the tests
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return ROOT / "build" / "package" / "app" / ".python_packages" / "lib" / "site-packages"


@asynccontextmanager
async def worker(folder: Path, packages: Path, settings: dict[str, str]) -> AsyncIterator[Worker]:
    app_dir = own_app(folder)
    for name in ("sas", "tests"):
        (app_dir / name).symlink_to(ROOT / name)
    names = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(worker_core.__file__), str(app_dir), str(packages)),
        env={},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024,
    )
    try:
        core = Worker(process)
        index = await core.answer(names | settings)
        assert set(FUNCTIONS.values()) <= set(index["indexed"]), index
        assert index["capabilities"].get("WorkerOpenTelemetryEnabled") == "true"
        yield core
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def work_off(running: Rig, client: ServiceBusClient, core: Worker) -> None:
    """Hand every message to its function until no queue has one."""
    receivers = {queue: client.get_queue_receiver(queue) for queue in FUNCTIONS}
    async with asyncio.timeout(300):
        while busy := [queue for queue in FUNCTIONS if running.broker.counts(queue).active]:
            for message in await receivers[busy[0]].receive_messages(50, max_wait_time=60):
                datum, properties = metadata.single(message, binary=True)
                packed_properties = {key: packed(value) for key, value in properties.items()}
                work = {"id": 0, "function": FUNCTIONS[busy[0]], "datum": packed(datum)}
                answer = await core.answer(work | {"metadata": packed_properties})
                assert answer["status"] == "Success", answer
                await receivers[busy[0]].complete_message(message)
    await asyncio.gather(*(receiver.close() for receiver in receivers.values()))


async def test_an_order_makes_few_records_and_few_bytes_under_the_real_worker(
    tmp_path: Path, packages: Path
) -> None:
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
        async with worker(tmp_path / "app", packages, settings) as core:
            for number in range(ORDERS):
                await running.submit(f"L-{number}")
            await work_off(running, running.client, core)
            kinds = await running.kinds("L-0", SHOP)
            assert kinds[-1] == "completed"
            report = await core.end()
    records = [f"{name} {text}" for name, text in report["records"]]
    theirs = [record for record in records if record.startswith("azure")]
    size = sum(len(record.encode()) for record in records)
    assert theirs == []
    assert len(records) <= RECORDS_AN_ORDER_MAX * ORDERS, records
    assert size <= LOG_BYTES_AN_ORDER_MAX * ORDERS
    items, sizes = ingestion.items, ingestion.sizes
    assert items["RequestData"] + items["RemoteDependencyData"] == SPANS_AN_ORDER * ORDERS
    spans = sizes["RequestData"] + sizes["RemoteDependencyData"]
    assert spans <= SPAN_BYTES_AN_ORDER_MAX * ORDERS
    assert items["MessageData"] == 0, "an order that goes well writes no log line of ours"
    assert 0 < sizes["MetricData"] <= METRIC_BYTES_MAX * items["MetricData"]
