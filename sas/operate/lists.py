"""Many orders: the rows that a query finds, and finished orders with their content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from sas.codec.external import RejectedMessage
from sas.codec.record import record_of, to_line
from sas.domain.ids import parse_key_time
from sas.domain.order import Order, OrderState
from sas.domain.queues import Queues
from sas.features.claim_check import ClaimCheck
from sas.operate import finding, letters
from sas.operate.errors import NotPossibleError
from sas.operate.finding import OrderQuery
from sas.operate.messages import cause_of
from sas.operate.record import Record
from sas.operate.rows import (
    FailedAlike,
    OrderRow,
    groups_of,
    row_of,
    row_of_summary,
    rows_in_error,
)
from sas.operate.status import SystemStatus, read_system, status_of
from sas.ports import MessageBus, StateStore

READS_QUEUE = frozenset({"all", "finished", "rejected"})
"""Lists of these states have the orders on ``orders-rejected`` too."""


class OrderList(Record, frozen=True):
    """The orders that a query finds, and the state of the system, which has what else there is.

    ``groups`` and ``failed_count`` are of all orders in Error that the query finds, up to
    ``IN_ERROR_MAX``. If it ``is_cut``, there may be more of a state. ``problem`` says why the
    orders on ``orders-rejected`` could not be read, if so.
    """

    rows: tuple[OrderRow, ...]
    groups: tuple[FailedAlike, ...]
    failed_count: int
    is_cut: bool
    status: SystemStatus
    problem: str = ""


async def list_of(
    store: StateStore, bus: MessageBus | None, query: OrderQuery, *, queues: Queues, now: datetime
) -> OrderList:
    """Return the orders that a query finds. In the state ``all`` those in Error come first.

    The limit of the query is for the orders in Error, under way and finished each. The orders on
    ``orders-rejected`` are in the list of rejected orders.

    Raises:
        NotPossibleError: nothing was found, and no such workflow ever ran here.
        StoreUnavailableError: the table does not answer.
    """
    reading = await read_system(store, now)
    failed: list[OrderRow] = []
    running: list[OrderRow] = []
    finished: list[OrderRow] = []
    problem = ""
    if query.state in {"error", "all"}:
        in_error = await rows_in_error(store, query.since) if query.since else reading.in_error
        failed = [row for row in in_error if _matches(row, query)]
    if query.state in {"running", "all"}:
        under_way = replace(query, state="running")
        unreadable: dict[str, str] = {}
        running = [row_of(order, now) async for order in finding.each(store, under_way, unreadable)]
        running += [
            OrderRow(order_id=order_id, process_state=None, why=f"it cannot be read: {why}")
            for order_id, why in unreadable.items()
        ]
    if query.state not in {"error", "running"}:
        summaries = await finding.newest_finished(store, query, now)
        finished = [row_of_summary(summary) for summary in summaries]
    if query.state in READS_QUEUE and query.workflow is None:
        queue_rows, problem = await _rejected_in_queue(store, bus, query, queues)
        finished += queue_rows
        finished.sort(key=lambda row: row.since or now, reverse=True)
    parts = [rows[: query.limit] for rows in (failed, running, finished)]
    if query.workflow is not None and not any(parts):
        await _check_workflow(store, query.workflow)
    return OrderList(
        rows=tuple(row for part in parts for row in part),
        groups=groups_of(failed),
        failed_count=len(failed),
        is_cut=any(len(part) == query.limit for part in parts),
        status=status_of(reading, now),
        problem=problem,
    )


def _matches(row: OrderRow, query: OrderQuery) -> bool:
    return query.workflow in {None, row.workflow} and (
        query.fingerprint in {None, *row.fingerprints}
    )


async def _rejected_in_queue(
    store: StateStore, bus: MessageBus | None, query: OrderQuery, queues: Queues
) -> tuple[list[OrderRow], str]:
    """Return the orders that are only on ``orders-rejected``, and why it cannot be read, if so."""
    if bus is None:
        unread = f"no Service Bus namespace is configured: {queues.rejected} is not read"
        return [], unread if query.state == "rejected" else ""
    contents = await letters.read(bus, [queues.rejected], queues)
    rows = [_row_of_part(part) for part in letters.rejected_orders(contents.letters, queues)]
    if query.since is not None:
        rows = [row for row in rows if row.since and row.since >= query.since]
    rows = rows[: query.limit]
    order_ids = list(dict.fromkeys(row.order_id for row in rows))
    unreadable: dict[str, str] = {}
    stored = {order.order_id for order in await finding.load_all(store, order_ids, unreadable)}
    rows = [row for row in rows if row.order_id not in stored | unreadable.keys()]
    return rows, contents.problems.get(queues.rejected, "")


def _row_of_part(part: RejectedMessage) -> OrderRow:
    return OrderRow(
        order_id=part.order_id or "",
        process_state=OrderState.REJECTED.value,
        since=parse_key_time(part.at),
        why=f"{part.reason}: {cause_of(part)}",
        message_id=part.id,
    )


async def _check_workflow(store: StateStore, workflow: str) -> None:
    """Refuse the name of a workflow that never ran here, because it may be mistyped.

    Raises:
        NotPossibleError: the table remembers only other workflows.
    """
    values = await store.shared_values("workflow-")
    known_names = {name.removeprefix("workflow-").rpartition("-")[0] for name in values}
    if known_names and workflow not in known_names:
        names = ", ".join(sorted(known_names))
        raise NotPossibleError(f"no workflow {workflow!r} ever ran here: known are {names}")


# -- Finished orders with their content -------------------------------------------------------


async def export_lines(store: StateStore, until: datetime) -> AsyncIterator[Sequence[str]]:
    """Yield each order that finished at ``until`` or before as a line of JSON, the oldest first.

    A line has the order, its content and its journal: docs/contract/exported-order.schema.json.
    They come a few at a time. Their contents are read in parallel.
    """
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [summary.order_id for summary in batch]
        for start in range(0, len(ids), finding.LOADS_AT_ONCE):
            orders = await finding.load_all(store, ids[start : start + finding.LOADS_AT_ONCE])
            lines = await asyncio.gather(*(_export_line(store, order, until) for order in orders))
            yield [line for line in lines if line is not None]


async def _export_line(store: StateStore, order: Order | None, until: datetime) -> str | None:
    """Return an order as a line; None if it was purged, or has not ended until then.

    The order and its journal are read one after the other. If the order changed meanwhile, both are
    read again.
    """
    while order is not None and _has_ended(order, until):
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        reloaded = await store.load(order.order_id)
        if reloaded is not None and reloaded.token == order.token:
            return line
        order = reloaded
    return None


def _has_ended(order: Order, until: datetime) -> bool:
    """Return whether an order finished at ``until`` or before."""
    in_error = order.process_state is OrderState.ERROR
    return order.stopped_at is not None and order.stopped_at <= until and not in_error
