"""Orders as the rows of a list, and the groups of those that failed alike."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sas.domain.order import Order, OrderState
from sas.operate import finding
from sas.operate.finding import is_failed
from sas.operate.record import Record
from sas.operate.why import waits_of
from sas.ports import StateStore, Summary

IN_ERROR_MAX = 10_000
"""Orders in Error are counted and grouped up to this number."""
UNTOLD = "unknown/older-version"
"""The fingerprint of an order in Error whose index row does not tell how it failed."""
OLDER = "an older version wrote it: look at the order"
"""Why such an order is in Error."""


class OrderRow(Record, frozen=True):
    """One order in a list. ``process_state`` is None if only a due row of it is known.

    ``since`` is when it came into its state. ``step`` is the step that failed, or the open one at
    which the supervisor looks first, at ``until``. ``why`` says why the order is in its state, or
    what it waits for. ``message_id`` names the message of a rejected order that the table lacks.
    """

    order_id: str
    process_state: str | None
    workflow: str = ""
    version: int | None = None
    since: datetime | None = None
    submitted_at: datetime | None = None
    step: str = ""
    why: str = ""
    until: datetime | None = None
    fingerprints: tuple[str, ...] = ()
    undone_because: str | None = None
    acknowledged_by: str | None = None
    urgent: bool = False
    message_id: str | None = None


class FailedAlike(Record, frozen=True):
    """The orders of a list that failed alike, and how many of them are ``partly_undone``.

    ``why`` is the error of the first of them, if possible of one in which nothing else failed.
    """

    fingerprint: str
    count: int
    since: datetime | None
    why: str
    partly_undone: int = 0


def row_of(order: Order, now: datetime) -> OrderRow:
    """Return a loaded order as a row of a list."""
    open_steps = [step for step in order.steps if step.complete_by is not None]
    open_steps.sort(key=lambda step: step.complete_by or now)
    steps = [step for step in order.steps if is_failed(step)] or open_steps
    return OrderRow(
        order_id=order.order_id,
        process_state=order.process_state.value,
        workflow=order.details.workflow,
        version=order.details.version,
        since=finding.since(order) if order.steps else order.stopped_at,
        submitted_at=order.details.submitted_at,
        step=steps[0].name if steps else "",
        why=order.error_text or " ".join(waits_of(step, now).awaited for step in open_steps),
        until=order.complete_by,
        fingerprints=order.fingerprints,
        undone_because=order.undone_because,
        acknowledged_by=order.acknowledged_by,
        urgent=order.details.urgent,
    )


def row_of_summary(summary: Summary) -> OrderRow:
    """Return what an index row tells of an order, which is not loaded."""
    undone = f"undone: {summary.undone_because}" if summary.undone_because else ""
    is_untold = summary.process_state is OrderState.ERROR and not summary.fingerprints
    return OrderRow(
        order_id=summary.order_id,
        process_state=summary.process_state.value,
        workflow=summary.workflow,
        version=summary.version,
        since=summary.at,
        submitted_at=summary.submitted_at,
        step=", ".join(name.partition("/")[0] for name in summary.fingerprints[:1]),
        why=summary.error_text or undone or OLDER * is_untold,
        fingerprints=(UNTOLD,) if is_untold else summary.fingerprints,
        undone_because=summary.undone_because,
        acknowledged_by=summary.acknowledged_by,
    )


def groups_of(rows: Iterable[OrderRow]) -> tuple[FailedAlike, ...]:
    """Return the failures of these orders by fingerprint, the most frequent first."""
    rows_by_fingerprint: dict[str, list[OrderRow]] = {}
    for row in rows:
        for fingerprint in row.fingerprints:
            rows_by_fingerprint.setdefault(fingerprint, []).append(row)
    groups = [
        FailedAlike(
            fingerprint=fingerprint,
            count=len(members),
            since=members[0].since,
            why=min(members, key=lambda row: len(row.fingerprints)).why,
            partly_undone=sum(row.undone_because is not None for row in members),
        )
        for fingerprint, members in rows_by_fingerprint.items()
    ]
    return tuple(sorted(groups, key=lambda group: -group.count))


async def rows_in_error(store: StateStore, since: datetime | None = None) -> list[OrderRow]:
    """Return the orders that came into Error (``since`` then), those first that wait longest."""
    return [row_of_summary(summary) for summary in await store.attention(IN_ERROR_MAX, since=since)]
