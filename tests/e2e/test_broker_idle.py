"""The cost and the end of 200 idle connections."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devstack.servicebus import Broker, Limits
from devstack.servicebus.amqp import frames
from tests.broker_runners import BrokerProcess, cpu_of, memory_of, start_broker
from tests.integration.test_broker_wire import BODY, Clock, Peer

IDLE = 200
KILOBYTES_EACH = 20  # seen: 4
CPU_SHARE = 0.02  # seen: 0.0002


@asynccontextmanager
async def idle_peers(port: int) -> AsyncIterator[list[Peer]]:
    """Open connections with a session and a receiver that has credit, then stay idle."""
    peers: list[Peer] = []
    try:
        for _ in range(IDLE):
            peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
            peers.append(peer)
            await peer.open()
            await peer.attach("q", receives=True)
        yield peers
    finally:
        for peer in peers:
            peer.writer.transport.abort()


@pytest.fixture
def process(tmp_path: Path) -> BrokerProcess:
    path = tmp_path / "Config.json"
    queues = [{"Name": "q"}]
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": queues}]}}))
    return start_broker(path)


async def test_200_idle_connections_cost_a_broker_little_memory_and_next_to_no_time(
    process: BrokerProcess,
) -> None:
    with process:
        pid = process.process.pid
        before = memory_of(pid)
        async with idle_peers(process.port):
            each = (memory_of(pid) - before) * 1024 / IDLE
            assert each < KILOBYTES_EACH, f"{each:.1f} KB for each idle connection"
            spent, began = cpu_of(pid), time.monotonic()
            await asyncio.sleep(2)
            share = (cpu_of(pid) - spent) / (time.monotonic() - began)
            assert share < CPU_SHARE, f"{share:.3f} of a core for {IDLE} idle connections"


async def test_200_idle_connections_get_an_error_and_are_closed_and_a_busy_one_stays() -> None:
    clock = Clock()
    async with Broker(["q"], limits=Limits(idle_s=5.0), clock=clock) as broker:
        busy = Peer(*await asyncio.open_connection("127.0.0.1", broker.port))
        await busy.open()
        await busy.attach("q", receives=False)
        async with idle_peers(broker.port) as peers:
            assert len(broker.connections) == IDLE + 1
            for number in range(3):  # six seconds, and the busy one is heard every two
                clock.now = clock() + 2
                busy.transfer(number, BODY)
                await busy.expect(frames.DISPOSITION)
            endings = [await peer.closed() for peer in peers]
            assert all(b"inactive for more than" in ending for ending in endings)
            assert len(broker.connections) == 1
        busy.writer.transport.abort()
