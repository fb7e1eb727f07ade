"""The exporters of spans, metrics and log lines.

``SAS_TELEMETRY`` is ``off``, ``console``, ``otlp`` (the OTEL_ variables name the target) or
``azuremonitor`` (APPLICATIONINSIGHTS_CONNECTION_STRING names it). The SDK and the exporters are
imported only if they are used.
"""

from __future__ import annotations

import logging
import os
import traceback
from typing import TYPE_CHECKING, Any

from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import ATTRIBUTES

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.sdk.trace import SpanProcessor

_PACKAGES = {
    "console": "opentelemetry-sdk",
    "otlp": "opentelemetry-exporter-otlp-proto-http",
    "azuremonitor": "azure-monitor-opentelemetry-exporter",
}
METRICS_EVERY_MS = 10_000.0
"""Pause between two exports of metrics. SIGTERM in Azure loses what was measured after the last."""
_configured: set[str] = set()


class TelemetryError(Exception):
    """Telemetry cannot be exported. The text says what to install or to set."""


def configure(mode: str, instance: str, share: float = 1.0) -> None:
    """Export spans, metrics and log lines of ``sas``. Only the first call of a process counts.

    ``share`` is the share of traces whose spans are exported. A failed span always is.

    Raises:
        TelemetryError: a package is missing, or the exporter refuses its settings.
    """
    if mode == "off" or _configured:
        return
    try:
        exporters = _exporters(mode)
    except ImportError as error:
        raise TelemetryError(
            f"SAS_TELEMETRY={mode} needs the package {_PACKAGES[mode]} ({error.name} is "
            "missing): install it with the app, or set SAS_TELEMETRY=off"
        ) from None
    except ValueError as error:
        raise TelemetryError(f"SAS_TELEMETRY={mode}: {error}") from None
    _configured.add(mode)
    _install(exporters, instance, share)


def _exporters(mode: str) -> tuple[Any, Any, Any]:
    """Return the exporters of spans, metrics and log records."""
    if mode == "otlp":
        from opentelemetry.exporter.otlp.proto.http import (  # noqa: PLC0415
            _log_exporter,
            metric_exporter,
            trace_exporter,
        )

        return (
            trace_exporter.OTLPSpanExporter(),
            metric_exporter.OTLPMetricExporter(),
            _log_exporter.OTLPLogExporter(),
        )
    if mode == "azuremonitor":
        from azure.monitor.opentelemetry import exporter  # noqa: PLC0415

        # Otherwise it looks for a global provider, finds none, and logs that at each export.
        os.environ.setdefault("APPLICATIONINSIGHTS_OPENTELEMETRY_RESOURCE_METRIC_DISABLED", "true")
        return (
            exporter.AzureMonitorTraceExporter(),
            exporter.AzureMonitorMetricExporter(),
            exporter.AzureMonitorLogExporter(),
        )
    from opentelemetry.sdk._logs import export as logs  # noqa: PLC0415
    from opentelemetry.sdk.metrics import export as numbers  # noqa: PLC0415
    from opentelemetry.sdk.trace import export as spans  # noqa: PLC0415

    return (
        spans.ConsoleSpanExporter(),
        numbers.ConsoleMetricExporter(),
        logs.ConsoleLogRecordExporter(),
    )


def _install(exporters: tuple[Any, Any, Any], instance: str, share: float) -> None:
    from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415

    spans, numbers, lines = exporters
    about = {"service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "scheduler-agent-supervisor"
    resource = Resource.create(about)
    # The SDK's default follows a sender that does not sample. Then failures would be lost.
    sampler = None if os.environ.get("OTEL_TRACES_SAMPLER") else ALWAYS_ON
    tracers = TracerProvider(resource=resource, sampler=sampler)
    tracers.add_span_processor(keeping_failures(BatchSpanProcessor(spans), share))
    interval_ms = None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else METRICS_EVERY_MS
    reader = PeriodicExportingMetricReader(numbers, export_interval_millis=interval_ms)
    meters = MeterProvider([reader], resource=resource)
    loggers = LoggerProvider(resource)
    loggers.add_log_record_processor(BatchLogRecordProcessor(lines))
    tracing.use(tracers)
    metrics.use(meters)
    package = logging.getLogger("sas")
    package.addHandler(LogHandler(loggers.get_logger("sas")))
    if package.getEffectiveLevel() > logging.INFO:
        package.setLevel(logging.INFO)


def keeping_failures(processor: SpanProcessor, share: float) -> SpanProcessor:
    """Return a processor that exports a share of all traces, and every failed span.

    The trace id decides, so every process decides the same for one trace.
    """
    from opentelemetry.sdk.trace import ReadableSpan, SynchronousMultiSpanProcessor  # noqa: PLC0415

    class KeepingFailures(SynchronousMultiSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            low = span.context.trace_id % 2**64 if span.context else 0
            if low < share * 2**64 or not span.status.is_ok:
                super().on_end(span)

    keeping = KeepingFailures()  # type: ignore[no-untyped-call]  # the SDK's own is untyped
    keeping.add_span_processor(processor)
    return keeping


class LogHandler(logging.Handler):
    """Exports log records: the text and our three attributes, and nothing else.

    The type and the traceback of an exception are exported, but not its text, because the text may
    quote an order.
    """

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Export one record, with the span that it was written in."""
        from opentelemetry._logs import SeverityNumber  # noqa: PLC0415  only where there is an SDK

        attributes = {name: record.__dict__[name] for name in ATTRIBUTES if name in record.__dict__}
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.stacktrace"] = "".join(traceback.format_tb(record.exc_info[2]))
        # 10, 20, 30, 40, 50 are OpenTelemetry's 5, 9, 13, 17, 21.
        number = SeverityNumber(min(max(record.levelno // 10 * 4 + 1, 1), 21))
        self._logger.emit(
            timestamp=int(record.created * 1e9),
            severity_number=number,
            severity_text=record.levelname,
            body=record.getMessage(),
            attributes=attributes,
        )
