"""An instance keeps the orders that it committed last, and reads none of them again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from sas.domain.change import Change
from sas.domain.order import Order, StepRecord, StepState
from sas.engine.kept_orders import KeptOrders, _bytes_of
from sas.ports import RefusedError, StoreUnavailableError
from tests.unit.actors_kit import QUEUES, SHOP, Kit, done, kit, order
from tests.unit.domain_cases import T0, details_of

VERSION = {"read_shared": 1, "write_shared": 1}
"""The first order of a workflow version keeps its fingerprint."""


class Counted:
    """Counts what a store is asked for."""

    def __init__(self, system: Kit) -> None:
        self.operations: Counter[str] = Counter()

        async def pause(operation: str, _key: str) -> None:
            self.operations[operation] += 1

        system.store.pause = pause


async def test_a_happy_order_is_committed_four_times_and_never_read() -> None:
    system = kit()
    counted = Counted(system)
    await system.submit()
    await system.drain()
    assert system.state() == "Processed"
    assert counted.operations == {"commit": 4, **VERSION}


async def test_without_kept_orders_every_decision_reads_its_order() -> None:
    system = kit(kept_orders=KeptOrders(0))
    counted = Counted(system)
    await system.submit()
    await system.drain()
    assert system.state() == "Processed"
    assert counted.operations == {"commit": 4, "load": 3, **VERSION}


async def test_another_instances_write_costs_one_refused_commit_and_nothing_else() -> None:
    host_1 = kit()
    host_2 = kit(instance="host-2", beside=host_1)
    counted = Counted(host_1)
    await host_1.submit()
    await host_1.step(QUEUES.scheduler)
    await host_1.step(QUEUES.agent("stock"))
    await host_2.step(QUEUES.scheduler)  # host-1 still keeps the order as it was before
    await host_1.step(QUEUES.agent("payment"))
    counted.operations.clear()
    await host_1.step(QUEUES.scheduler)
    assert host_1.state() == "Processed"
    assert counted.operations == {"commit": 1, "load": 1}, "the seq says that the kept order is old"
    assert len(set(host_1.ids(SHOP))) == len(host_1.ids(SHOP))


async def test_an_order_that_waits_for_an_operator_is_not_kept() -> None:
    system = kit()
    system.agents["stock"].then(RefusedError("none", "none left"))
    await system.submit(order(workflow="care"))
    await system.step(QUEUES.scheduler)
    assert system.context.kept_orders.find("O-1", 0) is not None
    await system.drain()
    assert system.state() == "Error"
    assert system.context.kept_orders.find("O-1", 0) is None


async def test_a_stale_order_of_the_right_seq_is_refused_by_its_etag_and_read() -> None:
    system = kit()
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    kept_order = system.context.kept_orders.find("O-1", 0)
    assert kept_order is not None
    system.context.kept_orders.forget("O-1")
    system.context.kept_orders.keep(replace(kept_order, token="of-an-older-row"))
    counted = Counted(system)
    await system.step(QUEUES.scheduler)
    assert system.states() == ["Processed", "Processing"]
    assert counted.operations == {"commit": 2, "load": 1}


async def test_an_incident_is_reported_before_the_commit_and_never_about_a_kept_order() -> None:
    system = kit()
    counted = Counted(system)
    await system.submit()
    await system.step(QUEUES.scheduler)
    counted.operations.clear()
    await system.hand(done(outcome="waited", result=msgspec.UNSET))
    assert system.words()[-1] == "waiting: no call could begin"
    assert [alert.kind for alert in system.alerts()] == ["waiting"]
    assert (counted.operations["load"], counted.operations["commit"]) == (1, 1)


async def test_a_repeated_reply_finds_nothing_in_the_kept_order_and_sends_again() -> None:
    system = kit()
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    reply = await system.step(QUEUES.scheduler)
    (request,) = system.ids(QUEUES.agent("payment"))
    system.bus.take(QUEUES.agent("payment"))
    await system.hand(reply)
    assert system.ids(QUEUES.agent("payment")) == [request]
    assert system.words().count("step processed") == 1


async def test_an_order_is_forgotten_if_it_is_unknown_whether_it_was_committed() -> None:
    system = kit()
    await system.submit()
    assert system.context.kept_orders.find("O-1", 1) is not None
    original = system.store.commit

    async def lost(change: Change) -> Order:
        await original(change)
        raise StoreUnavailableError("the answer was lost")

    system.store.commit = lost  # type: ignore[method-assign]
    wake = system.bus.take(QUEUES.scheduler)
    assert wake is not None
    try:
        await system.hand(wake)
    except StoreUnavailableError:
        pass
    else:
        raise AssertionError("the commit's answer was lost")
    assert system.context.kept_orders.find("O-1", 0) is None
    system.store.commit = original  # type: ignore[method-assign]
    await system.hand(wake)
    assert len(system.requests("stock")) == 1


def _order(order_id: str, seq: int = 1, **changes: Any) -> Order:
    step = StepRecord(number=0, name="reserve", process_state=StepState.PENDING, since=T0)
    return Order(
        details=replace(details_of(order_id), **changes), steps=(step,), seq=seq, token="t"
    )


def test_the_oldest_orders_go_first_when_there_are_too_many_bytes() -> None:
    cache = KeptOrders(bytes_max=3 * 5000)
    for name in ("A", "B", "C", "D"):
        cache.keep(_order(name))
    assert [name for name in "ABCD" if cache.find(name, 1)] == ["B", "C", "D"]
    cache.keep(_order("E", payload='"' + 6000 * "x" + '"'))
    assert [name for name in "ABCDE" if cache.find(name, 1)] == ["D", "E"]
    cache.keep(_order("F", payload='"' + 60_000 * "x" + '"'))
    assert [name for name in "ABCDEF" if cache.find(name, 1)] == ["D", "E"], "F alone is too large"


def test_an_order_that_is_kept_again_is_the_newest() -> None:
    cache = KeptOrders(bytes_max=3 * 5000)
    for seq, name in enumerate(("A", "B", "C", "A", "D"), 1):
        cache.keep(_order(name, seq))
    assert [name for name in "ABCD" if cache.find(name, 1)] == ["A", "C", "D"]


def test_an_older_commit_never_takes_the_place_of_a_newer_one() -> None:
    cache = KeptOrders()
    cache.keep(_order("A", seq=6))
    cache.keep(_order("A", seq=5))
    assert cache.find("A", 6) is not None
    assert cache.find("A", 7) is None


def test_a_finished_order_is_not_kept() -> None:
    cache = KeptOrders()
    order = _order("A")
    cache.keep(order)
    done = replace(order.steps[0], process_state=StepState.PROCESSED, epoch=1)
    cache.keep(replace(order, seq=2, steps=(done,), stopped_at=datetime.now(UTC)))
    assert cache.find("A", 0) is None


async def test_what_is_forgotten_makes_just_the_room_that_it_took() -> None:
    system = kit()
    for name in ("O-1", "O-2"):
        await system.submit(order(name), name)
    first, second = system.order("O-1"), system.order("O-2")
    orders = KeptOrders(_bytes_of(first))
    for number in range(100):
        orders.forget(f"F-{number}")
        orders.keep(first)
        orders.forget("O-1")
    orders.keep(first)
    assert orders.find("O-1", first.seq) is first
    orders.keep(second)
    assert orders.find("O-1", first.seq) is None
    assert orders.find("O-2", second.seq) is second
