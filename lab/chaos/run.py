"""One run: orders come at a steady pace, faults happen, applications read notifications."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from lab.chaos.archive import Archive
from lab.chaos.faults import Fault
from lab.chaos.soak import RESTS
from lab.chaos.system import System
from samples.demo import scenario
from samples.demo.tally import Tally
from sas.client import NewOrder, OrdersClient, SubmitError, is_end
from sas.client.links import close_link
from sas.codec.external import decode_notification
from sas.domain.queues import Queues
from sas.ports import StoreUnavailableError

SHOP, WHOLESALE = "responses-web-shop", "responses-wholesale"
READ_MAX = 50
READ_S_MAX = 30.0
SUBMIT_S_MAX = 3.0
LINE_EVERY_S = 5.0
ENDED_KEPT = 300
"""So many orders stay in the table: those that ended last."""
WINDOW_S = 300.0
"""How long duplicate detection remembers an id (infra/emulator/Config.json)."""


def make_orders(count: int) -> list[NewOrder]:
    """Return ``count`` real orders. A repeated order gets a number after its id.

    Every third order is a wholesale order. Its workflow holds failed orders for an operator.
    """
    rows = [json.loads(line) for line in scenario.ORDERS_FILE.read_text("utf-8").splitlines()]
    orders = []
    for number in range(count):
        row = dict(rows[number % len(rows)])
        order_id, repetition = row.pop("order_id"), number // len(rows)
        order_id = f"{order_id}-{repetition + 1}" if repetition else order_id
        workflow = "order-with-care" if number % 3 == 2 else "order"
        if number % 24 == 12:
            workflow = "order-delivered"
        orders.append(
            NewOrder(order_id=order_id, order=row, workflow=workflow, submission_id=f"s-{order_id}")
        )
    return orders


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault that happened: its beginning and end, in seconds since 1970."""

    fault: Fault
    begun: float
    ended: float


