"""What another version wrote, met by every state store: a newer format, a changed definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from azure.data.tables import UpdateMode

from devstack.azurite import Azurite
from sas.adapters.clock import SystemClock
from sas.adapters.tables.store import TableStore
from sas.bootstrap import assemble
from sas.domain.ids import shard_of
from sas.domain.workflow import Step, Workflow, Workflows
from sas.engine.context import Context
from sas.features.version_check import Versions
from sas.ports import (
    FORMAT,
    Business,
    ConflictError,
    OtherVersionError,
    StateStore,
    StoreMismatchError,
)
from sas.testing.bus import MemoryBus
from sas.testing.settings import settings
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.contract.conftest import new_table
from tests.contract.store_kit import FAR
from tests.unit.actors_kit import ScriptedAgent

STEPS = tuple(Step(f"step-{n}", agent="inventory") for n in range(3))
FIRST = Workflow("order", version=2, steps=STEPS)
CHANGED = Workflow("order", version=2, steps=(*STEPS, Step("gift-wrap", agent="inventory")))


async def test_a_changed_definition_is_refused_with_what_to_do(store: StateStore) -> None:
    order = await store.commit(cases.submitted("o"))
    for versions in (Versions(store, [FIRST]), Versions(store, [FIRST])):
        await versions.check(order)
    await Versions(store, [Workflow("other", version=1, steps=STEPS)]).check(order)
    await Versions(store, [CHANGED]).check(await store.commit(cases.rejected("r")))
    with pytest.raises(StoreMismatchError, match=r"'order' version 2 .* a version of its own"):
        await Versions(store, [CHANGED]).check(order)
    await Versions(store, [CHANGED, Workflow("order", version=3, steps=STEPS)]).check(
        replace(order, details=replace(order.details, version=3))
    )


async def become_newer(store: StateStore, order_id: str) -> None:
    """Let all rows of an order, and all shared values, be of the next format."""
    if isinstance(store, MemoryStore):
        names = [f"shared|{name}" for name in await store.shared_values("")]
        store.formats |= dict.fromkeys([order_id, *names], FORMAT + 1)
        return
    assert isinstance(store, TableStore)
    for partition in ("meta", shard_of(order_id, 16)):
        for row in await store.table.rows(partition, ("", "~")):
            newer = {**row, "Format": FORMAT + 1, "Newly": "added"}
            await store.table.client.update_entity(newer, mode=UpdateMode.REPLACE)


async def test_an_order_of_a_newer_format_is_read_by_nobody_and_not_overwritten(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("o", cause="orders:1"))
    await become_newer(store, "o")
    for reading in (
        store.load("o"),
        store.recorded("o", "orders:1"),
        store.entry("o", 1),
        store.journal("o"),
    ):
        with pytest.raises(OtherVersionError, match="left to an instance of a newer version"):
            await reading
    assert await store.due(shard_of("o", 16), FAR, 10) != []
    if isinstance(store, TableStore):  # the token of a row changes with it
        with pytest.raises(ConflictError):
            await store.commit(cases.claimed(order))
    await store.commit(cases.submitted("other"))
    assert await store.load("other") is not None


async def test_lists_skip_orders_of_a_newer_format(store: StateStore) -> None:
    await store.commit(cases.rejected("r"))
    await become_newer(store, "r")
    assert await store.finished(10) == []


async def test_a_shared_value_of_a_newer_format_is_left_alone_and_hides_no_other(
    store: StateStore,
) -> None:
    await store.write_shared("a", "1", None)
    await become_newer(store, "o")
    with pytest.raises(OtherVersionError):
        await store.read_shared("a")
    written = await store.write_shared("b", "2", None)
    assert await store.shared_values("") == {"b": written}
    with pytest.raises(ConflictError):
        await store.write_shared("a", "2", None)


def deployed(store: TableStore, workflows: Sequence[Workflow]) -> Context:
    clock, catalogue = SystemClock(), Workflows(workflows)
    business = Business(
        workflows=catalogue, agents=dict.fromkeys(catalogue.agents(), ScriptedAgent())
    )
    return assemble(
        store, MemoryBus(clock), clock=clock, business=business, settings=settings("host-1")
    ).context


async def test_a_deployment_asks_once_a_version_and_refuses_what_changed(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table())
    old = deployed(store, [FIRST])
    order = await old.commit(cases.submitted("o"))
    before = store.requests
    await old.commit(cases.submitted("o-2"))
    await old.load("o-2")
    assert store.requests - before == 2, "no order pays for it"

    new = deployed(store, [CHANGED])
    with pytest.raises(StoreMismatchError):
        await new.load("o")
    with pytest.raises(StoreMismatchError):
        await new.commit(cases.submitted("o-3"))
    assert await old.load("o-3") is None
    assert await old.load("o") == order
    await store.close()
