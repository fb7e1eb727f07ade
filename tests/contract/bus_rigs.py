"""The two buses under one suite: how a test declares queues, reads them and lets time pass."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Protocol

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from devstack.servicebus import Broker
from sas.adapters.clock import SystemClock
from sas.adapters.servicebus import ServiceBus
from sas.ports import Clock, Message, MessageBus
from sas.testing.bus import BusFault, MemoryBus
from sas.testing.clock import VirtualClock

QUEUES = ("agent-a", "agent-b", "responses-shop")
WITH_DETECTION = "scheduler"


class BusRig(Protocol):
    """What the suite needs besides the bus."""

    @property
    def bus(self) -> MessageBus:
        """The bus."""
        ...

    @property
    def clock(self) -> Clock:
        """Its time."""
        ...

    async def receive(self, queue: str, count: int) -> list[Message]:
        """Take ``count`` messages, and make sure that no other comes."""
        ...

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def make_busy(self, queue: str) -> None:
        """Let the next send to a queue be refused, with all its retries."""
        ...

    def sent(self) -> int:
        """How many messages the bus says it sent."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class MemoryRig:
    """The bus in memory, on a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.bus = MemoryBus(self.clock)
        self.bus.declare(*QUEUES)
        self.bus.declare(WITH_DETECTION, duplicate_window=timedelta(minutes=10))

    async def receive(self, queue: str, count: int) -> list[Message]:
        messages: list[Message] = []
        while (message := self.bus.take(queue)) is not None:
            messages.append(replace(message, scheduled_at=None))
        assert len(messages) == count, [message.message_id for message in messages]
        return messages

    async def wait(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    def make_busy(self, queue: str) -> None:
        self.bus.fail_next(BusFault.UNAVAILABLE)

    def sent(self) -> int:
        return self.bus.meter.messages

    async def close(self) -> None:
        await self.bus.close()


class BrokerRig:
    """Service Bus's SDK against the broker of the devstack."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock = SystemClock()
        self.bus = ServiceBus.connect(broker.connection_string)
        self.reader = ServiceBusClient.from_connection_string(broker.connection_string)
        self._receivers: dict[str, ServiceBusReceiver] = {}

    async def receive(self, queue: str, count: int) -> list[Message]:
        """Read until as many came; the broker itself says whether more are there."""
        messages: list[Message] = []
        async with asyncio.timeout(120):
            while len(messages) < count:
                receiver = self._receiver(queue)
                batch = await receiver.receive_messages(count - len(messages), max_wait_time=60)
                messages += [as_message(queue, message) for message in batch]
        assert self.broker.counts(queue).active == 0
        return messages

    def _receiver(self, queue: str) -> ServiceBusReceiver:
        """Keep receivers: to open and close one takes the SDK a second."""
        if queue not in self._receivers:
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            self._receivers[queue] = self.reader.get_queue_receiver(queue, receive_mode=mode)
        return self._receivers[queue]

    async def clear(self) -> None:
        """Forget what a failed test left behind."""
        self.broker.clear_faults()
        for queue in (*QUEUES, WITH_DETECTION):
            if self.broker.counts(queue).total:
                properties = asdict(self.broker.namespace.queue(queue).properties)
                self.broker.delete_queue(queue)
                self.broker.create_queue(queue, **properties)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def make_busy(self, queue: str) -> None:
        self.broker.arm("server-busy", queue, operation="send", count=2)  # the SDK tries twice

    def sent(self) -> int:
        return self.bus.meter.messages

    async def close(self) -> None:
        closing = [receiver.close() for receiver in self._receivers.values()]
        await asyncio.gather(self.bus.close(), *closing)
        await self.reader.close()


def as_message(queue: str, received: ServiceBusReceivedMessage) -> Message:
    properties = received.application_properties or {}
    return Message(
        queue=queue,
        message_id=received.message_id or "",
        body=b"".join(received.body),
        content_type=received.content_type or "",
        correlation_id=received.correlation_id,
        time_to_live=received.time_to_live,
        properties={_text(key): _text(value) for key, value in properties.items()},
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
