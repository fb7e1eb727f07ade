"""What the broker costs, as ratios to the real SDK client that drives it in the same run.

    python -m benchmarks.broker [--quick]

The broker and every client are separate processes. CPU is what the operating system charges to
each. Bodies are 256 bytes. All traffic is on loopback.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.broker_cost import measure_cost
from benchmarks.broker_latency import bare_round_trip, latency
from benchmarks.broker_parallel import Parallel, parallel
from benchmarks.broker_work import Driver, write_config
from benchmarks.metering import BODY, Cost, memory_of
from devstack.tests.broker_runners import BrokerProcess, start_broker


def memory_per_message(count: int) -> tuple[float, float]:
    """Idle memory in MB, and bytes for each queued message above its body."""
    script = (
        "import sys, time\n"
        "from benchmarks.metering import BODY, memory_of\n"
        "from devstack.servicebus import Broker\n"
        "from devstack.servicebus.amqp import encode\n"
        "from devstack.servicebus.core.message import parse_message\n"
        "import os\n"
        "broker = Broker(); queue = broker.create_queue('q', max_size_megabytes=81920)\n"
        "before = memory_of(os.getpid())\n"
        "for n in range(int(sys.argv[1])):\n"
        "    properties = encode.composite(0x73, [encode.string(f'{n:036}')])\n"
        "    payload = properties + b'\\x00\\x53\\x75' + encode.binary(BODY)\n"
        "    queue.enqueue([parse_message(payload)], time.time())\n"
        "print(memory_of(os.getpid()) - before)\n"
    )
    done = subprocess.run(  # noqa: S603 (this file)
        [sys.executable, "-c", script, str(count)], capture_output=True, text=True, check=True
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        start_broker(write_config(Path(folder), 11)) as broker,
    ):
        idle = memory_of(broker.process.pid)
    return idle, float(done.stdout) * (1 << 20) / count - len(BODY)


def ready_within(folder: Path) -> float:
    start = time.perf_counter()
    with start_broker(write_config(folder, 11)):
        return time.perf_counter() - start


def with_broker(folder: Path, work: Callable[[BrokerProcess], Any], **options: Any) -> Any:
    queues = options.pop("queues", 4)
    with start_broker(write_config(folder, queues), **options) as broker:
        return work(broker)


def measure_ready(folder: Path, _: int) -> None:
    print(f"ready within {ready_within(folder):.2f} s (goal 0.5)")


def measure_queues(folder: Path, scale: int) -> None:
    def cycle(broker: BrokerProcess) -> Cost:
        with Driver(broker) as driver:
            return driver.singles(20 * scale)

    for queues in (1, 100, 1000):
        cost = with_broker(folder, cycle, queues=queues)
        print(f"with {queues:4} queues: {cost.count / cost.seconds:5.0f} cycles/s, {cost}")


def measure_parallel(folder: Path, scale: int) -> None:
    rates = {}
    for clients in (1, 2, 4):
        work = functools.partial(parallel, clients=clients, count=10 * scale)
        found: Parallel = with_broker(folder, work)
        rates[clients] = found.rate
        print(
            f"{clients} client processes: {found.rate:.0f} cycles/s, broker {found.broker_us:.0f} "
            f"us a cycle, on {found.cores:.2f} cores together"
        )
    print(f"4 over 1: {rates[4] / rates[1]:.2f}")


def measure_latency(folder: Path, scale: int) -> None:
    whole, outside = with_broker(folder, lambda b: latency(b, 3 * scale))
    here, there = (bare_round_trip(3 * scale, own_process=own) for own in (False, True))
    print(
        f"send to receive p50 {whole:.2f} ms: SDK {whole - outside:.2f}, broker and loopback "
        f"{outside:.2f}; bare TCP and codec, two round trips: {here:.2f} ms, and {there:.2f} with "
        "the echo in a process of its own"
    )


def measure_memory(_: Path, scale: int) -> None:
    idle, each = memory_per_message(10_000 * scale)
    print(f"idle {idle:.0f} MB; {each:.0f} bytes a queued message above its body")


MEASURES = {
    "ready": measure_ready,
    "cost": measure_cost,
    "queues": measure_queues,
    "parallel": measure_parallel,
    "latency": measure_latency,
    "memory": measure_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="comma-separated: ready,cost,queues,parallel,latency,memory"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(",") if options.only else MEASURES:
            MEASURES[name](Path(folder), 10 if options.quick else 100)


if __name__ == "__main__":
    main()
