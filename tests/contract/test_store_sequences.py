"""The store on Table Storage, played as a sequence through a proxy: see store_machine.py."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from devstack.azurite import Azurite
from sas.adapters.tables.store import TableStore
from sas.adapters.tables.table import RetryBudget
from sas.ports import StateStore
from tests.contract.conftest import new_table
from tests.contract.proxy import FaultyProxy, Trouble
from tests.contract.store_machine import SHARDS, StoreMachine


class TableStoreMachine(StoreMachine):
    """Every answer that is lost is found again by the store itself."""

    compares_each_step = False  # some thirty requests
    where: str
    proxy: FaultyProxy

    async def closed(self) -> None:
        await super().closed()
        await self.proxy.__aexit__(None, None, None)

    async def connect(self) -> StateStore:
        self.proxy = FaultyProxy(self.where)
        await self.proxy.__aenter__()
        self.proxy.page_size, self.proxy.empty_pages = 5, 1
        budget = RetryBudget(attempts=3, wait_s=0.01)
        where = self.proxy.connection_string
        return TableStore.connect(where, new_table(), SHARDS, retry_budget=budget)

    def lose_answer(self) -> None:
        self.proxy.batches.append(Trouble.ANSWER_LOST)

    def teardown(self) -> None:
        super().teardown()


def test_the_store_on_table_storage_behaves_as_its_model(azurite: Azurite) -> None:
    TableStoreMachine.where = azurite.connection_string
    run_state_machine_as_test(
        TableStoreMachine, settings=settings(max_examples=5, stateful_step_count=20)
    )
