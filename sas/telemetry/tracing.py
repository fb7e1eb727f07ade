"""Spans, and the W3C context that ties those of one order together across messages.

The context travels as application properties ``traceparent`` and ``tracestate``: a JSON body
that names them changes nothing, for application properties can only be overridden by a
member ``ApplicationProperties``, which every parser of ours refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sas.telemetry import scope
from sas.telemetry.scope import named

_W3C = TraceContextTextMapPropagator()
_CARRIED = {"traceparent": 60, "tracestate": 512}
"""What a message carries, and the most characters that are read of each."""
_provider: TracerProvider | None = None


def use(provider: TracerProvider | None) -> None:
    """Make spans with this provider from now on; None: with the process's own."""
    global _provider  # noqa: PLW0603  one process, one place that spans go to
    _provider = provider


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Context | None = None,
    links: tuple[Link, ...] = (),
    actor: str | None = None,
    **about: str | int | None,
) -> Iterator[Span]:
    """Run a block as a span; what it raises marks the span, by its type alone.

    An exception's text may quote what a sender or a remote service wrote: it stays out.
    """
    facts = named(**about)
    tracer = trace.get_tracer("sas", tracer_provider=_provider)
    with (
        scope.scope(facts, actor),
        tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=facts,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as made,
    ):
        try:
            yield made
        except Exception as error:
            failed(error)
            raise


@contextmanager
def received(name: str, actor: str, properties: Mapping[str, object] | None) -> Iterator[Span]:
    """Run an actor upon a message: in the trace of whoever sent it, which links to the host's."""
    sender = context_of(properties or {})
    host = trace.get_current_span().get_span_context()
    links = (Link(host),) if sender is not None and host.is_valid else ()
    with span(name, kind=SpanKind.CONSUMER, parent=sender, links=links, actor=actor) as made:
        yield made


@contextmanager
def of_order(
    name: str, traceparent: str | None, *, order_id: str, step: str | None = None
) -> Iterator[Span]:
    """Run a block in an order's own trace, linked to what runs now (a sweep, a command)."""
    order = context_of({"traceparent": traceparent})
    now = trace.get_current_span().get_span_context()
    links = (Link(now),) if order is not None and now.is_valid else ()
    with span(name, parent=order, links=links, order_id=order_id, step=step) as made:
        yield made


def about(name: str | None = None, **known: str | int | None) -> None:
    """Say what the current span and its log lines are about, once it is known."""
    facts = named(**known)
    scope.learn(facts)
    current = trace.get_current_span()
    current.set_attributes(facts)
    if name is not None:
        current.update_name(name)


def failed(error: BaseException) -> None:
    """Mark the current span as failed, by the type of the error."""
    current = trace.get_current_span()
    current.set_attribute("error.type", type(error).__name__)
    current.set_status(Status(StatusCode.ERROR, type(error).__name__))


def carried() -> dict[str, str]:
    """Return what a message (or an HTTP call) must carry to go on in the current trace."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


def traceparent() -> str | None:
    """Return the current trace and span as W3C text; None outside of any."""
    return carried().get("traceparent")


def context_of(properties: Mapping[str, object]) -> Context | None:
    """Return the context that a message carries; None where there is none, or nonsense."""
    found: dict[str, str] = {}
    for name, most in _CARRIED.items():
        value = properties.get(name)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        if isinstance(value, str) and len(value) <= most:
            found[name] = value
    context = _W3C.extract(found, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
