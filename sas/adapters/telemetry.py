"""Where telemetry goes. The SDK and its exporters are imported here, and only when asked for.

``SAS_TELEMETRY`` is ``off`` (nothing is imported), ``console``, ``otlp`` (its own OTEL_
variables say where to) or ``azuremonitor`` (APPLICATIONINSIGHTS_CONNECTION_STRING does).
"""

from __future__ import annotations

import logging
import os
import traceback
from typing import TYPE_CHECKING, Any

from sas.telemetry import metrics, tracing
from sas.telemetry.logs import ATTRIBUTES

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.sdk.trace import SpanProcessor

_PACKAGES = {
    "console": "opentelemetry-sdk",
    "otlp": "opentelemetry-exporter-otlp-proto-http",
    "azuremonitor": "azure-monitor-opentelemetry-exporter",
}
_configured: set[str] = set()


class TelemetryError(Exception):
    """Telemetry was asked for and cannot be had; the text says what to install or to set."""


def configure(mode: str, instance: str, share: float = 1.0) -> None:
    """Have spans, metrics and log lines of ``sas`` exported, once a process; ``off`` does nothing.

    ``share`` is the share of traces whose spans are kept; a failed span always is.

    Raises:
        TelemetryError: a package is missing, or the exporter refused its settings.
    """
    if mode == "off" or _configured:
        return
    try:
        exporters = _exporters(mode)
    except ImportError as missing:
        raise TelemetryError(
            f"SAS_TELEMETRY={mode} needs the package {_PACKAGES[mode]} ({missing.name} is not "
            "there): install it with the app, or set SAS_TELEMETRY=off"
        ) from None
    except ValueError as wrong:
        raise TelemetryError(f"SAS_TELEMETRY={mode}: {wrong}") from None
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
    # The SDK's default obeys a sender that did not sample: its failures would be lost.
    sampler = None if os.environ.get("OTEL_TRACES_SAMPLER") else ALWAYS_ON
    tracers = TracerProvider(resource=resource, sampler=sampler)
    tracers.add_span_processor(keeping_failures(BatchSpanProcessor(spans), share))
    meters = MeterProvider([PeriodicExportingMetricReader(numbers)], resource=resource)
    loggers = LoggerProvider(resource)
    loggers.add_log_record_processor(BatchLogRecordProcessor(lines))
    tracing.use(tracers)
    metrics.use(meters)
    ours = logging.getLogger("sas")
    ours.addHandler(LogHandler(loggers.get_logger("sas")))
    if ours.getEffectiveLevel() > logging.INFO:
        ours.setLevel(logging.INFO)


def keeping_failures(processor: SpanProcessor, share: float) -> SpanProcessor:
    """Return a processor that passes on the spans of a share of all traces, and all that failed.

    Every process decides the same for one trace: its id decides.
    """
    from opentelemetry.sdk.trace import ReadableSpan, SynchronousMultiSpanProcessor  # noqa: PLC0415

    class KeepingFailures(SynchronousMultiSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            low = span.context.trace_id % 2**64 if span.context else 0
            if low < share * 2**64 or not span.status.is_ok:
                super().on_end(span)

    made = KeepingFailures()  # type: ignore[no-untyped-call]  # the SDK's own is untyped
    made.add_span_processor(processor)
    return made


class LogHandler(logging.Handler):
    """Passes log records on: the text and our three attributes, and nothing else they carry.

    Of an exception its type and where it came from; its own text may quote what was sent.
    """

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on, with the span it was written in."""
        from opentelemetry._logs import SeverityNumber  # noqa: PLC0415  only where there is an SDK

        attributes = {n: record.__dict__[n] for n in ATTRIBUTES if n in record.__dict__}
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
