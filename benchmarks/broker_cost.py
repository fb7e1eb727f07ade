"""The broker's CPU over its client's, in many short rounds.

The same work costs both sides half as much again on two cores as on one: each wake-up then finds
an idle core with cold caches, and crosses the hypervisor. The scheduler changes the placement from
second to second. So plain, `--data` and batches take turns, each round has its own ratio, and the
program prints medians for all rounds and for each placement. Nothing is pinned. The brokers are
restarted a few times, because each process is placed differently in memory.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.broker_work import Driver, write_config
from benchmarks.metering import Cost, steal_seconds
from devstack.tests.broker_runners import start_broker

_STARTS = 5
_LONGEST_S = 100.0
_SINGLES, _BATCHED = 250, 2000
#: A single message has the client wait twice where the broker is on another core, else never.
_WAITS_APART = 1.0

ROWS: dict[str, tuple[Callable[[Driver, int], Cost], int, bool]] = {
    "single (goal .50)": (Driver.singles, _SINGLES, False),
    "single --data": (Driver.singles, _SINGLES, True),
    "batches": (Driver.batches, _BATCHED, False),
    "batches --data": (Driver.batches, _BATCHED, True),
}


def rounds_of_costs(folder: Path, rounds: int) -> dict[str, list[Cost]]:
    """Measure ``rounds`` rounds of every row, or fewer on a busy machine."""
    found: dict[str, list[Cost]] = {row: [] for row in ROWS}
    config = write_config(folder, 4)
    for start in range(_STARTS):
        with ExitStack() as stack:
            plain, lasting = (
                stack.enter_context(Driver(stack.enter_context(start_broker(config, data=data))))
                for data in (None, folder / f"data{start}")
            )
            end = time.monotonic() + _LONGEST_S / _STARTS
            for number in range(rounds // _STARTS):
                if number and time.monotonic() > end:
                    break
                for row, (work, count, lasts) in ROWS.items():
                    found[row].append(work(lasting if lasts else plain, count))
    return found


def measure_cost(folder: Path, scale: int) -> None:
    """Print a line for each row, and one for each placement of the single messages."""
    stolen = steal_seconds()
    for row, costs in rounds_of_costs(folder, max(_STARTS, scale // 2)).items():
        print(f"{row:18}", _line(costs))
        if costs[0].count == _SINGLES:
            for name, apart in (("on one core", False), ("on two", True)):
                some = [cost for cost in costs if (cost.waits > _WAITS_APART) == apart]
                if some:
                    print(f"    {name:14}", _line(some))
    print(f"stolen by the host meanwhile: {steal_seconds() - stolen:.2f} s of CPU, in no figure")


def _line(costs: list[Cost]) -> str:
    ratios = sorted(cost.ratio for cost in costs)
    low, middle, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.25, 0.5, 0.75))
    client, broker, rate = (
        statistics.median(figures)
        for figures in zip(*((c.client_us, c.broker_us, c.rate) for c in costs), strict=True)
    )
    return (
        f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f}, least {ratios[0]:.3f}) | client "
        f"{client:4.0f} us, broker {broker:4.0f} us | {rate:6.0f} msg/s | {len(costs)} rounds"
    )
