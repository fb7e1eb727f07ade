"""TCP on the event loop, with little between the kernel and AMQP.

asyncio's transports would do, but they pass each read and write through a dozen functions; a
message has two of each, and every function costs more than its time when it is run from cold
caches. Here a readable socket is one call of ours, and a write is one call of the socket's own.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("devstack.servicebus")
_READ_BYTES = 64 * 1024
_BACKLOG = 512
_TRY_AGAIN_S = 1.0


class StreamUser(Protocol):
    """Whom a stream calls, always on the loop's own thread."""

    def received(self, data: bytes) -> None:
        """Take bytes from the peer."""

    def stalled(self) -> None:
        """More bytes wait for the peer than the stream's limit."""

    def drained(self) -> None:
        """The peer has taken all that waited, after a stall."""

    def lost(self) -> None:
        """The connection is over, by whomever; called once, and nothing after it."""


class Stream:
    """One TCP connection. It reads from `open` on; what the socket does not take at once waits."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self._loop = loop
        self._limit = limit
        self._waiting = bytearray()
        self._reads = self._closing = self._over = self._stalled = False

    def open(self, user: StreamUser) -> None:
        """Begin to read for ``user``."""
        self._received, self._user = user.received, user
        self.resume_reading()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.abort()
            return
        if data:
            self._received(data)
        else:  # AMQP knows no half of a connection: who sends no more reads no more
            self.abort()

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        """Read again, unless the stream is being closed."""
        if not self._reads and not self._closing:
            self._reads = True
            self._loop.add_reader(self._sock, self._readable)

    def write(self, data: bytes) -> None:
        """Send now what the socket takes, and the rest when it can."""
        if self._over:
            return
        sent = 0
        if not self._waiting:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self.abort()
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._sock, self._writable)
        self._waiting += data[sent:]
        if not self._stalled and len(self._waiting) > self._limit:
            self._stalled = True
            self._user.stalled()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._waiting)
        except BlockingIOError:
            return
        except OSError:
            self.abort()
            return
        del self._waiting[:sent]
        if self._waiting:
            return
        self._loop.remove_writer(self._sock)
        if self._closing:
            self.abort()
        elif self._stalled:
            self._stalled = False
            self._user.drained()

    def close(self) -> None:
        """Read no more, and end once everything is written."""
        self.pause_reading()
        self._closing = True
        if not self._waiting:
            self.abort()

    def abort(self) -> None:
        """End now; what waits is dropped."""
        if self._over:
            return
        self.pause_reading()
        self._over = self._closing = True
        if self._waiting:
            self._waiting.clear()
            self._loop.remove_writer(self._sock)
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._sock.close()
        self._user.lost()


class Listener:
    """Accepts connections and hands their streams on. Raises OSError where it cannot listen."""

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        accepted: Callable[[socket.socket], None],
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else str(error)
            raise OSError(error.errno, f"port {port} of {host}: {why}") from None
        self._sock.setblocking(False)
        self._loop = loop
        self._accepted = accepted
        self._listen()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        port: int = self._sock.getsockname()[1]
        return port

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("no connection can be accepted (%s); trying again in a second", error)
            self._loop.remove_reader(self._sock)
            self._loop.call_later(_TRY_AGAIN_S, self._listen)
            return
        self._accepted(sock)

    def close(self) -> None:
        """Accept nothing more. Can be called twice."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()
