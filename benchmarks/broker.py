"""What the broker costs, as ratios to the real SDK client that drives it in the same run.

    python -m benchmarks.broker [--quick]

The broker and every client are processes of their own; CPU is the operating system's account of
each. Bodies are 256 bytes. Only loopback is loaded.
"""

import argparse
import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message, Properties

from devstack.servicebus import BrokerProcess, start_broker

BODY = b"x" * 256


@dataclass(frozen=True)
class Cost:
    """One measurement: how many messages, wall time and CPU seconds of either side."""

    count: int
    seconds: float
    client: float
    broker: float

    @property
    def ratio(self) -> float:
        return self.broker / self.client

    def __str__(self) -> str:
        per = 1e6 / self.count
        return (
            f"{self.count / self.seconds:7.0f} msg/s | client {self.client * per:4.0f} us/msg "
            f"({100 * self.client / self.seconds:3.0f} % of a core) | broker "
            f"{self.broker * per:4.0f} us/msg ({100 * self.broker / self.seconds:3.0f} %) | "
            f"ratio {self.ratio:.2f}"
        )


def cpu_of(pid: int) -> float:
    """CPU seconds of a process of one thread, to the nanosecond (schedstat counts no ticks)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_of(pid: int) -> float:
    """Resident memory in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def write_config(folder: Path, queues: int) -> Path:
    path = folder / f"config{queues}.json"
    entries = [{"Name": f"q{n}", "Properties": {"LockDuration": "PT5M"}} for n in range(queues)]
    document = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": entries}]}}
    path.write_text(json.dumps(document))
    return path


class Meter:
    """Measures a block of work on the broker and on this process."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self.pid = broker.process.pid
        self.count = count

    def __enter__(self) -> Self:
        self.start = (time.perf_counter(), time.process_time(), cpu_of(self.pid))
        return self

    def __exit__(self, *_: object) -> None:
        now = (time.perf_counter(), time.process_time(), cpu_of(self.pid))
        wall, client, broker = (b - a for a, b in zip(self.start, now, strict=True))
        self.cost = Cost(self.count, wall, client, broker)


def message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id="m")


def cycle_singles(broker: BrokerProcess, count: int, queue: str = "q0") -> Cost:
    """Send one by one, then receive and complete one by one."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        sender.send_messages(message())
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=5)[0])
        with Meter(broker, count) as meter:
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
        with Meter(broker, count) as meter:
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
        with Meter(broker, count) as meter:
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


def latency(broker: BrokerProcess, count: int) -> list[float]:
    """From a send to its message in a waiting receiver, in ms."""

    async def run() -> list[float]:
        from azure.servicebus.aio import ServiceBusClient as AsyncClient  # noqa: PLC0415

        found: list[float] = []
        async with (
            AsyncClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("q0") as sender,
            client.get_queue_receiver("q0") as receiver,
        ):
            arrivals: asyncio.Queue[float] = asyncio.Queue()

            async def listen() -> None:
                async for received in receiver:
                    arrivals.put_nowait(time.perf_counter())
                    await receiver.complete_message(received)

            task = asyncio.create_task(listen())
            for _ in range(count):
                await asyncio.sleep(0.01)
                start = time.perf_counter()
                await sender.send_messages(message())
                found.append(1000 * (await arrivals.get() - start))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return found

    return asyncio.run(run())


def bare_round_trip(count: int) -> list[float]:
    """The same message through the SDK's codec and a TCP echo, twice over, in ms.

    Twice, because a send has an acknowledgement and a delivery follows it.
    """

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def run() -> list[float]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        properties = Properties(message_id="m")
        sent = Message(data=[BODY], properties=properties)
        found = []
        for _ in range(count):
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            for _ in range(2):
                encoded = bytes(encode_payload(bytearray(), sent))
                writer.write(encoded)
                decode_payload(memoryview(await reader.readexactly(len(encoded))))
            found.append(1000 * (time.perf_counter() - start))
        writer.close()
        server.close()
        return found

    return asyncio.run(run())


def parallel(broker: BrokerProcess, clients: int, count: int) -> float:
    """Full cycles a second of several client processes, each on its own queue."""
    command = [sys.executable, "-m", "benchmarks.broker", "--client", broker.connection_string]
    processes = [
        subprocess.Popen(  # noqa: S603 (this file)
            [*command, "--queue", f"q{n}", "--count", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(clients)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.perf_counter()
    for process in processes:
        process.communicate("go\n", timeout=300)
    return clients * count / (time.perf_counter() - start)


def be_client(connection: str, queue: str, count: int) -> None:
    with ServiceBusClient.from_connection_string(connection) as client:
        sender = client.get_queue_sender(queue)
        receiver = client.get_queue_receiver(queue)
        sender.send_messages(message())
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=5)[0])
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(count // 50):
            for _ in range(50):
                sender.send_messages(message())
            left = 50
            while left:
                for found in receiver.receive_messages(left, max_wait_time=5):
                    receiver.complete_message(found)
                    left -= 1
        os._exit(0)  # closing takes the SDK a second and is not what is measured


def memory_per_message(count: int) -> tuple[float, float]:
    """Idle memory in MB, and bytes for each queued message above its body."""
    script = (
        "import sys, time\n"
        "from benchmarks.broker import BODY, memory_of\n"
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
        rates[clients] = with_broker(folder, work)
    text = ", ".join(f"{n}: {rate:.0f}" for n, rate in rates.items())
    print(f"cycles/s by client processes {text}; 4 over 1: {rates[4] / rates[1]:.2f} (goal 1.8)")


def measure_latency(folder: Path, scale: int) -> None:
    found = with_broker(folder, lambda b: latency(b, 3 * scale))
    bare = bare_round_trip(3 * scale)
    p50, floor = statistics.median(found), statistics.median(bare)
    print(f"send to receive p50 {p50:.2f} ms; bare TCP and codec, twice, {floor:.2f} ms")


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
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--queue", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        be_client(options.client, options.queue, options.count)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(",") if options.only else MEASURES:
            MEASURES[name](Path(folder), 10 if options.quick else 100)


if __name__ == "__main__":
    main()
