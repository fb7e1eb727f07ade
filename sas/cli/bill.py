"""The bill of a deployment by item, from the counts of ``sas.cli.counts`` and a file of prices.

Figures that cannot be counted without Azure are assumptions: constants below, each with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from sas.cli import counts
from sas.cli.counts import AGENT
from sas.domain.queues import Queues

DAYS = 365 / 12
"""Days of a month, as Azure bills: 730 hours."""
DAY_S = 86_400.0
ACTIVE_MIN_S = 1.0
"""Flex Consumption bills at least so many seconds of each active period of an instance."""
CALLS_AT_ONCE = 16
"""Executions of one function on one instance (``maxConcurrentCalls`` in host.json)."""
CPU_S = 0.0125
"""Assumed: CPU of one execution. The eight of an order make ten orders a second for one core."""
GB_OF_A_CORE = 2.0
"""Memory of an instance with one core; one with less memory has less of a core."""
EXECUTION_S = 0.1
"""Assumed: how long an execution takes, beside the call of a remote service."""
REQUEST_S = 0.02
"""Assumed: how long a request to Table Storage takes, for sweeps and purges."""
PURGES = 144
"""Purges of a day: one every ten minutes (``SAS_PURGE_SCHEDULE`` in infra)."""
SHARDS = PURGE_AT_ONCE = 16
SCALE_CHECKS = DAY_S / 10
"""Assumed: the platform looks into the queue of each function every 10 seconds, to scale it
(github.com/Azure/azure-functions-host/issues/2679), and each look is an operation.
"""
HOST_RECORDS = 1
"""Assumed: records of the Functions host for each execution: its request. It exports no log of one,
because the worker of Python 3.13 announces OpenTelemetry (docs/telemetry.md); older ones do not.
"""
RECORD_BYTES = 1_000
"""Assumed: what Log Analytics bills for a span, a point of a metric, or a record of the host."""
EXPORTS = DAY_S / 10
"""Exports of metrics in a day: a point is exported once, however often it changed meanwhile."""
LOG_ALERTS = 7
"""Alert rules on logs in infra/operations, evaluated every five minutes."""
KEY_READS = 48
"""Assumed: reads of Key Vault in a day, for two secrets that the platform looks up every hour."""
GB = 1e9
MILLION = 1e6

ITEMS: Mapping[str, str] = {
    "functions-executions": "million executions",
    "functions-time": "GB s",
    "service-bus-base": "month",
    "service-bus-operations": "million operations",
    "service-bus-premium": "messaging unit and month",
    "storage-requests": "10,000 requests",
    "storage-capacity": "GB and month",
    "logs-ingestion": "GB",
    "alerts-logs": "rule and month",
    "alerts-metrics": "time series and month",
    "key-vault": "10,000 operations",
}
"""The items that a file of prices may have, with the unit of each."""


class Price(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The price of one item, where it comes from, and when it was read there.

    ``tiers`` are pairs, in rising order: from so many units a month on, a unit costs so much. What
    lies below the first tier is free.
    """

    tiers: tuple[tuple[float, float], ...]
    region: str
    date: str
    source: str
    note: str = ""

    def cost(self, quantity: float) -> float:
        """Return what so many units cost in a month."""
        ends = [start for start, _ in self.tiers[1:]] + [math.inf]
        return sum(
            max(min(quantity, end) - start, 0) * price
            for (start, price), end in zip(self.tiers, ends, strict=True)
        )


