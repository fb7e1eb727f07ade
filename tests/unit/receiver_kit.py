"""A receiver over queues in memory, without actors."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from sas.codec.external import AlertMessage
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.engine.external import ExternalSender
from sas.engine.messages import Addresses
from sas.engine.receiver import DELAY_MAX_S, LETTER_DELAY_MAX_S, Receiver
from sas.engine.run_on import RunOn
from sas.features.incidents.board import IncidentBoard
from sas.ports import Message
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from sas.testing.store import MemoryStore

QUEUE, LETTERS, REJECTED = "scheduler", "dead-letters", "orders-rejected"
MINUTES = timedelta(minutes=9)


class Door:
    """A receiver over a queue in memory, and a handler that fails a number of times.

    It shares queues, store and clock with the instance ``beside`` it.
    """

    def __init__(self, *failures: Exception, beside: Door | None = None) -> None:
        self.clock: VirtualClock = beside.clock if beside else VirtualClock()
        self.bus: MemoryBus = beside.bus if beside else MemoryBus(self.clock)
        self.store: MemoryStore = beside.store if beside else MemoryStore()
        if beside is None:
            self.bus.declare(QUEUE, duplicate_window=timedelta(minutes=10))
            self.bus.declare(LETTERS, "operator-alerts", REJECTED)
        external = ExternalSender(self.store, self.bus, self.clock)
        self.incidents = IncidentBoard(
            self.store, external, clock=self.clock, to=Addresses(Queues(), "test")
        )
        self.receiver = Receiver(
            bus=self.bus,
            clock=self.clock,
            function_time=MINUTES,
            external=external,
            report_mismatch=self.reported,
            incidents=self.incidents,
            run_on=RunOn(bus=self.bus, clock=self.clock, inline=frozenset()),
            dead_letters=LETTERS,
            reject=self.rejected,
        )
        self.failures = list(failures)
        self.reports: list[str] = []
        self.seen: list[Delivery] = []
        self.kept: list[Delivery] = []

    async def rejected(self, delivery: Delivery) -> None:
        await self.bus.send([Message(REJECTED, "kept", b"{}")])
        self.kept.append(delivery)

    async def reported(self, error: Exception) -> None:
        self.reports.append(str(error))

    async def handler(self, delivery: Delivery) -> str:
        self.seen.append(delivery)
        if self.failures:
            raise self.failures.pop(0)
        return "handled"

    async def receive(self, message: Message | Delivery) -> object:
        delivery = message if isinstance(message, Delivery) else delivered(message)
        return await self.clock.run(self.receiver.receive(self.handler, delivery))

    async def pauses(self, message: Message | Delivery) -> list[float]:
        """Receive a message and its copies until it is handled; return the pauses in seconds."""
        pauses: list[float] = []
        for _ in range(1000):
            if await self.receive(message) is not None:
                return pauses
            before = self.clock.now()
            await self.clock.advance(LETTER_DELAY_MAX_S)
            copy = self.bus.take(message.queue)
            if copy is None:
                return pauses
            assert copy.scheduled_at is not None
            pauses.append((copy.scheduled_at - before).total_seconds())
            message = copy
        raise AssertionError("its copies have no end")

    def alerts(self) -> list[AlertMessage]:
        bodies = [message.body for message in self.bus.messages("operator-alerts")]
        return [msgspec.json.decode(body, type=AlertMessage) for body in bodies]

    async def next(self) -> Message:
        await self.clock.advance(DELAY_MAX_S)
        message = self.bus.take(QUEUE)
        assert message is not None
        return message


def delivered(message: Message) -> Delivery:
    return Delivery(
        body=message.body,
        message_id=message.message_id,
        queue=message.queue,
        properties=message.properties,
        count=1,
    )


FIRST = Delivery(
    body=b"{}", message_id="O-1/3/0", queue=QUEUE, properties={"traceparent": "00-1"}, count=1
)
