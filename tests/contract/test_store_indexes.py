"""What every state store finds without loading orders: due and held rows, lists, shared values."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.change import OutDue, StepDue, due_rows
from sas.domain.order import OrderState
from sas.ports import ConflictError, HeldMessage, Message, SharedValue, StateStore, Summary
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import paged
from tests.contract.store_kit import FAR, due_of, neighbours, shard

LEASE = "supervisor"


async def test_due_rows_follow_every_commit_and_an_out_row_stays_until_its_messages_are_sent(
    store: StateStore,
) -> None:
    first = cases.with_deadline(cases.submitted("order-1"), NOW + 3600 * SECOND)
    order = await store.commit(first)
    assert await due_of(store, "order-1") == due_rows(order)
    order = await store.commit(replace(cases.claimed(order), out_at=NOW - SECOND))
    out = OutDue(NOW - SECOND, "order-1", 2)
    assert await store.due(shard(store, "order-1"), NOW, 10) == [out]
    for _ in range(2):
        await store.remove_due(out)
        assert await due_of(store, "order-1") == due_rows(order)
    for step in range(3):
        order = await store.commit(cases.answered(order, step))
        assert await due_of(store, "order-1") == due_rows(order)
    order = await store.commit(cases.undone(order))
    order = await store.commit(cases.with_deadline(cases.fenced(order, "dead-letters:1"), None))
    assert await due_of(store, "order-1") == due_rows(order) != set()


async def test_a_due_row_that_stays_is_neither_lost_nor_doubled(store: StateStore) -> None:
    rules = cases.rules_of(2, parallel=True)
    order = await store.commit(
        cases.claimed(await store.commit(cases.submitted("o", rules)), rules)
    )
    order = await store.commit(cases.answered(order, 0, rules))
    unanswered = order.steps[1]
    assert unanswered.complete_by is not None
    assert await due_of(store, "o") == {
        StepDue(at=unanswered.complete_by, order_id="o", step=1, epoch=unanswered.epoch)
    }


@paged
async def test_due_rows_come_oldest_first_up_to_the_moment_and_the_limit(
    store: StateStore,
) -> None:
    ids = neighbours(5)
    for number, order_id in enumerate(reversed(ids)):
        await store.commit(cases.submitted(order_id, at=NOW + number * SECOND))
    here = shard(store, ids[0])
    everything = await store.due(here, FAR, 1000)
    assert [row.order_id for row in everything] == list(reversed(ids))
    assert [row.at for row in everything] == sorted(row.at for row in everything)
    assert await store.due(here, FAR, 3) == everything[:3]
    assert await store.due(here, everything[2].at, 1000) == everything[:3]
    assert await store.due(here, everything[2].at - timedelta(microseconds=1), 9) == everything[:2]
    assert await store.due(here, NOW - timedelta(days=1), 1000) == []
    assert await store.oldest_due(here) == everything[0].at


@paged
async def test_each_order_is_due_in_its_own_shard_and_in_no_other(store: StateStore) -> None:
    assert len(store.shards) == 16
    ids = [f"order-{n}" for n in range(20)]
    for order_id in ids:
        await store.commit(cases.submitted(order_id))
    due = {s: [row.order_id for row in await store.due(s, FAR, 100)] for s in store.shards}
    assert sorted(order_id for order_ids in due.values() for order_id in order_ids) == sorted(ids)
    assert all(
        shard(store, order_id) == s for s, order_ids in due.items() for order_id in order_ids
    )
    empty = [s for s in store.shards if not due[s]]
    assert [await store.oldest_due(s) for s in empty] == [None] * len(empty)


HELD = Message(
    "responses-shop",
    "order-1/1/0",
    bytes(range(256)) * 600,
    content_type="application/cloudevents+json",
    correlation_id="c-1",
    properties={"sas_event": "received"},
)


def held(message: Message, seconds: int = 0, subject: str = "order-1") -> HeldMessage:
    return HeldMessage(message=message, since=NOW + seconds * SECOND, order_id=subject)


async def test_a_message_is_held_until_it_is_released_and_comes_back_whole(
    store: StateStore,
) -> None:
    for message in (HELD, Message("operator-alerts", "a-1", b"")):
        for subject in ("order-1", "rejected/'%+=#?\n/alert"):
            for _ in range(2):
                await store.hold(held(message, subject=subject))
            assert await store.held(message.queue, 10) == [held(message, subject=subject)]
            assert await due_of(store, "order-1") == set()
            for _ in range(2):
                await store.release(held(message))
            assert await store.held(message.queue, 10) == []
            assert await store.held_queue("") is None


@paged
async def test_held_messages_are_found_queue_by_queue_the_oldest_first(store: StateStore) -> None:
    queues = ["responses-a", "responses-a-b", "responses-aB", "agent-stock", "responses-a.2"]
    for queue in queues:
        for number in (3, 1, 2):
            await store.hold(held(Message(queue, f"m-{number}", b""), number))
    names = [""]
    for _ in range(len(queues) + 1):
        following = await store.held_queue(names[-1])
        if following is None:
            break
        names.append(following)
    names.remove("")
    assert sorted(names) == sorted(queues)
    for name in queues:
        oldest = [each.message.message_id for each in await store.held(name, 2)]
        assert oldest == ["m-1", "m-2"]
        assert (await store.held_count(name, 2), await store.held_count(name, 9)) == (2, 3)
    assert await store.held_count("responses-", 9) == 0
    await store.release(held(Message("responses-a", "m-1", b""), 1))
    assert [each.since for each in await store.held("responses-a", 1)] == [NOW + 2 * SECOND]


async def test_an_order_in_error_is_listed_until_it_moves_on(store: StateStore) -> None:
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    order = await store.commit(cases.refused(order, 0, at=NOW + SECOND))
    expected = Summary(
        at=NOW + SECOND,
        order_id="order-1",
        process_state=OrderState.ERROR,
        workflow="order",
        version=2,
        submitted_at=NOW,
        fingerprints=("step-0/out-of-stock",),
        error_text="out-of-stock: none left of article 11",
    )
    assert await store.attention(10) == [expected]
    order = await store.commit(cases.fenced(order, "dead-letters:1"))
    assert await store.attention(10) == [expected]
    order = await store.commit(cases.resubmitted(order, at=NOW + 2 * SECOND))
    assert await store.attention(10) == []
    assert await store.finished(10) == []


@paged
async def test_finished_orders_are_listed_oldest_first_over_all_shards(store: StateStore) -> None:
    rules = cases.rules_of(1)
    for number in range(6):
        order = await store.commit(cases.submitted(f"order-{number}", rules))
        order = await store.commit(cases.claimed(order, rules))
        await store.commit(cases.answered(order, 0, rules, at=NOW + (9 - number) * SECOND))
    listed = await store.finished(100)
    assert [summary.order_id for summary in listed] == [f"order-{n}" for n in reversed(range(6))]
    assert {summary.process_state for summary in listed} == {OrderState.PROCESSED}
    assert await store.finished(2) == listed[:2]
    assert await store.attention(100) == []


@paged
async def test_a_list_is_complete_although_its_oldest_orders_lie_in_one_shard(
    store: StateStore,
) -> None:
    """A store may read only a share of each shard first. A later shard has many younger ones."""
    crowded, others = neighbours(39), neighbours(20, of="z")[::-1]
    assert shard(store, crowded[0]) < shard(store, others[0])
    for place, order_id in enumerate((*crowded, *others)):
        await store.commit(cases.rejected(order_id, at=NOW + (place // 2) * SECOND))
    for limit in (1, 15, 39, 45, 100):
        listed = [summary.order_id for summary in await store.finished(limit)]
        expected = sorted((*crowded, *others), key=lambda name: _place(name, crowded, others))
        assert listed == expected[:limit]


def _place(order_id: str, crowded: list[str], others: list[str]) -> tuple[int, str]:
    return (*crowded, *others).index(order_id) // 2, order_id


async def test_an_undone_order_moves_within_the_list_even_in_the_same_microsecond(
    store: StateStore,
) -> None:
    rules = cases.rules_of(1, parallel=True)
    order = await store.commit(cases.submitted("order-1", rules))
    order = await store.commit(cases.claimed(order, rules))
    order = await store.commit(cases.answered(order, 0, rules))
    compensated = await store.commit(cases.compensated(order))
    assert compensated.stopped_at == order.stopped_at
    expected = Summary(
        at=NOW,
        order_id="order-1",
        process_state=OrderState.COMPENSATED,
        workflow="order",
        version=2,
        submitted_at=NOW,
        undone_because="a test",
    )
    assert await store.finished(10) == [expected]


async def test_a_lease_is_held_by_one_until_it_runs_out(store: StateStore) -> None:
    until = NOW + 30 * SECOND
    assert await store.acquire_lease(LEASE, "one", until, NOW)
    assert not await store.acquire_lease(LEASE, "two", until, NOW + 29 * SECOND)
    assert await store.acquire_lease(LEASE, "one", until + 30 * SECOND, NOW + 29 * SECOND)
    assert not await store.acquire_lease(LEASE, "two", until, NOW + 59 * SECOND)
    later = NOW + 60 * SECOND
    assert await store.acquire_lease(LEASE, "two", later + 30 * SECOND, later)
    assert not await store.acquire_lease(LEASE, "one", later + 60 * SECOND, later)
    assert await store.acquire_lease("another", "one", later, NOW)


async def test_a_shared_value_changes_only_under_the_token_that_was_read(store: StateStore) -> None:
    first = await store.write_shared("c", '{"a": "ä"}', None)
    with pytest.raises(ConflictError):
        await store.write_shared("c", "other", None)
    second = await store.write_shared("c", "2", first.token)
    with pytest.raises(ConflictError):
        await store.write_shared("c", "3", first.token)
    assert await store.read_shared("c") == second


@paged
async def test_cells_are_listed_by_the_beginning_of_their_names(store: StateStore) -> None:
    names = ("breaker|stock", "breaker|a", "breakers", "breaker", "workflow|order|1")
    written = {name: await store.write_shared(name, f"of {name}", None) for name in names}
    values = await store.shared_values("breaker|")
    assert list(values.items()) == [(n, written[n]) for n in ("breaker|a", "breaker|stock")]
    assert await store.shared_values("breaker|b") == {}
    assert await store.shared_values("") == written
    again = await store.write_shared("breaker|a", "changed", values["breaker|a"].token)
    assert (await store.shared_values("breaker|a"))["breaker|a"] == again


async def test_a_name_may_have_spaces_commas_and_dots(store: StateStore) -> None:
    name = "incident|waiting|order_with.care version 12, the undo of step take-payment"
    written = await store.write_shared(name, "null", None)
    assert await store.read_shared(name) == written
    assert await store.shared_values("incident|") == {name: written}


async def test_of_many_writers_at_once_one_wins(store: StateStore) -> None:
    async def write(number: int) -> SharedValue[str] | None:
        try:
            return await store.write_shared("race", str(number), None)
        except ConflictError:
            return None

    outcomes = await asyncio.gather(*(write(number) for number in range(8)))
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    assert await store.read_shared("race") == winner
