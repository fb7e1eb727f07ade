"""What every state store does: commits, conflicts, causes, the journal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sas.domain.ids import shard_of
from sas.domain.order import OrderState, StepState
from sas.ports import ConflictError, StateStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND


async def test_an_order_is_loaded_as_it_was_committed(store: StateStore) -> None:
    first = cases.submitted("order-1")
    written = await store.commit(first)
    assert written == first.after
    assert written.token
    loaded = await store.load("order-1")
    assert loaded == first.after
    assert loaded is not None
    assert loaded.token == written.token


async def test_no_field_of_a_step_is_lost(store: StateStore) -> None:
    first = cases.submitted("order-1")
    change = replace(first, after=cases.every_field_set(first.after))
    await store.commit(change)
    assert await store.load("order-1") == change.after


async def test_missing_rows_are_none(store: StateStore) -> None:
    assert await store.load("nobody") is None
    assert await store.recorded("nobody", "orders:1") is None
    assert await store.entry("nobody", 1) is None
    assert await store.journal("nobody") == []
    await store.commit(cases.submitted("order-1"))
    assert await store.entry("order-1", 2) is None
    assert await store.entry("order-1", 0) is None


async def test_of_two_first_commits_of_one_order_the_first_wins_whole(store: StateStore) -> None:
    first = cases.submitted("order-1", payload='"first"', cause="orders:a")
    second = cases.submitted("order-1", cases.rules_of(5), payload='"second"', cause="orders:b")
    await store.commit(first)
    with pytest.raises(ConflictError):
        await store.commit(second)
    assert await store.load("order-1") == first.after
    assert await store.recorded("order-1", "orders:b") is None
    assert await store.journal("order-1") == [first.entry]


async def test_of_sixteen_racing_commits_exactly_one_wins(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    changes = [cases.claimed(order, cause=f"scheduler:{n}") for n in range(16)]
    outcomes = await asyncio.gather(*map(store.commit, changes), return_exceptions=True)
    won = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert all(isinstance(error, ConflictError) for error in lost), lost
    assert await store.load("order-1") == changes[won[0]].after
    assert [entry.seq for entry in await store.journal("order-1")] == [1, 2]
    assert await store.entry("order-1", 2) == changes[won[0]].entry


async def test_of_sixteen_racing_first_commits_exactly_one_wins(store: StateStore) -> None:
    changes = [cases.submitted("order-1", cause=f"orders:{n}") for n in range(16)]
    outcomes = await asyncio.gather(*map(store.commit, changes), return_exceptions=True)
    won = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert await store.journal("order-1") == [changes[won[0]].entry]


async def test_a_commit_of_a_stale_order_writes_nothing(store: StateStore) -> None:
    stale = await store.commit(cases.submitted("order-1"))
    current = await store.commit(cases.claimed(stale))
    before = await store.due(
        shard_of(current.order_id, len(store.shards)), NOW + 3600 * SECOND, 100
    )
    change = cases.undone(stale)
    with pytest.raises(ConflictError):
        await store.commit(replace(change, out_at=NOW))
    assert await store.load("order-1") == current
    assert await store.recorded("order-1", change.entry.cause or "") is None
    assert len(await store.journal("order-1")) == 2
    assert (
        await store.due(shard_of(current.order_id, len(store.shards)), NOW + 3600 * SECOND, 100)
        == before
    )
    assert await store.finished(10) == []


async def test_each_returned_token_serves_for_the_next_commit(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    order = await store.commit(cases.claimed(order))
    for step in range(3):
        order = await store.commit(cases.answered(order, step))
    assert order.process_state is OrderState.PROCESSED
    assert await store.load("order-1") == order
    assert [entry.seq for entry in await store.journal("order-1")] == [1, 2, 3, 4, 5]


async def test_a_cause_is_found_with_what_it_led_to(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1", cause="orders:a/b#c?\x01 ü"))
    change = cases.claimed(order, cause="scheduler:a")
    await store.commit(change)
    assert await store.recorded("order-1", "scheduler:a") == change.entry
    first = await store.recorded("order-1", "orders:a/b#c?\x01 ü")
    assert first is not None
    assert first.seq == 1
    assert await store.recorded("order-1", "scheduler:A") is None
    assert await store.recorded("order-2", "scheduler:a") is None


async def test_a_cause_recorded_before_is_refused_and_nothing_written(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1", cause="orders:a"))
    with pytest.raises(ConflictError):
        await store.commit(cases.claimed(order, cause="orders:a"))
    assert await store.load("order-1") == order
    assert len(await store.journal("order-1")) == 1
    written = await store.commit(cases.claimed(order, cause="scheduler:a"))
    assert written.seq == 2


async def test_a_change_without_a_cause_leaves_none(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    change = cases.claimed(order)
    silent = replace(change, entry=replace(change.entry, cause=None))
    await store.commit(silent)
    assert await store.entry("order-1", 2) == silent.entry


async def test_the_very_same_change_again_is_our_own_success(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    change = cases.claimed(order)
    once = await store.commit(change)
    again = await store.commit(change)
    assert again == once
    assert again.token == once.token
    assert len(await store.journal("order-1")) == 2


async def test_our_own_write_overtaken_by_a_rival_is_a_success_and_its_token_is_stale(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("order-1"))
    change = cases.claimed(order)
    rival = await store.commit(cases.answered(await store.commit(change), 0))
    again = await store.commit(change)
    assert again == change.after
    assert again.token != rival.token  # it would guard what we have not seen
    with pytest.raises(ConflictError):
        await store.commit(cases.undone(again))
    assert await store.load("order-1") == rival


async def test_a_fence_remembers_its_cause_and_changes_nothing_else(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    await store.commit(cases.fenced(order, "dead-letters:x"))
    fenced = await store.load("order-1")
    assert fenced == replace(order, seq=2)
    entry = await store.recorded("order-1", "dead-letters:x")
    assert entry is not None
    assert entry.messages == ()
    with pytest.raises(ConflictError):
        await store.commit(cases.claimed(order))


async def test_a_rejected_order_keeps_its_id_until_it_is_submitted_again(
    store: StateStore,
) -> None:
    rejected = await store.commit(cases.rejected("order-1"))
    assert rejected.process_state is OrderState.REJECTED
    assert await store.load("order-1") == rejected
    with pytest.raises(ConflictError):
        await store.commit(cases.submitted("order-1"))
    revived = await store.commit(cases.revived(rejected))
    loaded = await store.load("order-1")
    assert loaded == revived
    assert loaded is not None
    assert loaded.details.payload == "submitted anew"
    assert loaded.seq == 2


async def test_only_what_changed_is_new_after_each_step(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    order = await store.commit(cases.claimed(order))
    order = await store.commit(cases.answered(order, 0, result='{"reservation":"r-1"}'))
    loaded = await store.load("order-1")
    assert loaded is not None
    states = [step.process_state for step in loaded.steps]
    assert states == [StepState.PROCESSED, StepState.PROCESSING, StepState.PENDING]
    assert loaded.steps[0].result == '{"reservation":"r-1"}'
    assert loaded.steps[0].locked_by is None
    assert loaded.steps[1].locked_by == "scheduler-1"


async def test_the_journal_is_read_oldest_first_past_ten_entries(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    written = [(await store.journal("order-1"))[0]]
    for number in range(12):
        change = cases.fenced(order, f"dead-letters:{number}")
        change = replace(change, entry=replace(change.entry, reason="why" * (number % 2)))
        order = await store.commit(change)
        written.append(change.entry)
    assert await store.journal("order-1") == written
    assert await store.entry("order-1", 11) == written[10]
