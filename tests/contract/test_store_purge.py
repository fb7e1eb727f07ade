"""What every state store does when a finished order is removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.adapters.tables import keys
from sas.domain.ids import shard_of
from sas.domain.moves import IllegalMoveError
from sas.ports import ConflictError, StateStore, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import Troubled, paged
from tests.contract.proxy import Trouble
from tests.contract.store_kit import ONE, finished, left_of, loaded, neighbours


async def test_of_a_removed_order_nothing_is_left(store: StateStore) -> None:
    order = await finished(store)
    assert await store.purge(order)
    assert await store.load("order-1") is None
    assert await store.journal("order-1") == []
    assert await store.finished(10) == []
    assert await left_of(store, "order-1") == []


async def test_several_orders_are_removed_together_even_one_with_many_rows(
    store: StateStore,
) -> None:
    names = neighbours(7)
    orders = [await finished(store, name, extra=60 * (name == names[2])) for name in names]
    orders.append(await finished(store, "elsewhere"))
    assert await store.purge(*orders) == {*names, "elsewhere"}
    assert await store.finished(10) == []
    assert [await store.load(order.order_id) for order in orders] == [None] * 8
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


async def test_finished_orders_of_one_shard_are_listed_alone(store: StateStore) -> None:
    for name in ("elsewhere", *neighbours(3)):
        await finished(store, name)
    listed = await store.finished(2, shard=shard_of("o", 16))
    assert [order.order_id for order in listed] == sorted(neighbours(3))[:2]


@pytest.mark.parametrize("extra", [0, 60])  # more rows than one transaction takes
async def test_an_order_that_was_changed_meanwhile_is_left_alone(
    store: StateStore, extra: int
) -> None:
    order = await finished(store, extra=extra)
    changed = await store.commit(cases.fenced(order, "dead-letters:m-1"))  # listed as before
    assert not await store.purge(order)
    assert await loaded(store, "order-1") == changed
    assert await store.recorded("order-1", "dead-letters:m-1") is not None
    touched = await store.commit(cases.undone(changed, ONE))
    for past in (order, changed):
        assert not await store.purge(past)
    assert await loaded(store, "order-1") == touched
    assert len(await store.journal("order-1")) == 5 + extra


async def test_an_action_on_a_removed_order_changes_no_later_order_under_its_id(
    store: StateStore,
) -> None:
    order = await finished(store)
    assert await store.purge(order)
    with pytest.raises(ConflictError):
        await store.commit(cases.undone(order, ONE))
    assert await store.load("order-1") is None
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


async def test_an_order_of_thirty_steps_with_errors_and_large_results_is_removed_whole(
    store: StateStore,
) -> None:
    rules = cases.rules_of(30, parallel=True)
    order = await store.commit(cases.submitted("order-1", rules))
    order = await store.commit(cases.claimed(order, rules))
    for number in range(30):
        order = await store.commit(cases.answered(order, number, rules, result='"' + "x" * 20_000))
        await store.keep_error("order-1", number, cases.attempt_error())
    assert await store.purge(order)
    assert await left_of(store, "order-1") == []


@paged
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


async def test_a_removal_whose_answer_was_lost_is_found_done_by_the_next(
    troubled: Troubled,
) -> None:
    order = await finished(troubled.rival)
    troubled.proxy.batches.append(Trouble.ANSWER_LOST)
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


async def test_a_removal_that_crashes_again_and_again_is_listed_whole_enough_and_done_at_last(
    troubled: Troubled,
) -> None:
    order = await finished(troubled.rival, extra=105)  # two parts of its past, and the end
    for _ in range(2):
        troubled.proxy.batches.extend([None, Trouble.CUT_OFF])
        with pytest.raises(StoreUnavailableError):
            await troubled.store.purge(await loaded(troubled.rival, "order-1"))
        assert not troubled.proxy.batches
        assert [s.order_id for s in await troubled.rival.finished(10)] == ["order-1"]
        assert await loaded(troubled.rival, "order-1") == order
    assert await troubled.rival.purge(await loaded(troubled.rival, "order-1"))
    assert await left_of(troubled.rival, "order-1") == []


async def test_an_order_that_changes_before_its_past_is_removed_stays_as_it_is(
    troubled: Troubled,
) -> None:
    order = await finished(troubled.rival, extra=105)

    async def meanwhile() -> None:
        await troubled.rival.commit(cases.undone(order, ONE))

    troubled.proxy.points.append(Trouble.SLOW)
    troubled.proxy.meanwhile = meanwhile
    assert not await troubled.store.purge(order)
    assert (await loaded(troubled.rival, "order-1")).seq == order.seq + 1


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
    for _ in range(100 - len(await left_of(troubled.rival, "order-1"))):
        # In the end the rows are just too many for one transaction.
        order = await troubled.rival.commit(cases.fenced(order, f"dead-letters:{order.seq}"))
    assert len(await left_of(troubled.rival, "order-1")) >= 100
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
    order = await finished(troubled.rival, extra=60)
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
    order = await finished(troubled.rival, extra=60)

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
