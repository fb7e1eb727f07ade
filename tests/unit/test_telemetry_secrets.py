"""Log lines say what they are about, and nothing of what was ordered, answered or is secret."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sas.adapters import telemetry
from sas.adapters.telemetry import LogHandler, TelemetryError
from sas.config import SettingError, read_config
from sas.ports import (
    BusUnavailableError,
    RefusedError,
    StoreUnavailableError,
    TransientError,
)
from sas.telemetry import tracing
from sas.telemetry.tracing import logger
from sas.testing.bus import BusFault
from tests.telemetry_kit import Recorded, recording
from tests.unit.actors_kit import (
    CARE,
    QUEUES,
    SHOP,
    Kit,
    command,
    delivery,
    done,
    kit,
    letter,
    order,
    received,
)

SECRET = "s3cr3t-of-the-order"
RESULT = "s3cr3t-of-a-result"
REMOTE = "s3cr3t-a-service-quoted"
KEY = "s3cr3tKey0123456789abcdefABCDEF="
MARK = "s3cr3t"


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as records:
        yield records


async def every_path(system: Kit) -> list[str]:
    """Send marked orders and results along every path there is; return what was raised."""
    errors: list[str] = []
    marked = {"customer": SECRET, "lines": [{"note": SECRET}]}
    system.agents["stock"].then(TransientError(REMOTE), {"said": RESULT})
    system.agents["payment"].then(RefusedError("no", REMOTE))
    await system.submit(order(order=marked))
    await system.drain()
    await system.submit(order(order={"other": SECRET}), "m-2")  # the id is taken
    await system.submit(order("O-2", order=marked, workflow="care"), "m-3")
    await system.step(QUEUES.scheduler)
    await system.later(31)
    await system.sweep()
    await system.drain()
    for body in (
        json.dumps({"order_id": "O-3", SECRET: 1}).encode()[:-1],
        json.dumps({"order_id": 7, "order": SECRET}).encode(),
        order("O-4", reply_queue=f"no-queue-{SECRET}"),
        b'{"order_id":"O-5","order":{"a":"' + SECRET.encode() + b'\xff"}}',
    ):
        await system.submit(body, "m-4")
        await system.run(system.dead_letters.handle(letter(body, "orders")))
    await system.hand(done("O-2", result=f'"{RESULT}"', epoch=9, id="O-2/00/do/9"))
    await system.hand(done("O-9", result=f'"{RESULT}"'))
    await system.run(system.scheduler.handle(received(QUEUES.scheduler, "m", SECRET.encode())))
    await system.run(
        system.actors["stock"].handle(received(QUEUES.agent("stock"), "m", SECRET.encode()))
    )
    await system.hand(command("undo", 1))
    for fault in (BusFault.UNAVAILABLE, BusFault.LOST_ANSWER):
        system.bus.fail_next(fault)
        try:
            await system.submit(order(f"B-{fault.name}", order=marked), f"b-{fault.name}")
        except Exception as error:  # noqa: BLE001  its text is what is looked at
            errors.append(repr(error))
    del system.bus.queues[SHOP]
    await system.submit(order("O-6", order=marked), "m-6")
    for lost in (QUEUES.alerts, QUEUES.dead_letters):
        system.bus.queues.pop(lost)
        try:
            await system.submit(order(f"L-{lost}", order=marked), f"l-{lost}")
        except BusUnavailableError as error:
            errors.append(repr(error))
    return errors


async def test_nothing_ordered_or_answered_is_in_a_log_line_a_span_or_a_metric(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    system = kit()
    errors = await every_path(system)
    lines = [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    lines += [str(sorted(record.__dict__.items(), key=str)) for record in caplog.records]
    spans = [span.to_json() for span in recorded.spans]
    assert len(caplog.records) > 10
    assert len(spans) > 30
    assert len(errors) >= 3
    texts = [*lines, *spans, *errors, json.dumps(recorded.metrics())]
    assert [text for text in texts if MARK in text] == []


async def test_the_text_of_a_bug_is_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    system = kit()
    system.agents["stock"].then(*[KeyError(SECRET)] * 3)
    await system.submit(order())
    for _ in range(3):
        await system.drain()
        await system.later(10)
    assert [alert.kind for alert in system.alerts()] == ["agent-failing"]
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "agent stock failed 2 times in a row" in line]
    assert [line for line in lines if MARK in line] == []


async def test_an_alert_that_no_queue_takes_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    system = kit()
    system.agents["stock"].then(RefusedError("no", REMOTE))  # an alert of the order
    system.agents["payment"].then(*[KeyError(REMOTE)] * 3)  # an incident
    del system.bus.queues[QUEUES.alerts]
    await system.submit(order(workflow="care"))
    await system.submit(order("O-2"), "m-2")
    for _ in range(3):
        await system.drain()
        await system.later(10)
        await system.sweep()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len([line for line in lines if "no queue takes the alert" in line]) >= 2
    assert [line for line in lines if MARK in line] == []


async def test_an_alert_quotes_neither_the_order_nor_a_result(recorded: Recorded) -> None:
    system = kit(CARE)
    marked = {"customer": SECRET}
    system.agents["stock"].then({"said": RESULT})
    system.agents["payment"].then(RefusedError("declined", "the card was declined"))
    await system.submit(order(order=marked, workflow="care"))
    await system.drain()
    await system.submit(json.dumps({"order_id": "O-2", "order": SECRET}).encode(), "m-2")
    await system.run(system.dead_letters.handle(letter(f'{{"order":"{SECRET}"'.encode(), "orders")))
    alerts = system.alerts()
    assert {alert.kind for alert in alerts} == {"step-failed", "rejected"}
    assert [alert for alert in alerts if MARK in alert.text] == []


def test_a_connection_string_is_in_no_repr_and_in_no_refusal() -> None:
    bus = f"Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey={KEY}"
    tables = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY}"
    env = {"ServiceBus": bus, "SAS_TABLES": tables}
    assert KEY not in repr(read_config(env))
    with pytest.raises(SettingError) as refused:
        read_config({**env, "SAS_TABLE": "no table"})
    assert KEY not in str(refused.value)


async def test_every_line_about_an_order_names_it_with_its_step_and_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    system = kit()
    system.agents["stock"].then(TransientError("busy"))
    await system.submit()
    await system.drain()
    (line,) = [record for record in caplog.records if "attempt 1" in record.getMessage()]
    attributes = {name: line.__dict__[name] for name in ("sas.order_id", "sas.step", "sas.epoch")}
    assert attributes == {"sas.order_id": "O-1", "sas.step": "reserve", "sas.epoch": 1}


async def test_two_orders_at_once_never_lend_each_other_their_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    system = kit()
    for name in ("A", "B"):
        await system.submit(order(name), name)
        await system.step(QUEUES.scheduler)
    system.agents["stock"].then(TransientError("busy"), TransientError("busy"))
    requests = system.bus.messages(QUEUES.agent("stock"))
    actor = system.actors["stock"]
    await system.run(asyncio.gather(*(actor.handle(delivery(r)) for r in requests)))
    lines = [record for record in caplog.records if "attempt 1" in record.getMessage()]
    assert len(lines) == 2
    for line in lines:
        assert f"order {line.__dict__['sas.order_id']} " in line.getMessage()


def test_a_line_outside_of_every_order_names_none(caplog: pytest.LogCaptureFixture) -> None:
    logger("sas.x").warning("hello", extra={"sas.step": "own"})
    (record,) = caplog.records
    assert "sas.order_id" not in record.__dict__
    assert record.__dict__["sas.step"] == "own"


def test_a_fact_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="payload: the names are order_id, step, epoch, workflow"):
        tracing._named(payload="x")


async def test_what_is_known_ends_with_its_span() -> None:
    with tracing.span("outer", actor="agent", order_id="A"):
        with tracing.span("inner", step="s"):
            tracing.about(epoch=3)
            assert tracing.facts() == {"sas.order_id": "A", "sas.step": "s", "sas.epoch": 3}
        assert tracing.facts() == {"sas.order_id": "A"}
    assert (tracing.facts(), tracing.actor()) == ({}, None)


def test_an_exported_line_has_its_text_its_attributes_and_of_an_error_its_type() -> None:
    emitted: list[dict[str, Any]] = []
    sink = SimpleNamespace(emit=lambda **record: emitted.append(record))
    handler = LogHandler(cast("Any", sink))
    record = logging.LogRecord("sas", logging.ERROR, "", 1, "failed %s", ("x",), None)
    record.__dict__.update({"sas.order_id": "O-1", "payload": SECRET})
    try:
        raise StoreUnavailableError(SECRET)  # noqa: TRY301  an error with its traceback
    except StoreUnavailableError:
        record.exc_info = sys.exc_info()
    handler.emit(record)
    (line,) = emitted
    assert (line["body"], line["severity_text"]) == ("failed x", "ERROR")
    assert line["severity_number"].name == "ERROR"
    assert line["attributes"]["sas.order_id"] == "O-1"
    assert line["attributes"]["exception.type"] == "StoreUnavailableError"
    assert "test_telemetry_secrets" in line["attributes"]["exception.stacktrace"]
    assert MARK not in str(line).replace("test_telemetry_secrets", "")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str]]:
    """Exporters are made; nothing is installed into this process."""
    installations: list[tuple[Any, str]] = []
    monkeypatch.setattr(telemetry, "_configured", set())
    monkeypatch.setattr(
        telemetry, "_install", lambda exporters, name, _: installations.append((exporters, name))
    )
    return installations


@pytest.mark.parametrize("mode", ["console", "otlp"])
def test_exporters_are_made_once_for_what_is_asked(
    mode: str, installed: list[tuple[Any, str]]
) -> None:
    telemetry.configure(mode, "host-1")
    telemetry.configure(mode, "host-1")
    ((exporters, instance),) = installed
    assert len(exporters) == 3
    assert instance == "host-1"


def test_off_makes_nothing(installed: list[tuple[Any, str]]) -> None:
    telemetry.configure("off", "host-1")
    assert installed == []


@pytest.mark.parametrize(
    ("mode", "module", "package"),
    [
        (
            "otlp",
            "opentelemetry.exporter.otlp.proto.http",
            "opentelemetry-exporter-otlp-proto-http",
        ),
        ("azuremonitor", "azure.monitor.opentelemetry", "azure-monitor-opentelemetry-exporter"),
        ("console", "opentelemetry.sdk.trace", "opentelemetry-sdk"),
    ],
)
def test_a_missing_package_is_one_sentence(
    mode: str, module: str, package: str, installed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TelemetryError, match=f"SAS_TELEMETRY={mode} needs the package {package} "):
        telemetry.configure(mode, "host-1")
    assert installed == []


def test_a_mode_that_is_none_is_refused_by_its_setting() -> None:
    bus = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"
    env = {"ServiceBus": bus, "SAS_TABLES": "UseDevelopmentStorage=true"}
    assert read_config(env).telemetry == "off"
    assert read_config({**env, "SAS_TELEMETRY": ""}).telemetry == "off"
    assert read_config({**env, "SAS_TELEMETRY": "otlp"}).telemetry == "otlp"
    with pytest.raises(SettingError, match="SAS_TELEMETRY='loud': give one of off, console"):
        read_config({**env, "SAS_TELEMETRY": "loud"})
    assert read_config(env).telemetry_share == 1
    assert read_config({**env, "SAS_TELEMETRY_SHARE": "0.1"}).telemetry_share == 0.1
    with pytest.raises(SettingError, match=r"SAS_TELEMETRY_SHARE=1\.5: give a number above 0"):
        read_config({**env, "SAS_TELEMETRY_SHARE": "1.5"})


def test_a_share_keeps_whole_traces_and_every_span_that_failed() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(telemetry.keeping_failures(SimpleSpanProcessor(exporter), 0.5))
    tracing.use(provider)
    try:
        for _ in range(200):
            with tracing.span("above"), tracing.span("below"):
                pass
            with pytest.raises(StoreUnavailableError), tracing.span("fails"):
                raise StoreUnavailableError("down")
    finally:
        tracing.use(None)
        provider.shutdown()
    spans = [
        (span.name, span.context and span.context.trace_id)
        for span in exporter.get_finished_spans()
    ]
    count = {
        name: sum(1 for span_name, _ in spans if span_name == name)
        for name in ("above", "below", "fails")
    }
    assert count["fails"] == 200
    assert 60 <= count["above"] <= 140
    assert {t for name, t in spans if name == "above"} == {
        t for name, t in spans if name == "below"
    }