class Prices(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of prices."""

    currency: str
    items: dict[str, Price]


@dataclass(frozen=True, slots=True)
class Load:
    """What is billed: so many orders a day, spread over so many hours of it, and how it is set up.

    ``premium_units`` 0: Service Bus Standard. ``memory_gb`` is that of an instance. Each order has
    ``content_bytes`` of content, and is kept for ``kept_days``. ``share`` is that of traces kept.
    """

    orders: float
    spread_hours: float = 24.0
    steps: int = 3
    call_s: float = 0.5
    memory_gb: float = 2.0
    sweep_every_s: float = 10.0
    premium_units: int = 0
    kept_days: float = 30.0
    content_bytes: int = 1_000
    share: float = 1.0

    @property
    def sweeps(self) -> float:
        """Return the sweeps of a day."""
        return DAY_S / self.sweep_every_s

    @property
    def executions(self) -> dict[str, int]:
        """Return the executions of an order by function; those of all agents are one."""
        order, step = counts.ORDER_APART.executions, counts.STEP_APART.executions
        return {name: self.total(order[name], step.get(name, 0)) for name in order}

    def total(self, order: int, step: int) -> int:
        """Return a count of an order, given that of one of three steps and of a further step."""
        return order + (self.steps - 3) * step


@dataclass(frozen=True, slots=True)
class Line:
    """One item of a month's bill: what idling and what orders take, and the cost of both.

    ``cost`` is None if the file has no price for it.
    """

    item: str
    idle: float
    orders: float
    cost: float | None

    @property
    def unit(self) -> str:
        """What is counted."""
        return ITEMS[self.item]


def bill(load: Load, prices: Prices) -> list[Line]:
    """Return a month's bill, one line for each item that is used."""
    busy, idle = quantities(load), quantities(_without_orders(load))
    lines = []
    for item, quantity in busy.items():
        price = prices.items.get(item)
        cost = None if price is None else price.cost(quantity)
        lines.append(Line(item, idle[item], quantity - idle[item], cost))
    return lines


def idle_cost(load: Load, prices: Prices) -> float:
    """Return what a month without an order costs, of the items that have a price."""
    return sum(line.cost or 0 for line in bill(_without_orders(load), prices))


def quantities(load: Load) -> dict[str, float]:
    """Return how much of each item a month takes."""
    found = {
        "functions-executions": DAYS * _executions(load) / MILLION,
        "functions-time": DAYS * load.memory_gb * _active_seconds(load),
        "service-bus-base": 1.0,
        "service-bus-operations": DAYS * _operations(load) / MILLION,
        "service-bus-premium": float(load.premium_units),
        "storage-requests": DAYS * _requests(load) / 10_000,
        "storage-capacity": load.orders * load.kept_days * _stored_bytes(load) / GB,
        "logs-ingestion": DAYS * _records(load) * RECORD_BYTES / GB,
        "alerts-logs": float(LOG_ALERTS),
        "alerts-metrics": float(metric_series(load.steps)),
        "key-vault": DAYS * KEY_READS / 10_000,
    }
    standard = {"service-bus-base", "service-bus-operations"}
    unused = standard if load.premium_units else {"service-bus-premium"}
    return {item: quantity for item, quantity in found.items() if item not in unused}


def billed_seconds(
    executions: float, each_s: float, window_s: float, cpu_s: float = CPU_S
) -> float:
    """Return the seconds that instances of one function are billed, in a window of time.

    Executions come at random, at an even rate. Those that overlap are one active period. Periods
    that are shorter than a second are billed as one, but an instance is never billed twice at once.
    """
    if not executions:
        return 0.0
    rate = executions / window_s
    instances = max(1, math.ceil(rate * max(each_s / CALLS_AT_ONCE, cpu_s)))
    share = rate / instances
    active = window_s * -math.expm1(-share * each_s)
    periods = window_s * share * math.exp(-share * each_s)
    return instances * min(max(active, periods * ACTIVE_MIN_S), window_s)


def metric_series(steps: int) -> int:
    """Return the time series that the metric alerts of infra/operations watch.

    One for each queue that is watched: dead letters in all of them, depth in those of functions,
    alerts, rejected messages and one response queue. And the throttling of Service Bus, and of the
    state store in three ways, and the requests to the state store.
    """
    agents = [str(number) for number in range(steps)]
    queues = Queues()
    every, worked = len(queues.own(agents)) + 1, len(queues.on_the_way(agents)) + 1
    return every + worked + 3 + 1 + 3 + 1


def queue_functions(steps: int) -> int:
    """Return the functions of queues: one a lane, and two of dead letters."""
    return len(Queues().on_the_way([str(number) for number in range(steps)])) + 2


def _without_orders(load: Load) -> Load:
    return replace(load, orders=0.0)


def _executions(load: Load) -> float:
    """Return the executions of a day: those of orders, the sweeps and the purges."""
    return load.orders * sum(load.executions.values()) + load.sweeps + PURGES


def _active_seconds(load: Load) -> float:
    """Return the seconds of a day that instances are billed, of all functions."""
    window = load.spread_hours * 3600
    cpu = CPU_S * GB_OF_A_CORE / load.memory_gb
    agent = billed_seconds(load.orders, EXECUTION_S + load.call_s, window, cpu)
    total = load.executions[AGENT] * agent  # each step has an agent, and so a function, of its own
    for function, count in load.executions.items():
        if function != AGENT:
            total += billed_seconds(load.orders * count, EXECUTION_S, window, cpu)
    sweep = counts.SWEEP.usage.requests * REQUEST_S
    total += load.sweeps * max(ACTIVE_MIN_S, sweep)  # they come evenly
    purge = _purge_requests(load) / PURGES * REQUEST_S / PURGE_AT_ONCE
    return total + PURGES * max(ACTIVE_MIN_S, purge)


def _operations(load: Load) -> float:
    """Return the operations of a day: each message is sent, received and settled."""
    messages = load.total(counts.ORDER_APART.usage.messages, counts.STEP_APART.usage.messages)
    return 3 * messages * load.orders + SCALE_CHECKS * queue_functions(load.steps)


def _requests(load: Load) -> float:
    """Return the requests to Table Storage of a day."""
    order = load.total(counts.ORDER_APART.usage.requests, counts.STEP_APART.usage.requests)
    sweeps = load.sweeps * counts.SWEEP.usage.requests
    checks = min(load.sweeps, DAY_S / 60) * counts.HEALTH_CHECK.usage.requests
    return load.orders * order + sweeps + checks + _purge_requests(load)


def _purge_requests(load: Load) -> float:
    """Return the requests of a day's purges, which remove as many orders as come.

    If few come, each goes alone.
    """
    shards = PURGES * SHARDS
    groups = min(load.orders, shards + load.orders / 6) * counts.PURGE_TOGETHER.usage.requests
    batches = min(load.orders, shards + load.orders / 50) * counts.PURGE_BATCH.usage.requests
    own = PURGES * counts.PURGE_RUN.usage.requests
    return own + batches + groups + load.orders * counts.PURGE_ORDER.usage.requests


def _stored_bytes(load: Load) -> float:
    """Return the bytes of an order in the table. A character of a text takes two."""
    own = load.total(counts.STORED_BYTES_ORDER, counts.STORED_BYTES_STEP)
    return own + 2 * load.content_bytes


def _records(load: Load) -> float:
    """Return the records of a day in the logs: spans, points of metrics, those of the host."""
    spans = load.orders * load.total(counts.SPANS_ORDER, counts.SPANS_STEP)
    spans += load.sweeps * counts.SPANS_SWEEP
    points = load.total(counts.METRICS_ORDER, counts.METRICS_STEP) * min(load.orders, EXPORTS)
    points += counts.METRICS_SWEEP * min(load.sweeps, EXPORTS)
    return load.share * spans + points + HOST_RECORDS * _executions(load)
