"""Which orders a list or a bulk command finds, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sas.cli.options import moment
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.operate import finding
from sas.operate.errors import UsageError
from sas.operate.finding import OrderQuery, each, newest_finished
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND


async def in_error(
    store: MemoryStore, order_id: str, *, at: datetime = NOW, step: int = 0
) -> Order:
    order = await store.commit(cases.claimed(await store.commit(cases.submitted(order_id))))
    for number in range(step):
        order = await store.commit(cases.answered(order, number))
    return await store.commit(cases.refused(order, step, at=at))


async def orders_of(store: MemoryStore, criteria: OrderQuery) -> list[Order]:
    return [order async for order in each(store, criteria)]


def ids(orders: list[Order]) -> list[str]:
    return [order.order_id for order in orders]


async def test_orders_in_error_are_found_over_batches_oldest_first_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "BATCH_ORDERS", 2)
    monkeypatch.setattr(finding, "SUMMARIES_MAX", 2)
    store = MemoryStore()
    for number in range(7):  # four of one moment: more than a batch
        await in_error(store, f"o-{number}", at=NOW + min(number, 3) * SECOND)
    await store.commit(cases.submitted("running"))
    assert ids(await orders_of(store, OrderQuery(state="error"))) == [f"o-{n}" for n in range(7)]
    assert ids(await orders_of(store, OrderQuery(state="error", limit=3))) == ["o-0", "o-1", "o-2"]
    since = OrderQuery(state="error", since=NOW + 2 * SECOND)
    assert ids(await orders_of(store, since)) == [f"o-{n}" for n in range(2, 7)]


async def test_they_are_chosen_by_fingerprint_and_workflow() -> None:
    store = MemoryStore()
    await in_error(store, "early")
    order = await in_error(store, "late", step=1, at=NOW + SECOND)
    assert order.fingerprints == ("step-1/out-of-stock",)
    chosen = await orders_of(store, OrderQuery(state="error", fingerprint="step-1/out-of-stock"))
    assert ids(chosen) == ["late"]
    assert ids(await orders_of(store, OrderQuery(state="error", workflow="order"))) == [
        "early",
        "late",
    ]
    assert await orders_of(store, OrderQuery(state="error", workflow="other")) == []


async def test_orders_under_way_are_found_by_their_due_rows_and_finished_ones_are_not() -> None:
    store = MemoryStore()
    await in_error(store, "failed")
    await store.commit(cases.rejected("rejected"))
    await store.commit(cases.submitted("ready"))
    await store.commit(cases.claimed(await store.commit(cases.submitted("out"))))
    assert sorted(ids(await orders_of(store, OrderQuery(state="running")))) == ["out", "ready"]
    later = OrderQuery(state="running", since=NOW + SECOND)
    assert await orders_of(store, later) == []


async def finish(store: MemoryStore, order_id: str, at: datetime) -> None:
    rules = cases.rules_of(1)
    order = await store.commit(cases.submitted(order_id, rules))
    order = await store.commit(cases.claimed(order, rules))
    await store.commit(cases.answered(order, 0, rules, at=at))


async def test_finished_orders_are_chosen_by_state_and_need_no_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    for number in range(5):
        await finish(store, f"p-{number}", NOW + number * SECOND)
    await store.commit(cases.rejected("r-0", at=NOW + 9 * SECOND))
    monkeypatch.setattr(store, "load", None)

    async def newest_ids(criteria: OrderQuery) -> list[str]:
        return [summary.order_id for summary in await newest_finished(store, criteria, NOW)]

    all_ids = ["r-0", *(f"p-{number}" for number in reversed(range(5)))]
    assert await newest_ids(OrderQuery(state="finished")) == all_ids
    assert await newest_ids(OrderQuery(state="rejected")) == ["r-0"]
    assert await newest_ids(OrderQuery(state="processed", limit=4)) == all_ids[1:5]
    assert await newest_ids(OrderQuery(state="finished", workflow="other")) == []


def test_a_moment_is_a_time_in_utc_or_so_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sas.cli.screen.now", lambda: NOW)
    for text, expected in {
        "2026-11-21": datetime(2026, 11, 21, tzinfo=UTC),
        "2026-11-21T03:00": datetime(2026, 11, 21, 3, tzinfo=UTC),
        "2026-11-21T03:00+02:00": datetime(2026, 11, 21, 1, tzinfo=UTC),
        "30s": NOW - timedelta(seconds=30),
        "5m": NOW - timedelta(minutes=5),
        "1h": NOW - timedelta(hours=1),
        "2d": NOW - timedelta(days=2),
        "1w": NOW - timedelta(weeks=1),
    }.items():
        assert moment(text) == expected
    late = ("0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "999999999w")
    for text in ("yesterday", *late):
        with pytest.raises(UsageError, match=r"is not a time: give one like 1h, 2026-11-21"):
            moment(text)


async def test_orders_that_finished_long_ago_are_found_once_each_the_newest_first() -> None:
    store = MemoryStore()
    ages = [0, 1, 599, 600, 601, 1800, 86_400, 400 * 86_400]
    for number, age in enumerate(ages):
        await finish(store, f"p-{number}", NOW - age * SECOND)
    summaries = await newest_finished(store, OrderQuery(state="finished"), NOW)
    assert [summary.order_id for summary in summaries] == [
        f"p-{number}" for number in range(len(ages))
    ]
    since = OrderQuery(state="finished", since=NOW - 601 * SECOND)
    assert len(await newest_finished(store, since, NOW)) == 5
    assert len(await newest_finished(store, OrderQuery(state="finished", limit=3), NOW)) == 3


async def test_orders_are_handed_on_as_they_are_found_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "BATCH_ORDERS", 2)
    store = MemoryStore()
    for number in range(7):
        await store.commit(cases.submitted(f"o-{number}"))
    loaded: list[str] = []
    load = store.load

    async def counted(order_id: str) -> Order | None:
        loaded.append(order_id)
        return await load(order_id)

    monkeypatch.setattr(store, "load", counted)
    orders = finding.each(store, finding.OrderQuery(state="running", limit=5))
    assert (await anext(orders)) is not None
    assert len(loaded) == 2
    assert len([order async for order in orders]) == 4
    assert len(loaded) == 6


async def test_finished_orders_are_found_although_the_first_shard_has_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "SHARE_MIN", 1)
    store = MemoryStore()
    shards = len(store.shards)
    ids = sorted((f"p-{number}" for number in range(60)), key=lambda name: shard_of(name, shards))
    assert [shard_of(name, shards) for name in ids[:2]] == ["00", "00"]
    for age, order_id in enumerate(ids):
        await finish(store, order_id, NOW - age * 3600 * SECOND)
    query = OrderQuery(state="finished", limit=20)
    assert [each.order_id for each in await newest_finished(store, query, NOW)] == ids[:20]
