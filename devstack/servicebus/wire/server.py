"""The AMQP listener: it owns the connections, the commit before each write, and the clock's ticks.

Everything runs on one event loop, so there are no locks. What connections want to write gathers
while one of them is read, or for one turn of the loop; then the store commits once for all of it,
and only then do the bytes leave: an acknowledgement never precedes what it acknowledges.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection

from devstack.servicebus.core.errors import BrokerError, EntityNotFoundError
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.faults import Faults
from devstack.servicebus.limits import Limits
from devstack.servicebus.tokens import Gate
from devstack.servicebus.wire.connection import AmqpConnection
from devstack.servicebus.wire.hub import Outgoing
from devstack.servicebus.wire.link import Link
from devstack.servicebus.wire.routing import end_expired
from devstack.servicebus.wire.stream import Listener, Stream
from devstack.servicebus.wire.timers import Timer, Timers

_log = logging.getLogger("devstack.servicebus")
_PATROL_S = 1.0


class AmqpServer:
    """Serves a namespace over AMQP.

    ``commit`` makes durable what the queues journalled; None where nothing is kept.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        clock: Callable[[], float],
        commit: Callable[[], None] | None,
        gate: Gate,
        limits: Limits,
    ) -> None:
        self.namespace = namespace
        self.clock = clock
        self.gate = gate
        self.limits = limits
        self.faults = Faults()
        self.in_read = False
        self.connections: set[AmqpConnection] = set()
        self._commit = commit
        self._marked: list[Outgoing] = []
        self._flush_comes = False
        self._timers = Timers()
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, a free one where ``port`` was 0. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(host, port, self._loop, self._accept)
        self._timers.start(self._loop)
        self._timers.call_later(_PATROL_S, self._walk)
        self._settle_timers()
        return self._listener.port

    async def stop(self) -> None:
        """Stop listening and drop every connection, after a last commit."""
        self._timers.stop()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.cut()
        self.flush()
        await asyncio.sleep(0)

    def halt(self) -> None:
        """Stop at once and write nothing more: what was not committed is not acknowledged."""
        self._marked.clear()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.abort()

    def _accept(self, sock: socket.socket) -> None:
        assert self._loop is not None  # noqa: S101 (it listens on it)
        refused = ""
        if len(self.connections) >= self.limits.connections:
            refused = f"the broker has {self.limits.connections} connections already; close some"
            _log.warning("a connection is refused: %s", refused)
        stream = Stream(sock, self._loop, self.limits.write_buffer_bytes)
        connection = AmqpConnection(
            self, stream, refused=refused, ended=lambda: self.connections.discard(connection)
        )
        self.connections.add(connection)
        stream.open(connection)

    # -- one turn of the loop -------------------------------------------------------------

    def mark(self, connection: Outgoing) -> None:
        """Write this connection's bytes after the next commit, in this turn of the loop."""
        self._marked.append(connection)
        if not self.in_read:
            self.touch()

    def touch(self) -> None:
        """Commit and look at the timers in this turn of the loop, whether or not bytes go out."""
        if not self._flush_comes and self._loop is not None:
            self._flush_comes = True
            self._loop.call_soon(self._flush_soon)

    def flush(self) -> None:
        """Commit, and write what there is to write: at the end of a read, or of a turn."""
        self.in_read = False
        if self._commit is not None:
            self._commit()
        if self._marked:
            marked, self._marked = self._marked, []
            for connection in marked:
                connection.write_out()
        if self.namespace.due_changed:
            self._settle_timers()

    def later(self, seconds: float, work: Callable[[], None]) -> Timer:
        """Do ``work`` after some seconds."""
        return self._timers.call_later(seconds, work)

    def _flush_soon(self) -> None:
        self._flush_comes = False
        self.flush()

    def _settle_timers(self) -> None:
        """See that the next moment at which something falls due has a timer."""
        self.namespace.due_changed = False
        due = self.namespace.next_due()
        if due is None or self._loop is None:
            return
        if self._timer_at is not None and self._timer_at <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.later(due - self.clock(), self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self.namespace.tick(self.clock())
        self.flush()

    # -- patrol ---------------------------------------------------------------------------

    def _walk(self) -> None:
        now = self.clock()
        for connection in list(self.connections):
            self._look_at(connection, now)
        self.later(_PATROL_S, self._walk)

    def _look_at(self, connection: AmqpConnection, now: float) -> None:
        limits = self.limits
        if connection.closing_at is not None:
            if now - connection.closing_at > limits.stalled_s:
                connection.abort()  # it does not read what was sent before the end
        elif connection.paused_at is not None and now - connection.paused_at > limits.stalled_s:
            _log.warning("a peer has read nothing for %g s; it is cut off", limits.stalled_s)
            connection.cut()
        elif not connection.opened and now - connection.began > limits.handshake_s:
            connection.cut()
        elif connection.opened and now - connection.last_heard > limits.idle_s:
            connection.fail(
                "amqp:connection:forced",
                f"The connection was inactive for more than the allowed {limits.idle_s:g} seconds",
            )
        elif self.gate.closed:
            end_expired(connection, now)

    # -- for the broker's owner -----------------------------------------------------------

    def links(self) -> list[Link]:
        """Give every link that is open."""
        return [
            link
            for connection in self.connections
            for session in connection.sessions.values()
            for link in session.links.values()
            if not link.ended
        ]

    def check_links(self, queues: Collection[QueueCore | None]) -> None:
        """End the links to queues that could not be opened as the queues are now."""
        for link in self.links():
            if link.queue is not None and link.queue in queues:
                try:
                    link.check()
                except BrokerError as error:
                    link.detach(error.condition, error.description)

    def end_links(self, queues: Collection[QueueCore | None], reason: str) -> None:
        """End the links to queues that are gone."""
        for link in self.links():
            if link.queue is not None and link.queue in queues:
                link.detach(EntityNotFoundError.condition, reason)

    def drop_connections(self, queue: QueueCore | None = None) -> int:
        """Cut every connection (with a link to ``queue``); return how many."""
        chosen = [
            connection
            for connection in self.connections
            if queue is None
            or any(
                link.queue in {queue, queue.dead_letters}
                for session in connection.sessions.values()
                for link in session.links.values()
            )
        ]
        for connection in chosen:
            connection.cut()
        return len(chosen)
