"""One suite, several adapters: in memory, over Azurite, over Azurite in small and empty pages.

What reads lists plays over small pages (``paged``). All else plays over Azurite as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from devstack.azurite import Azurite
from sas.adapters.tables.store import TableStore
from sas.adapters.tables.table import RetryBudget
from sas.ports import StateStore
from sas.testing.store import MemoryStore
from tests.contract.proxy import FaultyProxy


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with Azurite() as running:
        yield running


def new_table() -> str:
    return f"t{uuid.uuid4().hex}"


MEMORY, AZURITE, PAGES = "memory", "azurite", "azurite in small and empty pages"


paged = pytest.mark.parametrize("store", [MEMORY, PAGES], indirect=True)


@pytest.fixture(params=[MEMORY, AZURITE])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StateStore]:
    if request.param == MEMORY:
        yield MemoryStore()
        return
    running: Azurite = request.getfixturevalue("azurite")
    if request.param == AZURITE:
        table = TableStore.connect(running.connection_string, new_table())
        yield table
        await table.close()
        return
    async with FaultyProxy(running.connection_string) as proxy:
        proxy.page_size, proxy.empty_pages = 2, 1
        table = TableStore.connect(proxy.connection_string, new_table())
        yield table
        await table.close()


@dataclass(frozen=True, kw_only=True)
class Troubled:
    """A store behind a proxy that misbehaves, and a rival on the same table without one."""

    proxy: FaultyProxy
    store: TableStore
    rival: TableStore
    table: str


@pytest.fixture
async def troubled(azurite: Azurite) -> AsyncIterator[Troubled]:
    async with FaultyProxy(azurite.connection_string) as proxy:
        table = new_table()
        retry_budget = RetryBudget(attempts=3, wait_s=0.01)
        store = TableStore.connect(proxy.connection_string, table, retry_budget=retry_budget)
        rival = TableStore.connect(azurite.connection_string, table)
        await store.open()
        await rival.open()
        yield Troubled(proxy=proxy, store=store, rival=rival, table=table)
        await store.close()
        await rival.close()
