"""Service Bus as the client sees it, in memory and in virtual time: a queue whose link breaks."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
)

from sas.client import client as clients
from sas.codec import external
from sas.codec.external import Notification, NotificationData

REPLIES = "responses-shop"
LOCK_S = 20.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once when everything waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = selectors.SelectSelector()
        look = selector.select

        def select(timeout: float | None = None) -> list[Any]:
            events = look(0)
            assert events or timeout is not None, "everything waits, and nothing is to come"
            self.now += 0.0 if events else timeout or 0.0
            return events

        vars(selector)["select"] = select
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def notification(
    order_id: str, notice: str, number: int | None = None, **data: Any
) -> Notification:
    """Return a notification of an order; ``data`` are members of its data."""
    event_id = f"{order_id}/{notice}" if number is None else f"{order_id}/{notice}/{number}"
    return Notification(
        id=event_id,
        source="/sas",
        type=f"sas.order.{notice}.v1",
        subject=order_id,
        time="2026-03-01T12:00:00.000000Z",
        data=NotificationData(order_id=order_id, **({"state": "Processing"} | data)),
    )


@dataclass(eq=False, kw_only=True)
class Stored:
    """A message on the response queue. ``event`` is None if it is no notification."""

    number: int
    body: bytes
    event: Notification | None
    delivery_count: int = 0
    losses: int = 0
    link: int = 0
    lock: object | None = None
    locked_until: float = 0.0


@dataclass(kw_only=True)
class FakeBus:
    """The namespace. ``down``: each operation fails; ``silent``: none returns while it is down.

    ``opens_fail``: so many openings of a link fail. ``loses_answer``: the next settlement or send
    takes effect, and its answer is lost. ``completed`` and ``dead`` have what the client settled.
    """

    messages: dict[int, Stored] = field(default_factory=dict)
    completed: list[Stored] = field(default_factory=list)
    dead: list[Stored] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    on_complete: Callable[[Stored], None] = lambda _stored: None
    on_loss: Callable[[Stored], None] = lambda _stored: None
    on_take: Callable[[Stored], None] = lambda _stored: None
    down: bool = False
    silent: bool = False
    missing: bool = False
    opens_fail: int = 0
    loses_answer: bool = False
    link: int = 1
    opened: int = 0
    _up: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: Notification | None) -> Stored:
        body = b"junk" if event is None else external.encode(event)
        number = len(self.messages) + len(self.completed) + len(self.dead) + 1
        stored = Stored(number=number, body=body, event=event)
        self.messages[number] = stored
        return stored

    def cut(self) -> None:
        """Break the link that is open."""
        self.link += 1

    async def outage(self, seconds: float, *, silent: bool = False, opens_fail: int = 0) -> None:
        self.cut()
        self.down, self.silent = True, silent
        await asyncio.sleep(seconds)
        self.down, self.silent, self.opens_fail = False, False, opens_fail
        self._up.set()
        self._up = asyncio.Event()

    def expire(self) -> None:
        """End every lock whose time is over."""
        now = asyncio.get_running_loop().time()
        for stored in self.messages.values():
            if stored.lock is not None and stored.locked_until <= now:
                self.on_loss(stored)
                stored.lock = None
                stored.delivery_count += 1
                stored.losses += 1

    async def lose_locks(self) -> None:
        for stored in self.messages.values():
            stored.locked_until = 0.0
        self.expire()

    def free(self) -> list[Stored]:
        self.expire()
        return [stored for stored in self.messages.values() if stored.lock is None]

    def take(self, stored: Stored) -> Any:
        """Lock a message, and return it as the SDK would."""
        self.on_take(stored)
        stored.lock, stored.link = object(), self.link
        stored.locked_until = asyncio.get_running_loop().time() + LOCK_S
        return SimpleNamespace(
            sequence_number=stored.number,
            body_type=AmqpMessageBodyType.DATA,
            body=[stored.body],
            delivery_count=stored.delivery_count,
            locked_until_utc=datetime.now(UTC) + timedelta(seconds=LOCK_S),
            _delivery_id=stored.number,
            _delivery_tag=stored.lock,
            settled=False,
        )

    async def steal(self) -> list[str]:
        """End all locks, and let another reader complete two messages. Return their ids."""
        await self.lose_locks()
        stolen = [stored for stored in self.free() if stored.event][1:3]
        for stored in stolen:
            del self.messages[stored.number]
            self.completed.append(stored)
        return [stored.event.id for stored in stolen if stored.event]

    async def reach(self) -> None:
        """Reach the service, or fail."""
        if self.missing:
            raise MessagingEntityNotFoundError
        if self.silent:
            await self._up.wait()
            raise ServiceBusConnectionError(message="The connection was reset.")
        if self.down:
            raise ServiceBusConnectionError(message="The connection was refused.")

    def answer(self) -> None:
        """Answer an operation that took effect, or lose the answer."""
        if self.loses_answer:
            self.loses_answer = False
            self.cut()
            raise ServiceBusConnectionError(message="The connection was reset.")

    # -- What the client calls ----------------------------------------------------------------

    def get_queue_receiver(self, _queue: str) -> FakeReceiver:
        return FakeReceiver(self)

    def get_queue_sender(self, _queue: str) -> FakeSender:
        return FakeSender(self)

    async def close(self) -> None:
        pass


class FakeReceiver:
    """A receiver of the SDK, as far as the client uses it."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus
        self._link = 0
        self._handler = self

    async def __aenter__(self) -> Self:
        await self._bus.reach()
        if self._link != self._bus.link:
            if self._bus.opens_fail:
                self._bus.opens_fail -= 1
                raise ServiceBusConnectionError(message="The link was detached.")
            self._link = self._bus.link
            self._bus.opened += 1
        return self

    async def receive_messages(self, count: int, max_wait_time: float) -> list[Any]:
        for wait_s in (max_wait_time, 0.0):
            await self._check_link()
            if free := self._bus.free():
                return [self._bus.take(stored) for stored in free[:count]]
            await asyncio.sleep(wait_s)
        return []

    async def complete_message(self, message: Any) -> None:
        stored = await self._locked(message)
        self._bus.on_complete(stored)
        self._remove(stored, self._bus.completed)
        self._bus.answer()
        message.settled = True

    async def dead_letter_message(self, message: Any, **_why: Any) -> None:
        self._remove(await self._locked(message), self._bus.dead)
        self._bus.answer()

    async def renew_message_lock(self, message: Any) -> None:
        stored = await self._locked(message)
        stored.locked_until = asyncio.get_running_loop().time() + LOCK_S

    async def settle_messages_async(self, number: int, tag: object, _outcome: str) -> None:
        """Release a message, which only the link that received it can do."""
        await self._check_link()
        stored = self._bus.messages.get(number)
        if stored is None or stored.lock is not tag or stored.link != self._link:
            raise MessageLockLostError
        stored.lock = None

    async def close(self) -> None:
        await self._bus.reach()

    async def _check_link(self) -> None:
        await self._bus.reach()
        if self._link != self._bus.link:
            raise ServiceBusConnectionError(message="The link is closed.")

    async def _locked(self, message: Any) -> Stored:
        await self._check_link()
        if message.settled:
            raise MessageAlreadySettled(action="complete")
        self._bus.expire()
        stored = self._bus.messages.get(message.sequence_number)
        if stored is None or stored.lock is not message._delivery_tag:
            raise MessageLockLostError
        return stored

    def _remove(self, stored: Stored, pile: list[Stored]) -> None:
        del self._bus.messages[stored.number]
        pile.append(stored)


