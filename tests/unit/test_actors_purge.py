"""The purger: what goes, what stays, and what becomes of a run that is cut short."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from sas.actors import purge
from sas.actors.purge import PURGE_LEASE, Purge, Purger
from sas.domain.change import OUT_AGAIN_AFTER, Due, OtherDue, OutDue
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.ports import HeldMessage, Message, StoreUnavailableError
from sas.testing.store import StoreFault, _due_key
from tests.contract import cases
from tests.telemetry_kit import recording
from tests.unit.actors_kit import Kit, kit

RETENTION = timedelta(days=30)
DAY = timedelta(days=1)
ONE = cases.rules_of(1)


def aged(system: Kit, days: float) -> datetime:
    """Return the moment so many days ago."""
    return system.clock.now() - days * DAY


async def processed(system: Kit, order_id: str, days: float) -> Order:
    """An order that was Processed so many days ago."""
    order = await system.store.commit(cases.submitted(order_id, ONE))
    order = await system.store.commit(cases.claimed(order, ONE))
    return await system.store.commit(cases.answered(order, 0, ONE, at=aged(system, days)))


async def in_error(system: Kit, order_id: str, days: float) -> Order:
    order = await system.store.commit(cases.submitted(order_id, ONE))
    order = await system.store.commit(cases.claimed(order, ONE))
    return await system.store.commit(cases.refused(order, 0, ONE, at=aged(system, days)))


async def run(system: Kit) -> Purge:
    return await system.run(Purger(system.context, RETENTION, timedelta(minutes=9)).run())


async def test_finished_orders_older_than_the_retention_go_and_younger_ones_stay() -> None:
    system = kit()
    await processed(system, "old", 30.1)
    await processed(system, "young", 29.9)
    await system.store.commit(cases.rejected("refused", at=aged(system, 31)))
    undone = await processed(system, "undone", 0)
    decided = cases.compensated(undone)
    assert await system.store.commit(decided)
    report = await run(system)
    assert (report.led, report.removed, report.remaining, report.failed) == (True, 2, 0, 0)
    assert set(system.store.orders) == {"young", "undone"}


async def test_an_order_in_error_or_under_way_never_goes_however_old() -> None:
    system = kit()
    await in_error(system, "failed", 400)
    await system.store.commit(cases.submitted("waiting", at=aged(system, 400)))
    assert await run(system) == Purge()
    assert set(system.store.orders) == {"failed", "waiting"}


async def test_one_that_an_operator_touches_while_it_is_being_removed_stays() -> None:
    system = kit()
    order = await processed(system, "touched", 40)
    load = system.store.load

    async def meanwhile(order_id: str) -> Order | None:
        stored = await load(order_id)
        system.store.load = load  # type: ignore[method-assign]
        await system.store.commit(cases.undone(order, ONE))
        return stored

    system.store.load = meanwhile  # type: ignore[method-assign]
    report = await run(system)
    assert (report.removed, report.remaining) == (0, 1)
    assert system.state("touched") == "Compensating"


async def test_one_that_moved_on_since_it_was_listed_stays() -> None:
    system = kit()
    for name in ("moved", "moved-too"):
        await processed(system, name, 40)
    await processed(system, "young", 1)
    finished = system.store.finished

    async def meanwhile(limit: int, **bounds: Any) -> object:
        listed = await finished(limit, **bounds)
        for summary in listed:
            if system.state(summary.order_id) == "Processed":
                await system.store.commit(cases.undone(system.order(summary.order_id), ONE))
        return listed

    system.store.finished = meanwhile  # type: ignore[method-assign,assignment]
    report = await run(system)
    assert (report.removed, report.remaining, report.late) == (0, 2, timedelta(0))


async def test_one_that_ended_anew_stays_and_one_that_was_removed_is_no_failure() -> None:
    system = kit()
    await processed(system, "anew", 40)
    removed = await processed(system, "removed", 40)
    finished = system.store.finished

    async def meanwhile(limit: int, **bounds: Any) -> object:
        listed = await finished(limit, **bounds)
        stored = system.store.orders["anew"]
        stored.order = replace(stored.order, stopped_at=system.clock.now())
        await system.store.purge(removed)
        return listed

    system.store.finished = meanwhile  # type: ignore[method-assign,assignment]
    report = await run(system)
    assert (report.removed, report.remaining, report.failed) == (0, 2, 0)


async def test_a_run_goes_through_more_than_a_batch_oldest_first_in_each_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "LISTED_MAX", 3)
    monkeypatch.setattr(purge, "REMOVED_TOGETHER", 2)
    system = kit()
    names = [f"o-{number}" for number in range(10)]
    names += neighbours("o-0", 10)
    for number, name in enumerate(names):
        await processed(system, name, 60 - number // 4)  # several at the same moment
    purge_together, removed = system.store.purge, list[Order]()

    async def noted(*orders: Order) -> set[str]:
        removed.extend(orders)
        return await purge_together(*orders)

    system.store.purge = noted  # type: ignore[method-assign]
    report = await run(system)
    assert (report.looked_at, report.removed) == (20, 20)
    for shard in system.store.shards:
        ends = [str(order.stopped_at) for order in removed if shard_of(order.order_id, 16) == shard]
        assert ends == sorted(ends)


def neighbours(order_id: str, count: int) -> list[str]:
    """Return other ids of an order's shard."""
    names = (f"{order_id}-beside-{number}" for number in range(10_000))
    return list(islice((n for n in names if shard_of(n, 16) == shard_of(order_id, 16)), count))


