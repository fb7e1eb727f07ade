"""Where the CPU of a host process goes: ``python -m lab.benchmarks.profile``.

The host has a process of its own. All other parts run as in ``benchmarks.orders``. The kernel
interrupts the host after each few milliseconds of its CPU (ITIMER_PROF). A sample counts for the
innermost frame that a row names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import Sequence
from types import FrameType

from devstack.functions.host import Host
from devstack.stack import Stack
from lab.benchmarks.orders import PROJECT, REPLY_QUEUE, LoadRun, closed_loop, settings_of
from samples.services.remote import RemoteServices
from sas.client import OrdersClient

EVERY_S = 0.001
SHOWN = 30
"""Functions and stacks that are printed, the most frequent first."""
DEPTH = 8
"""Frames that the list of the most frequent stacks shows."""
STORAGE = "SDK of Table Storage: requests, signatures"
ROWS = (
    ("/logging/", "logs"),
    ("/opentelemetry/", "telemetry"),
    ("/sas/telemetry/", "telemetry"),
    ("/azure/servicebus/", "SDK of Service Bus: send, receive, settle"),
    ("/azure/data/", STORAGE),
    ("/azure/core/", STORAGE),
    ("/sas/adapters/servicebus", "bus adapter"),
    ("/sas/adapters/", "table adapter: transactions by hand; calls of services"),
    ("/aiohttp/", "aiohttp"),
    ("/sas/codec/", "codec"),
    ("/sas/domain/", "domain"),
    ("/sas/", "engine, actors, features"),
    ("/orders/", "the business"),
    ("/azure/functions/", "host: decoding"),
    ("/devstack/functions/metadata", "host: decoding"),
    ("/devstack/", "host: pumps, invoker"),
    ("/asyncio/", "event loop, sockets, streams"),
)


class StackSamples:
    """Samples by row and by stack."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.stacks: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def take(self, _signal: int, frame: FrameType | None) -> None:
        """Count where the process is now."""
        names: list[str] = []
        row = ""
        while frame is not None:
            path = frame.f_code.co_filename
            names.append(f"{path.rsplit('/', 1)[-1]}:{frame.f_code.co_name}")
            if not row:
                row = next((title for part, title in ROWS if part in path), "")
                if row:
                    self.functions[f"{row}: {names[-1]}"] += 1
            frame = frame.f_back
        self.rows[row or "other"] += 1
        self.stacks[" < ".join(names[:DEPTH])] += 1


async def host(settings: dict[str, str]) -> None:
    """Run a host; sample from the first line on stdin to the second, then print the samples."""
    samples, reader = StackSamples(), asyncio.StreamReader()
    logging.basicConfig(level=logging.INFO)  # as the host's command has it
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Host(PROJECT, settings=settings):
        print("ready", flush=True)
        await reader.readline()
        started_at = time.process_time()
        signal.signal(signal.SIGPROF, samples.take)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        await reader.readline()
        signal.setitimer(signal.ITIMER_PROF, 0)
        cpu_s = time.process_time() - started_at
    tables = [
        dict[str, float](counter.most_common(60))
        for counter in (samples.rows, samples.functions, samples.stacks)
    ]
    tables.append({"ms": 1000 * cpu_s})
    print(json.dumps(tables), flush=True)


async def profile(orders: int, in_flight: int) -> None:
    """Print the CPU of a host by row, and its most frequent functions and stacks."""
    async with (
        RemoteServices() as remote,
        Stack(PROJECT, settings=settings_of(remote), groups={}) as stack,
        OrdersClient(stack.servicebus_connection, reply_queue=REPLY_QUEUE) as client,
    ):
        settings = json.dumps(stack.host_settings())
        command = [sys.executable, "-m", "lab.benchmarks.profile", "--host", settings]
        child = await asyncio.create_subprocess_exec(
            *command, cwd=PROJECT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=2**24
        )
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018  pipes
        await child.stdout.readline()
        await closed_loop(client, LoadRun(in_flight=in_flight), 2 * in_flight, "warm")
        child.stdin.write(b"begin\n")
        await closed_loop(client, LoadRun(in_flight=in_flight), orders, "profiled")
        child.stdin.write(b"end\n")
        *tables, cpu = json.loads(await child.stdout.readline())
        await child.wait()
    print_tables(tables, cpu["ms"] / orders)


def print_tables(tables: Sequence[dict[str, float]], cpu_ms: float) -> None:
    """Print the samples as parts of the CPU of an order. The kernel may leave samples out."""
    samples = sum(tables[0].values())
    print(f"{cpu_ms:8.2f} ms of CPU an order, {samples} samples")
    for title, counted in zip(("row", "function", "stack"), tables, strict=True):
        print(f"\n{'ms':>8}  {title}")
        for name, count in counted.items():
            print(f"{cpu_ms * count / samples:8.2f}  {name}")


def main() -> int:
    """Profile, or be the host that is profiled."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.profile", description=__doc__)
    parser.add_argument("--orders", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        asyncio.run(host(json.loads(options.host)))
    else:
        asyncio.run(profile(options.orders, options.in_flight))
    return 0


if __name__ == "__main__":
    sys.exit(main())
