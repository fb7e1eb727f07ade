"""What every message bus does: order, properties, refusals, time, duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio

from devstack.servicebus import Broker
from sas.codec.orders import ORDER_BYTES_MAX
from sas.engine.receiver import PROPERTIES, bounded
from sas.ports import (
    PEEK_BYTES_MAX,
    BusUnavailableError,
    Message,
    TooLargeForQueueError,
    UndeliverableError,
)
from tests.contract.bus_rigs import QUEUES, WITH_DETECTION, BrokerRig, BusRig, MemoryRig

A, B, RESPONSES = QUEUES
MISSING = "responses-nobody"


pytestmark = pytest.mark.asyncio(loop_scope="module")  # the SDK needs half a second to open a link


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker_rig() -> AsyncIterator[BrokerRig]:
    async with Broker(QUEUES) as broker:
        broker.create_queue(WITH_DETECTION, requires_duplicate_detection=True)
        rig = BrokerRig(broker)
        yield rig
        await rig.close()


@pytest_asyncio.fixture(params=["memory", "broker"], loop_scope="module")
async def rig(request: pytest.FixtureRequest, broker_rig: BrokerRig) -> AsyncIterator[BusRig]:
    if request.param == "memory":
        memory = MemoryRig()
        yield memory
        await memory.close()
    else:
        broker_rig.bus.meter.messages = 0
        yield broker_rig
        await broker_rig.clear()


def message(queue: str, number: int, body: bytes = b"{}") -> Message:
    return Message(queue, f"order-1/{number}/0", body)


async def test_a_message_arrives_with_everything_it_was_given(rig: BusRig) -> None:
    full = Message(
        A,
        "order 'ü' 100%/2/0",
        '{"order":"注文 🛒"}'.encode(),
        content_type="application/cloudevents+json; charset=utf-8",
        correlation_id="corr-🛒",
        time_to_live=timedelta(seconds=90, milliseconds=250),
        properties={"traceparent": "00-ab-cd-01", "kind": "ü"},
    )
    bare = Message(A, "bare", b"")
    await rig.bus.send([full, bare])
    assert await rig.receive(A, 2) == [full, bare]


async def test_messages_to_several_queues_arrive_in_the_order_of_each(rig: BusRig) -> None:
    messages = [message((A, A, B, A, RESPONSES, B)[n % 6], n) for n in range(18)]
    await rig.bus.send(messages)
    for queue in QUEUES:
        expected = [m for m in messages if m.queue == queue]
        assert await rig.receive(queue, len(expected)) == expected
    assert rig.sent() == 18


async def test_messages_too_many_for_one_batch_arrive_all_in_order(rig: BusRig) -> None:
    messages = [message(A, n, b"%d" % n + b"x" * 40_000) for n in range(15)]
    messages.insert(7, message(A, 99, b"y" * 255_000))
    await rig.bus.send(messages)
    assert await rig.receive(A, 16) == messages


async def test_an_empty_list_of_messages_sends_nothing(rig: BusRig) -> None:
    await rig.bus.send([])
    assert rig.sent() == 0


async def test_a_message_to_a_missing_queue_is_undeliverable_and_named(rig: BusRig) -> None:
    lost = message(MISSING, 2)
    with pytest.raises(UndeliverableError, match=MISSING) as caught:
        await rig.bus.send([message(A, 1), lost, message(B, 3)])
    assert caught.value.undelivered == lost
    assert rig.sent() == 1
    await rig.bus.send([message(B, 3)])
    assert await rig.receive(A, 1) == [message(A, 1)]
    assert await rig.receive(B, 1) == [message(B, 3)]


@pytest.mark.parametrize(
    ("size", "properties"),
    [(262_144, {}), (400_000, {}), (2_000_000, {}), (258_048, {"own": "x" * 5000})],
)
async def test_a_message_that_is_too_large_for_its_queue_is_named_and_blocks_no_other(
    rig: BusRig, size: int, properties: dict[str, str]
) -> None:
    large = replace(message(A, 2, b"x" * size), properties=properties)
    before = rig.sent()
    with pytest.raises(TooLargeForQueueError) as caught:
        await rig.bus.send([message(A, 1), large, message(A, 3)])
    assert caught.value.undelivered == large
    assert rig.sent() == before + 1
    await rig.bus.send([message(A, 3)])
    assert await rig.receive(A, 2) == [message(A, 1), message(A, 3)]


async def test_the_largest_order_fits_its_queue_with_each_property_at_its_bound(
    rig: BusRig,
) -> None:
    """So it can always be put back, and become a dead letter."""
    properties = {name: "x" * bytes_max for name, bytes_max in PROPERTIES.items()}
    assert bounded(properties) == properties
    largest = Message(A, "i" * 128, b"x" * ORDER_BYTES_MAX, properties=properties)
    await rig.bus.send([replace(largest, scheduled_at=rig.clock.now())])
    assert await rig.receive(A, 1) == [largest]


async def test_a_busy_bus_is_unavailable_and_takes_the_same_message_later(rig: BusRig) -> None:
    await rig.bus.send([message(A, 1)])
    rig.make_busy(A)
    with pytest.raises(BusUnavailableError, match=A):
        await rig.bus.send([message(A, 2)])
    await rig.bus.send([message(A, 2)])
    assert await rig.receive(A, 2) == [message(A, 1), message(A, 2)]
    assert rig.sent() == 2


async def test_a_scheduled_message_comes_at_its_time_and_not_before(rig: BusRig) -> None:
    at = rig.clock.now() + timedelta(seconds=0.6)
    later = Message(A, "later", b"{}", scheduled_at=at)
    await rig.bus.send([later, message(A, 2)])
    assert [m.message_id for m in await rig.receive(A, 1)] == ["order-1/2/0"]
    await rig.wait(0.7)
    assert [m.message_id for m in await rig.receive(A, 1)] == ["later"]


async def test_a_message_is_gone_when_its_time_to_live_has_passed(rig: BusRig) -> None:
    short = Message(A, "short", b"{}", time_to_live=timedelta(milliseconds=300))
    past = Message(A, "past", b"{}", time_to_live=timedelta(seconds=-5))
    long = Message(A, "long", b"{}", time_to_live=timedelta(days=365))
    await rig.bus.send([short, past, long])
    await rig.wait(0.5)
    assert [m.message_id for m in await rig.receive(A, 1)] == ["long"]


async def test_a_repeated_message_id_is_dropped_only_where_detection_is_on(rig: BusRig) -> None:
    for queue in (WITH_DETECTION, B):
        await rig.bus.send([message(queue, 1, b"first"), message(queue, 2)])
        await rig.bus.send([message(queue, 1, b"again"), message(queue, 3)])
    assert [m.body for m in await rig.receive(WITH_DETECTION, 3)] == [b"first", b"{}", b"{}"]
    assert len(await rig.receive(B, 4)) == 4


async def test_many_tasks_may_send_at_once(rig: BusRig) -> None:
    messages = [message(QUEUES[n % 3], n) for n in range(60)]
    await asyncio.gather(*(rig.bus.send([message]) for message in messages))
    for queue in QUEUES:
        ids = {m.message_id for m in await rig.receive(queue, 20)}
        assert ids == {m.message_id for m in messages if m.queue == queue}


async def test_a_peek_shows_waiting_and_scheduled_messages_and_takes_none(rig: BusRig) -> None:
    later = rig.clock.now() + timedelta(seconds=30)
    waiting = Message(A, "order-1/1/0", b"{}", properties={"sas_put_back": "1"})
    await rig.bus.send([waiting, Message(A, "order-1/2/0", b"[]", scheduled_at=later)])
    for _ in range(2):
        peeked = await rig.bus.peek(A, 10)
        assert [(message.message_id, message.body) for message in peeked] == [
            ("order-1/1/0", b"{}"),
            ("order-1/2/0", b"[]"),
        ]
        assert peeked[0].properties["sas_put_back"] == "1"
        assert abs((peeked[1].enqueued_at - later).total_seconds()) < 1
    assert [message.message_id for message in await rig.bus.peek(A, 1)] == ["order-1/1/0"]
    await rig.receive(A, 1)


async def test_a_peek_begins_behind_a_place_and_a_message_gets_a_new_one_when_its_time_comes(
    rig: BusRig,
) -> None:
    soon = rig.clock.now() + timedelta(seconds=3)
    await rig.bus.send([Message(A, "1", b"{}", scheduled_at=soon), message(A, 2), message(A, 3)])
    first, second, third = await rig.bus.peek(A, 10)
    assert (first.is_scheduled, second.is_scheduled) == (True, False)
    assert [each.sequence for each in await rig.bus.peek(A, 10, second.sequence)] == [
        third.sequence
    ]
    await rig.wait(5)
    (again,) = await rig.bus.peek(A, 10, third.sequence)
    assert (again.message_id, again.is_scheduled) == ("1", False)


async def test_a_message_that_was_scheduled_for_the_past_waits_since_it_was_sent(
    rig: BusRig,
) -> None:
    now = rig.clock.now()
    await rig.bus.send([Message(A, "order-1/1/0", b"{}", scheduled_at=now - timedelta(days=365))])
    (peeked,) = await rig.bus.peek(A, 10)
    assert abs((peeked.enqueued_at - now).total_seconds()) < 5


async def test_a_peek_into_a_missing_queue_reports_it(rig: BusRig) -> None:
    with pytest.raises(BusUnavailableError, match=MISSING):
        await rig.bus.peek(MISSING, 10)


async def test_a_peek_reads_more_messages_than_one_page_holds(rig: BusRig) -> None:
    await rig.bus.send([message(B, number) for number in range(130)])
    for limit in (1000, 110):
        assert len(await rig.bus.peek(B, limit)) == min(limit, 130)


@pytest.mark.parametrize(("body", "extra"), [(200_000, 0), (0, 60_000)])
async def test_a_peek_ends_after_some_megabytes_so_that_large_messages_take_no_longer(
    rig: BusRig, body: int, extra: int
) -> None:
    for number in range(250 if extra else 60):
        large = message(B, number, b"x" * body)
        await rig.bus.send([replace(large, properties={"own": "x" * extra})])
    peeked = await rig.bus.peek(B, 1000)
    assert PEEK_BYTES_MAX <= sum(message.size for message in peeked) < 2 * PEEK_BYTES_MAX