async def test_orders_that_an_operator_touches_keep_none_of_those_removed_with_them() -> None:
    system = kit()
    names = neighbours("o", purge.REMOVED_TOGETHER)
    for name in names:
        await processed(system, name, 60)
    purge_together = system.store.purge

    async def meanwhile(*orders: Order) -> set[str]:
        system.store.purge = purge_together  # type: ignore[method-assign]
        await system.store.commit(cases.undone(system.order(names[1]), ONE))
        assert len(orders) == purge.REMOVED_TOGETHER
        return await purge_together(orders[0])  # the others' transaction meets another token

    system.store.purge = meanwhile  # type: ignore[method-assign]
    report = await run(system)
    assert (report.removed, report.remaining, report.failed) == (purge.REMOVED_TOGETHER - 1, 1, 0)
    assert set(system.store.orders) == {names[1]}


async def test_a_run_reports_by_how_much_the_oldest_order_that_it_left_is_late() -> None:
    system = kit()
    for number in range(4):
        await processed(system, f"o-{number}", 60 - number)
    system.store.plan = lambda operation, key: (
        StoreFault.UNAVAILABLE if operation == "purge" and key in {"o-1", "o-2"} else None
    )
    with recording() as recorded:
        report = await run(system)
    assert report.late == timedelta(days=60 - 1) - RETENTION
    assert recorded.metrics()["sas.purge.lag"] == [(report.late.total_seconds(), {})]
    system.store.plan = lambda operation, key: None
    with recording() as recorded:
        assert (await run(system)).late == timedelta(0)
    assert recorded.metrics()["sas.purge.lag"] == [(0, {})]


async def test_one_orders_trouble_keeps_no_other_and_does_not_hold_up_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "LISTED_MAX", 2)
    system = kit()
    first, *others = neighbours("o", 5)
    for number, name in enumerate((first, *others)):
        await processed(system, name, 60 - number)
    system.store.plan = lambda operation, key: (
        StoreFault.UNAVAILABLE if (operation, key) == ("purge", first) else None
    )
    report = await run(system)
    assert (report.removed, report.failed, report.looked_at) == (4, 1, 5)
    system.store.plan = lambda _operation, _key: None
    assert (await run(system)).removed == 1


async def test_an_order_whose_notification_is_held_is_purged_since_the_message_is_whole() -> None:
    system = kit()
    await processed(system, "old", 60)
    message = Message("responses-shop", "old/9/0", b"{}")
    since = system.clock.now() - DAY
    await system.store.hold(HeldMessage(message=message, since=since, order_id="old"))
    assert (await run(system)).removed == 1
    assert system.held() == [message]


async def test_an_order_whose_messages_may_not_be_sent_yet_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "LISTED_MAX", 1)
    system = kit()
    unsent, unknown, *others = neighbours("o", 4)
    for name in (unsent, unknown, *others):
        await processed(system, name, 60)  # all at the same moment
    now = system.clock.now()
    out = OutDue(now + OUT_AGAIN_AFTER, unsent, 9)
    for row in (out, OtherDue(now, unknown, "due|of a newer version")):
        system.store._due[shard_of(row.order_id, 16)][row.order_id] = row
    finished = system.store.finished

    async def slow(limit: int, **bounds: Any) -> object:
        await system.clock.sleep(1)
        return await finished(limit, **bounds)

    system.store.finished = slow  # type: ignore[method-assign,assignment]
    report = await run(system)
    assert (report.looked_at, report.removed, report.remaining) == (4, 2, 2)
    assert set(system.store.orders) == {unsent, unknown}


