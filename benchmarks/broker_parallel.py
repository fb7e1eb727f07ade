"""Several client processes on one broker, and the share of the machine that they got.

python -m benchmarks.broker_parallel CONNECTION QUEUE COUNT    (one client; started by below)
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks.metering import BODY, cpu_of
from devstack.tests.broker_runners import BrokerProcess


@dataclass(frozen=True)
class Parallel:
    """Full cycles a second; the broker's CPU for each; the cores that all processes used."""

    rate: float
    broker_us: float
    cores: float


def parallel(broker: BrokerProcess, clients: int, count: int) -> Parallel:
    """Run client processes, each with ``count`` full cycles on a queue of its own."""
    command = [sys.executable, "-m", "benchmarks.broker_parallel", broker.connection_string]
    processes = [
        subprocess.Popen(  # noqa: S603 (this file)
            [*command, f"q{n}", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(clients)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    before, start = cpu_of(broker.process.pid), time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    client_cpu = sum(float(process.communicate(timeout=300)[0]) for process in processes)
    wall = time.perf_counter() - start
    broker_cpu = cpu_of(broker.process.pid) - before
    cycles = clients * count
    return Parallel(cycles / wall, 1e6 * broker_cpu / cycles, (client_cpu + broker_cpu) / wall)


def be_client(connection: str, queue: str, count: int) -> None:
    """Say "ready", wait for a line, work, and print the CPU seconds that it took."""
    with ServiceBusClient.from_connection_string(connection) as client:
        sender = client.get_queue_sender(queue)
        receiver = client.get_queue_receiver(queue)
        sender.send_messages(ServiceBusMessage(BODY, message_id="m"))
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=5)[0])
        print("ready", flush=True)
        sys.stdin.readline()
        before = time.process_time()
        for _ in range(count // 50):
            for _ in range(50):
                sender.send_messages(ServiceBusMessage(BODY, message_id="m"))
            left = 50
            while left:
                for found in receiver.receive_messages(left, max_wait_time=5):
                    receiver.complete_message(found)
                    left -= 1
        print(time.process_time() - before, flush=True)
        os._exit(0)  # closing takes the SDK a second and is not what is measured


if __name__ == "__main__":
    be_client(sys.argv[1], sys.argv[2], int(sys.argv[3]))
