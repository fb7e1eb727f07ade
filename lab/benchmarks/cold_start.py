"""Measures a cold start: ``python -m lab.benchmarks.cold_start``.

*Import* is ``import function_app`` in a fresh interpreter, compared with the Azure SDK modules that
it needs. The imports run in turns, so that a busy machine slows all of them alike. CPU is the CPU
of the importing thread. *First messages* are the messages of the first order in a fresh host
process. The table exists already.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from azure.servicebus.aio import ServiceBusClient

from devstack.stack import Stack
from lab.benchmarks.orders import PROJECT, REPLY_QUEUE, LoadRun, closed_loop, settings_of
from samples.services.remote import RemoteServices
from sas.client import OrdersClient

SDK = "azure.functions, azure.servicebus.aio, azure.data.tables.aio"
_TIMED = """
import sys, time
cpu, wall = time.thread_time(), time.perf_counter()
{code}
sys.stdout.write(f"{{time.thread_time() - cpu}} {{time.perf_counter() - wall}}")
"""
FUNCTIONS = ("submission", "scheduler", "agent_inventory")


def seconds_of(code: str, app: Path) -> tuple[float, float]:
    """Return the CPU and the wall seconds of an import in the directory of an app."""
    local = json.loads((PROJECT / "local.settings.json").read_text(encoding="utf-8"))["Values"]
    ran = subprocess.run(
        [sys.executable, "-B", "-c", _TIMED.format(code=code)],
        check=True,
        cwd=app,
        env={**os.environ, **local},
        capture_output=True,
        text=True,
    )
    cpu, wall = ran.stdout.split()
    return float(cpu), float(wall)


def deployed(at: Path, *, bytecode: bool) -> Path:
    """Copy the app to a directory, with its bytecode or without."""
    for room in ("sas", "orders"):
        shutil.copytree(PROJECT / room, at / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "function_app.py", at)
    if bytecode:
        compileall.compile_dir(at, quiet=1)
    return at


def imports(rounds: int) -> None:
    """Print medians of the imports, and the median of the ratios within each round."""
    with (
        tempfile.TemporaryDirectory() as compiled_folder,
        tempfile.TemporaryDirectory() as source_folder,
    ):
        compiled = deployed(Path(compiled_folder), bytecode=True)
        cases = {
            "the SDK modules": (f"import {SDK}", compiled),
            "function_app": ("import function_app", compiled),
            "function_app, without its bytecode": (
                "import function_app",
                deployed(Path(source_folder), bytecode=False),
            ),
        }
        rows = [[seconds_of(*case) for case in cases.values()] for _ in range(rounds)]
    print(f"{'import of':40} {'CPU ms':>8} {'wall ms':>8} {'CPU over the SDK':>17}")
    for number, name in enumerate(cases):
        cpu, wall = (1000 * statistics.median(turn[number][k] for turn in rows) for k in (0, 1))
        ratio = statistics.median(turn[number][0] / turn[0][0] for turn in rows)
        print(f"{name:40} {cpu:8.0f} {wall:8.0f} {ratio:17.2f}")


async def first_messages(rounds: int) -> None:
    """Print how long the first invocations of a fresh host take, and the opening of one link."""
    first: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    last: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    opening: list[float] = []
    async with _stack() as (stack, client):
        for number in range(rounds):
            await stack.start_group([], name="app", processes=1)
            log = stack.group("app")[0].log_path
            for turn in range(2):
                await closed_loop(client, LoadRun(in_flight=1), 1, f"cold{number}-{turn}")
            for name in FUNCTIONS:
                durations_ms = _invocations(log.read_text(encoding="utf-8"), name)
                first[name].append(durations_ms[0])
                last[name].append(durations_ms[-1])
            await _stop(stack, "app")
            opening.append(await _opening_ms(stack.servicebus_connection))
    print(f"{'handled in a fresh host, ms':40} {'first':>8} {'again':>8}")
    for name in FUNCTIONS:
        print(
            f"{name:40} {statistics.median(first[name]):8.0f} {statistics.median(last[name]):8.0f}"
        )
    print(f"{'the SDK opens one link (bare)':40} {statistics.median(opening):8.0f}")


async def _stop(stack: Stack, name: str) -> None:
    """Stop the hosts of a group as a platform does: functions finish first."""
    hosts = stack.group(name)
    await asyncio.gather(*(host.stop_async(timeout_s=60.0) for host in hosts))
    stack.processes = [process for process in stack.processes if process not in hosts]


@asynccontextmanager
async def _stack() -> AsyncIterator[tuple[Stack, OrdersClient]]:
    """Run everything but hosts; the table and the client's links exist."""
    async with (
        RemoteServices() as remote,
        Stack(PROJECT, settings=settings_of(remote), groups={"warm": []}) as stack,
        OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
    ):
        await closed_loop(client, LoadRun(in_flight=1), 1, "table")
        await _stop(stack, "warm")
        yield stack, client


def _invocations(log: str, function: str) -> list[float]:
    """Return how long each invocation of a function took, in ms, from the host's log."""
    marker = f"Executed 'Functions.{function}' (Succeeded, "
    parts = [line.partition(marker)[2] for line in log.splitlines()]
    return [float(part.partition(" ms)")[0]) for part in parts if part]


async def _opening_ms(connection_string: str) -> float:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        started_at = time.perf_counter()
        async with client.get_queue_sender(REPLY_QUEUE):
            return 1000 * (time.perf_counter() - started_at)


def main() -> int:
    """Run the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.cold_start", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds of imports")
    parser.add_argument("--hosts", type=int, default=3, help="fresh hosts; 0: imports only")
    options = parser.parse_args()
    imports(options.rounds)
    if options.hosts:
        asyncio.run(first_messages(options.hosts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
