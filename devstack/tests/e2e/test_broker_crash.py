"""``kill -9`` of the broker under load, again and again.

After each kill three things must be true: every acknowledged send is delivered; no message comes
back whose completion was acknowledged; each batch is there whole or not at all.
``SAS_BROKER_CRASHES`` sets the number of kills (200 for the recorded run), ``SAS_BROKER_SEED``
their moments.
"""

import asyncio
import itertools
import json
import os
import random
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.sections import BATCH_FORMAT, DATA, sections
from devstack.tests.broker_runners import BrokerProcess, start_broker
from devstack.tests.wire_kit import Peer

CRASHES = int(os.environ.get("SAS_BROKER_CRASHES", "5"))
BATCH = 3


@dataclass(kw_only=True)
class Ledger:
    """What the clients know for certain."""

    acknowledged: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    came_back: list[int] = field(default_factory=list)


def message(number: int) -> bytes:
    return b"\x00\x53\x75" + encode.binary(str(number).encode())


def number_in(payload: bytes) -> int:
    section = next(s for s in sections(payload) if s.code == DATA)
    return int(decode.decode(payload, section.value_at)[0])


async def connect(port: int) -> Peer:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
    try:
        await peer.open()
    except BaseException:
        peer.writer.transport.abort()
        raise
    return peer


async def produce(port: int, ledger: Ledger) -> None:
    """Send batches, one after the other, and note those that were acknowledged."""
    peer = await connect(port)
    try:
        await peer.attach("q", receives=False)
        for delivery in itertools.count():
            first = next(ledger.numbers) * BATCH
            batch = range(first, first + BATCH)
            payload = b"".join(b"\x00\x53\x75" + encode.binary(message(n)) for n in batch)
            fields = [encode.uint(0), encode.uint(delivery), encode.binary(b"t")]
            peer.send(frames.TRANSFER, *fields, encode.uint(BATCH_FORMAT), payload=payload)
            async with asyncio.timeout(120):
                while (await peer.expect(frames.DISPOSITION))[1] != delivery:
                    pass
            ledger.acknowledged.update(batch)
    finally:
        peer.writer.transport.abort()


async def consume(port: int, ledger: Ledger) -> None:
    """Receive and complete, and note what was delivered and which completions were answered."""
    peer = await connect(port)
    try:
        await peer.attach("q", receives=True)
        peer.credit(10)
        count = 0
        waiting: dict[int, int] = {}
        while True:
            frame = next(peer.frames.frames(), None)
            if frame is None:
                data = await asyncio.wait_for(peer.reader.read(65536), 120)
                if not data:
                    return
                peer.frames.feed(data)
                continue
            code, position = frames.performative(frame[2])
            fields, payload_at = decode.fields(frame[2], position)
            if code == frames.TRANSFER:
                number = number_in(frame[2][payload_at:])
                if number in ledger.completed:
                    ledger.came_back.append(number)
                ledger.delivered.add(number)
                waiting[fields[1]] = number
                delivery = encode.uint(fields[1])
                accepted = frames.ACCEPTED_STATE
                peer.send(frames.DISPOSITION, b"\x41", delivery, delivery, b"\x42", accepted)
                count += 1
                peer.credit(10, delivery_count=count)
            elif code == frames.DISPOSITION and fields[4].descriptor == frames.ACCEPTED:
                ledger.completed.add(waiting.pop(fields[1]))
    finally:
        peer.writer.transport.abort()


async def load(broker: BrokerProcess, ledger: Ledger, seconds: float) -> None:
    """Work until the broker is killed, ``seconds`` after it acknowledged two batches."""
    roles = [produce, produce, consume, consume]
    before = len(ledger.acknowledged)
    tasks = [asyncio.create_task(role(broker.port, ledger)) for role in roles]
    async with asyncio.timeout(120):
        while len(ledger.acknowledged) < before + 2 * BATCH:  # noqa: ASYNC110 (it has no events)
            await asyncio.sleep(0.005)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*tasks, return_exceptions=True)


async def drain(broker: BrokerProcess, ledger: Ledger) -> None:
    """Receive until the queue is empty."""
    task = asyncio.create_task(consume(broker.port, ledger))
    async with asyncio.timeout(120):
        while await asyncio.to_thread(left, broker):  # noqa: ASYNC110 (it has no events)
            await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def left(broker: BrokerProcess) -> int:
    """Return the number of messages on the queue, with the locked ones."""
    address = f"http://127.0.0.1:{broker.management_port}/$Resources/queues"
    with urllib.request.urlopen(address, timeout=60) as answer:
        [count] = re.findall(r"<[\w:]*ActiveMessageCount>(\d+)<", answer.read().decode())
    return int(count)


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_and_nothing_completed_comes_back(
    tmp_path: Path,
) -> None:
    config = tmp_path / "Config.json"
    properties = {"LockDuration": "PT1S", "MaxDeliveryCount": 2000}
    queues = [{"Name": "q", "Properties": properties}]
    document = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": queues}]}}
    config.write_text(json.dumps(document))
    chance = random.Random(int(os.environ.get("SAS_BROKER_SEED", "1")))  # noqa: S311
    ledger = Ledger()
    for _ in range(CRASHES):
        broker = await asyncio.to_thread(start_broker, config, data=tmp_path / "data")
        await load(broker, ledger, chance.uniform(0.02, 0.4))
    with await asyncio.to_thread(start_broker, config, data=tmp_path / "data") as broker:
        await drain(broker, ledger)
    print(f"{CRASHES} kills, {len(ledger.acknowledged)} sends acknowledged")  # noqa: T201
    assert len(ledger.acknowledged) > CRASHES * BATCH
    assert ledger.acknowledged <= ledger.delivered
    assert ledger.came_back == []
    batches: dict[int, int] = {}
    for number in ledger.delivered:
        batches[number // BATCH] = batches.get(number // BATCH, 0) + 1
    assert set(batches.values()) == {BATCH}
