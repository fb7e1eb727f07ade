"""A TCP proxy between the hosts and Azurite that fails on command."""

from __future__ import annotations

import asyncio
import re
from enum import Enum

from devstack.lifecycle import AsyncRunnable

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
_BUSY_TEXT = b'{"odata.error":{"code":"ServerBusy","message":{"lang":"en-US","value":"busy"}}}'
_BUSY = (
    b"HTTP/1.1 503 Server Busy\r\nx-ms-error-code: ServerBusy\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BUSY_TEXT), _BUSY_TEXT)
)


class Weather(Enum):
    """What happens to requests."""

    FINE = "forwarded"
    REFUSED = "connection refused"
    BUSY = "503"
    ANSWERS_LOST = "done, but the answer is lost"
    SILENT = "no answer, and nothing is done"


class StoreProxy(AsyncRunnable):
    """Forwards connections to a local port, with the fault that `change` sets."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._weather = Weather.FINE
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen on a free port; a second start listens on the same port again."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and cut every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def change(self, weather: Weather) -> None:
        """Set the fault. Open connections are cut, so it applies from now on."""
        await self.stop()
        self._weather = weather
        if weather is not Weather.REFUSED:
            await self.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._weather is Weather.BUSY:
                await _answer_busy(reader, writer)
            elif self._weather is Weather.SILENT:
                while await reader.read(CHUNK_BYTES):
                    pass
            else:
                await self._forward(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the other side has gone
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, self._target_port)
        self._writers.add(requests)
        try:
            asking = asyncio.create_task(_pump(reader, requests))
            if self._weather is Weather.ANSWERS_LOST:
                await answers.read(1)  # the request was carried out, and its answer is dropped
            else:
                await _pump(answers, writer)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        finally:
            self._writers.discard(requests)
            requests.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.transport.close()


async def _answer_busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)
    writer.write(_BUSY)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
