"""The broker as one object: queues, AMQP listener, data and management port."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from devstack.lifecycle import AsyncRunnable
from devstack.servicebus.admin.api import AdminServer
from devstack.servicebus.config import Config
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Journal, Queue
from devstack.servicebus.storage import SqliteJournal
from devstack.servicebus.tokens import KEY_NAME, TokenValidator
from devstack.servicebus.wire.context import Limits
from devstack.servicebus.wire.server import AmqpServer

Queues = Config | Mapping[str, QueueProperties] | Iterable[str] | None


class Broker(AmqpServer, AsyncRunnable):
    """A Service Bus broker in the caller's event loop.

    ``queues`` is a `Config`, a list of names, or a mapping of names to properties. ``port`` 0 takes
    a free port. With ``management_port`` None the broker serves no HTTP. ``data`` is the directory
    that keeps the messages; without it, a stop deletes everything. With ``require_key`` the broker
    refuses tokens that are signed with another key.

        async with Broker(["orders"]) as broker:
            client = ServiceBusClient.from_connection_string(broker.connection_string)
    """

    def __init__(  # noqa: PLR0913 (each has a default and is passed by keyword)
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
        super().__init__(host, TokenValidator(require_key), limits or Limits(), clock)
        self.port = port
        self.management_port = management_port
        self.journal: SqliteJournal | None = None
        self._data = data
        self._queues = queues
        self._admin = AdminServer(self)
        self._failed = asyncio.Event()

    @property
    def connection_string(self) -> str:
        """The connection string for the SDKs: plain TCP on this broker's port."""
        return (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={self.tokens.key};UseDevelopmentEmulator=true;"
        )

    async def start(self) -> Self:
        """Create the queues, recover the data, listen.

        Raises OSError if a port is not free, StorageError if the data cannot be used.
        """
        self.open_data()
        try:
            self.port = await self.listen(self.port)
            if self.management_port is not None:
                self.management_port = await self._admin.start(self.management_port)
        except OSError:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop listening, drop every connection and close the data."""
        await self._admin.stop()
        await self.stop_listening()
        self.close_data()

    def commit(self) -> None:
        """Make durable what has happened.

        If the disk fails, the broker halts: it drops every connection and acknowledges nothing
        that was not written.
        """
        if self.journal is None or self.failure is not None:
            return
        try:
            self.journal.commit()
        except (OSError, sqlite3.Error) as error:  # Step 5 of storage.py.
            self.failure = f"the data could not be written ({error}); free the disk and restart"
            self.halt()
            self._failed.set()

    def open_data(self) -> None:
        """Create the configured queues, and restore the content of the data directory."""
        if self._data is not None:
            self.journal = SqliteJournal(self._data)
            self.namespace.journal = self.journal
        self._create_configured()
        if self.journal is not None:
            self.journal.recover(self.namespace, self.clock())
            self.journal.commit()

    def close_data(self) -> None:
        """Write the last changes and close the data directory."""
        if self.journal is not None:
            if self.failure is None:
                self.journal.close()
            else:
                self.journal.abandon()
            self.journal = None
            self.namespace.journal = Journal()

    async def wait_failed(self) -> None:
        """Wait until the disk fails."""
        await self._failed.wait()

    def _create_configured(self) -> None:
        queues: Any = self._queues or ()
        if isinstance(queues, Config):
            queues = queues.queues
        if isinstance(queues, str):
            raise ValueError(  # noqa: TRY004 (one kind of error for every wrong value)
                f"queues are a list of names: write [{queues!r}]"
            )
        pairs = queues.items() if isinstance(queues, Mapping) else ((name, None) for name in queues)
        for name, properties in pairs:
            self.namespace.create(name, properties, self.clock())

    def create_queue(self, name: str, **properties: Any) -> Queue:
        """Create a queue; ``properties`` are those of `QueueProperties`. Raises ValueError."""
        return self.create_with(name, QueueProperties(**properties))

    def update_queue(self, name: str, **properties: Any) -> Queue:
        """Change some properties of a queue. Raises EntityNotFoundError, ValueError."""
        return self.update_to(name, replace(self.namespace.queue(name).properties, **properties))
