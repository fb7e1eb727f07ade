"""What every state store does with offloaded content: the claim check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.adapters.tables import keys
from sas.adapters.tables.store import TableStore
from sas.bounds import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, TooLargeError
from sas.domain.change import Change
from sas.domain.content import CHUNK_BYTES, PayloadRef, ref_of
from sas.domain.ids import shard_of
from sas.ports import LostContentError, StateStore, StoreUnavailableError
from sas.testing.store import MemoryStore, StoreFault
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import AZURITE, MEMORY, PAGES, Troubled
from tests.contract.proxy import Trouble
from tests.contract.store_kit import finished, left_of, loaded

ONE = cases.rules_of(1)
SMALL = b'{"lines":[]}'
WRITTEN = [Trouble.ANSWER_LOST, Trouble.BUSY_AFTERWARDS]
NOT_WRITTEN = [Trouble.BUSY, Trouble.CUT_OFF]

real = pytest.mark.parametrize("store", [AZURITE, PAGES], indirect=True)
without_pages = pytest.mark.parametrize("store", [MEMORY, AZURITE], indirect=True)


def large(size: int) -> bytes:
    """Bytes that no two chunks share."""
    return b"".join(b"%012d" % number for number in range(size // 12 + 1))[:size]


def referring(change: Change, payload: PayloadRef) -> Change:
    details = replace(change.after.details, payload=payload)
    return replace(change, after=replace(change.after, details=details))


@pytest.mark.parametrize(
    "size", [0, 1, 64 * 1024, 64 * 1024 + 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]
)
async def test_offloaded_content_comes_back_byte_for_byte(store: StateStore, size: int) -> None:
    data = large(size)
    ref = await store.put_payload("O'1 %", data)
    assert ref == ref_of(data)
    assert await store.get_payload("O'1 %", ref) == data


@without_pages
async def test_as_much_as_there_can_be_comes_back(store: StateStore) -> None:
    data = large(PAYLOAD_BYTES_MAX)
    ref = await store.put_payload("order-1", data)
    assert (ref.size, ref.chunks) == (PAYLOAD_BYTES_MAX, 6)
    assert await store.get_payload("order-1", ref) == data


async def test_more_than_there_can_be_is_refused_and_nothing_written(store: StateStore) -> None:
    assert await store.load("order-1") is None
    with pytest.raises(TooLargeError, match=r"4,194,305 bytes: at most 4,194,304"):
        await store.put_payload("order-1", b"x" * (PAYLOAD_BYTES_MAX + 1))
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


async def test_it_is_kept_before_its_order_exists_and_kept_again_without_harm(
    store: StateStore,
) -> None:
    ref = await store.put_payload("order-1", SMALL)
    assert await store.load("order-1") is None
    assert await store.put_payload("order-1", SMALL) == ref
    order = await store.commit(referring(cases.submitted("order-1"), ref))
    assert await store.load("order-1") == order
    assert order.details.payload == ref
    assert await store.get_payload("order-1", ref) == SMALL


async def test_it_is_one_orders_own(store: StateStore) -> None:
    ref = await store.put_payload("order-1", SMALL)
    for other in ("order-2", "order-10", "order-"):
        with pytest.raises(LostContentError):
            await store.get_payload(other, ref)


async def test_a_step_refers_to_its_result_and_to_another_later(store: StateStore) -> None:
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    first, second = [await store.put_payload("order-1", large(size)) for size in (60_000, 900_000)]
    order = await store.commit(cases.answered(order, 0, result=first))
    assert await store.load("order-1") == order
    assert order.steps[0].result == first
    for result in ("x" * 20_000, second, "small", first, None):
        order = await store.commit(cases.with_result(order, 0, result))
        assert await store.load("order-1") == order
        assert order.steps[0].result == result


async def test_offloaded_content_is_not_read_with_its_order(store: StateStore) -> None:
    ref = await store.put_payload("order-1", large(2 * CHUNK_BYTES))
    await store.commit(referring(cases.submitted("order-1"), ref))
    if isinstance(store, TableStore):
        before = store.table.meter.entities_read
        await store.load("order-1")
        assert store.table.meter.entities_read - before <= 6  # five rows; a page's state again


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (RESULT_BYTES_MAX + 1, "result of step step-0 has 1,048,577 bytes: at most 1,048,576"),
        (PAYLOAD_BYTES_MAX, "result of step step-0 has 4,194,304 bytes"),
    ],
)
async def test_a_result_past_the_bound_is_refused_though_it_is_offloaded(
    store: StateStore, size: int, why: str
) -> None:
    order = await store.commit(cases.claimed(await store.commit(cases.submitted("order-1"))))
    with pytest.raises(TooLargeError, match=why):
        await store.commit(cases.answered(order, 0, result=PayloadRef("0" * 64, size, 2)))
    assert await store.load("order-1") == order


async def test_with_its_order_goes_what_is_in_use_and_what_never_was(store: StateStore) -> None:
    payload = await store.put_payload("order-1", large(CHUNK_BYTES + 1))
    unused = await store.put_payload("order-1", b"what a crash left")
    order = await store.commit(referring(cases.submitted("order-1", ONE), payload))
    order = await store.commit(cases.claimed(order, ONE))
    result = await store.put_payload("order-1", large(60_000))
    order = await store.commit(cases.answered(order, 0, ONE, result=result, at=NOW + SECOND))
    assert await store.purge(order)
    for ref in (payload, unused, result):
        with pytest.raises(LostContentError):
            await store.get_payload("order-1", ref)
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


@real
async def test_a_missing_chunk_and_a_changed_chunk_are_reported(
    store: TableStore,
) -> None:
    ref = await store.put_payload("order-1", large(3 * CHUNK_BYTES))
    partition = shard_of("order-1", 16)
    middle = await store.table.get(partition, keys.payload_chunk("order-1", ref.sha256, 1))
    assert middle is not None
    await store.table.put(partition, {**middle, "Data03": b"changed by hand"})
    with pytest.raises(LostContentError, match="bytes do not match the reference"):
        await store.get_payload("order-1", ref)
    await store.table.delete(partition, middle["RowKey"])
    with pytest.raises(LostContentError, match="chunk 1 of 3 is missing"):
        await store.get_payload("order-1", ref)
    assert await store.put_payload("order-1", large(3 * CHUNK_BYTES)) == ref
    assert await store.get_payload("order-1", ref) == large(3 * CHUNK_BYTES)


async def test_the_twin_reports_changed_content_too() -> None:
    store = MemoryStore()
    ref = await store.put_payload("order-1", SMALL)
    store.payloads["order-1"][ref.sha256] = b"changed"
    with pytest.raises(LostContentError):
        await store.get_payload("order-1", ref)
    store.fail_next("put_payload", StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await store.put_payload("order-1", SMALL)
    assert await store.get_payload("order-1", ref) == SMALL


@pytest.mark.parametrize("trouble", [*WRITTEN, *NOT_WRITTEN])
async def test_a_payload_is_written_whole_under_every_fault_of_network_and_service(
    troubled: Troubled, trouble: Trouble
) -> None:
    data = large(2 * CHUNK_BYTES + 1)
    troubled.proxy.points.extend([trouble, None, trouble, trouble])
    ref = await troubled.store.put_payload("order-1", data)
    assert await troubled.rival.get_payload("order-1", ref) == data


@pytest.mark.parametrize("trouble", [*WRITTEN, *NOT_WRITTEN])
async def test_a_payload_is_read_under_every_fault_of_network_and_service(
    troubled: Troubled, trouble: Trouble
) -> None:
    ref = await troubled.rival.put_payload("order-1", large(70_000))
    troubled.proxy.queries.extend([trouble, trouble])
    assert await troubled.store.get_payload("order-1", ref) == large(70_000)


async def test_a_store_that_stays_busy_half_way_keeps_nothing_that_counts(
    troubled: Troubled,
) -> None:
    troubled.proxy.points.extend([None, *[Trouble.BUSY] * 3])
    with pytest.raises(StoreUnavailableError):
        await troubled.store.put_payload("order-1", large(2 * CHUNK_BYTES))
    with pytest.raises(LostContentError, match="chunk 1 of 2 is missing"):
        await troubled.rival.get_payload("order-1", ref_of(large(2 * CHUNK_BYTES)))
    order = await finished(troubled.rival)
    assert await troubled.rival.purge(order)
    assert await left_of(troubled.rival, "order-1") == []


async def test_the_largest_order_there_can_be_goes_in_one_transaction_after_what_it_does_not_need(
    troubled: Troubled,
) -> None:
    """The chunks are not written: what counts is how many rows the last transaction has."""
    store = troubled.rival
    rules = cases.rules_of(30, parallel=True)
    partition = shard_of("order-1", 16)

    async def pretended(sha256: str, size: int, chunks: int) -> PayloadRef:
        for number in range(chunks):
            row = {"RowKey": keys.payload_chunk("order-1", sha256, number), "Data00": b"x"}
            await store.table.put(partition, row)
        return PayloadRef(sha256, size, chunks)

    payload = await pretended(ref_of(b"payload").sha256, PAYLOAD_BYTES_MAX, 6)
    order = await store.commit(referring(cases.submitted("order-1", rules), payload))
    order = await store.commit(cases.claimed(order, rules))
    for step in range(30):
        result = await pretended(ref_of(b"%d" % step).sha256, RESULT_BYTES_MAX, 2)
        order = await store.commit(cases.answered(order, step, rules, result=result))
        await store.keep_error("order-1", step, cases.attempt_error("busy"))
    rows = await left_of(store, "order-1")
    past = ("|b|", "|c|", "|error")
    last = {row for row in rows if not any(part in row for part in past)}
    assert len(last) == 99
    await pretended("f" * 64, 9, 2)  # it sorts behind all that the order refers to
    troubled.proxy.batches.extend([None, Trouble.CUT_OFF])
    with pytest.raises(StoreUnavailableError):
        await troubled.store.purge(await loaded(store, "order-1"))
    assert not troubled.proxy.batches
    assert last <= {*await left_of(store, "order-1")}
    assert await store.purge(await loaded(store, "order-1"))
    assert await left_of(store, "order-1") == []