class FakeBatch(list[Any]):
    """A batch of messages."""

    add_message = list.append


class FakeSender:
    """A sender of the SDK, as far as the client uses it."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus
        self._is_closed = False

    async def create_message_batch(self) -> FakeBatch:
        await self._reach()
        return FakeBatch()

    async def send_messages(self, batch: FakeBatch) -> None:
        await self._reach()
        self._bus.orders += [message.message_id for message in batch]
        self._bus.answer()

    async def close(self) -> None:
        self._is_closed = True
        await self._bus.reach()

    async def _reach(self) -> None:
        if self._is_closed:
            raise ValueError("The handler has already been shutdown.")
        await self._bus.reach()


@contextmanager
def client_of(bus: FakeBus, **changes: Any) -> Iterator[clients.OrdersClient]:
    """Give a client whose connection is this bus, with changes to constants of ``sas.client``."""

    class Sdk:
        from_connection_string = staticmethod(lambda *_arguments, **_options: bus)

    values: Mapping[str, Any] = {"client.ServiceBusClient": Sdk} | changes
    patches = [patch(f"sas.client.{name}", value) for name, value in values.items()]
    for each in patches:
        each.start()
    try:
        yield clients.OrdersClient("x", reply_queue=REPLIES, patience_s=10.0)
    finally:
        for each in patches:
            each.stop()
