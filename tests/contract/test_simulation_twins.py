"""The ports in memory: virtual time, and faults on demand."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sas.adapters.clock import SystemClock
from sas.ports import (
    BusUnavailableError,
    Clock,
    ConflictError,
    Message,
    MessageBus,
    QueueFullError,
    StateStore,
    StoreUnavailableError,
)
from sas.testing.bus import BusFault, MemoryBus
from sas.testing.clock import START, VirtualClock
from sas.testing.store import MemoryStore, StoreFault
from tests.contract import cases


def test_the_twins_and_the_real_ones_are_what_the_ports_ask_for() -> None:
    clock = VirtualClock()
    clocks: list[Clock] = [clock, SystemClock()]
    stores: list[StateStore] = [MemoryStore()]
    buses: list[MessageBus] = [MemoryBus(clock)]
    assert len(clocks) + len(stores) + len(buses) == 4


async def test_sleepers_wake_in_the_order_of_their_times_each_at_its_own() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, (clock.now() - START).total_seconds()))

    names = {"late": 30.0, "early": 10.0, "first of two": 20.0, "second of two": 20.0}
    tasks = [asyncio.create_task(sleeper(name, s)) for name, s in names.items()]
    await clock.advance(20)
    assert woken == [("early", 10.0), ("first of two", 20.0), ("second of two", 20.0)]
    await clock.advance(5)
    assert len(woken) == 3
    assert clock.now() == START + timedelta(seconds=25)
    await clock.advance(5)
    assert woken[-1] == ("late", 30.0)
    await asyncio.gather(*tasks)


async def test_a_run_that_can_never_end_is_reported() -> None:
    clock = VirtualClock()
    with pytest.raises(RuntimeError, match="this never ends"):
        await clock.run(asyncio.Event().wait())


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(10))
    await clock.settle()
    woken = clock.next_wake
    assert woken == START + timedelta(seconds=10)
    task.cancel()
    await clock.advance(20)
    assert clock.next_wake is None


async def test_a_clock_that_is_put_back_wakes_no_task() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(10))
    await clock.settle()
    clock.set(START - timedelta(seconds=5))
    assert clock.now() == START - timedelta(seconds=5)
    assert not task.done()
    await clock.advance(15)
    await task


async def test_the_system_clock_is_aware_and_sleeps_nothing_for_less_than_nothing() -> None:
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(-5)
    await clock.sleep(0.01)
    assert timedelta(milliseconds=5) < clock.now() - before < timedelta(seconds=5)
    assert before.utcoffset() == timedelta(0)


async def test_a_store_fails_when_asked_to_and_only_then() -> None:
    store = MemoryStore()
    store.fail_next("load", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await store.load("order-1")
    assert await store.load("order-1") is None
    store.fail_next("commit", StoreFault.CONFLICT, StoreFault.LOST_ANSWER)
    first = cases.submitted("order-1", cause="orders:1")
    with pytest.raises(ConflictError):
        await store.commit(first)
    assert await store.load("order-1") is None
    with pytest.raises(StoreUnavailableError):
        await store.commit(first)
    assert await store.recorded("order-1", "orders:1") == first.entry
    assert await store.commit(first) == first.after


async def test_an_injected_conflict_is_a_rivals_write_after_which_the_old_token_fails_again() -> (
    None
):
    store = MemoryStore()
    order = await store.commit(cases.submitted("order-1"))
    store.fail_next("commit", StoreFault.CONFLICT)
    for _ in range(2):  # the second one is not injected
        with pytest.raises(ConflictError):
            await store.commit(cases.claimed(order))
    order_read = await store.load("order-1")
    assert order_read is not None
    assert (await store.commit(cases.claimed(order_read))).seq == order.seq + 1

    shared = await store.write_shared("name", "1", None)
    store.fail_next("write_shared", StoreFault.CONFLICT, StoreFault.LOST_ANSWER)
    with pytest.raises(ConflictError):
        await store.write_shared("name", "2", shared.token)
    reread = await store.read_shared("name")
    assert reread is not None
    assert (reread.value, reread.token != shared.token) == ("1", True)
    with pytest.raises(StoreUnavailableError):
        await store.write_shared("name", "2", reread.token)
    written = await store.read_shared("name")
    assert written is not None
    assert written.value == "2"


def test_a_fault_that_an_operation_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="load has no CONFLICT"):
        MemoryStore().fail_next("load", StoreFault.CONFLICT)


async def test_a_bus_fails_when_asked_to_and_a_lost_answer_was_sent() -> None:
    bus = MemoryBus(VirtualClock())
    bus.declare("scheduler")
    message = Message("scheduler", "1", b"{}")
    bus.fail_next(BusFault.UNAVAILABLE, BusFault.LOST_ANSWER)
    for expected in (0, 1):
        with pytest.raises(BusUnavailableError):
            await bus.send([message])
        assert len(bus.messages("scheduler")) == expected


async def test_a_full_queue_takes_no_more_until_it_is_read() -> None:
    bus = MemoryBus(VirtualClock())
    bus.declare("responses-a", length_max=1)
    await bus.send([Message("responses-a", "1", b"{}")])
    with pytest.raises(QueueFullError, match="is full"):
        await bus.send([Message("responses-a", "2", b"{}")])
    assert bus.take("responses-a") is not None
    await bus.send([Message("responses-a", "2", b"{}")])


async def test_an_expired_message_is_kept_apart_and_a_queue_may_shorten_lives() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock)
    bus.declare("agent-a", time_to_live=timedelta(seconds=10))
    await bus.send([Message("agent-a", "1", b"{}", time_to_live=timedelta(days=1))])
    await clock.advance(9)
    assert len(bus.messages("agent-a")) == 1
    await clock.advance(1)
    assert bus.take("agent-a") is None
    assert [queued.message.message_id for queued in bus.queues["agent-a"].expired] == ["1"]
