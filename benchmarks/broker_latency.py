"""The time from a send to a waiting receiver, and the shares of the SDK and the broker."""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message, Properties
from azure.servicebus.aio import ServiceBusClient

from benchmarks.metering import BODY
from devstack.tests.broker_runners import BrokerProcess


@contextmanager
def noted_moments() -> Iterator[dict[str, float]]:
    """Note the last times at which the SDK wrote a whole message, and read one."""
    moments = {"left": 0.0, "came": 0.0}
    write, feed = asyncio.StreamWriter.write, asyncio.StreamReader.feed_data

    def noted_write(self: asyncio.StreamWriter, data: Any) -> None:
        if len(data) > len(BODY):
            moments["left"] = time.perf_counter()
        write(self, data)

    def noted_feed(self: asyncio.StreamReader, data: Any) -> None:
        if len(data) > len(BODY):
            moments["came"] = time.perf_counter()
        feed(self, data)

    asyncio.StreamWriter.write = noted_write  # type: ignore[method-assign]
    asyncio.StreamReader.feed_data = noted_feed  # type: ignore[method-assign]
    try:
        yield moments
    finally:
        asyncio.StreamWriter.write = write  # type: ignore[method-assign]
        asyncio.StreamReader.feed_data = feed  # type: ignore[method-assign]


def latency(broker: BrokerProcess, count: int) -> tuple[float, float]:
    """Median ms from a send to the waiting receiver, and the share outside the SDK.

    The second is from the SDK's write to the socket until the delivery's bytes are back: the
    broker, and loopback twice.
    """

    async def run() -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        async with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("q0") as sender,
            client.get_queue_receiver("q0") as receiver,
        ):
            arrivals: asyncio.Queue[float] = asyncio.Queue()

            async def listen() -> None:
                async for received in receiver:
                    arrivals.put_nowait(time.perf_counter())
                    await receiver.complete_message(received)

            task = asyncio.create_task(listen())
            with noted_moments() as moments:
                for _ in range(count):
                    await asyncio.sleep(0.01)
                    start = time.perf_counter()
                    await sender.send_messages(ServiceBusMessage(BODY, message_id="m"))
                    whole = await arrivals.get() - start
                    found.append((1000 * whole, 1000 * (moments["came"] - moments["left"])))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return found

    whole, outside = zip(*asyncio.run(run()), strict=True)
    return statistics.median(whole), statistics.median(outside)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def _serve_echo() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _echo_process() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.broker_latency"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield int(process.stdout.readline() if process.stdout else "")
        finally:
            process.terminate()


def bare_round_trip(count: int, *, own_process: bool) -> float:
    """Median ms of two round trips of the same message through the SDK's codec and a TCP echo.

    The goal for a message is twice that. There are two round trips because a send has an
    acknowledgement, and then comes the delivery. The echo runs on the client's event loop, where
    TCP costs least, or in a process of its own, as a broker does.
    """
    if own_process:
        with _echo_process() as port:
            return statistics.median(asyncio.run(_trips(port, count)))

    async def run() -> list[float]:
        async with await asyncio.start_server(_echo, "127.0.0.1", 0) as server:
            return await _trips(server.sockets[0].getsockname()[1], count)

    return statistics.median(asyncio.run(run()))


async def _trips(port: int, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = Message(data=[BODY], properties=Properties(message_id="m"))
    found = []
    for _ in range(count):
        await asyncio.sleep(0.01)
        start = time.perf_counter()
        for _ in range(2):
            encoded = bytes(encode_payload(bytearray(), sent))
            writer.write(encoded)
            decode_payload(memoryview(await reader.readexactly(len(encoded))))
        found.append(1000 * (time.perf_counter() - start))
    writer.close()
    return found


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_echo())
