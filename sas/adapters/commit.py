"""One change as the operations of one entity group transaction. Pure.

The state row comes first: where it was changed by a rival, the transaction fails on it
and on nothing else. No row key is ever used twice, and there are at most 100 operations,
as the service demands: 30 steps all changing at once need 97.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from sas.adapters import keys, rows
from sas.adapters.journal_rows import cause_row, journal_row
from sas.domain.change import Change, DeadlineDue, Due, OutDue, StepDue
from sas.domain.ids import key_time
from sas.domain.order import Order, StepRecord

OPERATIONS_MAX = 100


class TransactionTooLargeError(Exception):
    """A change needs more than 100 operations: a bug, no workflow of 30 steps can do that."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: ``create``, ``update`` (with the ETag that must still be there),
    ``upsert`` (replacing the whole row) or ``delete``.
    """

    verb: str
    row: rows.Entity
    etag: str | None = None

    @property
    def row_key(self) -> str:
        """Row key it works on."""
        return str(self.row["RowKey"])

    @property
    def is_index_delete(self) -> bool:
        """Whether it only takes an index row away."""
        return self.verb == "delete"

    def for_sdk(self, partition: str) -> tuple[Any, ...]:
        """Return it as ``submit_transaction`` wants it."""
        entity = {"PartitionKey": partition, **self.row}
        match self.verb:
            case "update":
                guard = {"etag": self.etag, "match_condition": MatchConditions.IfNotModified}
                return "update", entity, {"mode": UpdateMode.REPLACE, **guard}
            case "upsert":
                return "upsert", entity, {"mode": UpdateMode.REPLACE}
            case "delete" if self.etag is not None:
                guard = {"etag": self.etag, "match_condition": MatchConditions.IfNotModified}
                return "delete", entity, guard
            case verb:
                return verb, entity


def operations(change: Change) -> list[Operation]:
    """Return what a change writes, the state row first.

    Raises:
        TransactionTooLargeError: more than 100 operations, or one row twice.
    """
    order_id, entry = change.after.order_id, change.entry
    made = [_state(change), *_details(change), *_steps(change)]
    made.append(Operation("create", journal_row(order_id, entry)))
    if entry.cause is not None:
        made.append(Operation("create", cause_row(order_id, entry.cause, entry.seq)))
    made += [_delete(keys.due(gone)) for gone in _by_key(change.due_removed())]
    made += [Operation("upsert", due_row(added)) for added in _by_key(change.due_added())]
    if change.out_at is not None:
        out = OutDue(change.out_at, order_id, entry.seq)
        made.append(Operation("upsert", due_row(out)))
    made += _settled(change)
    distinct = len({operation.row_key for operation in made})
    if distinct != len(made) or len(made) > OPERATIONS_MAX:
        raise TransactionTooLargeError(
            f"order {order_id}: {len(made)} operations on {distinct} rows, at most "
            f"{OPERATIONS_MAX} on as many rows are possible; report this as a bug"
        )
    return made


def due_row(due: Due) -> rows.Entity:
    """Return a due row as an entity. Its key says everything; the columns are for people."""
    said: rows.Entity = {}
    match due:
        case OutDue():
            said = {"Seq": due.seq}
        case StepDue():
            said = {"Step": due.step, "Epoch": due.epoch}
        case DeadlineDue():
            said = {"Deadline": True}
    return {"RowKey": keys.due(due), "OrderID": due.order_id, "At": key_time(due.at), **said}


def _by_key(due: Iterable[Due]) -> list[Due]:
    """Return due rows in the order of their keys."""
    return sorted(due, key=keys.due)


def _state(change: Change) -> Operation:
    row = rows.state_row(change.after, change.entry.commit_id)
    if change.before is None:
        return Operation("create", row)
    if change.before.token is None:
        raise ValueError(f"order {change.before.order_id} has no token: it was never loaded")
    return Operation("update", row, change.before.token)


def _details(change: Change) -> list[Operation]:
    if change.before is not None and change.before.details == change.after.details:
        return []
    return [Operation("upsert", rows.details_row(change.after))]


def _steps(change: Change) -> list[Operation]:
    """Write changed steps only; a large result only when the result itself changed."""
    made: list[Operation] = []
    old = {step.number: step for step in change.before.steps} if change.before else {}
    for step in change.after.steps:
        before = old.get(step.number)
        if step != before:
            made.append(Operation("upsert", rows.step_row(change.after.order_id, step)))
            made += _result(change.after, before, step)
    return made


def _result(order: Order, before: StepRecord | None, step: StepRecord) -> list[Operation]:
    old = before.result if before else None
    if rows.is_large(step.result) and step.result != old:
        return [Operation("upsert", rows.result_row(order.order_id, step))]
    if rows.is_large(old) and not rows.is_large(step.result):
        return [_delete(keys.result(order.order_id, step.number))]
    return []


def _settled(change: Change) -> list[Operation]:
    """Move the order between the lists: attention, done, neither."""
    before = rows.settled_row(change.before) if change.before else None
    after = rows.settled_row(change.after)
    made: list[Operation] = []
    if before and (after is None or after["RowKey"] != before["RowKey"]):
        made.append(_delete(before["RowKey"]))
    if after and after != before:
        made.append(Operation("upsert", after))
    return made


def _delete(row_key: str) -> Operation:
    return Operation("delete", {"RowKey": row_key})
