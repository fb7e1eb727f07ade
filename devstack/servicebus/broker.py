"""The broker as an object: queues, the AMQP listener and (if wished) the management port."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from devstack.lifecycle import AsyncRunnable
from devstack.servicebus.admin.api import AdminApi
from devstack.servicebus.admin.http import HttpServer
from devstack.servicebus.config import Config
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.ports import NullJournal
from devstack.servicebus.core.properties import QueueProperties, check_queue_name
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.faults import Fault
from devstack.servicebus.limits import Limits
from devstack.servicebus.recovery import recover_messages, recover_queues
from devstack.servicebus.storage import SqliteJournal
from devstack.servicebus.tokens import KEY_NAME, Gate
from devstack.servicebus.wire.server import AmqpServer

Queues = Config | Mapping[str, QueueProperties] | Iterable[str] | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many messages a queue holds. ``active`` includes locked and deferred ones."""

    active: int
    locked: int
    scheduled: int
    dead_letter: int
    transfer_dead_letter: int
    size_bytes: int

    @property
    def total(self) -> int:
        """Everything, as the management API counts it."""
        return self.active + self.scheduled + self.dead_letter + self.transfer_dead_letter


class Broker(AsyncRunnable):
    """A Service Bus broker in the caller's event loop.

    ``queues`` is a `Config`, names, or names with properties. ``port`` 0 picks a free one;
    ``management_port`` None serves no HTTP. ``data`` is the directory in which everything is
    kept; without it a stop forgets all. ``require_key`` refuses tokens signed with any other
    key. ``clock`` gives seconds since 1970.

        async with Broker(["orders"]) as broker:
            client = ServiceBusClient.from_connection_string(broker.connection_string)
    """

    def __init__(  # noqa: PLR0913 (every one has a default and is named)
        self,
        queues: Queues = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        management_port: int | None = None,
        data: Path | None = None,
        require_key: str | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.host = host
        self.port = port
        self.management_port = management_port
        self.clock = clock
        self.gate = Gate(require_key)
        self.namespace = Namespace()
        self.failure: str | None = None
        self._data = data
        self.journal: SqliteJournal | None = None
        self._queues = queues
        self.server = AmqpServer(
            self.namespace,
            clock=clock,
            commit=self.commit if data is not None else None,
            gate=self.gate,
            limits=limits or Limits(),
        )
        self._http = HttpServer(AdminApi(self).handle)
        self._failed = asyncio.Event()

    def commit(self) -> None:
        """Make durable what has happened; without a data directory there is nothing to do.

        Where the disk fails the broker halts: it drops every connection without acknowledging
        anything that was not written.
        """
        if self.journal is None or self.failure is not None:
            return
        try:
            self.journal.commit()
        except (OSError, sqlite3.Error) as error:
            self.failure = f"the data could not be written ({error}); free the disk and restart"
            self.server.halt()
            self._failed.set()

    async def start(self) -> Self:
        """Recover, create the queues, listen.

        Raises OSError where a port cannot be had, StorageError where the data cannot be used.
        """
        self.open_data()
        try:
            self.port = await self.server.start(self.host, self.port)
            if self.management_port is not None:
                self.management_port = await self._http.start(self.host, self.management_port)
        except OSError:
            await self.server.stop()
            self.close_data()
            raise
        return self

    def open_data(self) -> None:
        """Create the configured queues and put back what the data directory holds."""
        if self._data is not None:
            self.journal = SqliteJournal(self._data)
            self.namespace.journal = self.journal
        self._create_configured()
        if self.journal is not None:
            recover_queues(self.journal.database, self.namespace)
            recover_messages(self.journal, self.namespace, self.clock())
            self.journal.commit()

    def close_data(self) -> None:
        """Write what is left and let go of the data directory."""
        if self.journal is not None:
            if self.failure is None:
                self.journal.close()
            else:
                self.journal.abandon()
            self.journal = None
            self.namespace.journal = NullJournal()

    async def wait_failed(self) -> None:
        """Wait until the disk fails, which is hoped to be for ever."""
        await self._failed.wait()

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        await self._http.stop()
        await self.server.stop()
        self.close_data()

    def _create_configured(self) -> None:
        given: Any = self._queues
        if isinstance(given, Config):
            given = given.queues
        if given is None:
            given = ()
        if isinstance(given, str):
            raise ValueError(  # noqa: TRY004 (one kind of error for every wrong value)
                f"queues are a list of names: write [{given!r}]"
            )
        pairs = given.items() if isinstance(given, Mapping) else ((name, None) for name in given)
        for name, properties in pairs:
            self.namespace.create(name, properties, self.clock())

    @property
    def connection_string(self) -> str:
        """What the SDKs take: plain TCP on this broker's port."""
        return connection_string(self.host, self.port, self.gate.key)

    # -- queues -----------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> QueueCore:
        """Create a queue; ``properties`` are those of `QueueProperties`. Raises ValueError."""
        return self.create_with(name, QueueProperties(**properties))

    def create_with(self, name: str, properties: QueueProperties) -> QueueCore:
        """Create a queue. Raises ValueError, also where it would forward to no queue."""
        check_queue_name(name)
        self.namespace.check_targets(name, properties)
        self.server.touch()
        return self.namespace.create(name, properties, self.clock())

    def update_queue(self, name: str, **properties: Any) -> QueueCore:
        """Change some properties of a queue. Raises EntityNotFoundError, ValueError."""
        return self.update_to(name, replace(self.namespace.queue(name).properties, **properties))

    def update_to(self, name: str, properties: QueueProperties) -> QueueCore:
        """Change all properties of a queue; end the links that it no longer allows.

        Raises EntityNotFoundError, ValueError.
        """
        self.namespace.queue(name)
        self.namespace.check_targets(name, properties)
        self.server.touch()
        queue = self.namespace.update(name, properties, self.clock())
        self.server.check_links((queue, queue.dead_letters))
        return queue

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all it holds and end the links to it. Raises EntityNotFoundError."""
        transfer = self.namespace.transfer_queue_of(name)
        queue = self.namespace.delete(name)
        gone = (queue, queue.dead_letters, transfer)
        self.server.end_links(gone, f"queue '{queue.name}' was deleted")

    def counts(self, name: str) -> QueueCounts:
        """Count the messages of a queue. Raises EntityNotFoundError."""
        queue = self.namespace.queue(name)
        transfer = self.namespace.transfer_queue_of(name)
        return QueueCounts(
            active=len(queue.messages) - queue.scheduled_count,
            locked=len(queue.locked),
            scheduled=queue.scheduled_count,
            dead_letter=len(queue.dead_letters.messages) if queue.dead_letters else 0,
            transfer_dead_letter=len(transfer.messages) if transfer else 0,
            size_bytes=queue.bytes + (queue.dead_letters.bytes if queue.dead_letters else 0),
        )

    # -- faults -----------------------------------------------------------------------------

    def arm(
        self,
        kind: str,
        queue: str = "",
        *,
        operation: str = "",
        count: int = 1,
        seconds: float = 0.0,
    ) -> None:
        """Let something go wrong the next ``count`` times (see faults.py).

        Raises ValueError, and EntityNotFoundError where there is no such queue.
        """
        if queue:
            self.namespace.find(queue)
        self.server.faults.arm(Fault(kind, queue, operation, count, seconds))

    def clear_faults(self) -> None:
        """Disarm every fault."""
        self.server.faults.clear()

    def drop_connections(self, queue: str = "") -> int:
        """Cut every connection, or those with a link to ``queue``; return how many."""
        return self.server.drop_connections(self.namespace.queue(queue) if queue else None)

    def expire_locks(self, queue: str = "") -> int:
        """End every lock now, of messages and sessions; return how many ended."""
        chosen = [self.namespace.queue(queue)] if queue else self.namespace.every_queue()
        ended = sum(target.expire_locks(self.clock()) for target in chosen)
        self.server.touch()
        return ended


def connection_string(host: str, port: int, key: str) -> str:
    """Build the connection string of a broker."""
    return (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={KEY_NAME};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )
