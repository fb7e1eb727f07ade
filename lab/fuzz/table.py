"""A table in memory in place of Table Storage, with its ETags, transactions and refusals.

``TableStore`` writes its real rows to it. A copy of the table takes microseconds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from azure.data.tables import EntityProperty, TableEntity
from azure.data.tables.aio import TableClient

from sas.adapters.tables.operations import Operation
from sas.adapters.tables.rows import Entity, stored
from sas.adapters.tables.table import Meter, RefusedTransactionError, RetryBudget, Table

Rows = dict[tuple[str, str], TableEntity]
"""Rows by partition and row key. A row is replaced as a whole, never changed."""
_FORBIDDEN = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TEXT_UNITS_MAX = 32 * 1024
_numbers = itertools.count(1)


class MemoryTable(Table):
    """Rows in memory. A value that Table Storage would not take raises ValueError."""

    def __init__(self, rows: Mapping[tuple[str, str], TableEntity] | None = None) -> None:
        super().__init__(cast("TableClient", None), RetryBudget(), Meter(), cast("Any", None))
        self.entities: Rows = dict(rows or {})

    async def create(self) -> None:
        """Do nothing: it is there."""

    async def get(self, partition: str, row_key: str) -> TableEntity | None:
        """See ``Table.get``."""
        return self.entities.get((partition, row_key))

    async def insert(self, partition: str, row: Entity) -> bool:
        """See ``Table.insert``."""
        if (partition, row["RowKey"]) in self.entities:
            return False
        self.write(partition, row)
        return True

    async def put(self, partition: str, row: Entity) -> None:
        """See ``Table.put``."""
        self.write(partition, row)

    async def replace(self, partition: str, row: Entity, etag: str) -> bool:
        """See ``Table.replace``."""
        if self._etag(partition, row) != etag:
            return False
        self.write(partition, row)
        return True

    async def delete(self, partition: str, row_key: str) -> None:
        """See ``Table.delete``."""
        self.entities.pop((partition, row_key), None)

    async def pages(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,
    ) -> AsyncIterator[list[TableEntity]]:
        """See ``Table.pages``."""
        low, high = span
        keys = sorted(key for key in self.entities if key[0] == partition and low <= key[1] < high)
        if keys:
            yield [self.entities[key] for key in keys[:limit]]

    async def transact(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        """See ``Table.transact``."""
        for index, operation in enumerate(operations):
            etag = self._etag(partition, operation.row)
            status = None
            if operation.verb == "create" and etag is not None:
                status = 409
            elif operation.verb in {"update", "delete"} and etag is None:
                status = 404
            elif operation.etag is not None and operation.etag != etag:
                status = 412
            if status is not None:
                raise RefusedTransactionError(
                    status, index, f"{operation.verb} of {operation.row_key}"
                )
        for operation in operations:
            if operation.verb == "delete":
                del self.entities[partition, operation.row_key]
            else:
                self.write(partition, operation.row)
        return [self._etag(partition, operation.row) for operation in operations]

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def write(self, partition: str, row: Mapping[str, Any]) -> None:
        """Write a whole row, with a new ETag."""
        _check(row)
        self.write_by_hand(partition, stored(partition, dict(row)))

    def write_by_hand(self, partition: str, row: Mapping[str, Any]) -> None:
        """Write a whole row with any content, as an operator's tool does."""
        entity = TableEntity(
            {name: _read(value) for name, value in row.items() if value is not None}
        )
        entity["PartitionKey"] = partition
        etag = f'W/"{next(_numbers)}"'
        entity._metadata = {"etag": etag, "timestamp": None}
        self.entities[partition, row["RowKey"]] = entity

    def _etag(self, partition: str, row: Mapping[str, Any]) -> str | None:
        entity = self.entities.get((partition, row["RowKey"]))
        return None if entity is None else str(entity.metadata["etag"])


def _read(value: Any) -> Any:
    """Return a value as the SDK reads it: a number of more than 32 bits comes with its type."""
    if type(value) is int and not -(2**31) <= value < 2**31:
        return EntityProperty(value, "Edm.Int64")
    return value


def _check(row: Mapping[str, Any]) -> None:
    """Refuse what Table Storage, or its SDK, refuses."""
    if _FORBIDDEN.search(row["RowKey"]) or len(row["RowKey"]) > 512:
        raise ValueError(f"no key of a row: {row['RowKey'][:100]!r}")
    for name, value in row.items():
        if isinstance(value, str):
            if len(value.encode("utf-16-le")) // 2 > TEXT_UNITS_MAX:
                raise ValueError(f"{name} is too long for a property")
        elif type(value) is int and not -(2**31) <= value < 2**31:
            raise ValueError(f"{name}={value} does not fit 32 bits")
