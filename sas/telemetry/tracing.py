"""Spans and log lines, and the order, step and epoch that they are about.

The W3C trace context ties the spans of one order together across messages. It travels as the
application properties ``traceparent`` and ``tracestate``. A sender cannot set them by the JSON
body: only a member ``ApplicationProperties`` overrides properties, and our parsers refuse it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Facts = dict[str, str | int]

ATTRIBUTES = ("sas.order_id", "sas.step", "sas.epoch")
"""The attributes of a log record."""
_NAMES = ("order_id", "step", "epoch", "workflow")
_W3C = TraceContextTextMapPropagator()
CARRIED = {"traceparent": 60, "tracestate": 512}
"""The properties that a message carries, and the longest value that is read of each."""
_actor: ContextVar[str | None] = ContextVar("sas_actor", default=None)
_facts: ContextVar[Facts | None] = ContextVar("sas_facts", default=None)
_provider: TracerProvider | None = None


def use(provider: TracerProvider | None) -> None:
    """Create spans with this provider from now on; None means the process's own."""
    global _provider  # noqa: PLW0603  one process has one target for spans
    _provider = provider


# The facts of the running task


@contextmanager
def scope(added: Mapping[str, str | int], actor: str | None = None) -> Iterator[None]:
    """Add facts for as long as the block, and the tasks that it starts, run."""
    facts_before = _facts.set({**facts(), **added})
    actor_before = _actor.set(actor or _actor.get())
    try:
        yield
    finally:
        _facts.reset(facts_before)
        _actor.reset(actor_before)


def facts() -> Facts:
    """Return the facts of the running task: attributes by their names."""
    return _facts.get() or {}


def actor() -> str | None:
    """Return the running actor; None outside of actors, for example in a command or a client."""
    return _actor.get()


def _named(**values: str | int | None) -> Facts:
    """Return facts under the names that spans and log lines carry (``sas.order_id``).

    Raises:
        ValueError: an unknown name.
    """
    unknown = set(values) - set(_NAMES)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: the names are {', '.join(_NAMES)}")
    return {f"sas.{name}": value for name, value in values.items() if value is not None}


def about(name: str | None = None, **values: str | int | None) -> None:
    """Add facts to the current span and its log lines, until the innermost ``scope`` ends.

    ``name`` becomes the name of the span.
    """
    added = _named(**values)
    task_facts = _facts.get()
    if task_facts is not None:
        task_facts.update(added)
    current = trace.get_current_span()
    current.set_attributes(added)
    if name is not None:
        current.update_name(name)


class ScopedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds ``sas.order_id``, ``sas.step`` and ``sas.epoch`` to its records."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the attributes to ``extra``. Those that the caller gives win."""
        task_facts = facts()
        ours = {name: task_facts[name] for name in ATTRIBUTES if name in task_facts}
        kwargs["extra"] = {**ours, **(kwargs.get("extra") or {})}
        return msg, kwargs


def logger(name: str) -> ScopedLogger:
    """Return the logger of a module."""
    return ScopedLogger(logging.getLogger(name))


# Spans


def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Context | None = None,
    actor: str | None = None,
    **values: str | int | None,
) -> AbstractContextManager[Span]:
    """Run a block as a span, with a link to the current one if it has another ``parent``.

    An exception marks the span with its type alone: its text may quote an order or a remote
    service.
    """
    added = _named(**values)
    if not _has_listener():
        return _Unrecorded(added, actor, parent)
    return _span(name, kind, parent=parent, actor=actor, added=added)


@contextmanager
def _span(
    name: str, kind: SpanKind, *, parent: Context | None, actor: str | None, added: Facts
) -> Iterator[Span]:
    current = trace.get_current_span().get_span_context()
    tracer = trace.get_tracer("sas", tracer_provider=_provider)
    with (
        scope(added, actor),
        tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=added,
            links=[Link(current)] if parent is not None and current.is_valid else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span,
    ):
        try:
            yield span
        except Exception as error:
            failed(error)
            raise


def _has_listener() -> bool:
    """Return whether a provider creates real spans: this module's, or the process's own."""
    return _provider is not None or not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    )


class _Unrecorded:
    """Runs a block in the context of ``parent``. The trace is passed on, and no span is recorded.

    A class and not a generator, because it runs for each message, call and due row.
    """

    __slots__ = ("_actor", "_actor_before", "_added", "_facts_before", "_parent", "_token")

    def __init__(self, added: Facts, actor: str | None, parent: Context | None) -> None:
        self._added, self._actor, self._parent = added, actor, parent

    def __enter__(self) -> Span:
        self._facts_before = _facts.set({**facts(), **self._added})
        self._actor_before = _actor.set(self._actor or _actor.get())
        self._token = None if self._parent is None else attach(self._parent)
        return trace.get_current_span()

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            detach(self._token)
        _facts.reset(self._facts_before)
        _actor.reset(self._actor_before)


def received(
    name: str, actor: str, properties: Mapping[str, object] | None
) -> AbstractContextManager[Span]:
    """Run an actor for a message, in the sender's trace, with a link to the host's span."""
    return span(name, kind=SpanKind.CONSUMER, parent=context_of(properties or {}), actor=actor)


def of_order(
    name: str, traceparent: str | None, *, order_id: str, step: str | None = None
) -> AbstractContextManager[Span]:
    """Run a block in the order's trace, with a link to the current span (a sweep, a command)."""
    order = context_of({"traceparent": traceparent})
    return span(name, parent=order, order_id=order_id, step=step)


def within(properties: Mapping[str, object]) -> AbstractContextManager[Span]:
    """Run a block in the context that a message carries, without a span of its own."""
    return _Unrecorded({}, None, context_of(properties))


def failed(error: BaseException) -> None:
    """Mark the current span as failed, with the type of the error."""
    current = trace.get_current_span()
    current.set_attribute("error.type", type(error).__name__)
    current.set_status(Status(StatusCode.ERROR, type(error).__name__))


# The context that messages carry


def carried() -> dict[str, str]:
    """Return the properties that a message or an HTTP call carries to continue the trace."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


def traceparent() -> str | None:
    """Return the current trace and span as W3C text; None outside of a span."""
    return carried().get("traceparent")


def context_of(properties: Mapping[str, object]) -> Context | None:
    """Return the context that a message carries; None if it is missing or invalid."""
    carrier: dict[str, str] = {}
    for name, length_max in CARRIED.items():
        value = properties.get(name)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        if isinstance(value, str) and len(value) <= length_max:
            carrier[name] = value
    if "traceparent" not in carrier:
        return None
    context = _W3C.extract(carrier, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
