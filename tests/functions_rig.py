"""function_app.py with ``tests.business`` under the embedded host; all else is real.

Everything runs in the test's own loop and is stopped at its end. The SDK's links are opened
once and kept: opening and closing one costs seconds.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from devstack.azurite import Azurite
from devstack.functions.host import Host
from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from samples.remote_services import RemoteServices
from sas.adapters.clock import SystemClock
from sas.adapters.tables.store import TableStore
from sas.bootstrap import Application
from sas.codec import external
from sas.codec.external import AlertMessage, Notification, RejectedMessage, notice_of
from sas.config import read_applications
from sas.deploy.queues import emulator_config, read_list, with_agents
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.features.claim_check import ClaimCheck
from tests import business

ROOT = Path(__file__).resolve().parents[1]
SHOP, WHOLESALE = "responses-web-shop", "responses-wholesale"
WORKED = (*Queues().on_the_way(business.AGENTS), "dead-letters")
NEVER = "0 0 0 1 1 *"
EVERY_SECOND = "* * * * * *"
PATIENCE_S = 120.0


@dataclass(kw_only=True)
class Rig:
    """What a test needs of a running system."""

    broker: Broker
    azurite: Azurite
    remote: RemoteServices
    client: ServiceBusClient
    store: TableStore
    settings: dict[str, str]
    folder: Path
    received: dict[str, list[ServiceBusReceivedMessage]] = field(default_factory=dict)
    links: dict[tuple[str, str], Any] = field(default_factory=dict)
    applications: dict[frozenset[tuple[str, str]], Application] = field(default_factory=dict)
    http_port: int = 0

    @asynccontextmanager
    async def host(self, *only: str, **settings: str) -> AsyncIterator[Host]:
        """Run the functions named, or all. Hosts with equal settings share an application."""
        host = Host(
            self.folder,
            settings=self.settings | settings,
            only=only or None,
            http_port=self.http_port,
            drain_s=60.0,
        )
        await host.start()
        app = sys.modules["function_app"].app
        cached_application = app.application
        try:
            key = frozenset(settings.items())
            if key not in self.applications:
                self.applications[key] = cached_application()
            application = self.applications[key]
            app.application = lambda: application
            yield host
        finally:
            await host.stop()
            # A message that waited may have come first, and made the module its own one.
            if cached_application.cache_info().currsize and cached_application() is not application:
                await cached_application().close()

    async def close(self) -> None:
        """Let go of every connection, all at once: closing one takes the SDK half a second."""
        closing = [
            resource.close() for resource in (*self.applications.values(), *self.links.values())
        ]
        await asyncio.gather(*closing)

    async def send(self, queue: str, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
        key = ("send", queue)
        if key not in self.links:
            self.links[key] = self.client.get_queue_sender(queue)
        for message in messages:
            await self.links[key].send_messages(message)

    async def submit(self, order_id: str, *, message_id: str | None = None, **members: Any) -> None:
        message = ServiceBusMessage(
            order(order_id, **members), message_id=message_id or uuid.uuid4().hex
        )
        await self.send("orders", message)

    async def receive(self, queue: str) -> list[ServiceBusReceivedMessage]:
        """Take all that a queue holds now; return everything ever taken from it."""
        messages = self.received.setdefault(queue, [])
        key = ("receive", queue)
        async with asyncio.timeout(PATIENCE_S):
            while self.broker.counts(queue).active:
                if key not in self.links:
                    self.links[key] = self.client.get_queue_receiver(queue)
                try:
                    for message in await self.links[key].receive_messages(200, max_wait_time=1):
                        await self.links[key].complete_message(message)
                        messages.append(message)
                except ServiceBusError:  # a test cut its connection: it comes over a new one
                    await self.links.pop(key).close()
        return messages

    async def give_up(self, queue: str, **why: str) -> ServiceBusReceivedMessage:
        """Receive the oldest message of a queue and dead-letter it, as a host does in the end."""
        key = ("receive", queue)
        if key not in self.links:
            self.links[key] = self.client.get_queue_receiver(queue)
        (message,) = await self.links[key].receive_messages(1, max_wait_time=60)
        await self.links[key].dead_letter_message(message, **why)
        return message  # type: ignore[no-any-return]

    async def abandon(self, queue: str) -> None:
        """Receive the oldest message of a queue and abandon it, as a host whose worker fails does.

        Its next delivery is a redelivery. So what that records for the scheduler travels
        (``sas.engine.run_on``).
        """
        key = ("receive", queue)
        if key not in self.links:
            self.links[key] = self.client.get_queue_receiver(queue)
        (message,) = await self.links[key].receive_messages(1, max_wait_time=60)
        await self.links[key].abandon_message(message)

    async def reply_waits(self, order_id: str, agent: str) -> None:
        """Submit an order whose first step is of ``agent``, until the reply waits in its queue.

        The request is delivered twice, so its reply travels.
        """
        request_queue, function = f"agent-{agent}", f"agent_{agent}"
        async with self.host("submission"):
            await self.submit(order_id)
            await self.holds(request_queue, 1)
            await self.quiet_queue("orders")  # its notification is sent too
        await self.abandon(request_queue)
        async with self.host(function):
            await self.holds("scheduler", 1)
            await self.quiet_queue(request_queue)

    async def holds(self, queue: str, count: int) -> None:
        """Wait until a queue holds so many messages that nobody has locked."""

        async def enough() -> bool:
            return self.broker.counts(queue).active >= count

        await until(enough, f"{count} messages on {queue}")

    async def notifications(self, order_id: str, queue: str = SHOP) -> list[Notification]:
        """Return the notifications of an order so far, in the order of its journal.

        The last may come before the first: a function sends internal messages before notifications.
        """
        events = [external.decode_notification(body_of(m)) for m in await self.receive(queue)]
        notifications = [event for event in events if event.data.order_id == order_id]
        return sorted(notifications, key=lambda event: event.time)

    async def kinds(self, order_id: str, queue: str = SHOP) -> list[str]:
        return [notice_of(event.type) for event in await self.notifications(order_id, queue)]

    async def rejected(self) -> list[RejectedMessage]:
        messages = await self.receive("orders-rejected")
        return [msgspec.json.decode(body_of(m), type=RejectedMessage) for m in messages]

    async def alerts(self, order_id: str | None = None) -> list[AlertMessage]:
        messages = await self.receive("operator-alerts")
        alerts = [msgspec.json.decode(body_of(m), type=AlertMessage) for m in messages]
        return [alert for alert in alerts if order_id in {None, alert.order_id}]

    async def state(self, order_id: str) -> str | None:
        order = await self.store.load(order_id)
        return order.process_state.value if order else None

    async def order(self, order_id: str) -> Order:
        order = await self.store.load(order_id)
        assert order is not None, f"there is no order {order_id}"
        return order

    async def content(self, order_id: str) -> Any:
        """Return what was ordered, wherever it is kept."""
        order = await ClaimCheck(self.store).fetch_all(await self.order(order_id))
        return json.loads(str(order.details.payload))

    async def words(self, order_id: str) -> list[str]:
        return [entry.what for entry in await self.store.journal(order_id)]

    async def ends(self, order_id: str, *states: str) -> str:
        """Wait until an order is in one of these states."""

        async def there() -> str | None:
            state = await self.state(order_id)
            return state if state in states else None

        return str(await until(there, f"order {order_id} in {states}"))

    async def quiet(self) -> None:
        """Wait until no function's queue holds a message."""

        async def empty() -> bool:  # a message may move from one queue to another
            return not any(self.broker.counts(queue).total for queue in WORKED)

        for queue in WORKED:
            await self.quiet_queue(queue)
        await until(empty, "every queue empty at once")

    async def quiet_queue(self, queue: str) -> None:
        """Wait until a queue holds no message, locked ones included."""

        async def empty() -> bool:
            return not self.broker.counts(queue).total

        try:
            await until(empty, f"{queue} empty")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.broker.counts(queue)}") from None

    def nothing_lost(self) -> None:
        """Assert that the dead-letter subqueues are empty."""
        for name in (*WORKED, SHOP, WHOLESALE, "operator-alerts", "orders-rejected"):
            counts = self.broker.counts(name)
            assert (counts.dead_letter, counts.transfer_dead_letter) == (0, 0), name


