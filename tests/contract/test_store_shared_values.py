"""Named values that all instances share: one writer wins, the others get a conflict."""

from __future__ import annotations

import asyncio

import pytest

from sas.ports import ConflictError, SharedValue, StateStore


async def test_a_shared_value_is_none_until_it_is_written_and_then_what_was_written(
    store: StateStore,
) -> None:
    assert await store.read_shared("breaker|payment") is None
    written = await store.write_shared("breaker|payment", '{"a": "ä"}', None)
    assert await store.read_shared("breaker|payment") == written
    assert written.value == '{"a": "ä"}'
    assert await store.read_shared("breaker|stock") is None


async def test_a_shared_value_changes_only_under_the_token_that_was_read(store: StateStore) -> None:
    first = await store.write_shared("c", "1", None)
    with pytest.raises(ConflictError):
        await store.write_shared("c", "other", None)
    second = await store.write_shared("c", "2", first.token)
    with pytest.raises(ConflictError):
        await store.write_shared("c", "3", first.token)
    assert await store.read_shared("c") == second


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
