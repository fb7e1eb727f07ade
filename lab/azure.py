"""Orders in Azure, simulated: ``python -m lab.azure`` prints the tables of cost.md and scale.md.

Two designs of one order (reserve, pay, ship) run on a model of Flex Consumption:

1. **Function.** Each function scales alone, and messages wait for it in a queue. It wants an
   instance for every 16 messages that wait or are handled (``maxConcurrentCalls``).
2. **Cold start.** A new instance takes messages after 10 to 60 seconds, drawn. After 30 seconds
   without a message it is removed, with all that it remembers.
3. **Work.** The oldest instance with room takes a message. An execution is a row of parts, and
   ``SECONDS`` has the time of each. Then the order's next message is sent.
4. **Reads.** A process does not read an order that it committed last (``sas.engine.kept_orders``),
   and looks at a circuit at most once a second. Each instance is such a process.
5. **Always ready.** One instance of each function can be there from the start, and stays.
6. **Bill.** An active period begins when an idle instance gets a message, and ends when it has none
   left. It is billed as a second or more, in steps of 100 ms. Microsoft does not say whether a
   period that begins within the billed second of the last period is billed again. ``billed_s``
   takes the two as one period, and ``apart_s`` bills each: the truth lies between them.
7. **Logs.** The host of an instance exports its own metrics every minute, as long as it is there.

Orders arrive by chance (Poisson); the first ten minutes do not count. A lone order meets no
instance. Nothing fails, and no step's time runs out while a function starts.

The times of ``SECONDS`` are **assumed**, for services of one region, because nothing was run in
Azure. Next to cold starts they hardly matter. The CPU is measured: 24 ms an order (lab/README.md),
over the 30 parts and messages of an order whose hops all go through queues. The prices are those of
docs/cost.md.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import mean, quantiles

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "azure.svg"
CPU_S = 0.0008
SECONDS = {"commit": 0.015, "load": 0.010, "look": 0.008, "send": 0.010, "call": 0.050}
SECONDS["slow"] = 30.0
"""A transaction, a read of an order, of a circuit, a message sent, a call of a service."""
RECEIVE_S = 0.010 + CPU_S
COLD_START_S = (10.0, 60.0)
IDLE_S = 30.0
CONCURRENT_MAX = 16
LOOK_AGAIN_S = 1.0
WARM_UP_S = 600.0

Design = Sequence[tuple[str, str]]
"""The executions of an order: each a function, and its parts."""
_CALLS = "".join(f" look{n} call commit" for n in "123")
DESIGNS: Mapping[str, Design] = {
    "default": (
        ("orders", "commit send commit send"),
        *((f"agent{n}", f"look{n} call load commit send") for n in "123"),
    ),
    "inline agents": (("orders", f"commit send commit{_CALLS} send"),),
}
_GOES_WELL = DESIGNS["default"]
_SLOW = (_GOES_WELL[0], ("agent1", "look1 slow load commit send"), *_GOES_WELL[2:])
_INLINE = " look2 call commit look3 call commit send"
ORDERS: Mapping[str, Sequence[Design]] = {
    "goes well": (_GOES_WELL,),
    "waits three times": (
        (
            *_GOES_WELL[:2],
            ("scheduler", "load commit send"),
            ("agent2", "look2 call send"),
            ("replies", "load commit send"),
            ("agent3", "look3 call load commit"),
            ("callbacks", "load commit send"),
        ),
    ),
    "needs no slow service": ((_GOES_WELL[0], *_GOES_WELL[2:]), _SLOW),
    "the same, quick agents inline": (
        (("orders", "commit send commit" + _INLINE),),
        (_GOES_WELL[0], ("agent1", "look1 slow load commit" + _INLINE)),
    ),
}
"""Orders for docs/adr/0031. The second is woken, has a reply by its queue, and ends by a callback.
The last two share their functions with as many orders whose first call takes 30 seconds.
"""
_STORE = dict.fromkeys(("replies", "callbacks"), "scheduler")
_AGENTS = ("agent1", "agent2", "agent3")
GROUPS: Mapping[str, Mapping[str, str]] = {
    "a function for each queue": {},
    "one for what waits for the store": _STORE,
    "one for everything internal": _STORE | dict.fromkeys(_AGENTS, "scheduler"),
}
"""The functions that take over the messages of others."""
LONE = 0.1
RATES = (100, 10_000, 100_000, 1_000_000)
"""Orders a day. At ``LONE`` each of them is alone."""

DAYS = 30.4
MEMORY_GB = 2
READY_GB_S_USD = 0.000004
"""Of an instance that is always ready, also while it does nothing (assumed)."""
GB_S_USD, GB_S_FREE = 0.000026, 100_000
EXECUTION_USD, EXECUTIONS_FREE = 0.40e-6, 250_000
BUS_USD, OPERATIONS_A_MESSAGE = 9.81, 3
OPERATIONS_USD = ((13e6, 0.0), (100e6, 0.80e-6), (2_500e6, 0.50e-6))
"""Up to so many operations a month, each has this price."""
ZRS = 1.25
"""Zone-redundant storage costs so many times the locally redundant one (assumed)."""
REQUEST_USD, STORED_GB_USD = 0.036e-6 * ZRS, 0.045 * ZRS
ORDER_GB, RETENTION_DAYS = 8e-6, 30
LOG_GB_USD, LOG_GB_FREE, ALERTS_USD = 2.30, 5, 16.30
RECORD_GB = 1e-6
"""A span, or a point of a metric, as it is stored (assumed). Sent, they have 840 and 620 bytes:
measured in tests/integration/test_worker_core_logs.py.
"""
SPANS, POINTS, EXPORTS_A_DAY = 11, 24, 8_640
"""An order has so many spans of ours. Our export sums the points of ten seconds."""
HOST_SPANS, HOST_POINTS_A_MINUTE = 2, 35
"""The host traces each message twice: as a message, and as an invocation. Its metrics are those of
the runtime (26), of the process (6), and of requests and invocations (about 3).
"""
SWEEP_SPANS, SWEEP_POINTS = 2, 7
SWEEPS_A_DAY, PURGES_A_DAY, HEALTH_CHECKS_A_DAY = 8_640, 144, 1_440
IDLE_REQUESTS_A_DAY = SWEEPS_A_DAY * 18 + PURGES_A_DAY * 34 + HEALTH_CHECKS_A_DAY * 2
PURGE_REQUESTS, PURGE_CPU_S = 4, 0.0043
CREDITS_A_SECOND, CREDITS_A_MESSAGE = 1_000, 2


@dataclass(eq=False, kw_only=True)
class Order:
    design: Design
    sent_at: float
    done_at: float = 0.0
    usage: Counter[str] = field(default_factory=lambda: Counter(messages=1))
    keeper: Instance | None = None
    """The instance that committed it last."""


@dataclass(eq=False, kw_only=True)
class Instance:
    """``billed_at`` is when the period began that ``Azure.billed_s`` does not have yet."""

    ready_at: float
    busy: int = 0
    active_at: float = 0.0
    idle_at: float = 0.0
    billed_at: float = -math.inf
    is_always_ready: bool = False
    looks: dict[str, float] = field(default_factory=dict)


@dataclass
class Function:
    instances: list[Instance] = field(default_factory=list)
    waiting: deque[tuple[Order, int]] = field(default_factory=deque)


class Azure:
    """The functions, and a clock. ``always_ready`` instances of each function stay there."""

    def __init__(self, seed: int, always_ready: int = 0) -> None:
        self.random = random.Random(seed)
        self.starts = 0
        self.billed_s = self.apart_s = self.alive_s = 0.0
        self._now = 0.0

        def function() -> Function:
            ready = [Instance(ready_at=0.0, is_always_ready=True) for _ in range(always_ready)]
            return Function(instances=ready)

        self._functions: dict[str, Function] = defaultdict(function)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def send(self, order: Order, time: float, hop: int = 0) -> None:
        self._at(time + RECEIVE_S, partial(self._receive, order, hop))

    def run(self) -> None:
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        for function in self._functions.values():
            for instance in function.instances:
                self._remove(instance)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _receive(self, order: Order, hop: int) -> None:
        function = self._functions[order.design[hop][0]]
        function.waiting.append((order, hop))
        self._scale(function)

    def _scale(self, function: Function) -> None:
        """Remove idle instances (2), hand out messages (3), and start instances (1)."""
        for instance in function.instances[:]:
            idle_at = max(instance.idle_at, instance.ready_at)
            is_idle = not instance.busy and self._now > idle_at + IDLE_S
            if is_idle and not instance.is_always_ready:
                self._remove(instance)
                function.instances.remove(instance)
        for instance in function.instances:
            while function.waiting and instance.busy < CONCURRENT_MAX:
                if instance.ready_at > self._now:
                    break
                order, hop = function.waiting.popleft()
                end = self._now + self._begin(instance, order, order.design[hop][1])
                self._at(end, partial(self._end, function, instance, order=order, hop=hop))
        messages = len(function.waiting) + sum(instance.busy for instance in function.instances)
        while len(function.instances) * CONCURRENT_MAX < messages:
            instance = Instance(ready_at=self._now + self.random.uniform(*COLD_START_S))
            function.instances.append(instance)
            self.starts += self._now >= WARM_UP_S
            self._at(instance.ready_at, partial(self._scale, function))

    def _begin(self, instance: Instance, order: Order, parts: str) -> float:
        """Begin an execution; return how long it takes."""
        if not instance.busy:
            instance.active_at = self._now
            if self._now >= instance.billed_at + 1:
                self._bill(instance)
                instance.billed_at = self._now
        instance.busy += 1
        order.usage["executions"] += 1
        return sum(self._work(part, instance, order) for part in parts.split())

    def _work(self, part: str, instance: Instance, order: Order) -> float:
        """Return the time of a part, and count what it asks for (4)."""
        kind = part.rstrip("123")
        if kind == "load" and order.keeper is instance:
            return 0.0
        if kind == "look":
            if self._now < instance.looks.get(part, -math.inf) + LOOK_AGAIN_S:
                return 0.0
            instance.looks[part] = self._now
        if kind == "commit":
            order.keeper = instance
        order.usage["messages"] += kind == "send"
        order.usage["requests"] += kind in {"commit", "load", "look"}
        return SECONDS[kind] + CPU_S

    def _end(self, function: Function, instance: Instance, *, order: Order, hop: int) -> None:
        instance.busy -= 1
        instance.idle_at = self._now
        if not instance.busy and instance.active_at >= WARM_UP_S:
            self.apart_s += _billed(self._now - instance.active_at)
        if hop + 1 < len(order.design):
            self.send(order, self._now, hop + 1)
        order.done_at = self._now
        self._scale(function)

    def _remove(self, instance: Instance) -> None:
        self._bill(instance)
        self.alive_s += max(0.0, instance.idle_at + IDLE_S - max(instance.ready_at, WARM_UP_S))

    def _bill(self, instance: Instance) -> None:
        """Bill the last period of an instance (6)."""
        if instance.billed_at >= WARM_UP_S:
            self.billed_s += _billed(instance.idle_at - instance.billed_at)
        instance.billed_at = -math.inf


def _billed(seconds: float) -> float:
    return max(1.0, math.ceil(seconds * 10 - 1e-6) / 10)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an order met: the mean, and two latencies in seconds.

    ``alive_s`` is for how long instances were there, and ``billed_s`` for how long they worked.
    """

    p50_s: float
    p99_s: float
    starts: float
    usage: Mapping[str, float]
    billed_s: float
    apart_s: float
    alive_s: float


