"""Builds the operations of one transaction from a change, and the rows that never change.

Nothing here sends or waits. ``operations`` compares the order before and after a change, and
returns one operation for each row to write or delete:

1. The state row **comes first**. It is replaced only if it still has the token's ETag, or created
   for a new order. The service checks operations in order and reports the first one that fails. So
   if another instance changed the order, the refusal is about this row. If the refusal is about a
   later one, we know that the ETag was right. The first ETag of the answer is the new token.
2. The details row, for a new order and for one that takes the place of a Rejected order.
3. The row of each step that changed. A large result has a row of its own, so that a step that
   changes later does not write its result again.
4. The journal row, which is **created**. Its key has the seq, so each seq is written once. It
   holds the commit id by which ``store`` recognises our own write, and the messages to send.
5. The cause row, which is created too. If it exists, this message was acted on before, and the
   whole transaction is refused. So a message that is delivered twice has one effect.
6. Due rows: those of the old order that the new one does not have are deleted, new ones are
   written. A deletion comes without ETag, because the state row's ETag guards it. If its row is
   missing, the service answers 404; ``store`` knows what that means.
7. The out row, for a timer. It says that the messages of the journal row are not sent yet.
8. The row of the list ``attention`` or ``done``.

A transaction takes at most 100 operations, and each row once. 30 steps that all change at once
need 97. So an order with the most steps still fits, and a workflow with more is refused when it is
defined.

The journal keeps the messages that each transition sends, as compact JSON: one object each, with
its kind under ``k`` and the members of its class. A version that changes a member or a kind raises
the format number and reads both, because old rows live as long as their orders.

A payload is stored in chunks, one row each, in binary columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from sas.adapters.tables import keys, rows
from sas.adapters.tables.rows import Entity, Row
from sas.bounds import has_own_row
from sas.domain.change import Change, DeadlineDue, Due, OutDue, StepDue
from sas.domain.content import PayloadRef, chunks_of, matches
from sas.domain.ids import key_time, parse_key_time
from sas.domain.messages import (
    Alert,
    JournalEntry,
    JournalWord,
    Notify,
    Outgoing,
    Request,
    StepChange,
    Wake,
)
from sas.domain.order import Order, StepRecord, StepState
from sas.ports import HeldMessage, LostContentError, Message

OPERATIONS_MAX = 100
BINARY_BYTES = 64 * 1024
"""Most bytes that one binary column holds."""

KINDS: Mapping[str, type[Outgoing]] = {
    "wake": Wake,
    "request": Request,
    "notify": Notify,
    "alert": Alert,
}
_KIND_OF = {message_class: kind for kind, message_class in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on a row: ``create``, ``update``, ``upsert`` or ``delete``.

    ``update`` and ``upsert`` replace the whole row. With an ``etag`` the operation, and with it
    the transaction, fails if the row has another one.
    """

    verb: str
    row: Entity
    etag: str | None = None

    @property
    def row_key(self) -> str:
        """Key of its row."""
        return str(self.row["RowKey"])

    @property
    def is_deletion(self) -> bool:
        """Whether it deletes a row: an index row, or a large result that was replaced."""
        return self.verb == "delete"


def deletion(row_key: str) -> Operation:
    """Return the operation that deletes a row."""
    return Operation("delete", {"RowKey": row_key})


def operations(change: Change) -> list[Operation]:
    """Return what a change writes, the state row first. The numbers are those of the module.

    Raises:
        ValueError: more than 100 operations, or two on one row. This is a bug: an order of 30
            steps never needs more.
    """
    order_id, entry = change.after.order_id, change.entry
    batch = [_state(change), *_details(change), *_steps(change)]  # 1. to 3.
    batch.append(Operation("create", journal_row(order_id, entry)))  # 4.
    if entry.cause is not None:  # 5.
        batch.append(Operation("create", _cause_row(order_id, entry.cause, entry.seq)))
    # 6. In the order of their keys, so that the same change always gives the same transaction.
    batch += [deletion(keys.due(due)) for due in _by_key(change.due_removed())]
    batch += [Operation("upsert", due_row(due)) for due in _by_key(change.due_added())]
    if change.out_at is not None:  # 7.
        out = OutDue(change.out_at, order_id, entry.seq)
        batch.append(Operation("upsert", due_row(out)))
    batch += _stopped(change)  # 8.
    distinct = len({operation.row_key for operation in batch})
    if distinct != len(batch) or len(batch) > OPERATIONS_MAX:
        raise ValueError(
            f"order {order_id}: {len(batch)} operations on {distinct} rows; a transaction takes at "
            f"most {OPERATIONS_MAX}, each on another row. Report this as a bug"
        )
    return batch


