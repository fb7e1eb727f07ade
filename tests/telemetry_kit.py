"""Telemetry kept in memory: the real SDK, for as long as a block runs, then as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sas.telemetry import metrics, tracing

Point = tuple[float, dict[str, Any]]


class Recorded:
    """The telemetry that was recorded so far."""

    def __init__(self, spans: InMemorySpanExporter, reader: InMemoryMetricReader) -> None:
        self._spans = spans
        self._reader = reader

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        (match,) = [span for span in self.spans if span.name == name]
        return match

    def traces(self) -> set[str]:
        return {trace_of(span) for span in self.spans}

    def metrics(self) -> dict[str, list[Point]]:
        """Return every metric's points: its value (a histogram's sum) and its attributes."""
        return {
            name: [
                (getattr(p, "sum", getattr(p, "value", 0)), dict(p.attributes or {}))
                for p in points
            ]
            for name, points in self._points().items()
        }

    def times(self, name: str) -> int:
        """Return how often a histogram recorded a value."""
        return sum(point.count for point in self._points().get(name, []))

    def _points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data else ()
        scopes = [scope for resource in resources for scope in resource.scope_metrics]
        return {m.name: list(m.data.data_points) for scope in scopes for m in scope.metrics}

    def count(self, name: str, **attributes: str) -> float:
        """Return the sum of a metric's points that have these attributes (``state`` for
        ``sas.state``).
        """
        named = {f"sas.{key}": value for key, value in attributes.items()}
        points = self.metrics().get(name, [])
        return sum(value for value, point in points if named.items() <= point.items())


@contextmanager
def recording() -> Iterator[Recorded]:
    """Keep in memory the telemetry of the block."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    tracing.use(tracers)
    metrics.use(meters)
    try:
        yield Recorded(spans, reader)
    finally:
        tracing.use(None)
        metrics.use(None)
        tracers.shutdown()
        meters.shutdown()


def trace_of(span: ReadableSpan) -> str:
    """Return a span's trace id."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent."""
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)