def simulate(
    design: Design,
    orders_a_day: float,
    *,
    beside: Design | None = None,
    always_ready: int = 0,
    orders: int = 5_000,
    seed: int = 1,
) -> Result:
    """Return the result of the orders of ``design``. Half of all orders are of ``beside``."""
    azure = Azure(seed, always_ready)
    arrivals: list[Order] = []
    time = 0.0
    while len(arrivals) < orders:
        time += azure.random.expovariate(orders_a_day / 86_400)
        other = beside if beside and azure.random.random() < 0.5 else None
        order = Order(design=other or design, sent_at=time)
        azure.send(order, time)
        if time >= WARM_UP_S and other is None:
            arrivals.append(order)
    azure.run()
    latencies = quantiles((order.done_at - order.sent_at for order in arrivals), n=100)
    return Result(
        p50_s=latencies[49],
        p99_s=latencies[98],
        starts=azure.starts / orders,
        usage={kind: mean(order.usage[kind] for order in arrivals) for kind in arrivals[0].usage},
        billed_s=azure.billed_s / orders,
        apart_s=azure.apart_s / orders,
        alive_s=azure.alive_s / orders,
    )


def bill(result: Result, orders_a_day: float, order_s: float) -> dict[str, float]:
    """Return the parts of a month's bill. ``order_s`` is billed for an order's functions."""
    orders, usage = orders_a_day * DAYS, result.usage
    timers_s = DAYS * (SWEEPS_A_DAY + max(PURGES_A_DAY, PURGE_CPU_S * orders_a_day))
    executions = orders * usage["executions"] + DAYS * (SWEEPS_A_DAY + PURGES_A_DAY)
    functions = GB_S_USD * max(0.0, MEMORY_GB * (orders * order_s + timers_s) - GB_S_FREE)
    functions += EXECUTION_USD * max(0.0, executions - EXECUTIONS_FREE)
    operations, bus, begin = orders * usage["messages"] * OPERATIONS_A_MESSAGE, BUS_USD, 0.0
    for end, usd in OPERATIONS_USD:
        bus += usd * max(0.0, min(operations, end) - begin)
        begin = end
    requests = orders * (usage["requests"] + PURGE_REQUESTS) + DAYS * IDLE_REQUESTS_A_DAY
    spans = orders * (SPANS + HOST_SPANS * usage["executions"]) + DAYS * SWEEPS_A_DAY * SWEEP_SPANS
    points = DAYS * (POINTS * min(orders_a_day, EXPORTS_A_DAY) + SWEEPS_A_DAY * SWEEP_POINTS)
    alive_s = orders * result.alive_s + DAYS * 86_400  # the supervisor's instance is always there
    points += HOST_POINTS_A_MINUTE * alive_s / 60
    log_gb = (spans + points) * RECORD_GB
    logs = ALERTS_USD + LOG_GB_USD * max(0.0, log_gb - LOG_GB_FREE)
    stored_gb = orders_a_day * RETENTION_DAYS * ORDER_GB
    storage = REQUEST_USD * requests + STORED_GB_USD * stored_gb
    return {"functions": functions, "Service Bus": bus, "storage": storage, "logs, alerts": logs}


