"""The client survives any outage that is shorter than its patience, and ends after a longer one."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from devstack.servicebus import Broker
from sas.client import FollowError, OrdersClient, SubmitError
from tests.integration.client_cases import REPLIES, empty, notification, order, put
from tests.ports import free_port

# The SDK leaves a socket open whenever it gives a connection up and opens another.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
async def _collect_what_the_sdk_leaves() -> AsyncIterator[None]:
    yield
    gc.collect()


class Proxy:
    """A TCP proxy before the broker. It can be slow, and it can be away."""

    def __init__(self, broker: Broker) -> None:
        self.slow_s = 0.0
        """How late each piece of an answer is."""
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._port = free_port()
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def connection_string(self) -> str:
        return self._broker.connection_string.replace(str(self._broker.port), str(self._port))

    async def come(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def go(self) -> None:
        """Cut every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def away(self, seconds: float) -> None:
        await self.go()
        await asyncio.sleep(seconds)
        await self.come()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        if writer not in self._writers:  # the proxy went away meanwhile
            its_writer.transport.abort()
            return
        self._writers.add(its_writer)
        pipes = (
            self._pipe(reader, its_writer, lambda: 0.0),
            self._pipe(its_reader, writer, lambda: self.slow_s),
        )
        self._pipes |= {asyncio.create_task(pipe) for pipe in pipes}

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, late: Callable[[], float]
    ) -> None:
        with suppress(OSError):
            while piece := await source.read(65_536):
                await asyncio.sleep(late())
                sink.write(piece)
        sink.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Broker, Proxy]]:
    async with Broker(["orders", REPLIES]) as broker:
        proxy = Proxy(broker)
        await proxy.come()
        try:
            yield broker, proxy
        finally:
            await proxy.go()


def client_of(proxy: Proxy) -> OrdersClient:
    return OrdersClient(proxy.connection_string, reply_queue=REPLIES, patience_s=PATIENCE_S)


async def test_a_broker_that_answers_the_attach_late_is_followed_and_submitted_to() -> None:
    async with proxied() as (broker, proxy), client_of(proxy) as client:
        proxy.slow_s = 0.5
        await put(broker, notification("A-1", "completed"))
        began = time.monotonic()
        order_ids = [event.data.order_id async for event in client.follow(["A-1"])]
        assert order_ids == ["A-1"]
        assert time.monotonic() - began > 1.5  # the link took longer to open than a poll takes
        await client.submit(order(1))
        assert broker.counts("orders").active == 1
        await empty(broker)


@pytest.mark.parametrize("away_s", [0.1, 4.0])
async def test_following_survives_a_namespace_that_is_away_for_a_while(away_s: float) -> None:
    async with proxied() as (broker, proxy), client_of(proxy) as client:
        await put(broker, notification("A-1", "received"))
        types: list[str] = []
        async for event in client.follow(["A-1"], quiet_s=PATIENCE_S):
            types.append(event.type)
            if len(types) == 1:
                await proxy.go()
                broker.drop_connections(REPLIES)
                back = asyncio.create_task(proxy.away(away_s))
                await put(broker, notification("A-1", "completed"))
        await back
        assert types[-1] == "sas.order.completed.v1"
        await empty(broker)


async def test_following_survives_an_outage_while_it_waits_for_the_first_notification() -> None:
    async with proxied() as (broker, proxy), client_of(proxy) as client:
        poll = asyncio.Event()

        def until() -> bool:
            poll.set()
            return False

        async with aclosing(client.follow(["A-1"], until=until)) as events:
            first = asyncio.ensure_future(anext(events))
            await poll.wait()
            await asyncio.sleep(1.5)  # the link is open, and one poll has brought nothing
            await proxy.away(3)
            await put(broker, notification("A-1", "completed"))
            assert (await first).data.order_id == "A-1"


@pytest.mark.parametrize("used_before", [False, True])
async def test_submitting_survives_a_namespace_that_is_away_for_a_while(
    *, used_before: bool
) -> None:
    async with proxied() as (broker, proxy), client_of(proxy) as client:
        if used_before:
            await client.submit(order(1))
        await proxy.go()
        submitting = asyncio.create_task(client.submit(order(2)))
        await proxy.away(3)
        assert (await submitting).order_id == "A-2"
        assert broker.counts("orders").active == 1 + used_before


async def test_an_outage_longer_than_the_patience_ends_with_a_sentence() -> None:
    async with proxied() as (broker, proxy), client_of(proxy) as client:
        async with aclosing(client.follow()) as events:
            await put(broker, notification("A-1", "received"))
            assert (await anext(events)).data.order_id == "A-1"
            await proxy.go()
            client._patience_s = client._receiving._patience_s = 3  # the link is open by now
            began = time.monotonic()
            with pytest.raises(FollowError, match="check that the namespace"):
                await anext(events)
        with pytest.raises(SubmitError, match="check that the namespace"):
            await client.submit(order(1))
        assert 5 < time.monotonic() - began < 100
