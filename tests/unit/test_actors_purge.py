"""The purger: what goes, what stays, and what becomes of a run that is cut short."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from sas.actors import purge
from sas.actors.purge import PURGE_LEASE, Purge, Purger
from sas.domain.change import DeferredDue, Due
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.ports import Message, StoreUnavailableError
from sas.testing.store import StoreFault
from tests.contract import cases
from tests.telemetry_kit import recording
from tests.unit.actors_kit import Kit, kit

RETENTION = timedelta(days=30)
DAY = timedelta(days=1)
ONE = cases.rules_of(1)


def aged(made: Kit, days: float) -> datetime:
    """Return the moment so many days ago."""
    return made.clock.now() - days * DAY


async def processed(made: Kit, order_id: str, days: float) -> Order:
    """An order that was Processed so many days ago."""
    order = await made.store.commit(cases.submitted(order_id, ONE))
    order = await made.store.commit(cases.claimed(order, ONE))
    return await made.store.commit(cases.answered(order, 0, ONE, at=aged(made, days)))


async def in_error(made: Kit, order_id: str, days: float) -> Order:
    order = await made.store.commit(cases.submitted(order_id, ONE))
    order = await made.store.commit(cases.claimed(order, ONE))
    return await made.store.commit(cases.refused(order, 0, ONE, at=aged(made, days)))


async def run(made: Kit) -> Purge:
    return await made.run(Purger(made.context, RETENTION, timedelta(minutes=9)).run())


async def test_finished_orders_older_than_the_retention_go_and_younger_ones_stay() -> None:
    made = kit()
    await processed(made, "old", 30.1)
    await processed(made, "young", 29.9)
    await made.store.commit(cases.rejected("refused", at=aged(made, 31)))
    undone = await processed(made, "undone", 0)
    decided = cases.compensated(undone)
    assert await made.store.commit(decided)
    found = await run(made)
    assert (found.removed, found.remaining, found.failed) == (2, 0, 0)
    assert set(made.store.orders) == {"young", "undone"}


async def test_an_order_in_error_or_under_way_never_goes_however_old() -> None:
    made = kit()
    await in_error(made, "failed", 400)
    await made.store.commit(cases.submitted("waiting", at=aged(made, 400)))
    assert await run(made) == Purge()
    assert set(made.store.orders) == {"failed", "waiting"}


async def test_one_that_an_operator_touches_while_it_is_being_removed_stays() -> None:
    made = kit()
    seen = await processed(made, "touched", 40)
    load = made.store.load

    async def meanwhile(order_id: str) -> Order | None:
        found = await load(order_id)
        made.store.load = load  # type: ignore[method-assign]
        await made.store.commit(cases.undone(seen, ONE))
        return found

    made.store.load = meanwhile  # type: ignore[method-assign]
    found = await run(made)
    assert (found.removed, found.remaining) == (0, 1)
    assert made.state("touched") == "Compensating"


async def test_one_that_moved_on_since_it_was_listed_stays() -> None:
    made = kit()
    seen = await processed(made, "moved", 40)
    finished = made.store.finished

    async def meanwhile(limit: int, **bounds: Any) -> object:
        listed = await finished(limit, **bounds)
        if listed and made.order("moved").seq == seen.seq:
            await made.store.commit(cases.undone(seen, ONE))
        return listed

    made.store.finished = meanwhile  # type: ignore[method-assign,assignment]
    found = await run(made)
    assert (found.removed, found.remaining) == (0, 1)


async def test_a_run_goes_through_more_than_a_batch_oldest_first_in_each_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "LISTED_MAX", 3)
    monkeypatch.setattr(purge, "REMOVED_TOGETHER", 2)
    made = kit()
    names = [f"o-{number}" for number in range(10)]
    names += neighbours("o-0", 10)
    for number, name in enumerate(names):
        await processed(made, name, 60 - number // 4)  # several at the same moment
    together, removed = made.store.purge, list[Order]()

    async def noted(*orders: Order) -> set[str]:
        removed.extend(orders)
        return await together(*orders)

    made.store.purge = noted  # type: ignore[method-assign]
    found = await run(made)
    assert (found.looked_at, found.removed) == (20, 20)
    for shard in made.store.shards:
        ends = [str(one.stopped_at) for one in removed if shard_of(one.order_id, 16) == shard]
        assert ends == sorted(ends)


def neighbours(order_id: str, count: int) -> list[str]:
    """Return other ids of an order's shard."""
    names = (f"{order_id}-beside-{number}" for number in range(10_000))
    return list(islice((n for n in names if shard_of(n, 16) == shard_of(order_id, 16)), count))


async def test_orders_that_an_operator_touches_keep_none_of_those_removed_with_them() -> None:
    made = kit()
    names = neighbours("o", purge.REMOVED_TOGETHER)
    for name in names:
        await processed(made, name, 60)
    together = made.store.purge

    async def meanwhile(*orders: Order) -> set[str]:
        made.store.purge = together  # type: ignore[method-assign]
        await made.store.commit(cases.undone(made.order(names[1]), ONE))
        assert len(orders) == purge.REMOVED_TOGETHER
        return set()  # as the table answers: one of the transaction's orders has another token

    made.store.purge = meanwhile  # type: ignore[method-assign]
    found = await run(made)
    assert (found.removed, found.remaining, found.failed) == (purge.REMOVED_TOGETHER - 1, 1, 0)
    assert set(made.store.orders) == {names[1]}