Results = Mapping[str, Mapping[float, Result]]


def simulate_all() -> Results:
    return {
        name: {rate: simulate(design, rate) for rate in (LONE, *RATES)}
        for name, design in DESIGNS.items()
    }


def tables(results: Results) -> str:
    """Return the tables of docs/cost.md."""
    head = (
        "design | executions | messages | storage requests | a lone order: cold starts | p50 | p99"
    )
    lines = [f"| {head} | Service Bus Standard |\n|{'---|' * 8}"]
    for name, rates in results.items():
        lone, requests = rates[LONE], [result.usage["requests"] for result in rates.values()]
        messages = lone.usage["messages"]
        orders_s = CREDITS_A_SECOND // (CREDITS_A_MESSAGE * messages)
        lines.append(
            f"| {name} | {lone.usage['executions']} | {messages} | {min(requests):.0f} to "
            f"{max(requests):.0f} | {lone.starts:.1f} | {lone.p50_s:.0f} s | {lone.p99_s:.0f} s "
            f"| {orders_s:.0f} orders/s |"
        )
    head = "orders a day | design | p50 | p99 | cold starts an order | functions | Service Bus"
    lines.append(f"\n| {head} | storage | logs, alerts | USD a month |\n|{'---|' * 10}")
    for rate in RATES:
        for name, rates in results.items():
            result = rates[rate]
            low, high = (bill(result, rate, s) for s in (result.billed_s, result.apart_s))
            usd = [_range(low[part], high[part]) for part in low]
            lines.append(
                f"| {rate:,} | {name} | {_seconds(result.p50_s)} | {_seconds(result.p99_s)} "
                f"| {result.starts:.2f} | {' | '.join(usd)} | "
                f"**{_range(sum(low.values()), sum(high.values()))}** |"
            )
    return "\n".join(lines)


