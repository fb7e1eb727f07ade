"""Raw frames against the broker: a peer that sends any bytes, and a clock that stands still."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

from devstack.servicebus import Broker
from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.core.message import parse_message
from devstack.tests.queue_kit import raw

BODY = raw(b"body")


class Clock:
    """The broker's time. It stands still, so that a pause of this process ends no connection."""

    def __init__(self) -> None:
        self.now: float | None = time.time()

    def __call__(self) -> float:
        return time.time() if self.now is None else self.now

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the time pass meanwhile."""
        self.now = None
        yield
        self.now = time.time()


class Peer:
    """A client that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = frames.FrameReader(1 << 24)
        self.payload = b""

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, code: int, *fields: bytes, payload: bytes = b"", channel: int = 0) -> None:
        self.write(frames.frame(channel, encode.composite(code, fields), payload))

    async def read(self) -> tuple[int, list[Any]]:
        """Return the next performative, without empty frames: its code and fields."""
        while True:
            frame = next(self.frames.frames(), None)
            if frame is not None and frame[2]:
                code, position = frames.performative(frame[2])
                fields, end = decode.fields(frame[2], position)
                self.payload = frame[2][end:]
                return code, fields
            if frame is None:
                data = await asyncio.wait_for(self.reader.read(65536), 120)
                if not data:
                    raise EOFError
                self.frames.feed(data)

    async def expect(self, code: int) -> list[Any]:
        while True:
            frame_code, fields = await self.read()
            if frame_code == code:
                return fields

    async def message(self) -> bytes:
        """Return the next whole message."""
        payload, more = b"", True
        while more:
            fields = await self.expect(frames.TRANSFER)
            payload, more = payload + self.payload, len(fields) > 5 and fields[5]
        return payload

    async def closed(self, within: float = 120) -> bytes:
        """Return everything until the broker closes the connection."""
        async with asyncio.timeout(within):
            try:
                return await self.reader.read(-1)
            except ConnectionError:
                return b""

    async def open(self, *, window: int = 2048, frame_size: int = 65536) -> None:
        self.write(frames.AMQP_HEADER)
        assert await self.reader.readexactly(8) == frames.AMQP_HEADER
        self.send(frames.OPEN, encode.string("peer"), encode.NULL, encode.uint(frame_size))
        await self.expect(frames.OPEN)
        self.send(frames.BEGIN, encode.NULL, encode.uint(0), encode.uint(window), encode.uint(100))
        await self.expect(frames.BEGIN)

    async def attach(
        self, queue: str, *, receives: bool, handle: int = 0, **options: bytes
    ) -> list[Any]:
        source = target = encode.composite(frames.SOURCE, [encode.string(queue)])
        target = encode.composite(frames.TARGET, [encode.string(queue)])
        self.send(
            frames.ATTACH,
            encode.string(f"link{handle}"),
            encode.uint(handle),
            encode.boolean(receives),
            options.get("settles", encode.ubyte(0)),
            encode.ubyte(1),
            options.get("source", source),
            options.get("target", target),
        )
        fields = await self.expect(frames.ATTACH)
        return fields + [None] * (14 - len(fields))

    def transfer(
        self,
        number: int,
        payload: bytes,
        *,
        more: bool = False,
        handle: int = 0,
        message_format: bytes = b"\x43",
        settled: bytes = b"\x42",
    ) -> None:
        tag = encode.binary(struct.pack(">I", number))
        fields = [encode.uint(handle), encode.uint(number), tag, message_format, settled]
        self.send(frames.TRANSFER, *fields, encode.boolean(more), payload=payload)

    def credit(self, count: int, *, delivery_count: int = 0, window: int = 2048) -> None:
        numbers = (delivery_count + 1, window, 0, 2048, 0, delivery_count, count)
        self.send(frames.FLOW, *[encode.uint(number) for number in numbers])


@asynccontextmanager
async def peer_of(broker: Broker) -> AsyncIterator[Peer]:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", broker.port))
    try:
        yield peer
    finally:
        peer.writer.transport.abort()


def put(broker: Broker, count: int, body: bytes = b"1") -> None:
    messages = [parse_message(raw(body)) for _ in range(count)]
    broker.namespace.queue("q").enqueue(messages, broker.clock())


async def settled(broker: Broker, connections: int = 0) -> None:
    """Wait until the broker has noticed the closed connections."""
    async with asyncio.timeout(120):
        while len(broker.connections) > connections:  # noqa: ASYNC110 (no such event)
            await asyncio.sleep(0.01)


async def works(broker: Broker) -> None:
    """Check that a well-behaved peer is served."""
    before = broker.counts("q").active
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=False)
        peer.transfer(0, BODY)
        fields = await peer.expect(frames.DISPOSITION)
        assert fields[4].descriptor == frames.ACCEPTED
    assert broker.counts("q").active == before + 1


def request(body: bytes, **named: str) -> bytes:
    entries = [(encode.string(name), encode.string(value)) for name, value in named.items()]
    return (
        encode.composite(0x73, [encode.uuid(uuid4())])
        + b"\x00\x53\x74"
        + encode.map_(entries)
        + b"\x00\x53\x77"
        + body
    )
