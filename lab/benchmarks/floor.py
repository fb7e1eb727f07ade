"""What the storage requests of one order cost by themselves, with the bare SDK."""

from __future__ import annotations

import os
from typing import Any

from azure.data.tables import TableTransactionError, UpdateMode
from azure.data.tables.aio import TableClient

ORDERS = 60
PARTITION = "floor"


async def bare_storage_cpu_ms(connection_string: str) -> float:
    """Return the CPU of one order's storage requests, in milliseconds.

    One transaction of 7 rows writes it; then four times a range query of 5 rows and a
    transaction of 6: what submission, claim and three replies ask for.
    """
    async with TableClient.from_connection_string(connection_string, "floor") as table:
        await table.create_table()
        await _order(table, "warm")
        before = os.times()
        for number in range(ORDERS):
            await _order(table, f"o{number}")
        after = os.times()
    spent = after.user - before.user + after.system - before.system
    return 1000 * spent / ORDERS


async def _order(table: TableClient, order_id: str) -> None:
    rows = [_row(f"{order_id}|a|{n}") for n in range(5)]
    rows += [_row(f"{order_id}|b|0"), _row(f"{order_id}|c|0")]
    await table.submit_transaction([("create", row) for row in rows])
    for turn in range(1, 5):
        low, high = f"{order_id}|a|", f"{order_id}|a~"
        query = table.query_entities(
            "PartitionKey eq @p and RowKey ge @low and RowKey lt @high",
            parameters={"p": PARTITION, "low": low, "high": high},
        )
        found = [row async for row in query]
        if len(found) != 5:
            raise TableTransactionError(message=f"{len(found)} rows, not 5")
        changed = [("update", row, {"mode": UpdateMode.REPLACE}) for row in found[:2]]
        made = [("create", _row(f"{order_id}|{kind}|{turn}")) for kind in "bcde"]
        operations: list[Any] = [*changed, *made]
        await table.submit_transaction(operations)


def _row(key: str) -> dict[str, Any]:
    fields = {f"Property{n}": f"a value of some length {n}" for n in range(12)}
    return {"PartitionKey": PARTITION, "RowKey": key, "Number": 7, **fields}