def lone_orders() -> str:
    """Return the table of docs/scale.md: what a lone order waits, and what ready instances cost."""
    ready_usd = READY_GB_S_USD * MEMORY_GB * 86_400 * DAYS
    lines = [
        "| design | always ready | cold starts | p50 | p99 | USD a month more |\n"
        + "|---" * 6
        + "|"
    ]
    for name in ("default", "inline agents"):
        design = DESIGNS[name]
        functions = len({function for function, _ in design})
        for always_ready in (0, 1):
            result = simulate(design, LONE, always_ready=always_ready)
            ready = f"{functions} of its functions" if always_ready else "none"
            lines.append(
                f"| {name} | {ready} | {result.starts:.0f} | {_seconds(result.p50_s)} "
                f"| {_seconds(result.p99_s)} | {always_ready * functions * ready_usd:.0f} |"
            )
    return "\n".join(lines)


def groups() -> str:
    """Return the table of docs/adr/0031: cold starts, p50, p99 and USD a month."""
    lines = [f"| order | orders a day | {' | '.join(GROUPS)} |\n|{'---|' * (2 + len(GROUPS))}"]
    for name, designs in ORDERS.items():
        for rate in (LONE, *RATES[:3]):
            cells = []
            for group in GROUPS.values():
                grouped = [
                    [(group.get(function, function), parts) for function, parts in design]
                    for design in designs
                ]
                slow = grouped[1] if len(grouped) > 1 else None
                result = simulate(grouped[0], rate, beside=slow)
                usd = sum(bill(result, rate, result.billed_s).values())
                latency = f"{_seconds(result.p50_s)}, {_seconds(result.p99_s)}"
                cells.append(f"{result.starts:.2f}; {latency}" + ("" if slow else f"; {usd:.0f}"))
            lines.append(f"| {name} | {rate:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2f} s"


def _range(low: float, high: float) -> str:
    return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f} to {high:,.0f}"


