"""Our own write is never mistaken for a rival's, under any fault of network and service.

Over a real Azurite and the real SDK, behind a proxy that loses answers, says 503 before or
after the work, delivers late, or says nothing.
"""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from azure.data.tables.aio import TableClient

from sas.adapters.tables import keys
from sas.adapters.tables.store import TableStore
from sas.adapters.tables.table import RetryBudget
from sas.domain.change import Change, due_rows
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.ports import ConflictError, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import Troubled
from tests.contract.proxy import Trouble
from tests.contract.store_kit import FAR

WRITTEN = [Trouble.ANSWER_LOST, Trouble.BUSY_AFTERWARDS]
NOT_WRITTEN = [Trouble.BUSY, Trouble.CUT_OFF]


async def stored(troubled: Troubled) -> Order:
    order = await troubled.rival.commit(cases.submitted("order-1"))
    troubled.proxy.kinds.clear()
    return order


async def overwrite(troubled: Troubled) -> Change:
    """Let the rival claim the order, as it is now."""
    order = await troubled.rival.load("order-1")
    assert order is not None
    change = cases.claimed(order)
    await troubled.rival.commit(change)
    return change


@pytest.mark.parametrize("trouble", WRITTEN)
async def test_a_commit_that_won_is_ours_though_its_answer_was_lost(
    troubled: Troubled, trouble: Trouble
) -> None:
    order = await stored(troubled)
    troubled.proxy.batches.append(trouble)
    order = await troubled.store.commit(cases.claimed(order))
    assert await troubled.rival.load("order-1") == order
    assert len(await troubled.rival.journal("order-1")) == 2
    assert troubled.proxy.kinds.count("batch") == 1
    troubled.proxy.batches.append(trouble)
    after = await troubled.store.commit(cases.answered(order, 0))
    assert await troubled.rival.load("order-1") == after


@pytest.mark.parametrize("trouble", WRITTEN)
async def test_a_commit_that_won_is_ours_though_a_rival_overwrote_it_before_we_knew(
    troubled: Troubled, trouble: Trouble
) -> None:
    order = await stored(troubled)
    change = cases.fenced(order, "dead-letters:1")
    rivals: list[Change] = []

    async def meanwhile() -> None:
        rivals.append(await overwrite(troubled))

    troubled.proxy.batches.append(trouble)
    troubled.proxy.meanwhile = meanwhile
    ours = await troubled.store.commit(change)
    assert ours == change.after
    entries = await troubled.rival.journal("order-1")
    assert entries[1:] == [change.entry, rivals[0].entry]
    with pytest.raises(ConflictError):
        await troubled.store.commit(cases.claimed(ours))
    assert await troubled.rival.load("order-1") == rivals[0].after


@pytest.mark.parametrize("trouble", NOT_WRITTEN)
async def test_a_commit_that_did_not_arrive_is_sent_again_as_it_was(
    troubled: Troubled, trouble: Trouble
) -> None:
    order = await stored(troubled)
    troubled.proxy.batches.append(trouble)
    change = cases.claimed(order)
    await troubled.store.commit(change)
    assert troubled.proxy.kinds == ["batch", "point", "batch"]
    assert await troubled.rival.entry("order-1", 2) == change.entry


@pytest.mark.parametrize("trouble", NOT_WRITTEN)
async def test_a_commit_that_did_not_arrive_before_a_rivals_is_a_conflict(
    troubled: Troubled, trouble: Trouble
) -> None:
    order = await stored(troubled)
    rival = await overwrite(troubled)
    troubled.proxy.batches.append(trouble)
    with pytest.raises(ConflictError, match="seq 2 was committed by a test"):
        await troubled.store.commit(cases.fenced(order, "dead-letters:1"))
    assert troubled.proxy.kinds == ["batch", "point"]
    assert await troubled.rival.load("order-1") == rival.after


async def test_a_transaction_that_arrives_late_is_ours_when_the_next_is_refused(
    troubled: Troubled,
) -> None:
    order = await stored(troubled)
    troubled.proxy.batches.append(Trouble.LATE)
    change = cases.claimed(order)
    written = await troubled.store.commit(change)
    assert troubled.proxy.late_statuses == [202]
    assert troubled.proxy.kinds == ["batch", "point", "batch", "point", "point"]
    assert await troubled.rival.load("order-1") == change.after
    await troubled.store.commit(cases.answered(written, 0))


async def test_the_error_for_a_busy_store_says_where_to_look(
    troubled: Troubled,
) -> None:
    order = await stored(troubled)
    troubled.proxy.batches.extend([Trouble.BUSY] * 3)
    with pytest.raises(StoreUnavailableError, match=r"/t\w+ did not answer.*busy.*throttling"):
        await troubled.store.commit(cases.claimed(order))
    assert troubled.proxy.kinds.count("batch") == 3
    assert await troubled.rival.load("order-1") == order
    await troubled.store.commit(cases.claimed(order))


