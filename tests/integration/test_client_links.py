"""The client when its links break: nothing hangs, and what can be taken up again is."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator

import pytest

from devstack.servicebus import Broker
from sas.client import FollowError, OrdersClient, SubmitError
from tests.integration.client_cases import REPLIES, empty, notification, order, put
from tests.ports import free_port

# The SDK leaves a socket open whenever it gives a connection up and opens another.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
async def _collect_what_the_sdk_leaves() -> AsyncIterator[None]:
    yield
    gc.collect()


async def test_following_survives_a_cut_connection() -> None:
    async with (
        Broker([REPLIES]) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as client,
    ):
        await put(broker, notification("A-1", "received"))
        types: list[str] = []
        async for event in client.follow(["A-1"], quiet_s=120):
            types.append(event.type)
            if len(types) == 1:
                broker.drop_connections(REPLIES)
                await put(broker, notification("A-1", "completed"))
        assert types[-1] == "sas.order.completed.v1"
        await empty(broker)


async def test_submitting_survives_a_cut_connection() -> None:
    async with (
        Broker(["orders"]) as broker,
        OrdersClient(broker.connection_string, reply_queue=REPLIES) as client,
    ):
        await client.submit(order(1))
        assert broker.drop_connections("orders") == 1
        await client.submit(order(2))
        assert broker.counts("orders").active == 2


async def test_a_missing_queue_is_reported_in_a_sentence() -> None:
    async with (
        Broker(["responses-a"]) as bare,
        OrdersClient(
            bare.connection_string, reply_queue="responses-nobody", patience_s=600
        ) as client,
        asyncio.timeout(120),
    ):
        with pytest.raises(FollowError, match=r"'responses-nobody' cannot be read: there is no"):
            await anext(client.follow())
        with pytest.raises(SubmitError, match=r"'orders' did not take orders: there is no such"):
            await client.submit(order(1))


def connection_string(port: int) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=k;SharedAccessKey=k;"
        "UseDevelopmentEmulator=true;"
    )


async def test_a_broker_that_stays_down_is_reported_when_the_patience_is_over() -> None:
    text = connection_string(free_port())
    async with OrdersClient(text, reply_queue=REPLIES, patience_s=3) as client:
        started = time.monotonic()
        with pytest.raises(SubmitError, match=r"the namespace \(or the broker\) is up"):
            await client.submit(order(1))
        assert time.monotonic() - started < 28  # its patience is 3 s


async def test_a_broker_that_never_answers_does_not_hang_the_caller() -> None:
    started = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and is never accepted
        text = connection_string(silent.getsockname()[1])
        async with OrdersClient(text, reply_queue=REPLIES, patience_s=2) as client:
            with pytest.raises(SubmitError, match="did not take orders"):
                await client.submit(order(1))
            with pytest.raises(FollowError, match="cannot be read"):
                await anext(client.follow())
    assert time.monotonic() - started < 100


async def test_a_broker_that_comes_back_is_used_again() -> None:
    first = await Broker(["orders"], port=free_port()).start()
    text = first.connection_string
    async with OrdersClient(text, reply_queue=REPLIES, patience_s=120) as client:
        await client.submit(order(1))
        await first.stop()
        client._patience_s = 2  # only here: the attempts fail
        with pytest.raises(SubmitError):
            await client.submit(order(2))
        client._patience_s = 120
        async with Broker(["orders"], port=first.port) as again:
            await client.submit(order(2))
            assert again.counts("orders").active == 1
