"""What every state store does with the last error of a step's attempts."""

from __future__ import annotations

from devstack.azurite import Azurite
from sas.adapters.tables.store import TableStore
from sas.domain.order import AttemptError
from sas.ports import StateStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND, attempt_error
from tests.contract.conftest import new_table
from tests.contract.test_store_purge import finished, left_of


async def kept(store: StateStore, order_id: str = "order-1") -> list[AttemptError | None]:
    order = await store.load(order_id)
    assert order is not None
    return [step.last_error for step in order.steps]


async def test_the_last_error_of_a_step_is_loaded_with_it_in_place_of_the_one_before(
    store: StateStore,
) -> None:
    await store.commit(cases.submitted("order-1"))
    assert await kept(store) == [None, None, None]
    await store.keep_error("order-1", 1, attempt_error())
    second = attempt_error("half a character 😀, and a line\n", attempt=4)
    await store.keep_error("order-1", 1, second)
    assert await kept(store) == [None, second, None]


async def test_an_error_changes_no_token_and_no_commit_writes_it(store: StateStore) -> None:
    order = await store.commit(cases.submitted("order-1"))
    await store.keep_error("order-1", 0, attempt_error())
    order = await store.commit(cases.claimed(order))
    loaded = await store.load("order-1")
    assert loaded == order
    await store.keep_error("order-1", 0, attempt_error("another"))
    assert loaded is not None
    await store.commit(cases.answered(loaded, 0))
    assert await kept(store) == [attempt_error("another"), None, None]


async def test_a_load_with_errors_is_one_request(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table())
    await store.commit(cases.submitted("order-1"))
    for number in range(3):
        await store.keep_error("order-1", number, attempt_error())
    before = store.requests
    assert await kept(store) == [attempt_error()] * 3
    assert store.requests == before + 1
    await store.close()


async def test_a_removed_order_leaves_no_error(store: StateStore) -> None:
    order = await finished(store)
    await store.keep_error("order-1", 0, attempt_error())
    assert await store.purge(order)
    assert await store.load("order-1") is None
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


async def test_an_order_of_thirty_steps_with_errors_is_removed_whole(store: StateStore) -> None:
    rules = cases.rules_of(30, parallel=True)
    order = await store.commit(cases.submitted("order-1", rules))
    order = await store.commit(cases.claimed(order, rules))
    for number in range(30):
        order = await store.commit(cases.answered(order, number, rules, result='"' + "x" * 20_000))
        await store.keep_error("order-1", number, attempt_error())
    assert await store.purge(order)
    if isinstance(store, TableStore):
        assert await left_of(store, "order-1") == []


async def test_an_error_written_after_its_order_was_removed_makes_no_order_and_joins_no_later_one(
    store: StateStore,
) -> None:
    await store.keep_error("order-1", 0, attempt_error())
    assert await store.load("order-1") is None
    await store.commit(cases.submitted("order-1", at=NOW))
    await store.keep_error("order-2", 0, attempt_error(at=NOW - SECOND))
    await store.commit(cases.submitted("order-2"))
    assert await kept(store, "order-2") == [None, None, None]