async def test_nothing_is_removed_while_the_supervisor_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "SEARCHED_DUE_MAX", 1)
    system = kit()
    await processed(system, "old", 60)
    shard = shard_of("old", len(system.store.shards))
    names = (f"another-{number}" for number in range(1000))
    beside = next(name for name in names if shard_of(name, len(system.store.shards)) == shard)
    out = OutDue(system.clock.now(), beside, 1)
    system.store._due[shard][_due_key(out)] = out
    report = await run(system)
    assert (report.removed, report.remaining) == (0, 1)
    await system.store.remove_due(out)
    assert (await run(system)).removed == 1


async def test_a_shard_that_cannot_be_read_keeps_its_orders_and_no_others() -> None:
    system = kit()
    for number in range(30):
        await processed(system, f"old-{number}", 60)
    broken_shard, shards = shard_of("old-7", len(system.store.shards)), len(system.store.shards)
    due = system.store.due

    async def throttled(shard: str, until: datetime, limit: int) -> list[Due]:
        if shard == broken_shard:
            raise StoreUnavailableError("throttled")
        return await due(shard, until, limit)

    system.store.due = throttled  # type: ignore[method-assign]
    survivors = {f"old-{n}" for n in range(30) if shard_of(f"old-{n}", shards) == broken_shard}
    report = await run(system)
    assert (report.removed, report.remaining) == (30 - len(survivors), len(survivors))
    assert set(system.store.orders) == survivors


async def test_a_run_that_can_read_no_shard_fails() -> None:
    system = kit()
    system.store._shards = system.store._shards[:1]
    system.store.fail_next("finished", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await run(system)


async def test_a_run_that_could_not_list_a_shard_does_not_say_that_nothing_is_late() -> None:
    system = kit()
    await processed(system, "old", 60)
    system.store.fail_next("finished", StoreFault.UNAVAILABLE)
    with recording() as recorded:
        await run(system)
    assert "sas.purge.lag" not in recorded.metrics()


async def slow_store() -> Kit:
    """A system with 30 old orders, whose store takes ten seconds to load one."""
    system = kit()
    for number in range(30):
        await processed(system, f"old-{number}", 60)
    load = system.store.load

    async def slow(order_id: str) -> Order | None:
        await system.clock.sleep(10)
        return await load(order_id)

    system.store.load = slow  # type: ignore[method-assign]
    return system


async def test_a_purge_ends_with_its_functions_time_and_the_next_one_goes_on() -> None:
    system = await slow_store()
    purger = Purger(system.context, RETENTION, function_time=timedelta(seconds=30))
    start = system.clock.now()
    report = await system.run(purger.run())
    assert system.clock.now() - start <= timedelta(seconds=45)
    assert 0 < report.removed + report.remaining <= 30
    del system.store.load  # the store is fast again
    await run(system)
    assert system.store.orders == {}


async def test_orders_that_a_purge_has_no_time_to_remove_remain() -> None:
    system = await slow_store()
    report = await system.run(Purger(system.context, RETENTION, timedelta(seconds=5)).run())
    assert (report.looked_at, report.removed, report.remaining) == (30, 0, 30)


async def test_two_instances_do_not_purge_at_once() -> None:
    system = kit()
    await processed(system, "old", 60)
    now = system.clock.now()
    assert await system.store.acquire_lease(PURGE_LEASE, "another", now + DAY, now)
    assert await run(system) == Purge(led=False)
    assert "old" in system.store.orders


async def test_offloaded_content_goes_with_its_order() -> None:
    system = kit()
    order = await system.store.commit(cases.submitted("old", ONE))
    order = await system.store.commit(cases.claimed(order, ONE))
    ref = await system.store.put_payload("old", b'"' + b"x" * 60_000 + b'"')
    await system.store.commit(cases.answered(order, 0, ONE, result=ref, at=aged(system, 60)))
    assert (await run(system)).removed == 1
    assert system.store.payloads == {}
