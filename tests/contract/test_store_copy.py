"""The copy that chaos runs reconcile: what is read of it is what the table holds."""

from __future__ import annotations

from samples.chaos.books import copy_of
from sas.adapters.table_store import TableStore
from tests.contract import cases
from tests.contract.conftest import Troubled
from tests.contract.test_store_purge import finished, neighbours


async def test_a_copy_reads_each_order_and_journal_as_its_table_does(troubled: Troubled) -> None:
    store: TableStore = troubled.store
    names = [*neighbours(3), "elsewhere"]
    for extra, name in enumerate(names):
        await finished(store, name, extra=extra)
    await store.commit(cases.submitted("open"))
    copy = await copy_of(store)
    for name in [*names, "open"]:
        assert (order := await copy.load(name)) is not None
        assert order == await store.load(name)
        assert (journal := await copy.journal(name))
        assert journal == await store.journal(name)
    assert await copy.load("nobody") is None
    before = store.requests
    assert await copy.load("open") is not None
    assert store.requests == before
