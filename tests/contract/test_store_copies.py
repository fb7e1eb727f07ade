"""An export has every row as it is, and a restore makes a table of it that the app works on."""

from __future__ import annotations

import gzip
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.data.tables import EdmType, EntityProperty
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import copies, keys
from sas.adapters.tables.copies import SEQ_GAP, restored
from sas.adapters.tables.rows import Entity
from sas.adapters.tables.store import TableStore, connect_existing
from sas.deploy import backup
from sas.domain.change import OutDue, StepDue, due_rows
from sas.domain.ids import shard_of
from sas.operate.errors import NotPossibleError
from sas.ports import FORMAT, HeldMessage, Message, StoreMismatchError, StoreUnavailableError
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.contract.conftest import new_table
from tests.contract.proxy import FaultyProxy, Trouble

ONE = cases.rules_of(1)


def quiet(_: str) -> None:
    """Print nothing."""


async def exported(connection: str, table: str, path: Path) -> list[dict[str, Any]]:
    """Export a table into a file; return the lines between the first and the last."""
    await backup.export(Endpoint(connection), table, path, quiet)
    with gzip.open(path) as file:
        lines = [json.loads(line) for line in file]
    assert lines[-1] == {"Rows": len(lines) - 2}
    return lines[1:-1]


async def restored_store(connection: str, table: str, path: Path) -> TableStore:
    await backup.restore(Endpoint(connection), table, path, quiet)
    return await connect_existing(Endpoint(connection), table)


async def filled(store: TableStore) -> None:
    """Orders in every state, with content of their own, messages to send and shared values."""
    running = await store.commit(cases.submitted("O'run %é"))
    running = await store.commit(cases.claimed(running))
    await store.keep_error("O'run %é", 0, cases.attempt_error())
    done = await store.commit(cases.submitted("done", ONE))
    done = await store.commit(cases.claimed(done, ONE))
    await store.commit(cases.answered(done, 0, ONE))
    failed = await store.commit(cases.submitted("failed", ONE))
    failed = await store.commit(cases.claimed(failed, ONE))
    await store.commit(cases.refused(failed, 0, ONE))
    undone = await store.commit(cases.submitted("undone"))
    undone = await store.commit(cases.claimed(undone))
    await store.commit(cases.undone(undone, out_at=NOW + 30 * SECOND))
    await store.commit(cases.rejected("rejected"))
    late = cases.with_deadline(cases.submitted("late"), NOW + 3600 * SECOND)
    await store.commit(late)
    await store.put_payload("done", b"\x00content" * 300_000)
    message = Message("responses-shop", "late/1/0", b"\x00\xff")
    await store.hold(HeldMessage(message=message, since=NOW, order_id="late"))
    await store.write_shared("circuit|stock", "open", None)
    await store.acquire_lease("supervisor", "me", NOW + SECOND, NOW)


async def test_what_was_restored_is_what_was_exported(azurite: Azurite, tmp_path: Path) -> None:
    where, table = azurite.connection_string, new_table()
    store = TableStore.connect(where, table, 4)
    await filled(store)
    ids = ["O'run %é", "done", "failed", "undone", "rejected", "late"]
    before = [await store.load(order_id) for order_id in ids]
    rows = await exported(where, table, tmp_path / "a.gz")
    copy = await restored_store(where, new_table(), tmp_path / "a.gz")
    after = [await copy.load(order_id) for order_id in ids]
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert new.seq == old.seq + SEQ_GAP
        assert (new.details, new.steps, new.stopped_at) == (old.details, old.steps, old.stopped_at)
        assert await copy.journal(new.order_id) == await store.journal(new.order_id)
    assert (await copy.read_shared("circuit|stock")).value == "open"  # type: ignore[union-attr]
    await copy.close()
    again = await exported(where, copy.table.client.table_name, tmp_path / "b.gz")
    for row in rows:
        if row["RowKey"].endswith("|a|state"):
            row["Seq"] += SEQ_GAP
    without_leases = [row for row in rows if not row["RowKey"].startswith("lease")]
    assert by_key(again) == by_key(without_leases)
    await store.close()


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["PartitionKey"], row["RowKey"]): row for row in rows}