@dataclass(kw_only=True)
class Run:
    """What a run does, and what it has observed so far."""

    system: System
    orders: Sequence[NewOrder]
    faults: Sequence[Fault]
    pace: float
    """Orders a second, at most."""
    in_flight: int = 100
    quiet_s_max: float = 180.0
    seconds_max: float = float("inf")
    rest: Callable[[], Awaitable[None]] | None = None
    """Called ten times. No order is under way then, and none is submitted until it returns."""
    archives: bool = False
    """Whether finished orders are moved out of the table, so that Azurite stays fast."""
    tally: Tally = field(init=False)
    archive: Archive = field(init=False)
    happened: list[FaultRecord] = field(default_factory=list)
    submitted: dict[str, NewOrder] = field(default_factory=dict)
    submitted_at: list[float] = field(default_factory=list)
    moved_at: list[float] = field(default_factory=list)
    """When the broker took each notification."""
    ended_at: list[float] = field(default_factory=list)
    first_notified: dict[str, tuple[int, float]] = field(default_factory=dict)
    notified_twice: list[str] = field(default_factory=list)
    notified_after_window: list[str] = field(default_factory=list)
    redelivered: int = 0
    gave_up: bool = False
    begun: float = field(default_factory=time.time)
    _line_at: float = 0.0

    def __post_init__(self) -> None:
        self.tally = Tally(orders=len(self.orders))
        self.archive = Archive(self.system.store)

    def say(self, text: str) -> None:
        """Print a line with its time."""
        print(f"{time.time() - self.begun:6.1f} s  {text}", flush=True)

    async def play(self) -> None:
        """Run until all is at rest, or until nothing has moved for ``quiet_s_max`` seconds."""
        reading = [asyncio.create_task(self._read(queue)) for queue in (SHOP, WHOLESALE)]
        loading = asyncio.create_task(self._load())
        failing = asyncio.create_task(self._fail(loading))
        tasks = [*reading, loading, failing]
        if self.archives:
            tasks.append(asyncio.create_task(self._move()))
        try:
            while not (loading.done() and failing.done()):
                await self._tick(tasks)
            await self.system.calm()
            await self._settle(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done():
                task.result()
        self.system.stack.check()
        if time.time() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.time()
            self.say(
                f"{len(self.submitted)} of {len(self.orders)} in, {len(self.tally.ended)} ended"
            )
        await asyncio.sleep(0.25)

    async def _settle(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        moved, quiet_since = -1, time.monotonic()
        while time.monotonic() - quiet_since < self.quiet_s_max:
            await self._tick(tasks)
            if len(self.moved_at) != moved:
                moved, quiet_since = len(self.moved_at), time.monotonic()
            elif time.monotonic() - quiet_since > 2.0 and await self._over():
                return
            else:
                await asyncio.sleep(0.5)
        self.gave_up = True

    async def _over(self) -> bool:
        ended = self.tally.ended.keys() >= self.submitted.keys()
        return ended and await self.system.at_rest()

    async def _load(self) -> None:
        text = self.system.stack.servicebus_connection
        async with (
            OrdersClient(text, reply_queue=SHOP, patience_s=SUBMIT_S_MAX) as shop,
            OrdersClient(
                text, reply_queue=WHOLESALE, patience_s=SUBMIT_S_MAX, queues=Queues().urgent
            ) as wholesale,
        ):
            next_at = time.monotonic()
            rest_every = max(1, len(self.orders) // RESTS)
            for number, new in enumerate(self.orders):
                if self.rest and number and number % rest_every == 0:
                    await self._until_none_is_under_way()
                    await self.rest()
                while len(self.submitted) - len(self.tally.ended) >= self.in_flight:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))
                next_at = max(next_at + 1 / self.pace, time.monotonic() - 5.0)
                if time.time() - self.begun > self.seconds_max:
                    return
                await _submit(wholesale if new.workflow == "order-with-care" else shop, new)
                self.submitted[new.order_id] = new
                self.submitted_at.append(time.time())

    async def _until_none_is_under_way(self) -> None:
        ends_at = time.monotonic() + self.quiet_s_max
        while len(self.submitted) > len(self.tally.ended) and time.monotonic() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _fail(self, loading: asyncio.Task[None]) -> None:
        """Do one fault after the other, spread over the load."""
        for number, fault in enumerate(self.faults):
            due = len(self.orders) * number / len(self.faults)
            while len(self.submitted) < due:
                if loading.done():
                    return  # the time is over
                await asyncio.sleep(0.1)
            self.say(f"fault {number + 1} of {len(self.faults)}: {fault}")
            started_at = time.time()
            await self.system.inflict(fault)
            self.happened.append(FaultRecord(fault, started_at, time.time()))
            await asyncio.sleep(fault.pause_s)

    async def _move(self) -> None:
        """Move orders that ended to the archive, all but the last ones."""
        looked_at = 0
        while True:
            old = list(self.tally.ended)[looked_at:-ENDED_KEPT]
            for order_id in old:
                with suppress(StoreUnavailableError):
                    await self.archive.move(order_id, self.tally.notification_ids)
                looked_at += 1
            await asyncio.sleep(1.0)

    async def _read(self, queue: str) -> None:
        """Read a response queue as an application does, through every fault of the connection."""
        text = self.system.stack.servicebus_connection
        while True:
            client = ServiceBusClient.from_connection_string(text, retry_total=0)
            try:
                receiver = client.get_queue_receiver(queue)
                while True:
                    async with asyncio.timeout(READ_S_MAX):
                        for message in await receiver.receive_messages(READ_MAX, max_wait_time=1):
                            self._take(queue, message)
                            await receiver.complete_message(message)
            except Exception:  # noqa: BLE001  any error of the SDK in an outage: read again
                await asyncio.sleep(0.3)
            finally:
                with suppress(Exception):  # a dead connection
                    await close_link(client)

    def _take(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        notification = decode_notification(b"".join(message.body))
        number = message.sequence_number or 0
        enqueued = message.enqueued_time_utc
        at = enqueued.timestamp() if enqueued else time.time()
        first = self.first_notified.setdefault(notification.id, (number, at))
        if first[0] != number:
            late = at - first[1] > WINDOW_S
            (self.notified_after_window if late else self.notified_twice).append(
                f"{notification.data.order_id}: {notification.type} {notification.id} on {queue}, "
                f"again after {at - first[1]:.1f} s"
            )
        elif notification.id in self.tally.notification_ids:
            self.redelivered += 1
        else:
            self.moved_at.append(at)
            if is_end(notification) and notification.data.order_id not in self.tally.ended:
                self.ended_at.append(at)
        self.tally.take(notification)

    def resumed_s(self) -> dict[str, list[float]]:
        """Return how long after each fault the next order ended, by kind of fault."""
        ended = sorted(self.ended_at)
        times_of: dict[str, list[float]] = {}
        for event in self.happened:
            next_at = next((at for at in ended if at >= event.ended), None)
            if next_at is not None:
                times_of.setdefault(event.fault.kind.value, []).append(next_at - event.ended)
        return times_of

    def kinds(self) -> Counter[str]:
        """Return how often each kind of fault happened."""
        return Counter(event.fault.kind.value for event in self.happened)


async def _submit(client: OrdersClient, new: NewOrder) -> None:
    while True:
        try:
            await client.submit(new)
        except SubmitError:
            await asyncio.sleep(0.2)  # safe to submit again, under the id it had
        else:
            return