async def until(ask: Callable[[], Any], goal: str, seconds: float = PATIENCE_S) -> Any:
    """Return the first answer that is true."""
    try:
        async with asyncio.timeout(seconds):
            while not (answer := await ask()):  # noqa: ASYNC110  what is asked is outside
                await asyncio.sleep(0.05)
            return answer
    except TimeoutError:
        raise AssertionError(f"{goal}: not within {seconds:g} s") from None


SERVERS = ExitStack()
"""What all rigs of this process share. It is closed when its tests have ended."""


@functools.cache
def azurite_of_all() -> Azurite:
    """Return the Azurite of all rigs. Each has a table of its own in it."""
    return SERVERS.enter_context(Azurite())


@asynccontextmanager
async def rig(**settings: str) -> AsyncIterator[Rig]:
    """Start everything but a host; stop it all at the end, except for Azurite."""
    async with AsyncExitStack() as stack:
        azurite = azurite_of_all()
        queues = json.dumps(own_queues(settings))
        broker = await stack.enter_async_context(Broker(parse_config(queues)))
        remote = await stack.enter_async_context(RemoteServices())
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        await stack.enter_async_context(client)
        table = f"t{uuid.uuid4().hex[:20]}"
        store = TableStore.connect(azurite.connection_string, table)
        stack.push_async_callback(store.close)
        system = Rig(
            folder=own_app(Path(stack.enter_context(TemporaryDirectory())) / "app"),
            broker=broker,
            azurite=azurite,
            remote=remote,
            client=client,
            store=store,
            settings={
                "ServiceBus": broker.connection_string,
                "AzureWebJobsStorage": azurite.connection_string,
                "SAS_TABLE": table,
                "SAS_SUPERVISOR_SCHEDULE": NEVER,
                "SAS_PURGE_SCHEDULE": NEVER,
                "SAS_INSTANCE": "rig",
                **addresses(remote),
                "TESTS_TIME_ALLOWED_SECONDS": "300",
            }
            | settings,
        )
        stack.push_async_callback(system.close)
        yield system