def due_row(due: Due) -> Entity:
    """Return a due row as an entity. Its key holds everything; the columns are for people."""
    columns: Entity = {}
    match due:
        case OutDue():
            columns = {"Seq": due.seq}
        case StepDue():
            columns = {"Step": due.step, "Epoch": due.epoch}
        case DeadlineDue():
            columns = {"Deadline": True}
    return {"RowKey": keys.due(due), "OrderID": due.order_id, "At": key_time(due.at), **columns}


def held_row(item: HeldMessage) -> Entity:
    """Return the row of a held message, which has all of it."""
    message, body = item.message, item.message.body
    chunks = [body[at : at + BINARY_BYTES] for at in range(0, len(body), BINARY_BYTES)]
    row: Entity = {
        "RowKey": keys.held(message.queue, item.since, message.message_id),
        "OrderID": rows.clean(item.order_id),
        "At": key_time(item.since),
        "Queue": message.queue,
        "MessageId": message.message_id,
        "ContentType": message.content_type,
        "Properties": json.dumps(dict(message.properties)),
        **{f"Body{number:02d}": chunk for number, chunk in enumerate(chunks)},
    }
    if message.correlation_id is not None:
        row["CorrelationID"] = message.correlation_id
    return row


def held_from(row: Row) -> HeldMessage:
    """Return the message of a row of ``held_row``; raises CorruptOrderError if it is broken.

    The row of a ``DeferredDue`` has the same columns.
    """
    with rows.reading(str(row.get("OrderID")), row):
        message = Message(
            row["Queue"],
            row["MessageId"],
            b"".join(row[name] for name in sorted(row) if name.startswith("Body")),
            content_type=row["ContentType"],
            correlation_id=row.get("CorrelationID"),
            properties=msgspec.json.decode(row["Properties"], type=dict[str, str]),
        )
        since = parse_key_time(row["At"])
        return HeldMessage(message=message, since=since, order_id=row["OrderID"])


def _by_key(due: Iterable[Due]) -> list[Due]:
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
    """Return what writes the steps that changed, and their large results that changed."""
    batch: list[Operation] = []
    old = {step.number: step for step in change.before.steps} if change.before else {}
    for step in change.after.steps:
        before = old.get(step.number)
        if step != before:
            batch.append(Operation("upsert", rows.step_row(change.after.order_id, step)))
            batch += _result(change.after, before, step)
    return batch


def _result(order: Order, before: StepRecord | None, step: StepRecord) -> list[Operation]:
    old = before.result if before else None
    if has_own_row(step.result) and step.result != old:
        return [Operation("upsert", rows.result_row(order.order_id, step))]
    if has_own_row(old) and not has_own_row(step.result):
        return [deletion(keys.result(order.order_id, step.number))]
    return []


def _stopped(change: Change) -> list[Operation]:
    """Return what puts the order on the list ``attention`` or ``done``, or takes it off."""
    before = rows.stopped_row(change.before) if change.before else None
    after = rows.stopped_row(change.after)
    batch: list[Operation] = []
    if before and (after is None or after["RowKey"] != before["RowKey"]):
        batch.append(deletion(before["RowKey"]))
    if after and after != before:
        batch.append(Operation("upsert", after))
    return batch


def _cause_row(order_id: str, cause: str, seq: int) -> Entity:
    return {
        "RowKey": keys.cause(order_id, cause),
        "OrderID": order_id,
        "Cause": rows.clean(cause),
        "Seq": seq,
    }


def journal_row(order_id: str, entry: JournalEntry) -> Entity:
    """Return one transition as an entity."""
    return {
        "RowKey": keys.journal(order_id, entry.seq),
        "OrderID": order_id,
        "Seq": entry.seq,
        "At": key_time(entry.at),
        "What": entry.what.value,
        "By": rows.clean(entry.by),
        "CommitId": entry.commit_id,
        "Cause": None if entry.cause is None else rows.clean(entry.cause),
        "Reason": rows.clean(entry.reason) or None,
        "Changes": changes_to_text(entry.changes) or None,
        **rows.chunked("Messages", messages_to_json(entry.messages)),
    }


