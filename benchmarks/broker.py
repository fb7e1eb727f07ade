"""What the broker costs, as ratios to the real SDK client that drives it in the same run.

    python -m benchmarks.broker [--quick]

The broker and every client are processes of their own; CPU is the operating system's account of
each. Bodies are 256 bytes. Only loopback is loaded.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from benchmarks.broker_latency import bare_round_trip, latency
from benchmarks.broker_parallel import Parallel, parallel
from benchmarks.metering import BODY, Cost, Meter, memory_of
from devstack.servicebus import BrokerProcess, start_broker


def message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id="m")


def write_config(folder: Path, queues: int) -> Path:
    path = folder / f"config{queues}.json"
    entries = [{"Name": f"q{n}", "Properties": {"LockDuration": "PT5M"}} for n in range(queues)]
    document = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": entries}]}}
    path.write_text(json.dumps(document))
    return path


def cycle_singles(broker: BrokerProcess, count: int, queue: str = "q0") -> Cost:
    """Send one by one, then receive and complete one by one."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        sender.send_messages(message())
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=5)[0])
        with Meter(broker.process.pid, count) as meter:
            for _ in range(count):
                sender.send_messages(message())
            left = count
            while left:
                for found in receiver.receive_messages(50, max_wait_time=5):
                    receiver.complete_message(found)
                    left -= 1
        return meter.cost


def send_singles(broker: BrokerProcess, count: int) -> Cost:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("q0") as sender,
    ):
        sender.send_messages(message())
        with Meter(broker.process.pid, count) as meter:
            for _ in range(count):
                sender.send_messages(message())
    drain(broker, count + 1)
    return meter.cost


def cycle_batches(broker: BrokerProcess, count: int) -> Cost:
    """Send in batches of 100, then receive and delete 100 at a time."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("q0") as sender,
        client.get_queue_receiver("q0", receive_mode=mode) as receiver,
    ):
        sender.send_messages(message())
        receiver.receive_messages(1, max_wait_time=5)
        with Meter(broker.process.pid, count) as meter:
            for _ in range(count // 100):
                sender.send_messages([message() for _ in range(100)])
            left = count
            while left:
                left -= len(receiver.receive_messages(100, max_wait_time=5))
        return meter.cost


def drain(broker: BrokerProcess, count: int) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("q0", receive_mode=mode) as receiver,
    ):
        while count > 0:
            count -= len(receiver.receive_messages(500, max_wait_time=2)) or count


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


def measure_cost(folder: Path, scale: int) -> None:
    print(f"ready within {ready_within(folder):.2f} s (goal 0.5)")
    print("send single            ", with_broker(folder, lambda b: send_singles(b, 20 * scale)))
    cycle = functools.partial(cycle_singles, count=20 * scale)
    print("single cycle (goal .30)", with_broker(folder, cycle))
    print("  with --data    (.40) ", with_broker(folder, cycle, data=folder / "data"))
    batch = functools.partial(cycle_batches, count=200 * scale)
    print("batches of 100 (.15)   ", with_broker(folder, batch))
    print("  with --data          ", with_broker(folder, batch, data=folder / "data2"))


def measure_queues(folder: Path, scale: int) -> None:
    cycle = functools.partial(cycle_singles, count=20 * scale)
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
    print(f"4 over 1: {rates[4] / rates[1]:.2f} (goal 1.8, where two cores are free)")


def measure_latency(folder: Path, scale: int) -> None:
    whole, outside = with_broker(folder, lambda b: latency(b, 3 * scale))
    print(
        f"send to receive p50 {whole:.2f} ms: SDK {whole - outside:.2f}, broker and loopback "
        f"{outside:.2f}; bare TCP and codec, twice, {bare_round_trip(3 * scale):.2f} ms"
    )


def measure_memory(_: Path, scale: int) -> None:
    idle, each = memory_per_message(10_000 * scale)
    print(f"idle {idle:.0f} MB (goal 40); {each:.0f} bytes a queued message above its body (1200)")


MEASURES = {
    "cost": measure_cost,
    "queues": measure_queues,
    "parallel": measure_parallel,
    "latency": measure_latency,
    "memory": measure_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="comma-separated: cost,queues,parallel,latency,memory"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(",") if options.only else MEASURES:
            MEASURES[name](Path(folder), 10 if options.quick else 100)


if __name__ == "__main__":
    main()
