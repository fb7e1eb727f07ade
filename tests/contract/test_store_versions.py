"""A changed definition under an old version, met by every state store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from devstack.azurite import Azurite
from sas.adapters.clock import SystemClock
from sas.adapters.table_store import TableStore
from sas.domain.queues import Queues
from sas.domain.workflow import Step, Workflow
from sas.engine.context import Context
from sas.engine.messages import Addresses
from sas.features.version_check import Versions
from sas.ports import StateStore, StoreMismatchError
from sas.testing.bus import MemoryBus
from tests.contract import cases
from tests.contract.conftest import new_table

STEPS = tuple(Step(f"step-{n}", agent="inventory") for n in range(3))
FIRST = Workflow("order", 2, STEPS)
CHANGED = Workflow("order", 2, (*STEPS, Step("gift-wrap", agent="inventory")))


async def test_the_first_use_is_remembered_and_the_same_definition_goes_on(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("o"))
    for versions in (Versions(store, [FIRST]), Versions(store, [FIRST])):
        await versions.check(order)


async def test_a_changed_definition_is_refused_with_what_to_do(store: StateStore) -> None:
    order = await store.commit(cases.submitted("o"))
    await Versions(store, [FIRST]).check(order)
    with pytest.raises(StoreMismatchError, match=r"'order' version 2 .* a version of its own"):
        await Versions(store, [CHANGED]).check(order)
    await Versions(store, [CHANGED, Workflow("order", 3, STEPS)]).check(
        replace(order, details=replace(order.details, version=3))
    )


async def test_a_rejected_order_and_an_unknown_workflow_pass_the_check(
    store: StateStore,
) -> None:
    order = await store.commit(cases.submitted("o"))
    await Versions(store, [FIRST]).check(order)
    await Versions(store, [Workflow("other", 1, STEPS)]).check(order)
    await Versions(store, [CHANGED]).check(await store.commit(cases.rejected("r")))


def deployed(store: TableStore, workflows: Sequence[Workflow]) -> Context:
    clock = SystemClock()
    context = Context.of(store, MemoryBus(clock), clock, Addresses(Queues(), "/test"), "host-1")
    return replace(context, versions=Versions(store, workflows))


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
