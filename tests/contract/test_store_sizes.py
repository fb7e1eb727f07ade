"""What every state store holds: odd ids, large payloads and results, thirty steps at once."""

from __future__ import annotations

import pytest

from sas.bounds import EDITED_UNITS_MAX, PAYLOAD_UNITS_MAX, RESULT_UNITS_MAX, TooLargeError
from sas.domain.ids import check_order_id, shard_of
from sas.domain.order import OrderState
from sas.ports import StateStore
from tests.contract import cases
from tests.contract.cases import NOW
from tests.contract.conftest import paged
from tests.contract.store_kit import FAR, due_of, loaded

KB = 1024

large_bodies = pytest.mark.filterwarnings(
    # aiohttp says so of every body above 1 MiB; the SDK hands it bytes. Past 256 KB of payload.
    "ignore:Sending a large body directly:ResourceWarning"
)

ODD_IDS = [
    "O'Brien's",
    '"quoted"',
    "100% sure",
    "%41",
    "a+b c&d=e",
    "=25",
    "ünïcödé-注文-🛒",
    "a}b~c{d",
    "PartitionKey eq 'x' or 1",
    "$batch(),;:!*",
    "<b>&amp;<b>",
    "🛒" * 50,
    "%" * 100,
]


async def test_an_order_id_may_hold_any_allowed_character(store: StateStore) -> None:
    for order_id in ODD_IDS:
        check_order_id(order_id)
        order = await store.commit(cases.submitted(order_id))
        order = await store.commit(cases.claimed(order, cause=f"scheduler:{order_id}"))
        order = await store.commit(cases.answered(order, 0))
        assert await store.load(order_id) == order
        assert order.order_id == order_id
        assert [entry.seq for entry in await store.journal(order_id)] == [1, 2, 3]
        entry = await store.recorded(order_id, f"scheduler:{order_id}")
        assert entry is not None
        assert entry.seq == 2
        assert {row.order_id for row in await due_of(store, order_id)} == {order_id}
        await store.commit(cases.refused(order, 1))
    assert {summary.order_id for summary in await store.attention(99)} == set(ODD_IDS)


@paged
async def test_orders_with_odd_ids_are_found_across_pages(store: StateStore) -> None:
    """Continuation tokens hold row keys, so ids go through headers and queries too."""
    orders = [await store.commit(cases.submitted(order_id)) for order_id in ODD_IDS]
    assert [await store.load(order_id) for order_id in ODD_IDS] == orders
    due = [row for shard in store.shards for row in await store.due(shard, FAR, 100)]
    assert {row.order_id for row in due} == set(ODD_IDS)


async def test_ids_with_the_same_beginning_are_different_orders(store: StateStore) -> None:
    ids = ["A", "A ", "AB", "a", "A'", "A''", "A=", "A=3d", "A%", "A=25", "A-a-state", "A}", "A~"]
    ids = [order_id for order_id in ids if order_id == order_id.strip()]
    for steps, order_id in enumerate(ids, start=1):
        rules = cases.rules_of(steps)
        await store.commit(cases.submitted(order_id, rules, payload=f'"{steps}"'))
    for steps, order_id in enumerate(ids, start=1):
        order = await store.load(order_id)
        assert order is not None
        assert order.order_id == order_id
        assert order.details.payload == f'"{steps}"'
        assert len(order.steps) == steps
        assert len(await store.journal(order_id)) == 1


PAYLOADS = {
    "256 KB of ASCII": "x" * 256 * KB,
    "256 KB of characters of four bytes": "🛒" * (64 * KB),
    "surrogate pairs across every chunk's edge": "x" + "🛒" * (64 * KB - 1),
    "256 KB that JSON escapes": '\\"' * 128 * KB,
    "the most there can be": "x" * PAYLOAD_UNITS_MAX,
    "the most there can be where each is sent as six bytes": "注" * 166_666,
    "nothing": "",
}
TOO_LARGE = {
    "480001 UTF-16 units: at most 480000": "x" * (PAYLOAD_UNITS_MAX + 1),
    "480002 UTF-16 units: at most 480000": "🛒" * 240_001,
    "1000004 bytes as ASCII JSON: at most 1000000": "注" * 166_667,
}


@large_bodies
async def test_a_large_payload_comes_back_whole_and_one_past_the_bound_is_refused(
    store: StateStore,
) -> None:
    for name, payload in PAYLOADS.items():
        await store.commit(cases.submitted(name, payload=payload))
        assert (await loaded(store, name)).details.payload == payload, name
    for why, payload in TOO_LARGE.items():
        with pytest.raises(TooLargeError, match=why):
            await store.commit(cases.submitted("too large", payload=payload))
        assert await store.load("too large") is None, why


async def test_a_result_comes_back_whole_and_may_be_replaced_by_one_of_another_size(
    store: StateStore,
) -> None:
    """From 16,000 UTF-16 units on it has a row of its own."""
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    order = await store.commit(cases.answered(order, 0, result="é"))
    for size in (16_000, 16_001, 16_000, RESULT_UNITS_MAX, 20_000, 10, 20_000, None, 20_000):
        result = None if size is None else "é" * size
        order = await store.commit(cases.with_result(order, 0, result))
        assert await store.load("order-1") == order, size
        assert order.steps[0].result == result
    order = await store.commit(cases.answered(order, 1, result="small"))
    order = await store.commit(cases.undone(order))
    assert await store.load("order-1") == order
    assert [step.result for step in order.steps] == ["é" * 20_000, "small", None]


async def test_a_result_past_the_bound_is_refused_and_nothing_written(store: StateStore) -> None:
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    with pytest.raises(TooLargeError, match="result of step step-0 has 65537"):
        await store.commit(cases.answered(order, 0, result="x" * (RESULT_UNITS_MAX + 1)))
    assert await store.load("order-1") == order


async def test_thirty_parallel_steps_all_change_in_one_transaction(store: StateStore) -> None:
    rules = cases.rules_of(30, parallel=True)
    order = await store.commit(cases.submitted("order-1", rules))
    order = await store.commit(cases.claimed(order, rules))
    assert len(await store.due(shard_of("order-1", 16), FAR, 100)) == 30
    order = await store.commit(cases.undone(order, rules, out_at=NOW))
    loaded = await store.load("order-1")
    assert loaded == order
    assert order.process_state is OrderState.COMPENSATING
    assert len(await store.due(shard_of("order-1", 16), FAR, 100)) == 31


@large_bodies
async def test_thirty_steps_with_large_results_are_undone_in_one_transaction(
    store: StateStore,
) -> None:
    rules = cases.rules_of(30, parallel=True)
    order = await store.commit(cases.submitted("order-1", rules))
    order = await store.commit(cases.claimed(order, rules))
    for step in range(30):
        result = "注" * (16_000 + step % 2)
        order = await store.commit(cases.answered(order, step, rules, result=result))
    order = await store.commit(cases.edited(order, "注" * EDITED_UNITS_MAX))
    order = await store.commit(cases.undone(order, rules, out_at=NOW))
    assert await store.load("order-1") == order
