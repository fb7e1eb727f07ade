"""One order through broker, Azurite and a host process, its trace read where OTLP brings it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from devstack.stack import Stack
from samples.remote_services import Faults, RemoteServices
from sas.client import NewOrder, OrdersClient
from tests.functions_rig import SHOP, addresses, northwind, own_app, until
from tests.telemetry_kit import recording, trace_of

METRICS = {
    *("sas.orders", "sas.step.duration", "sas.agent.attempts"),
    *("sas.storage.requests", "sas.bus.messages", "sas.sweep.age"),
}

AGENTS = ("inventory", "payment", "shipping")


@dataclass(kw_only=True)
class Collector:
    """Takes OTLP over HTTP and keeps it."""

    endpoint: str = ""
    spans: list[Any] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    logs: list[Any] = field(default_factory=list)

    async def traces(self, request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        self.spans += [s for r in export.resource_spans for c in r.scope_spans for s in c.spans]
        return web.Response()

    async def numbers(self, request: web.Request) -> web.Response:
        export = ExportMetricsServiceRequest.FromString(await request.read())
        scopes = [c for r in export.resource_metrics for c in r.scope_metrics]
        self.metrics |= {metric.name for scope in scopes for metric in scope.metrics}
        return web.Response()

    async def lines(self, request: web.Request) -> web.Response:
        export = ExportLogsServiceRequest.FromString(await request.read())
        self.logs += [n for r in export.resource_logs for c in r.scope_logs for n in c.log_records]
        return web.Response()

    @property
    def about_the_payment(self) -> list[dict[str, Any]]:
        records = [attributes(line) for line in self.logs]
        return [record for record in records if record.get("sas.step") == "take-payment"]

    def of_trace(self, trace_id: str) -> list[Any]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.traces)
    app.router.add_post("/v1/metrics", collector.numbers)
    app.router.add_post("/v1/logs", collector.lines)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


def attributes(item: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in item.attributes}


def executed(stack: Stack) -> set[str]:
    """Return the functions that ran for a message, by the log of the host process."""
    (process,) = stack.processes
    log = process.log_path.read_text()
    return set(re.findall(r"Executed 'Functions\.(\w+)' \(Succeeded", log)) - {"supervisor"}


def above(spans: list[Any], span: Any) -> list[str]:
    """Return the names of the spans that a span hangs below, the first one first."""
    by_id = {parent.span_id: parent for parent in spans}
    names: list[str] = []
    while span := by_id.get(span.parent_span_id):
        names.insert(0, span.name)
    return names


async def test_one_order_is_one_trace_with_its_retries_from_client_to_notification(
    tmp_path: Path,
) -> None:
    async with (
        collecting() as collector,
        RemoteServices() as remote,
        Stack(
            own_app(tmp_path / "app"),
            settings={
                **addresses(remote),
                "SAS_TELEMETRY": "otlp",
                "SAS_SUPERVISOR_SCHEDULE": "* * * * * *",
                "TESTS_TIME_ALLOWED_SECONDS": "300",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "OTEL_BLRP_SCHEDULE_DELAY": "100",
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
            },
            groups={"app": []},
        ) as stack,
        OrdersClient(stack.servicebus_connection, reply_queue=SHOP) as client,
    ):
        remote.set_faults(Faults(transient=1.0, max_transient_attempts=1), "payment")
        with recording() as here:
            await client.submit(NewOrder(order_id="T-1", order=northwind()))
        trace_id = trace_of(here.span("submit"))
        notifications = [notification async for notification in client.follow(["T-1"], quiet_s=120)]
        assert notifications[-1].type.startswith("sas.order.completed")

        steps = {f"agent {name} do" for name in AGENTS}
        tries = {f"agent {name} attempt" for name in AGENTS}
        expected = {"submission", "scheduler claim", "scheduler reply", *steps, *tries}

        async def complete() -> bool:
            names = [span.name for span in collector.of_trace(trace_id)]
            if names.count("scheduler reply") < 3 or not expected <= set(names):
                return False
            return collector.metrics >= METRICS and bool(collector.about_the_payment)

        await until(complete, "every span of the order, the metrics and a log")
        spans = collector.of_trace(trace_id)
        assert {span.name for span in spans} == expected
        paid = sorted(
            (attributes(span) for span in spans if span.name == "agent payment attempt"),
            key=lambda attempt: attempt["sas.attempt"],
        )
        assert [attempt["sas.outcome"] for attempt in paid] == ["transient", "done"]
        assert {
            span_attributes["sas.order_id"]
            for span_attributes in map(attributes, spans)
            if "sas.order_id" in span_attributes
        } == {"T-1"}
        span_ids = {span.span_id for span in spans}
        roots = [span for span in spans if span.parent_span_id not in span_ids]
        assert [span.name for span in roots] == ["submission"], "all hang below the first"
        # The functions of the submission and of the agents did all of it, the scheduler's part too.
        (last_call,) = (span for span in spans if span.name == "agent shipping attempt")
        walked = [name for agent in AGENTS for name in (f"agent {agent} do", "scheduler reply")]
        assert above(spans, last_call) == ["submission", "scheduler claim", *walked[:-1]]
        functions = {"submission", *(f"agent_{name}" for name in AGENTS)}

        async def ended() -> bool:
            return executed(stack) >= functions

        await until(ended, "every function that ran has ended")
        assert executed(stack) == functions
        assert {record["sas.order_id"] for record in collector.about_the_payment} == {"T-1"}