async def test_a_commit_whose_journal_cannot_be_read_is_unknown_and_found_when_asked_again(
    troubled: Troubled,
) -> None:
    order = await stored(troubled)
    change = cases.claimed(order)
    troubled.proxy.batches.append(Trouble.BUSY_AFTERWARDS)
    troubled.proxy.points.extend([Trouble.BUSY] * 3)
    with pytest.raises(StoreUnavailableError):
        await troubled.store.commit(change)
    entry = await troubled.store.recorded("order-1", change.entry.cause or "")
    assert entry == change.entry


async def test_reads_are_tried_again_while_the_store_is_busy(troubled: Troubled) -> None:
    order = await stored(troubled)
    troubled.proxy.queries.extend([Trouble.BUSY, Trouble.CUT_OFF])
    assert await troubled.store.load("order-1") == order
    troubled.proxy.points.extend([Trouble.BUSY, Trouble.CUT_OFF])
    assert (await troubled.store.entry("order-1", 1)) is not None
    troubled.proxy.queries.append(Trouble.BUSY)
    assert len(await troubled.store.due(shard_of("order-1", 16), FAR, 10)) == 1
    troubled.proxy.queries.extend([Trouble.BUSY] * 3)
    with pytest.raises(StoreUnavailableError, match="throttling"):
        await troubled.store.load("order-1")


async def test_a_page_that_fails_is_asked_for_again_and_none_is_skipped_or_doubled(
    troubled: Troubled,
) -> None:
    order = await stored(troubled)
    for number in range(5):
        order = await troubled.rival.commit(cases.fenced(order, f"dead-letters:{number}"))
    troubled.proxy.page_size = 2
    troubled.proxy.queries.extend([None, Trouble.BUSY, Trouble.ANSWER_LOST, None, Trouble.BUSY])
    entries = await troubled.store.journal("order-1")
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]


async def test_an_order_read_in_pages_while_a_rival_writes_is_read_again(
    troubled: Troubled,
) -> None:
    await stored(troubled)
    rivals: list[Change] = []

    async def meanwhile() -> None:
        rivals.append(await overwrite(troubled))

    troubled.proxy.page_size = 2  # details and state first, then steps
    troubled.proxy.queries.append(Trouble.SLOW)
    troubled.proxy.meanwhile = meanwhile
    loaded = await troubled.store.load("order-1")
    assert loaded == rivals[0].after
    await troubled.store.commit(cases.answered(loaded, 0))


async def test_a_store_that_does_not_answer_delays_a_caller_for_a_bounded_time(
    troubled: Troubled,
) -> None:
    order = await stored(troubled)
    store = TableStore.connect(
        troubled.proxy.connection_string, troubled.table, retry_budget=RetryBudget(total_s=0.3)
    )
    assert await store.load("order-1") == order
    troubled.proxy.queries.append(Trouble.SILENT)
    troubled.proxy.batches.append(Trouble.SILENT)
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.3 s"):
        await store.load("order-1")
    with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.3 s"):
        await store.commit(cases.claimed(order))
    assert time.monotonic() - started < 30  # a silent store would be waited for without end
    await store.close()


async def test_index_rows_deleted_by_hand_do_not_hold_up_their_order(troubled: Troubled) -> None:
    change = cases.with_deadline(cases.submitted("order-1"), NOW + 9 * SECOND)
    order = await troubled.rival.commit(change)
    rows = due_rows(order)
    assert len(rows) == 2
    async with TableClient.from_connection_string(
        troubled.proxy.connection_string, troubled.table
    ) as client:
        for row in rows:
            await client.delete_entity(shard_of("order-1", 16), keys.due(row))
    order = await troubled.store.commit(cases.undone(order))
    assert set(await troubled.rival.due(shard_of("order-1", 16), FAR, 10)) == due_rows(order)
    assert [summary.order_id for summary in await troubled.rival.finished(9)] == ["order-1"]
    assert await troubled.rival.load("order-1") == order


async def test_a_shared_value_that_a_rival_writes_at_once_again_is_not_ours(
    troubled: Troubled,
) -> None:
    async def meanwhile() -> None:
        ours = await troubled.rival.read_shared("breaker|stock")
        assert ours is not None
        await troubled.rival.write_shared("breaker|stock", "open", ours.token)

    troubled.proxy.points.append(Trouble.SLOW)
    troubled.proxy.meanwhile = meanwhile
    with pytest.raises(ConflictError):
        await troubled.store.write_shared("breaker|stock", "closed", None)


async def test_of_two_who_ask_at_once_for_a_lease_that_ended_or_never_was_one_gets_it(
    troubled: Troubled,
) -> None:
    for now in (NOW, NOW + 30 * SECOND):
        until = now + 30 * SECOND

        async def meanwhile(now: datetime = now, until: datetime = until) -> None:
            assert await troubled.rival.acquire_lease("supervisor", "two", until, now)

        troubled.proxy.points.append(Trouble.SLOW)
        troubled.proxy.meanwhile = meanwhile
        assert not await troubled.store.acquire_lease("supervisor", "one", until, now)


async def test_a_lease_lost_on_the_way_is_asked_for_again(troubled: Troubled) -> None:
    until = NOW + 30 * SECOND
    troubled.proxy.points.extend([None, Trouble.BUSY])
    assert await troubled.store.acquire_lease("supervisor", "one", until, NOW)
    assert not await troubled.rival.acquire_lease("supervisor", "two", until, NOW)
