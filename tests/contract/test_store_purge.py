"""What every state store does when a finished order is removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.adapters.tables import keys
from sas.adapters.tables.store import TableStore
from sas.domain.ids import shard_of
from sas.domain.moves import IllegalMoveError
from sas.domain.order import Order
from sas.ports import ConflictError, StateStore, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import Troubled
from tests.contract.proxy import Trouble

ONE = cases.rules_of(1)


async def finished(store: StateStore, order_id: str = "order-1", extra: int = 0) -> Order:
    """An order of one step, Processed, with so many more journal rows."""
    order = await store.commit(cases.submitted(order_id, ONE))
    order = await store.commit(cases.claimed(order, ONE))
    for number in range(extra):
        order = await store.commit(cases.fenced(order, f"dead-letters:{order_id}-{number}"))
    return await store.commit(cases.answered(order, 0, ONE, at=NOW + SECOND))


async def left_of(store: TableStore, order_id: str) -> list[str]:
    partition = shard_of(order_id, len(store.shards))
    pages = store.table.pages(partition, ("a", "~"))
    return [row["RowKey"] async for page in pages for row in page if order_id in row["RowKey"]]


async def test_of_a_removed_order_nothing_is_left(store: StateStore) -> None:
    order = await finished(store)
    assert await store.purge(order)
    assert await store.load("order-1") is None
    assert await store.journal("order-1") == []
    assert await store.finished(10) == []
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


def neighbours(count: int) -> list[str]:
    """Return ids of one shard."""
    return [f"o-{n}" for n in range(400) if shard_of(f"o-{n}", 16) == shard_of("o", 16)][:count]


async def test_several_orders_are_removed_together_even_one_with_many_rows(
    store: StateStore,
) -> None:
    names = neighbours(7)
    orders = [await finished(store, name, extra=120 * (name == names[2])) for name in names]
    orders.append(await finished(store, "elsewhere"))
    assert await store.purge(*orders) == {*names, "elsewhere"}
    assert await store.finished(10) == []
    assert [await store.load(order.order_id) for order in orders] == [None] * 8
    if isinstance(store, TableStore):
        assert [await left_of(store, name) for name in names] == [[]] * 7


async def test_the_rows_of_several_orders_of_a_shard_go_in_one_transaction(
    troubled: Troubled,
) -> None:
    orders = [await finished(troubled.rival, name) for name in neighbours(6)]
    meter = troubled.store.table.meter
    await troubled.store.purge(orders[0])  # the first request opens the store
    before = meter.requests
    assert await troubled.store.purge(*orders[1:]) == {order.order_id for order in orders[1:]}
    assert meter.requests - before == 5 + 1  # the keys of each order, one transaction


async def test_an_order_that_changed_is_never_removed_with_others_and_they_go_without_it(
    store: StateStore,
) -> None:
    names = neighbours(3)
    orders = [await finished(store, name) for name in names]
    touched = await store.commit(cases.undone(orders[1], ONE))
    removed = await store.purge(*orders)
    assert removed in ({names[0], names[2]}, set())
    for order in (orders[0], orders[2]):
        assert order.order_id in removed or await store.purge(order)
    assert await loaded(store, names[1]) == touched
    assert [await store.load(name) for name in (names[0], names[2])] == [None, None]
    assert len(await store.journal(names[1])) == 4


async def test_an_order_that_went_already_keeps_no_other(store: StateStore) -> None:
    orders = [await finished(store, name) for name in neighbours(2)]
    assert await store.purge(orders[0])
    assert await store.purge(*orders) == {orders[1].order_id}


async def test_finished_orders_of_one_shard_are_listed_alone(store: StateStore) -> None:
    for name in ("elsewhere", *neighbours(3)):
        await finished(store, name)
    listed = await store.finished(2, shard=shard_of("o", 16))
    assert [order.order_id for order in listed] == sorted(neighbours(3))[:2]


async def test_its_neighbours_in_the_shard_stay(store: StateStore) -> None:
    near = neighbours(3)
    for order_id in ("o", *near):
        await finished(store, order_id)
    assert await store.purge(await loaded(store, "o"))
    assert [summary.order_id for summary in await store.finished(10)] == sorted(near)
    assert len(await store.journal(near[0])) == 3


async def test_an_order_that_an_operator_touched_meanwhile_is_left_alone(
    store: StateStore,
) -> None:
    order = await finished(store)
    touched = await store.commit(cases.undone(order, ONE))
    assert not await store.purge(order)
    assert await loaded(store, "order-1") == touched
    assert [entry.seq for entry in await store.journal("order-1")] == [1, 2, 3, 4]


async def test_an_order_that_was_fenced_meanwhile_is_left_alone(store: StateStore) -> None:
    order = await finished(store)
    fenced = await store.commit(cases.fenced(order, "dead-letters:m-1"))  # listed as it was before
    assert not await store.purge(order)
    assert await loaded(store, "order-1") == fenced
    assert await store.recorded("order-1", "dead-letters:m-1") is not None


async def test_an_action_on_a_removed_order_gets_a_conflict_and_then_finds_none(
    store: StateStore,
) -> None:
    order = await finished(store)
    assert await store.purge(order)
    with pytest.raises(ConflictError):
        await store.commit(cases.undone(order, ONE))
    assert await store.load("order-1") is None


async def test_an_action_on_a_removed_order_changes_no_later_order_under_its_id(
    store: StateStore,
) -> None:
    order = await finished(store)
    assert await store.purge(order)
    later = await store.commit(cases.submitted("order-1", ONE))
    with pytest.raises(ConflictError):  # by the token alone: no journal row of that seq is there
        await store.commit(cases.undone(order, ONE))
    assert await loaded(store, "order-1") == later
    assert [entry.seq for entry in await store.journal("order-1")] == [1]


async def test_an_unfinished_order_and_one_in_error_are_never_removed(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1", ONE))
    with pytest.raises(IllegalMoveError):
        await store.purge(order)
    order = await store.commit(cases.claimed(order, ONE))
    order = await store.commit(cases.refused(order, 0, ONE))
    with pytest.raises(IllegalMoveError):
        await store.purge(order)
    assert await loaded(store, "order-1") == order


async def test_a_rejected_order_is_removed_too_and_its_place_is_free_again(
    store: StateStore,
) -> None:
    assert await store.purge(await store.commit(cases.rejected("order-1")))
    assert (await store.commit(cases.submitted("order-1"))).seq == 1


async def test_removing_twice_removes_once(store: StateStore) -> None:
    order = await finished(store)
    assert await store.purge(order)
    assert not await store.purge(order)


async def test_an_order_with_more_rows_than_a_transaction_takes_is_removed_whole(
    store: StateStore,
) -> None:
    order = await finished(store, extra=120)
    assert await store.purge(order)
    assert await store.load("order-1") is None
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


async def test_finished_orders_are_listed_within_moments(store: StateStore) -> None:
    for number in range(4):
        await store.commit(cases.rejected(f"o-{number}", at=NOW + number * SECOND))

    async def found(**bounds: timedelta) -> list[str]:
        moments: dict[str, Any] = {name: NOW + offset for name, offset in bounds.items()}
        return [s.order_id for s in await store.finished(10, **moments)]

    assert await found(until=SECOND) == ["o-0", "o-1"]
    assert await found(since=SECOND, until=2 * SECOND) == ["o-1", "o-2"]
    assert await found(since=SECOND + timedelta(microseconds=1)) == ["o-2", "o-3"]
    assert await found(until=-SECOND) == []


async def test_orders_in_error_are_listed_from_a_moment_on(store: StateStore) -> None:
    for number in range(3):
        order = await store.commit(cases.submitted(f"o-{number}", ONE))
        order = await store.commit(cases.claimed(order, ONE))
        await store.commit(cases.refused(order, 0, ONE, at=NOW + number * SECOND))
    listed = await store.attention(10, since=NOW + SECOND)
    assert [summary.order_id for summary in listed] == ["o-1", "o-2"]


@pytest.mark.parametrize("trouble", [Trouble.ANSWER_LOST, Trouble.BUSY_AFTERWARDS])
async def test_a_removal_whose_answer_was_lost_is_found_done_by_the_next(
    troubled: Troubled, trouble: Trouble
) -> None:
    order = await finished(troubled.rival)
    troubled.proxy.batches.append(trouble)
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(order)
    assert await left_of(troubled.rival, "order-1") == []


@pytest.mark.parametrize("trouble", [Trouble.ANSWER_LOST, Trouble.CUT_OFF])
async def test_a_removal_of_several_orders_that_crashed_left_each_of_them_whole_or_none(
    troubled: Troubled, trouble: Trouble
) -> None:
    orders = [await finished(troubled.rival, name) for name in neighbours(4)]
    troubled.proxy.batches.append(trouble)
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(*orders)
    listed = {order.order_id for order in await troubled.rival.finished(10)}
    assert len(listed) in {0, 4}
    for order in orders:
        order_after = await troubled.rival.load(order.order_id)
        assert order_after == (order if order.order_id in listed else None)
    assert await troubled.rival.purge(*orders) == listed
    for order in orders:
        assert await left_of(troubled.rival, order.order_id) == []


@pytest.mark.parametrize("crashed_in", [1, 2])
async def test_a_removal_that_crashed_half_way_is_listed_whole_enough_and_done_again(
    troubled: Troubled, crashed_in: int
) -> None:
    order = await finished(troubled.rival, extra=120)
    troubled.proxy.batches.extend([*[None] * crashed_in, Trouble.CUT_OFF])
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(order)
    assert [s.order_id for s in await troubled.rival.finished(10)] == ["order-1"]
    again = await loaded(troubled.rival, "order-1")
    assert again == order
    assert await troubled.rival.purge(again)
    assert await left_of(troubled.rival, "order-1") == []


async def test_a_removal_that_crashed_half_way_leaves_the_payload_that_its_order_refers_to(
    troubled: Troubled,
) -> None:
    large = b'"' + b"x" * 100 + b'"'
    ref = await troubled.rival.put_payload("order-1", large)
    submitted = cases.submitted("order-1", ONE)
    details = replace(submitted.after.details, payload=ref)
    change = replace(submitted, after=replace(submitted.after, details=details))
    order = await troubled.rival.commit(change)
    order = await troubled.rival.commit(cases.claimed(order, ONE))
    while len(await left_of(troubled.rival, "order-1")) < 100:  # just too many for one transaction
        order = await troubled.rival.commit(cases.fenced(order, f"dead-letters:{order.seq}"))
    order = await troubled.rival.commit(cases.answered(order, 0, ONE, at=NOW + SECOND))
    troubled.proxy.batches.extend([None, Trouble.CUT_OFF])
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(order)
    assert await loaded(troubled.rival, "order-1") == order
    assert await troubled.rival.get_payload("order-1", ref) == large
    assert await troubled.rival.purge(await loaded(troubled.rival, "order-1"))
    assert await left_of(troubled.rival, "order-1") == []


async def test_an_order_whose_removal_crashed_is_not_overwritten_by_a_new_one_under_its_id(
    troubled: Troubled,
) -> None:
    order = await finished(troubled.rival, extra=120)
    troubled.proxy.batches.extend([None, Trouble.CUT_OFF])
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(order)
    assert await troubled.rival.entry("order-1", 1) is None
    with pytest.raises(ConflictError):
        await troubled.rival.commit(cases.submitted("order-1", ONE))
    assert await loaded(troubled.rival, "order-1") == order


async def test_an_operator_who_comes_between_two_parts_of_a_removal_wins(
    troubled: Troubled,
) -> None:
    order = await finished(troubled.rival, extra=120)

    async def meanwhile() -> None:
        await troubled.rival.commit(cases.undone(await loaded(troubled.rival, "order-1"), ONE))

    troubled.proxy.batches.append(Trouble.SLOW)
    troubled.proxy.meanwhile = meanwhile
    assert not await troubled.store.purge(order)
    order_after = await loaded(troubled.rival, "order-1")
    assert order_after.seq == order.seq + 1
    assert [entry.seq for entry in await troubled.rival.journal("order-1")][-1] == order_after.seq
    partition = shard_of("order-1", 16)
    assert await troubled.rival.table.get(partition, keys.details("order-1")) is not None
    assert await troubled.rival.finished(10) == []


async def loaded(store: StateStore, order_id: str) -> Order:
    order = await store.load(order_id)
    assert order is not None
    return order
