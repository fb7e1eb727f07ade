"""What the contract tests of the state store share: finished orders, and what is left of them."""

from __future__ import annotations

from datetime import timedelta

from sas.adapters.tables.store import TableStore
from sas.domain.change import Due
from sas.domain.ids import shard_of
from sas.domain.order import Order
from sas.ports import StateStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND

ONE = cases.rules_of(1)
FAR = NOW + timedelta(days=30)


async def finished(store: StateStore, order_id: str = "order-1", extra: int = 0) -> Order:
    """An order of one step, Processed, with so many more journal rows."""
    order = await store.commit(cases.submitted(order_id, ONE))
    order = await store.commit(cases.claimed(order, ONE))
    for number in range(extra):
        order = await store.commit(cases.fenced(order, f"dead-letters:{order_id}-{number}"))
    return await store.commit(cases.answered(order, 0, ONE, at=NOW + SECOND))


async def loaded(store: StateStore, order_id: str) -> Order:
    order = await store.load(order_id)
    assert order is not None
    return order


async def left_of(store: StateStore, order_id: str) -> list[str]:
    """Return the keys of all rows in the shard of an order that name it; none in memory."""
    if not isinstance(store, TableStore):
        return []
    pages = store.table.pages(shard(store, order_id), ("a", "~"))
    return [row["RowKey"] async for page in pages for row in page if order_id in row["RowKey"]]


def shard(store: StateStore, order_id: str) -> str:
    return shard_of(order_id, len(store.shards))


def neighbours(count: int, of: str = "o") -> list[str]:
    """Return ids of one shard of sixteen, that of ``of``."""
    return [f"o-{n}" for n in range(800) if shard_of(f"o-{n}", 16) == shard_of(of, 16)][:count]


async def due_of(store: StateStore, order_id: str) -> set[Due]:
    """Return everything due of one order, whenever."""
    rows = await store.due(shard(store, order_id), FAR, 1000)
    assert len(rows) == len(set(rows))
    return {row for row in rows if row.order_id == order_id}
