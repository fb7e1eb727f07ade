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
_CARRIED = {"traceparent": 60, "tracestate": 512}
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
def scope(given: Mapping[str, str | int], actor: str | None = None) -> Iterator[None]:
    """Add facts for as long as the block, and the tasks that it starts, run."""
    before = _facts.set({**facts(), **given})
    acting = _actor.set(actor or _actor.get())
    try:
        yield
    finally:
        _facts.reset(before)
        _actor.reset(acting)


def facts() -> Facts:
    """Return the known facts: attributes by their names."""
    return _facts.get() or {}


def actor() -> str | None:
    """Return the running actor; None outside of actors, for example in a command or a client."""
    return _actor.get()


def _named(**given: str | int | None) -> Facts:
    """Return facts under the names that spans and log lines carry (``sas.order_id``).

    Raises:
        ValueError: an unknown name.
    """
    unknown = set(given) - set(_NAMES)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: the names are {', '.join(_NAMES)}")
    return {f"sas.{name}": value for name, value in given.items() if value is not None}


def about(name: str | None = None, **known: str | int | None) -> None:
    """Add facts to the current span and its log lines, until the innermost ``scope`` ends."""
    given = _named(**known)
    within = _facts.get()
    if within is not None:
        within.update(given)
    current = trace.get_current_span()
    current.set_attributes(given)
    if name is not None:
        current.update_name(name)


class ScopedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds ``sas.order_id``, ``sas.step`` and ``sas.epoch`` to its records."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the attributes to ``extra``. Those that the caller gives win."""
        known = facts()
        ours = {name: known[name] for name in ATTRIBUTES if name in known}
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
    **about: str | int | None,
) -> AbstractContextManager[Span]:
    """Run a block as a span, with a link to the current one if it has another ``parent``.

    An exception marks the span with its type alone: its text may quote an order or a remote
    service.
    """
    given = _named(**about)
    if not _listened_to():
        return _Within(given, actor, parent)
    return _span(name, kind, parent=parent, actor=actor, given=given)


@contextmanager
def _span(
    name: str, kind: SpanKind, parent: Context | None, actor: str | None, given: Facts
) -> Iterator[Span]:
    now = trace.get_current_span().get_span_context()
    tracer = trace.get_tracer("sas", tracer_provider=_provider)
    with (
        scope(given, actor),
        tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=given,
            links=[Link(now)] if parent is not None and now.is_valid else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as made,
    ):
        try:
            yield made
        except Exception as error:
            failed(error)
            raise


def _listened_to() -> bool:
    """Whether anybody creates real spans: this module's provider, or the process's own."""
    return _provider is not None or not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    )


class _Within:
    """Runs a block in the context of ``parent``. The trace is passed on, recorded or not.

    A class and not a generator, because it runs for each message, call and due row.
    """

    __slots__ = ("_acting", "_actor", "_before", "_given", "_parent", "_token")

    def __init__(self, given: Facts, actor: str | None, parent: Context | None) -> None:
        self._given, self._actor, self._parent = given, actor, parent

    def __enter__(self) -> Span:
        self._before = _facts.set({**facts(), **self._given})
        self._acting = _actor.set(self._actor or _actor.get())
        self._token = None if self._parent is None else attach(self._parent)
        return trace.get_current_span()

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            detach(self._token)
        _facts.reset(self._before)
        _actor.reset(self._acting)


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
    found: dict[str, str] = {}
    for name, most in _CARRIED.items():
        value = properties.get(name)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        if isinstance(value, str) and len(value) <= most:
            found[name] = value
    if "traceparent" not in found:
        return None
    context = _W3C.extract(found, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