async def test_every_type_of_a_value_is_kept_to_its_last_digit(
    azurite: Azurite, tmp_path: Path
) -> None:
    where, table, other = azurite.connection_string, new_table(), new_table()
    store = TableStore.connect(where, table, 1)
    await store.open()
    await store.close()
    values: dict[str, Any] = {
        "Int64": EntityProperty(2**62 + 1, EdmType.INT64),
        "Moment": EntityProperty("2026-11-26T20:45:01.1234567Z", EdmType.DATETIME),
        "Guid": UUID(int=7),
        "Half": 0.1,
        "Whole": 3.0,
        "Number": 3,
        "Flag": False,
        "Bytes": b"\x00\xff",
        "Text": "'é\n{}😀",
        "NoText": "",
    }
    row = {"PartitionKey": "00", "RowKey": "by|hand", **values}
    async with TableClient.from_connection_string(where, table) as client:
        await client.create_entity(row)
        written = await client.get_entity("00", "by|hand")
    await exported(where, table, tmp_path / "a.gz")
    await (await restored_store(where, other, tmp_path / "a.gz")).close()
    async with TableClient.from_connection_string(where, other) as client:
        copy = await client.get_entity("00", "by|hand")
    assert dict(copy) == {**written, "Format": FORMAT}
    assert repr(copy["Moment"]) == repr(written["Moment"])
    assert copy["Moment"].tables_service_value == "2026-11-26T20:45:01.1234567Z"


async def test_an_order_that_changes_while_it_is_read_is_exported_whole(
    azurite: Azurite, tmp_path: Path
) -> None:
    """Its rows fill several pages, and a commit falls between two of them."""
    table = new_table()
    async with FaultyProxy(azurite.connection_string) as proxy:
        rival = TableStore.connect(azurite.connection_string, table, 1)
        order = await rival.commit(cases.submitted("o"))
        proxy.page_size, proxy.empty_pages = 3, 1

        async def change() -> None:
            await rival.commit(cases.claimed(order))

        proxy.meanwhile = change
        proxy.queries.extend([None] * 14 + [Trouble.SLOW])
        rows = await exported(proxy.connection_string, table, tmp_path / "a.gz")
        await rival.close()
    copy = await restored_store(azurite.connection_string, new_table(), tmp_path / "a.gz")
    seqs = [row["Seq"] for row in rows if row["RowKey"] == keys.state("o")]
    assert seqs == [2]
    assert [entry.seq for entry in await copy.journal("o")] == [1, 2]
    claimed = await copy.load("o")
    assert claimed is not None
    assert claimed.steps[0].locked_by == "scheduler-1"
    assert set(await copy.due("00", NOW + timedelta(days=1), 10)) == due_rows(claimed)
    await copy.close()


async def test_many_orders_in_small_pages_are_all_exported_once(
    azurite: Azurite, tmp_path: Path
) -> None:
    table = new_table()
    store = TableStore.connect(azurite.connection_string, table, 2)
    for number in range(7):
        await store.commit(cases.submitted(f"o{number}", ONE))
    await store.close()
    large = by_key(await exported(azurite.connection_string, table, tmp_path / "a.gz"))
    async with FaultyProxy(azurite.connection_string) as proxy:
        proxy.page_size, proxy.empty_pages = 6, 1
        proxy.queries.extend([None, Trouble.BUSY, Trouble.CUT_OFF])
        rows = await exported(proxy.connection_string, table, tmp_path / "b.gz")
    assert len(rows) == len(large)
    assert by_key(rows) == large


async def orders_rows(azurite: Azurite, tmp_path: Path, *order_ids: str) -> list[Entity]:
    table = new_table()
    store = TableStore.connect(azurite.connection_string, table, 1)
    for order_id in order_ids:
        order = await store.commit(cases.submitted(order_id))
        await store.commit(cases.undone(order, out_at=NOW + 30 * SECOND))
    await store.keep_error("purged", 0, cases.attempt_error())
    await store.close()
    return await exported(azurite.connection_string, table, tmp_path / "rows.gz")


def index_keys(rows: list[Entity]) -> set[str]:
    return {row["RowKey"] for row in rows if row["RowKey"].startswith(("due", "attention", "done"))}


async def test_index_rows_that_contradict_their_orders_are_made_again(
    azurite: Azurite, tmp_path: Path
) -> None:
    """The export read the index rows of another moment."""
    rows = await orders_rows(azurite, tmp_path, "o")
    right = index_keys(list(restored(map(dict, rows), NOW)))
    assert keys.due(OutDue(NOW + 30 * SECOND, "o", 2)) in right
    torn = [row for row in rows if not row["RowKey"].startswith(("attention", "done"))]
    stale = keys.due(StepDue(at=NOW, order_id="o", step=0, epoch=7))
    torn += [
        {"PartitionKey": "00", "RowKey": stale},
        {"PartitionKey": "00", "RowKey": keys.stopped("done", NOW + SECOND, "o")},
    ]
    assert index_keys(list(restored(torn, NOW))) == right


async def test_an_order_that_cannot_be_read_is_found_by_the_supervisor(
    azurite: Azurite, tmp_path: Path
) -> None:
    rows = await orders_rows(azurite, tmp_path, "broken", "whole")
    broken = [row for row in rows if row["RowKey"] != keys.details("broken")]
    due = keys.due(StepDue(at=NOW, order_id="broken", step=0, epoch=0))
    assert due in index_keys(list(restored(broken, NOW)))
    assert due not in index_keys(list(restored(rows, NOW)))
    assert not [key for key in index_keys(list(restored(rows, NOW))) if "purged" in key]