def entry_from(row: Row) -> JournalEntry:
    """Return the transition that ``journal_row`` was given.

    Raises:
        CorruptOrderError: it was changed by hand.
        OtherVersionError: a newer version wrote it.
    """
    with rows.reading(str(row.get("OrderID")), row):
        return JournalEntry(
            seq=row["Seq"],
            at=parse_key_time(row["At"]),
            what=JournalWord(row["What"]),
            by=row["By"],
            commit_id=row["CommitId"],
            cause=row.get("Cause"),
            messages=messages_from_json(rows.joined("Messages", row) or ""),
            reason=row.get("Reason") or "",
            changes=changes_from_text(row.get("Changes") or ""),
        )


def changes_to_text(changes: tuple[StepChange, ...]) -> str:
    """Return what a transition did to its steps as a short text: ``1:Error>Pending:edited``."""
    return ",".join(
        f"{change.step}:{change.before.value}>{change.after.value}"
        + (":edited" if change.edited else "")
        for change in changes
    )


def changes_from_text(text: str) -> tuple[StepChange, ...]:
    """Return what ``changes_to_text`` was given; raises ValueError for any other text."""
    return tuple(_change_from(part) for part in text.split(",")) if text else ()


def _change_from(text: str) -> StepChange:
    number, states, *edited = text.split(":")
    before, after = states.split(">")
    if edited not in ([], ["edited"]):
        raise ValueError(f"column Changes has {text[:100]!r}")
    return StepChange(
        step=int(number),
        before=StepState(before),
        after=StepState(after),
        edited=edited == ["edited"],
    )


def messages_to_json(messages: tuple[Outgoing, ...]) -> str:
    """Return messages as compact JSON."""
    members = [
        {"k": _KIND_OF[type(message)], **msgspec.to_builtins(message)} for message in messages
    ]
    return json.dumps(members, separators=(",", ":"))


def messages_from_json(text: str) -> tuple[Outgoing, ...]:
    """Return the messages that ``messages_to_json`` was given; raises ValueError for other text."""
    return tuple(_message_from(members) for members in json.loads(text))


def _message_from(members: dict[str, Any]) -> Outgoing:
    kind = members.pop("k", None)
    message_class = KINDS.get(kind) if isinstance(kind, str) else None
    if message_class is None or members.keys() != {field.name for field in fields(message_class)}:
        raise ValueError(f"column Messages has {str(kind)[:40]!r} with {sorted(members)!s:.200}")
    message: Outgoing = msgspec.convert(members, message_class)
    if isinstance(message, Request) and message.complete_by.tzinfo is None:
        raise ValueError(f"complete_by {message.complete_by} of a message has no time zone")
    return message


def payload_rows(order_id: str, ref: PayloadRef, data: bytes) -> list[Entity]:
    """Return a payload as entities, one for each chunk."""
    return [
        {
            "RowKey": keys.payload_chunk(order_id, ref.sha256, number),
            "OrderID": order_id,
            "Sha256": ref.sha256,
            "Bytes": ref.size,
            **{
                f"Data{part:02d}": chunk[part * BINARY_BYTES : (part + 1) * BINARY_BYTES]
                for part in range(-(-len(chunk) // BINARY_BYTES))
            },
        }
        for number, chunk in enumerate(chunks_of(data))
    ]


def payload_from(order_id: str, ref: PayloadRef, by_key: Mapping[str, Row]) -> bytes:
    """Return the payload that the chunk rows hold.

    Raises:
        LostContentError: a chunk is missing, or the bytes do not match the reference.
    """
    parts: list[bytes] = []
    for number in range(ref.chunks):
        row = by_key.get(keys.payload_chunk(order_id, ref.sha256, number))
        if row is None:
            raise _lost(order_id, ref, f"chunk {number} of {ref.chunks} is missing")
        columns = sorted(column for column in row if column.startswith("Data"))
        parts += [part for column in columns if isinstance(part := row[column], bytes)]
    data = b"".join(parts)
    if not matches(ref, data):
        raise _lost(order_id, ref, f"its {len(data):,} bytes do not match the reference")
    return data


def _lost(order_id: str, ref: PayloadRef, reason: str) -> LostContentError:
    return LostContentError(
        f"order {order_id}: the payload of {ref.size:,} bytes (SHA-256 {ref.sha256}) cannot be "
        f"read: {reason}. Restore its rows of the table (d|payload)"
    )