@contextmanager
def time_allowed_is_over() -> Iterator[None]:
    """Let the functions' clock be ahead: every step that was claimed before is past its time."""
    ahead = timedelta(seconds=400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + ahead)
        yield


def own_queues(settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the emulator's configuration with the tests' agents and applications."""
    bound = read_applications(settings or {})
    listed = with_agents(read_list(ROOT), business.AGENTS)
    applications = [name.removeprefix(listed["responsePrefix"]) for name in (SHOP, WHOLESALE)]
    return emulator_config(listed, applications, bound)


def own_app(folder: Path) -> Path:
    """Make a function app for processes in ``folder``: this one, with ``tests.business``."""
    folder.mkdir(exist_ok=True)
    for name in ("host.json", "local.settings.json"):
        shutil.copy(ROOT / name, folder)
    (folder / "function_app.py").write_text(
        "from sas.functions import app_of\nfrom tests.business import business\n\n"
        "app = app_of(business())\n"
    )
    (folder / "Config.json").write_text(json.dumps(own_queues()))
    return folder


def addresses(remote: RemoteServices) -> dict[str, str]:
    """Return the settings of ``tests.business`` that name its services."""
    return {
        "TESTS_STOCK_URL": remote.urls["stock"],
        "TESTS_PAYMENT_URL": remote.urls["payment"],
        "TESTS_SHIPPING_URL": remote.urls["shipping"],
        "TESTS_MAIL_URL": remote.urls["mail"],
        "TESTS_CARRIER_URL": remote.urls["carrier"],
    }


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


@functools.cache
def northwind() -> Mapping[str, Any]:
    """Return the content of a real order."""
    with (ROOT / "samples" / "northwind-orders.jsonl").open(encoding="utf-8") as lines:
        content = json.loads(next(lines))
    return {name: value for name, value in content.items() if name != "order_id"}


def order(order_id: str, /, **changes: Any) -> bytes:
    """Return an order message; a member changed to None is left out."""
    members = {
        "order_id": order_id,
        "workflow": "order",
        "reply_queue": SHOP,
        "correlation_id": f"c-{order_id}",
        "order": northwind(),
    }
    return json.dumps({k: v for k, v in (members | changes).items() if v is not None}).encode()