async def test_a_restore_goes_on_after_an_interruption_and_no_app_works_before_its_end(
    azurite: Azurite, tmp_path: Path
) -> None:
    where, table, other = azurite.connection_string, new_table(), new_table()
    store = TableStore.connect(where, table, 4)
    await filled(store)
    await store.close()
    path = tmp_path / "a.gz"
    await exported(where, table, path)
    async with FaultyProxy(where) as proxy:
        patient = backup.PATIENCE
        proxy.batches.extend([None, None] + [Trouble.BUSY] * 50)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backup, "PATIENCE", type(patient)(attempts=2, wait_s=0.01))
            with pytest.raises(StoreUnavailableError):
                await backup.restore(Endpoint(proxy.connection_string), other, path, quiet)
    app = TableStore.connect(where, other, 4)
    with pytest.raises(StoreMismatchError, match="being restored: run `sas azd restore`"):
        await app.load("done")
    await app.close()
    with pytest.raises(NotPossibleError, match="being restored"):
        await backup.export(Endpoint(where), other, tmp_path / "b.gz", quiet)
    await exported(where, table, tmp_path / "later.gz")
    with pytest.raises(NotPossibleError, match="not empty"):
        await backup.restore(Endpoint(where), other, tmp_path / "later.gz", quiet)
    copy = await restored_store(where, other, path)
    assert {s.order_id for s in await copy.finished(10)} == {"done", "rejected"}
    assert {s.order_id for s in await copy.attention(10)} == {"failed"}
    await copy.close()
    with pytest.raises(NotPossibleError, match="not empty"):
        await backup.restore(Endpoint(where), other, path, quiet)


async def test_a_table_with_orders_is_left_alone(azurite: Azurite, tmp_path: Path) -> None:
    where, table = azurite.connection_string, new_table()
    store = TableStore.connect(where, table, 1)
    await store.commit(cases.submitted("o"))
    await exported(where, table, tmp_path / "a.gz")
    await store.commit(cases.submitted("younger"))
    with pytest.raises(NotPossibleError, match="not empty, and nothing was written"):
        await backup.restore(Endpoint(where), table, tmp_path / "a.gz", quiet)
    order = await store.load("o")
    assert order is not None
    assert order.seq == 1
    await store.close()


async def test_a_file_that_is_not_whole_is_refused_before_anything_is_written(
    azurite: Azurite, tmp_path: Path
) -> None:
    where, table = azurite.connection_string, new_table()
    store = TableStore.connect(where, table, 1)
    await store.commit(cases.submitted("o"))
    await store.close()
    path = tmp_path / "a.gz"
    rows = await exported(where, table, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.with_name("a.gz.part").exists()
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    header = json.loads(lines[0])
    assert (header["Format"], header["Table"], header["Shards"]) == (1, table, 1)
    assert datetime.fromisoformat(header["At"]) <= datetime.now(UTC)
    newer = json.dumps(header | {"Format": 2}).encode() + b"\n"
    contents = {
        "cut": path.read_bytes()[:-20],
        "without-end": gzip.compress(b"".join(lines[:-1])),
        "one-row-less": gzip.compress(b"".join(lines[:3] + lines[4:])),
        "newer": gzip.compress(newer + b"".join(lines[1:])),
        "text": b"no gzip",
        "empty": gzip.compress(b""),
    }
    assert len(rows) > 3
    for name, content in contents.items():
        bad = tmp_path / name
        bad.write_bytes(content)
        sentence = "use the version that wrote it" if name == "newer" else "not a whole export"
        with pytest.raises(NotPossibleError, match=sentence):
            await backup.restore(Endpoint(where), "never", bad, quiet)
    with pytest.raises(NotPossibleError, match="there is no table 'never'"):
        await backup.export(Endpoint(where), "never", path, quiet)


async def test_rows_are_written_in_transactions_that_azure_takes(azurite: Azurite) -> None:
    store = TableStore.connect(azurite.connection_string, new_table(), 1)
    await store.open()
    rows = [
        {"PartitionKey": "00", "RowKey": f"order|o|d|payload|{n:03d}", "Data00": b"x" * 60_000}
        for n in range(150)
    ]
    sizes = [len(batch) for _, batch in copies._transactions(rows)]
    assert sum(sizes) == 150
    assert max(sizes) < 60
    small = [{"PartitionKey": "00", "RowKey": f"shared|{n:03d}"} for n in range(250)]
    assert [len(batch) for _, batch in copies._transactions(small)] == [100, 100, 50]
    assert shard_of("o", 1) == "00"
    await store.close()