COLOURS = {"functions": "#0969da", "Service Bus": "#bf8700", "storage": "#1a7f37"}
COLOURS |= {"logs, alerts": "#8c959f", "latency": "#57606a"}


def picture(results: Results) -> str:
    """Return the picture of docs/cost.md: three panels of bars."""
    lone = [({"latency": rates[LONE].p50_s}, rates[LONE].p99_s) for rates in results.values()]
    svg = _panel(0, "A lone order's latency in seconds (line: p99)", lone)
    for x, rate in ((320, 10_000), (640, 1_000_000)):
        cases = [rates[rate] for rates in results.values()]
        high = [sum(bill(result, rate, result.apart_s).values()) for result in cases]
        low = [bill(result, rate, result.billed_s) for result in cases]
        svg += _panel(x, f"USD a month, {rate:,} orders a day", list(zip(low, high, strict=True)))
    for x, part in zip((330, 440, 560, 640), COLOURS, strict=False):
        svg += f'<rect x="{x}" y="262" width="12" height="12" fill="{COLOURS[part]}"/>'
        svg += f'<text x="{x + 18}" y="272">{part}</text>\n'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 286" font-family="sans-serif" '
        f'font-size="12"><rect width="960" height="286" fill="#fff"/>\n{svg}'
        '<text x="745" y="272">line: each active period apart</text></svg>\n'
    )


def _panel(begin: int, title: str, bars: Sequence[tuple[Mapping[str, float], float]]) -> str:
    """Return stacked bars of 170 pixels at most, each with a line above it."""
    scale = 170 / max(line for _, line in bars)
    svg = f'<text x="{begin + 10}" y="20" font-weight="bold">{title}</text>\n'
    for x, name, (values, line) in zip(
        range(begin + 60, begin + 260, 120), DESIGNS, bars, strict=True
    ):
        y = 225.0
        for part, value in values.items():
            y -= value * scale
            svg += f'<rect x="{x}" y="{y:.1f}" width="50" height="{value * scale:.1f}" '
            svg += f'fill="{COLOURS[part]}"/>'
        svg += f'<text x="{x + 54}" y="{y + 4:.1f}">{sum(values.values()):,.0f}</text>'
        svg += f'<rect x="{x}" y="{225 - line * scale:.1f}" width="50" height="2"/>'
        svg += f'<text x="{x - 10}" y="242" font-size="10">{name}</text>\n'
    return svg


if __name__ == "__main__":
    all_results = simulate_all()
    PICTURE.write_text(picture(all_results))
    print(tables(all_results), lone_orders(), groups(), sep="\n\n")
