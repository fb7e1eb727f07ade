"""What every state store does: commits, conflicts, causes, the journal, the last errors.

The sequences of them are played by a state machine: see store_machine.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devstack.azurite import Azurite
from sas.adapters.tables.store import TableStore
from sas.ports import ConflictError, StateStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND, attempt_error
from tests.contract.conftest import new_table, paged
from tests.contract.store_kit import due_of, loaded


async def test_an_order_is_loaded_as_it_was_committed(store: StateStore) -> None:
    first = cases.submitted("order-1")
    written = await store.commit(first)
    assert written == first.after
    assert written.token
    loaded = await store.load("order-1")
    assert loaded == first.after
    assert loaded is not None
    assert loaded.token == written.token


@paged
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


async def test_a_commit_that_meets_a_conflict_writes_nothing(store: StateStore) -> None:
    stale = await store.commit(cases.submitted("order-1", cause="orders:a"))
    order = await store.commit(cases.claimed(stale, cause="scheduler:a"))
    before = await due_of(store, "order-1")
    changes = {
        "a second first commit": cases.submitted("order-1", cases.rules_of(5), payload='"other"'),
        "a stale order": replace(cases.undone(stale), out_at=NOW),
        "a cause of its own past": cases.fenced(order, "scheduler:a"),
        "the first cause": cases.fenced(order, "orders:a"),
    }
    for name, change in changes.items():
        with pytest.raises(ConflictError):
            await store.commit(change)
        assert await store.load("order-1") == order, name
        assert [entry.seq for entry in await store.journal("order-1")] == [1, 2], name
        assert await due_of(store, "order-1") == before, name
        assert await store.finished(10) == [], name
    assert (await store.commit(cases.answered(order, 0))).seq == 3


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


async def test_a_rejected_order_keeps_its_id_until_it_is_submitted_again(
    store: StateStore,
) -> None:
    rejected = await store.commit(cases.rejected("order-1"))
    assert await store.load("order-1") == rejected
    with pytest.raises(ConflictError):
        await store.commit(cases.submitted("order-1"))
    revived = await store.commit(cases.revived(rejected))
    assert await store.load("order-1") == revived
    assert (revived.seq, revived.details.payload) == (2, "submitted anew")


@paged
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


async def test_a_load_with_the_last_errors_of_its_steps_is_one_request(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table())
    await store.commit(cases.submitted("order-1"))
    for number in range(3):
        await store.keep_error("order-1", number, attempt_error())
    before = store.requests
    order = await loaded(store, "order-1")
    assert [step.last_error for step in order.steps] == [attempt_error()] * 3
    assert store.requests == before + 1
    await store.close()


async def test_an_error_from_before_an_order_was_submitted_makes_no_order_and_joins_none(
    store: StateStore,
) -> None:
    await store.keep_error("order-1", 0, attempt_error(at=NOW - SECOND))
    assert await store.load("order-1") is None
    await store.commit(cases.submitted("order-1"))
    order = await loaded(store, "order-1")
    assert [step.last_error for step in order.steps] == [None, None, None]
