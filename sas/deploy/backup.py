"""A file with all rows of the state store, and the way back: ``sas azd export`` and ``restore``.

The file is JSON Lines, compressed with gzip: first a line about the export, then one row a line
with the types of its values, and last the number of rows, which shows that the file is whole. It
holds what the orders hold, so only its owner may read it.

``sas.adapters.tables.copies`` says which rows fit together, and what a restore changes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec

from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import copies
from sas.adapters.tables.rows import Entity
from sas.adapters.tables.store import NoStoreError, TableStore, connect_existing
from sas.adapters.tables.table import RetryBudget
from sas.domain.ids import all_shards, key_time, parse_key_time
from sas.operate.errors import NotPossibleError

FILE_FORMAT = 1
ROWS_A_REPORT = 10_000
PATIENCE = RetryBudget(attempts=1000, wait_max_s=10.0, total_s=300.0)
"""A restore is the only work of its account, and Azure spreads new partitions only under load."""

Tell = Callable[[str], None]


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The first line. ``at`` is when the export began, ``id`` names it."""

    format: int
    table: str
    shards: int
    at: str
    id: str


async def export(endpoint: Endpoint, table: str, path: Path, tell: Tell) -> None:
    """Write all rows of a table into a file. The file has its name only when it is whole.

    Raises:
        NotPossibleError: there is no such table, or the file cannot be written.
        StoreUnavailableError: no answer, or no right to read.
    """
    try:
        store = await connect_existing(endpoint, table)
    except NoStoreError as error:
        raise NotPossibleError(str(error)) from None
    part = path.with_name(f"{path.name}.part")
    header = Header(
        format=FILE_FORMAT,
        table=table,
        shards=len(store.shards),
        at=key_time(datetime.now(UTC)),
        id=uuid4().hex,
    )
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600, exist_ok=False)  # another user may make one, to read it
        with gzip.open(part, "wb", compresslevel=6) as file:
            file.write(_line(header))
            count = 0
            async for row in copies.rows_of(store):
                file.write(_line(row))
                count += 1
                if count % ROWS_A_REPORT == 0:
                    tell(f"{count:,} rows, partition {row['PartitionKey']}")
            file.write(_line({"Rows": count}))
        part.replace(path)
    except OSError as error:
        raise NotPossibleError(f"{path} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)
        await store.close()
    tell(f"{path} has all {count:,} rows of table {table}")


async def restore(endpoint: Endpoint, table: str, path: Path, tell: Tell) -> None:
    """Write the rows of a file into an empty table.

    After an interruption, the same call goes on.

    Raises:
        NotPossibleError: the file is not whole, or the table is not empty.
        StoreUnavailableError: no answer, or no right to write.
    """
    header, count = _checked(path)
    tell(f"{path} is whole: {count:,} rows of table {header.table}, exported at {header.at}")
    shards = all_shards(header.shards)
    store = TableStore.connect(endpoint, table, header.shards, retry_budget=PATIENCE)
    reported = 0
    try:
        async for written in copies.restore(
            store.table, _rows(path), name=header.id, at=parse_key_time(header.at), shards=shards
        ):
            if written - reported >= ROWS_A_REPORT:
                reported = written
                tell(f"{written:,} rows")
    except copies.TableNotEmptyError as error:
        raise NotPossibleError(str(error)) from None
    finally:
        await store.close()
    tell(f"Table {table} is restored: start the app")


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _checked(path: Path) -> tuple[Header, int]:
    """Read a file once; return its header and its number of rows.

    Raises:
        NotPossibleError: it is no export, not whole, or of a later version.
    """
    try:
        with gzip.open(path) as file:
            header = msgspec.json.decode(next(file), type=Header)
            count, last = -1, b""
            for line in file:
                count, last = count + 1, line
        is_whole = msgspec.json.decode(last) == {"Rows": count}
    except (OSError, EOFError, zlib.error, StopIteration, msgspec.DecodeError) as error:
        raise NotPossibleError(f"{path} is not a whole export: {error}") from None
    if not is_whole:
        raise NotPossibleError(f"{path} is not a whole export: its end is missing")
    if header.format != FILE_FORMAT:
        raise NotPossibleError(f"{path} has format {header.format}: use the version that wrote it")
    return header, count


def _rows(path: Path) -> Iterator[Entity]:
    with gzip.open(path) as file:
        next(file)
        for line in file:
            row = msgspec.json.decode(line)
            if "RowKey" in row:
                yield row
