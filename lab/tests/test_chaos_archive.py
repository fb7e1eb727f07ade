"""The archive of a chaos run returns the orders and journals that the table had."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from devstack.azurite import Azurite
from lab.chaos.archive import Archive
from sas.adapters.table_store import TableStore
from sas.domain.ids import message_id
from sas.domain.messages import Notify
from tests.contract import cases
from tests.contract.test_store_purge import finished, left_of, neighbours


@pytest.fixture
async def store() -> AsyncIterator[TableStore]:
    with Azurite() as azurite:
        store = TableStore.connect(azurite.connection_string)
        yield store
        await store.close()


async def test_an_archive_reads_each_order_and_journal_as_the_table_did(
    store: TableStore,
) -> None:
    names = [*neighbours(3), "elsewhere"]
    for extra, name in enumerate(names):
        await finished(store, name, extra=extra)
    await store.commit(cases.submitted("open"))
    names.append("open")
    expected = {name: (await store.load(name), await store.journal(name)) for name in names}
    archive = Archive(store)
    await archive.read()
    before = store.requests
    for name in names:
        assert expected[name] == (await archive.store.load(name), await archive.store.journal(name))
    assert await archive.store.load("nobody") is None
    assert store.requests - before <= 1  # to read the number of shards


async def test_an_order_is_moved_once_it_is_finished_and_its_application_is_notified(
    store: TableStore,
) -> None:
    order = await finished(store, "done")
    journal = await store.journal("done")
    seen = {
        message_id("done", entry.seq, index)
        for entry in journal
        for index, message in enumerate(entry.messages)
        if isinstance(message, Notify)
    }
    assert seen
    await store.commit(cases.submitted("open"))
    archive = Archive(store)
    assert not await archive.move("open", seen)
    assert not await archive.move("nobody", seen)
    assert not await archive.move("done", seen - {min(seen)})
    assert await store.load("done") == order
    assert await archive.move("done", seen)
    assert await left_of(store, "done") == []
    await archive.read()
    assert await archive.store.load("done") == order
    assert await archive.store.journal("done") == journal
    assert await archive.store.load("open") == await store.load("open")
