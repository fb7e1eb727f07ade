"""A changed definition under an old version, met by every state store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from devstack.azurite import Azurite
from sas.domain.workflow import Step, Workflow
from sas.features.version_check import VersionedStore, Versions
from sas.ports import StateStore, StoreMismatchError
from tests.contract import cases
from tests.contract.conftest import new_table

STEPS = tuple(Step(f"step-{n}", agent="inventory") for n in range(3))
FIRST = Workflow("order", 2, STEPS)
CHANGED = Workflow("order", 2, (*STEPS, Step("gift-wrap", agent="inventory")))


async def test_the_first_use_is_remembered_and_the_same_definition_goes_on(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("o"))
    for versions in (Versions([FIRST]), Versions([FIRST])):
        await versions.check(store, order)


async def test_a_changed_definition_is_refused_with_what_to_do(store: StateStore) -> None:
    order = await store.commit(cases.submitted("o"))
    await Versions([FIRST]).check(store, order)
    with pytest.raises(StoreMismatchError, match=r"'order' version 2 .* a version of its own"):
        await Versions([CHANGED]).check(store, order)
    await Versions([CHANGED, Workflow("order", 3, STEPS)]).check(
        store, replace(order, details=replace(order.details, version=3))
    )


async def test_a_rejected_order_and_an_unknown_workflow_are_no_matter_of_it(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("o"))
    await Versions([FIRST]).check(store, order)
    await Versions([Workflow("other", 1, STEPS)]).check(store, order)
    await Versions([CHANGED]).check(store, await store.commit(cases.rejected("r")))


async def deployed(azurite: Azurite, table: str, workflows: Sequence[Workflow]) -> VersionedStore:
    store = VersionedStore.connect(azurite.connection_string, table)
    store.versions = Versions(workflows)
    return store


async def test_a_deployment_asks_once_a_version_and_refuses_what_changed(azurite: Azurite) -> None:
    table = new_table()
    old = await deployed(azurite, table, [FIRST])
    order = await old.commit(cases.submitted("o"))
    before = old.requests
    await old.commit(cases.submitted("o-2"))
    await old.load("o-2")
    assert old.requests - before == 2, "no order pays for it"

    new = await deployed(azurite, table, [CHANGED])
    with pytest.raises(StoreMismatchError):
        await new.load("o")
    with pytest.raises(StoreMismatchError):
        await new.commit(cases.submitted("o-3"))
    assert await old.load("o-3") is None
    assert await old.load("o") == order
    await old.close()
    await new.close()
