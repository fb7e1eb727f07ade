"""The AMQP listener, and the operations on queues that also concern their links.

Everything runs on one event loop. No function that touches a queue awaits anything, so each runs to
its end before the next one begins, and no field needs a mutex.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from devstack.servicebus.core.errors import BrokerError, EntityNotFoundError
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.faults import Fault
from devstack.servicebus.tokens import TokenValidator
from devstack.servicebus.wire.connection import AmqpConnection
from devstack.servicebus.wire.context import Context, Limits
from devstack.servicebus.wire.session import Link

_log = logging.getLogger("devstack.servicebus")
_BACKLOG = 512
_CHECK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """The numbers of messages of a queue. ``active`` includes locked and deferred ones."""

    active: int
    locked: int
    scheduled: int
    dead_letter: int
    transfer_dead_letter: int
    size_bytes: int

    @property
    def total(self) -> int:
        """All messages, as the management API counts them."""
        return self.active + self.scheduled + self.dead_letter + self.transfer_dead_letter


class AmqpServer:
    """Serves the queues of a namespace over AMQP. ``clock`` gives seconds since 1970."""

    def __init__(
        self, host: str, tokens: TokenValidator, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.host = host
        self.clock = clock
        self.tokens = tokens
        self.namespace = Namespace()
        self.failure: str | None = None
        self.connections: set[AmqpConnection] = set()
        self.context = Context(
            namespace=self.namespace, clock=clock, commit=self.commit, tokens=tokens, limits=limits
        )
        self._listener: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    def commit(self) -> None:
        """Make durable what the queues recorded. This server keeps no data; `Broker` does."""

    async def listen(self, port: int) -> int:
        """Listen; return the port, a free one if ``port`` is 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._new_connection, self.host, port, backlog=_BACKLOG
        )
        self.context.start()
        self._check_connections()
        bound_port: int = self._listener.sockets[0].getsockname()[1]
        return bound_port

    async def stop_listening(self) -> None:
        """Close the port and drop every connection, after a last commit."""
        self._close_port()
        for connection in list(self.connections):
            connection.output.drop()
        self.context.stop()
        await asyncio.sleep(0)  # let asyncio call connection_lost of each connection

    def halt(self) -> None:
        """Stop at once and write nothing more: what was not committed is not acknowledged."""
        self.context.discard()
        self._close_port()
        for connection in list(self.connections):
            connection.output.abort()

    def _close_port(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._listener is not None:
            self._listener.close()

    def _new_connection(self) -> AmqpConnection:
        refusal = ""
        limit = self.context.limits.connections
        if len(self.connections) >= limit:
            refusal = f"the broker has {limit} connections already; close some"
            _log.warning("a connection is refused: %s", refusal)
        connection = AmqpConnection(self.context, refusal=refusal, on_lost=self.connections.discard)
        self.connections.add(connection)
        return connection

    def _check_connections(self) -> None:
        now = self.clock()
        for connection in list(self.connections):
            connection.check_deadlines(now)
        self._check_timer = self.context.later(_CHECK_EVERY_S, self._check_connections)

    def links(self) -> list[Link]:
        """Return every open link."""
        links = (link for connection in self.connections for link in connection.links())
        return [link for link in links if not link.ended]

    def _links_of(self, queues: Collection[Queue]) -> list[Link]:
        return [link for link in self.links() if link.queue is not None and link.queue in queues]

    def create_with(self, name: str, properties: QueueProperties) -> Queue:
        """Create a queue. Raises ValueError, also if it would forward to a missing queue."""
        self.namespace.check_targets(name, properties)
        self.context.touch()
        return self.namespace.create(name, properties, self.clock())

    def update_to(self, name: str, properties: QueueProperties) -> Queue:
        """Set all properties of a queue; end the links that it no longer allows.

        Raises EntityNotFoundError, ValueError.
        """
        self.namespace.queue(name)
        self.namespace.check_targets(name, properties)
        self.context.touch()
        queue = self.namespace.update(name, properties, self.clock())
        for link in self._links_of((queue, *queue.parts)):
            try:
                link.check()
            except BrokerError as error:
                link.detach(error.condition, error.description)
        return queue

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages and end its links. Raises EntityNotFoundError."""
        self.context.touch()
        queue = self.namespace.delete(name)
        for link in self._links_of((queue, *queue.parts)):
            link.detach(EntityNotFoundError.condition, f"queue '{queue.name}' was deleted")

    def counts(self, name: str) -> QueueCounts:
        """Count the messages of a queue. Raises EntityNotFoundError."""
        queue = self.namespace.queue(name)
        dead_letters, transfer_dead_letters = queue.parts
        return QueueCounts(
            active=len(queue.messages) - queue.scheduled_count,
            locked=len(queue.locked),
            scheduled=queue.scheduled_count,
            dead_letter=len(dead_letters.messages),
            transfer_dead_letter=len(transfer_dead_letters.messages),
            size_bytes=queue.bytes + dead_letters.bytes,
        )

    def arm(
        self,
        kind: str,
        queue: str = "",
        *,
        operation: str = "",
        count: int = 1,
        seconds: float = 0.0,
    ) -> None:
        """Let a fault happen the next ``count`` times (see faults.py).

        Raises ValueError, and EntityNotFoundError if there is no such queue.
        """
        if queue:
            self.namespace.find(queue)
        self.context.faults.armed.append(
            Fault(kind=kind, queue=queue, operation=operation, remaining=count, seconds=seconds)
        )

    def clear_faults(self) -> None:
        """Disarm every fault."""
        self.context.faults.armed.clear()

    def drop_connections(self, queue: str = "") -> int:
        """Drop every connection, or those with a link to ``queue``; return their number."""
        target = self.namespace.queue(queue) if queue else None
        connections = [
            connection
            for connection in self.connections
            if target is None
            or any(link.queue in {target, target.dead_letters} for link in connection.links())
        ]
        for connection in connections:
            connection.output.drop()
        return len(connections)

    def expire_locks(self, queue: str = "") -> int:
        """End every lock of messages and sessions now; return their number."""
        targets = [self.namespace.queue(queue)] if queue else self.namespace.every_queue()
        count = sum(target.expire_locks(self.clock()) for target in targets)
        self.context.touch()
        return count
