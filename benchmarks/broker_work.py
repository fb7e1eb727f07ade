"""The work of a real SDK client in the broker's benchmarks, and its cost on both sides."""

import json
from pathlib import Path
from typing import Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from benchmarks.metering import BODY, Cost, Meter
from devstack.tests.broker_runners import BrokerProcess


def message() -> ServiceBusMessage:
    """Make the message of 256 bytes that every measurement sends."""
    return ServiceBusMessage(BODY, message_id="m")


def write_config(folder: Path, queues: int) -> Path:
    """Write a broker's configuration with queues q0, q1, and so on; return its path."""
    path = folder / f"config{queues}.json"
    entries = [{"Name": f"q{n}", "Properties": {"LockDuration": "PT5M"}} for n in range(queues)]
    document = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": entries}]}}
    path.write_text(json.dumps(document))
    return path


class Driver:
    """A client with a sender, a receiver of queue q0, and a receive-and-delete one of q1.

    Use it with ``with``; to close a client takes a second, so a driver serves many rounds.
    """

    def __init__(self, broker: BrokerProcess, queue: str = "q0") -> None:
        self._pid = broker.process.pid
        self._client = ServiceBusClient.from_connection_string(broker.connection_string)
        self._sender = self._client.get_queue_sender(queue)
        self._receiver = self._client.get_queue_receiver(queue)
        self._batch_sender = self._client.get_queue_sender("q1")
        self._taker = self._client.get_queue_receiver(
            "q1", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part in (self._sender, self._receiver, self._batch_sender, self._taker, self._client):
            part.close()

    def singles(self, count: int) -> Cost:
        """Send, receive and complete one message at a time, after one to warm up."""
        self._cycle(1)
        with Meter(self._pid, count) as meter:
            self._cycle(count)
        return meter.cost

    def _cycle(self, left: int) -> None:
        for _ in range(left):
            self._sender.send_messages(message())
        while left:
            for found in self._receiver.receive_messages(min(50, left), max_wait_time=5):
                self._receiver.complete_message(found)
                left -= 1

    def batches(self, count: int) -> Cost:
        """Send in batches of 100, receive and delete 100 at a time, after one to warm up."""
        self._batch_sender.send_messages([message()])
        self._take(1)
        with Meter(self._pid, count) as meter:
            for _ in range(count // 100):
                self._batch_sender.send_messages([message() for _ in range(100)])
            self._take(count)
        return meter.cost

    def _take(self, left: int) -> None:
        while left:
            left -= len(self._taker.receive_messages(min(100, left), max_wait_time=5))
