"""Metrics. ``infra/telemetry-fields.json`` lists their names.

Attributes have few values and never an order's id. A metric is recorded after the event that it
counts: an order's state after its commit.
"""

from __future__ import annotations

import re

from opentelemetry import metrics
from opentelemetry.metrics import Meter, MeterProvider

from sas.domain.change import Change
from sas.domain.order import Direction, StepRecord, StepState
from sas.telemetry import tracing

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400)
_NOT_A_CODE = re.compile(r"[^A-Za-z0-9_.-]+")
_ENDS = frozenset({StepState.PROCESSED, StepState.COMPENSATED})
CODE_LENGTH_MAX = 60
FAULTS_MAX = 30
"""Most codes of faults that one process records for one agent. Further codes are ``other``, because
a remote service chooses its codes and each code is a time series.
"""
_OWN_FAULT = re.compile(
    "|agent-bug|complete-by|no-json|refused|sign-in|timeout|transient|unreachable|http-5[0-9]{2}"
)
"""Faults that this system names itself. They are always recorded."""


class Instruments:
    """All instruments."""

    def __init__(self, meter: Meter) -> None:
        count = meter.create_counter
        self.faults: dict[str, set[str]] = {}  # the remote services' codes by agent
        self.orders = count("sas.orders", "{order}", "orders that came to a state")
        self.attempts = count("sas.agent.attempts", "{attempt}", "calls of remote services")
        self.late = count("sas.replies.late", "{reply}", "replies that changed nothing")
        self.conflicts = count("sas.conflicts", "{conflict}", "commits that another instance won")
        self.requests = count("sas.storage.requests", "{request}", "requests to Table Storage")
        self.entities = count("sas.storage.entities", "{entity}", "rows read and written")
        self.storage_bytes = count("sas.storage.bytes", "By", "bodies sent to Table Storage")
        self.messages = count("sas.bus.messages", "{message}", "messages that the bus took")
        self.operations = count("sas.bus.operations", "{operation}", "sends and peeks")
        self.message_bytes = count("sas.bus.bytes", "By", "bodies of messages that the bus took")
        self.breakers = count("sas.breaker.changes", "{change}", "breakers that changed")
        self.rejections = count("sas.rejections", "{message}", "messages that could not be used")
        self.put_back = count(
            "sas.messages.put_back", "{message}", "messages that wait for something"
        )
        self.duration = meter.create_histogram(
            "sas.step.duration",
            "s",
            "from a step's claim to its record",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        # Not a gauge: exporters repeat its last value although no supervisor runs any more.
        self.sweep_age = meter.create_histogram(
            "sas.sweep.age",
            "s",
            "how overdue a sweep's oldest row was",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.oldest_order = meter.create_histogram(
            "sas.orders.oldest_age",
            "s",
            "how long the oldest message of a queue of orders has waited",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.purge_lag = meter.create_histogram(
            "sas.purge.lag",
            "s",
            "how late the oldest finished order that a run left is",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )


_instruments = Instruments(metrics.get_meter("sas"))


def use(provider: MeterProvider | None) -> None:
    """Record with this provider from now on; None means the process's own."""
    global _instruments  # noqa: PLW0603  one process has one target for metrics
    _instruments = Instruments(metrics.get_meter("sas", meter_provider=provider))


def committed(change: Change) -> None:
    """Record what a commit changed: the order's new state, and the steps that it ended."""
    before, after = change.before, change.after
    # The workflow of a rejected order may be any text of its sender.
    workflow = "unknown" if after.rejected else after.details.workflow
    state = after.process_state
    if before is None or before.process_state is not state:
        _instruments.orders.add(1, {"sas.state": state.value, "sas.workflow": workflow})
    for old, new in zip(before.steps if before else (), after.steps, strict=False):
        outcome = _outcome(old, new, change)
        if outcome is not None:
            seconds = max((change.entry.at - old.since).total_seconds(), 0.0)
            undoes = old.process_state is StepState.COMPENSATING
            attributes = {
                "sas.workflow": workflow,
                "sas.step": old.name,
                "sas.direction": (Direction.UNDO if undoes else Direction.DO).value,
                "sas.outcome": outcome,
            }
            _instruments.duration.record(seconds, attributes)


def _outcome(old: StepRecord, new: StepRecord, change: Change) -> str | None:
    """Return how a dispatched step ended; None if it goes on, or was only interrupted."""
    if not old.dispatched or (new.dispatched and new.epoch == old.epoch):
        return None
    if tracing.actor() == "supervisor":
        expired = old.complete_by is not None and old.complete_by <= change.entry.at
        return "expired" if expired else None
    if new.error is not None and new.error != old.error:
        return "refused"
    ended = new.process_state in _ENDS and new.process_state is not old.process_state
    return "done" if ended else None


def conflict() -> None:
    """Record that another instance's commit won."""
    _instruments.conflicts.add(1, _actor())


def attempt(agent: str, step: str, *, direction: str, outcome: str, fault: str = "") -> None:
    """Record one call of a remote service."""
    _instruments.attempts.add(
        1,
        {
            "sas.agent": agent,
            "sas.step": step,
            "sas.direction": direction,
            "sas.outcome": outcome,
            "sas.fault": _bounded(agent, code(fault)),
        },
    )


def swept(age_s: float) -> None:
    """Record how overdue the oldest row of a sweep was, in seconds."""
    _instruments.sweep_age.record(max(age_s, 0.0))


def oldest_order(queue: str, age_s: float) -> None:
    """Record for how many seconds the oldest message of a queue of orders has waited."""
    _instruments.oldest_order.record(max(age_s, 0.0), {"sas.queue": queue})


def purged(lag_s: float) -> None:
    """Record how many seconds the oldest order that a purge left is past its retention."""
    _instruments.purge_lag.record(max(lag_s, 0.0))


def late_reply(step: str) -> None:
    """Record a reply that changed nothing."""
    _instruments.late.add(1, {"sas.step": step})


def storage_request(kind: str, size: int) -> None:
    """Record one request to Table Storage by an actor. Those of commands are not counted.

    ``kind`` is the count of ``Usage`` that it belongs to, ``size`` that of its body in bytes.
    """
    if tracing.actor() is not None:
        _instruments.requests.add(1, {**_actor(), "sas.kind": kind})
        if size:
            _instruments.storage_bytes.add(size, _actor())


def entities(kind: str, count: int) -> None:
    """Record rows that an actor read or wrote (``kind``)."""
    if count and tracing.actor() is not None:
        _instruments.entities.add(count, {**_actor(), "sas.kind": kind})


def sent(messages: int, size: int) -> None:
    """Record messages that the bus accepted, and the bytes of their bodies."""
    if messages and tracing.actor() is not None:
        _instruments.messages.add(messages, _actor())
        _instruments.message_bytes.add(size, _actor())


def bus_operation(kind: str) -> None:
    """Record one operation of the bus: ``sends`` or ``peeks``."""
    if tracing.actor() is not None:
        _instruments.operations.add(1, {**_actor(), "sas.kind": kind})


def breaker_changed(agent: str, state: str) -> None:
    """Record a breaker's new state."""
    _instruments.breakers.add(1, {"sas.agent": agent, "sas.breaker": state})


def rejected(reason: str) -> None:
    """Record a message that was put on the rejected queue."""
    _instruments.rejections.add(1, {**_actor(), "sas.reason": code(reason)})


def put_back(queue: str) -> None:
    """Record a message that was put back, because something that it needs is unavailable."""
    _instruments.put_back.add(1, {"sas.queue": queue})


def code(text: str) -> str:
    """Return a short code that is safe as an attribute, for any text."""
    return _NOT_A_CODE.sub("-", text[:CODE_LENGTH_MAX])


def _bounded(agent: str, fault: str) -> str:
    """Return the code of a fault, or ``other`` if this agent has had too many."""
    faults = _instruments.faults.setdefault(agent, set())
    if fault in faults or _OWN_FAULT.fullmatch(fault):
        return fault
    if len(faults) >= FAULTS_MAX:
        return "other"
    faults.add(fault)
    return fault


def _actor() -> dict[str, str]:
    return {"sas.actor": tracing.actor() or "none"}
