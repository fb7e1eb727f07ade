"""The CPU of the broker beside that of the real SDK client: ``python -m lab.benchmarks.broker``.

Broker and client are processes of their own; CPU is what the kernel charges to each. Plain and
``--data`` take turns in short rounds, and the figures are medians, so ratios say more than times.
Bodies have 256 bytes, all traffic is on loopback.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from devstack.tests.broker_runners import BrokerProcess, start_broker

BODY = b"x" * 256
QUEUES = 11
SINGLES, BATCHED = 250, 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of client and broker for one message, in microseconds, and messages a second."""

    client_us: float
    broker_us: float
    rate: float


class Driver:
    """A client with a sender and a receiver of one queue, and of another queue for batches."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._pid = broker.process.pid
        self._client = ServiceBusClient.from_connection_string(broker.connection_string)
        self._sender = self._client.get_queue_sender("q0")
        self._receiver = self._client.get_queue_receiver("q0")
        self._batch_sender = self._client.get_queue_sender("q1")
        self._taker = self._client.get_queue_receiver(
            "q1", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        )

    def singles(self, count: int) -> None:
        """Send, receive and complete one message at a time."""
        for _ in range(count):
            self._sender.send_messages(message())
        while count:
            for received in self._receiver.receive_messages(min(50, count), max_wait_time=5):
                self._receiver.complete_message(received)
                count -= 1

    def batches(self, count: int) -> None:
        """Send in batches of 100; receive and delete 100 at a time."""
        for _ in range(count // 100):
            self._batch_sender.send_messages([message() for _ in range(100)])
        while count:
            count -= len(self._taker.receive_messages(min(100, count), max_wait_time=5))

    def cost(self, work: Callable[[Driver, int], None], count: int) -> Cost:
        """Return what the work costs."""
        broker, client, started_at = cpu_of(self._pid), time.process_time(), time.perf_counter()
        work(self, count)
        seconds = time.perf_counter() - started_at
        cpu_seconds = time.process_time() - client, cpu_of(self._pid) - broker
        return Cost(1e6 * cpu_seconds[0] / count, 1e6 * cpu_seconds[1] / count, count / seconds)

    def close(self) -> None:
        """Close the client."""
        for part in (self._sender, self._receiver, self._batch_sender, self._taker, self._client):
            part.close()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all its threads, to the nanosecond."""
    clock = ~pid << 3 | 2  # Linux: CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it
    return time.clock_gettime(clock)


def memory_of(pid: int) -> float:
    """Resident memory in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def message() -> ServiceBusMessage:
    """Return the message that every measurement sends."""
    return ServiceBusMessage(BODY, message_id="m")


def config(folder: Path) -> Path:
    """Write the broker's configuration and return its path."""
    queues = [{"Name": f"q{n}", "Properties": {"LockDuration": "PT5M"}} for n in range(QUEUES)]
    path = folder / "config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": queues}]}}))
    return path


def measure(folder: Path, rounds: int) -> None:
    """Print how soon the broker is ready, its memory, and a line for each kind of work."""
    rows = {
        ("single", False): (Driver.singles, SINGLES),
        ("single, --data", True): (Driver.singles, SINGLES),
        ("batches of 100", False): (Driver.batches, BATCHED),
        ("batches of 100, --data", True): (Driver.batches, BATCHED),
    }
    costs: dict[str, list[Cost]] = {name: [] for name, _ in rows}
    with ExitStack() as stack:
        drivers = {}
        for on_disk in (False, True):
            started_at = time.perf_counter()
            data = folder / "data" if on_disk else None
            broker = stack.enter_context(start_broker(config(folder), data=data))
            seconds, idle = time.perf_counter() - started_at, memory_of(broker.process.pid)
            print(f"ready with {QUEUES} queues after {seconds:.2f} s; idle memory {idle:.0f} MB")
            drivers[on_disk] = Driver(broker)
            stack.callback(drivers[on_disk].close)
            drivers[on_disk].singles(1)
        for _ in range(rounds):
            for (name, on_disk), (work, count) in rows.items():
                costs[name].append(drivers[on_disk].cost(work, count))
    for name, rounds_costs in costs.items():
        ratio = statistics.median(cost.broker_us / cost.client_us for cost in rounds_costs)
        client, broker_us, rate = (
            statistics.median(getattr(cost, field) for cost in rounds_costs)
            for field in ("client_us", "broker_us", "rate")
        )
        print(
            f"{name:24} broker over client {ratio:.2f} ({broker_us:.0f} over {client:.0f} us), "
            f"{rate:.0f} messages/s"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), rounds)


if __name__ == "__main__":
    main()
