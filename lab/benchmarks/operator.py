"""Measures what an operator waits for: ``python -m lab.benchmarks.operator``.

A table of Azurite gets many finished and failed orders of the last hour, each by one commit. Then
the command and the desk look at it. *Ratio* is over the same look at a table with one order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from devstack.azurite import Azurite
from lab.benchmarks.orders import PROJECT
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables.store import TableStore, connect_existing
from sas.desk.watch import Watch
from sas.domain.change import Change
from sas.domain.order import Fault, Order, StepRecord
from tests.contract import cases

COMMITS_AT_ONCE = 16
SPAN = timedelta(minutes=59)
CODES = ("no-carrier", "timed-out", "http-500", "card-declined", "out-of-stock")
COMMANDS = ("list", "list --state finished", "list --state running", "status")


def final_changes() -> tuple[Change, Change]:
    """Return the change with which an order is processed, and the one with which it fails."""
    rules = cases.rules_of(1)
    order = cases.claimed(cases.submitted("x", rules).after, rules).after
    return cases.answered(order, 0, rules), cases.refused(order, 0, rules)


def stored(change: Change, order_id: str, at: datetime, code: str) -> Change:
    """Return a change as the only one of another order, at another time, failed with a code."""

    def moved(step: StepRecord) -> StepRecord:
        return replace(step, since=at, error=step.error and Fault(code, f"it said {code}"))

    after = change.after
    details = replace(after.details, order_id=order_id, submitted_at=at - timedelta(seconds=5))
    order: Order = replace(
        after, details=details, stopped_at=at, steps=tuple(map(moved, after.steps))
    )
    return replace(
        change, before=None, after=order, entry=replace(change.entry, at=at, messages=())
    )


async def fill(connection: str, table: str, finished: int, failed: int) -> None:
    """Create a table with these orders."""
    store = TableStore.connect(connection, table)
    gate, now = asyncio.Semaphore(COMMITS_AT_ONCE), datetime.now(UTC)
    processed, refused = final_changes()

    async def commit(change: Change, name: str, number: int, count: int) -> None:
        at = now - SPAN * (number / count)
        async with gate:
            await store.commit(stored(change, f"{name}{number}", at, CODES[number % len(CODES)]))

    try:
        await store.open()
        await asyncio.gather(
            *(commit(processed, "done-", number, finished) for number in range(finished)),
            *(commit(refused, "bad-", number, failed) for number in range(failed)),
        )
    finally:
        await store.close()


def command_s(arguments: str, connection: str, table: str) -> float:
    """Return the seconds that a command takes."""
    env = {**os.environ, "SAS_TABLES": connection, "SAS_TABLE": table, "ServiceBus": ""}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sas.cli", *arguments.split()],
        check=True,
        cwd=PROJECT,
        env=env,
        capture_output=True,
    )
    return time.perf_counter() - began


async def looks_s(connection: str, table: str) -> list[float]:
    """Return the seconds of the first and of a later look of the desk."""
    store = await connect_existing(Endpoint(connection_string=connection), table)
    watch = Watch(store, lambda: datetime.now(UTC))
    try:
        return [await seconds_of(watch.look) for _ in range(6)][::5]
    finally:
        await store.close()


async def seconds_of(work: Callable[[], Awaitable[None]]) -> float:
    """Return how long some work takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def measured(connection: str, table: str) -> dict[str, float]:
    """Return the seconds of each look at a table."""
    seconds = {
        f"sas {command}": min(command_s(command, connection, table) for _ in range(3))
        for command in COMMANDS
    }
    first, later = asyncio.run(looks_s(connection, table))
    return seconds | {"desk, first look": first, "desk, later look": later}


def main() -> None:
    """Fill the tables, and print the looks at them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=20_000)
    parser.add_argument("--failed", type=int, default=2_000)
    arguments = parser.parse_args()
    with Azurite() as azurite:
        connection = azurite.connection_string
        asyncio.run(fill(connection, "small", 1, 1))
        asyncio.run(fill(connection, "large", arguments.finished, arguments.failed))
        small, large = measured(connection, "small"), measured(connection, "large")
    print(f"{'a look at':24} {'seconds':>8} {'ratio':>6}")
    for name, seconds in large.items():
        print(f"{name:24} {seconds:8.2f} {seconds / small[name]:6.1f}")


if __name__ == "__main__":
    main()