async def test_a_run_reports_by_how_much_the_oldest_order_that_it_left_is_late() -> None:
    made = kit()
    for number in range(4):
        await processed(made, f"o-{number}", 60 - number)
    made.store.plan = lambda operation, key: (
        StoreFault.UNAVAILABLE if operation == "purge" and key in {"o-1", "o-2"} else None
    )
    with recording() as recorded:
        found = await run(made)
    assert found.late == timedelta(days=60 - 1) - RETENTION
    assert recorded.metrics()["sas.purge.lag"] == [(found.late.total_seconds(), {})]
    made.store.plan = lambda operation, key: None
    with recording() as recorded:
        assert (await run(made)).late == timedelta(0)
    assert recorded.metrics()["sas.purge.lag"] == [(0, {})]


async def test_one_orders_trouble_keeps_no_other_and_does_not_hold_up_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "LISTED_MAX", 2)
    made = kit()
    for number in range(5):
        await processed(made, f"o-{number}", 60 - number)
    made.store.plan = lambda operation, key: (
        StoreFault.UNAVAILABLE if (operation, key) == ("purge", "o-0") else None
    )
    found = await run(made)
    assert (found.removed, found.failed, found.looked_at) == (4, 1, 5)
    made.store.plan = lambda _operation, _key: None
    assert (await run(made)).removed == 1


HELD = Message("responses-shop", "old/9/0", b"{}")


async def remove_held(made: Kit) -> None:
    for shard in made.store.shards:
        for row in await made.store.due(shard, made.clock.now(), 10):
            if isinstance(row, DeferredDue):
                await made.store.remove_due(row)


async def test_an_order_whose_notification_is_not_sent_yet_is_not_purged() -> None:
    made = kit()
    await processed(made, "old", 60)
    await made.store.defer("old", HELD, made.clock.now() - DAY)
    found = await run(made)
    assert (found.removed, found.remaining, found.looked_at) == (0, 1, 1)
    await remove_held(made)
    assert (await run(made)).removed == 1


async def test_nothing_is_removed_while_the_supervisor_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "SEARCHED_DUE_MAX", 1)
    made = kit()
    await processed(made, "old", 60)
    shard = shard_of("old", len(made.store.shards))
    names = (f"another-{number}" for number in range(1000))
    beside = next(name for name in names if shard_of(name, len(made.store.shards)) == shard)
    await made.store.defer(beside, HELD, made.clock.now())
    found = await run(made)
    assert (found.removed, found.remaining) == (0, 1)
    await remove_held(made)
    assert (await run(made)).removed == 1


async def test_a_shard_that_cannot_be_read_keeps_its_orders_and_no_others() -> None:
    made = kit()
    for number in range(30):
        await processed(made, f"old-{number}", 60)
    away, shards = shard_of("old-7", len(made.store.shards)), len(made.store.shards)
    due = made.store.due

    async def throttled(shard: str, until: datetime, limit: int) -> list[Due]:
        if shard == away:
            raise StoreUnavailableError("throttled")
        return await due(shard, until, limit)

    made.store.due = throttled  # type: ignore[method-assign]
    kept = {f"old-{n}" for n in range(30) if shard_of(f"old-{n}", shards) == away}
    found = await run(made)
    assert (found.removed, found.remaining) == (30 - len(kept), len(kept))
    assert set(made.store.orders) == kept


async def test_a_purge_ends_with_its_functions_time_and_the_next_one_goes_on() -> None:
    made = kit()
    for number in range(30):
        await processed(made, f"old-{number}", 60)
    load = made.store.load

    async def slow(order_id: str) -> Order | None:
        await made.clock.sleep(10)
        return await load(order_id)

    made.store.load = slow  # type: ignore[method-assign]
    purger = Purger(made.context, RETENTION, function_time=timedelta(seconds=30))
    began = made.clock.now()
    found = await made.run(purger.run())
    assert made.clock.now() - began <= timedelta(seconds=45)
    assert 0 < found.removed + found.remaining <= 30
    made.store.load = load  # type: ignore[method-assign]
    await run(made)
    assert made.store.orders == {}


async def test_two_instances_do_not_purge_at_once() -> None:
    made = kit()
    await processed(made, "old", 60)
    now = made.clock.now()
    assert await made.store.acquire_lease(PURGE_LEASE, "another", now + DAY, now)
    assert await run(made) == Purge(led=False)
    assert "old" in made.store.orders


async def test_offloaded_content_goes_with_its_order() -> None:
    made = kit()
    order = await made.store.commit(cases.submitted("old", ONE))
    order = await made.store.commit(cases.claimed(order, ONE))
    ref = await made.store.put_payload("old", b'"' + b"x" * 60_000 + b'"')
    await made.store.commit(cases.answered(order, 0, ONE, result=ref, at=aged(made, 60)))
    assert (await run(made)).removed == 1
    assert made.store.payloads == {}
