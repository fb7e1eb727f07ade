"""A change as one entity group transaction, and the rows that only grow: journal and payloads.

The state row comes first: if another instance changed it, the transaction fails on this row and
on no other. A transaction takes at most 100 operations and each row once. 30 steps that all
change at once need 97.

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
from sas.domain.change import Change, DeadlineDue, DeferredDue, Due, OutDue, StepDue
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
from sas.ports import LostContentError, Message

OPERATIONS_MAX = 100
BINARY_BYTES = 64 * 1024
"""Most bytes of a binary property."""

KINDS: Mapping[str, type[Outgoing]] = {
    "wake": Wake,
    "request": Request,
    "notify": Notify,
    "alert": Alert,
}
_KIND_OF = {made: kind for kind, made in KINDS.items()}


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
    def is_index_delete(self) -> bool:
        """Whether it only deletes an index row."""
        return self.verb == "delete"


def deletion(row_key: str) -> Operation:
    """Return the operation that deletes a row."""
    return Operation("delete", {"RowKey": row_key})


def operations(change: Change) -> list[Operation]:
    """Return what a change writes, the state row first.

    Raises:
        ValueError: more than 100 operations, or two on one row. This is a bug: 30 steps never need
            so many.
    """
    order_id, entry = change.after.order_id, change.entry
    made = [_state(change), *_details(change), *_steps(change)]
    made.append(Operation("create", journal_row(order_id, entry)))
    if entry.cause is not None:
        made.append(Operation("create", _cause_row(order_id, entry.cause, entry.seq)))
    made += [deletion(keys.due(gone)) for gone in _by_key(change.due_removed())]
    made += [Operation("upsert", due_row(added)) for added in _by_key(change.due_added())]
    if change.out_at is not None:
        out = OutDue(change.out_at, order_id, entry.seq)
        made.append(Operation("upsert", due_row(out)))
    made += _stopped(change)
    distinct = len({operation.row_key for operation in made})
    if distinct != len(made) or len(made) > OPERATIONS_MAX:
        raise ValueError(
            f"order {order_id}: {len(made)} operations on {distinct} rows; a transaction takes at "
            f"most {OPERATIONS_MAX}, each on another row. Report this as a bug"
        )
    return made


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
        case DeferredDue():
            columns = {}
    return {"RowKey": keys.due(due), "OrderID": due.order_id, "At": key_time(due.at), **columns}


def deferred_row(due: DeferredDue, message: Message) -> Entity:
    """Return the row of a message that is held."""
    body = message.body
    chunks = [body[at : at + BINARY_BYTES] for at in range(0, len(body), BINARY_BYTES)]
    columns: Entity = {
        "Queue": message.queue,
        "MessageId": message.message_id,
        "ContentType": message.content_type,
        "Properties": json.dumps(dict(message.properties)),
        **{f"Body{number:02d}": chunk for number, chunk in enumerate(chunks)},
    }
    if message.correlation_id is not None:
        columns["CorrelationID"] = message.correlation_id
    return due_row(due) | columns


def deferred_message(row: Row) -> Message:
    """Return the message of a row of ``deferred_row``; raises CorruptOrderError if it is broken."""
    with rows.reading(str(row.get("OrderID")), row):
        return Message(
            row["Queue"],
            row["MessageId"],
            b"".join(row[name] for name in sorted(row) if name.startswith("Body")),
            content_type=row["ContentType"],
            correlation_id=row.get("CorrelationID"),
            properties=msgspec.json.decode(row["Properties"], type=dict[str, str]),
        )


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
    """Write the steps that changed. A large result has its own row, written when it changes."""
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
    if has_own_row(step.result) and step.result != old:
        return [Operation("upsert", rows.result_row(order.order_id, step))]
    if has_own_row(old) and not has_own_row(step.result):
        return [deletion(keys.result(order.order_id, step.number))]
    return []


def _stopped(change: Change) -> list[Operation]:
    """Move the order between the lists ``attention`` and ``done``, or take it off both."""
    before = rows.stopped_row(change.before) if change.before else None
    after = rows.stopped_row(change.after)
    made: list[Operation] = []
    if before and (after is None or after["RowKey"] != before["RowKey"]):
        made.append(deletion(before["RowKey"]))
    if after and after != before:
        made.append(Operation("upsert", after))
    return made


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
        f"{one.step}:{one.before.value}>{one.after.value}" + (":edited" if one.edited else "")
        for one in changes
    )


def changes_from_text(text: str) -> tuple[StepChange, ...]:
    """Return what ``changes_to_text`` was given; raises ValueError for any other text."""
    return tuple(_change_from(one) for one in text.split(",")) if text else ()


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
    made = [{"k": _KIND_OF[type(one)], **msgspec.to_builtins(one)} for one in messages]
    return json.dumps(made, separators=(",", ":"))


def messages_from_json(text: str) -> tuple[Outgoing, ...]:
    """Return the messages that ``messages_to_json`` was given; raises ValueError for other text."""
    return tuple(_message_from(item) for item in json.loads(text))


def _message_from(item: dict[str, Any]) -> Outgoing:
    word = item.pop("k", None)
    kind = KINDS.get(word) if isinstance(word, str) else None
    if kind is None or item.keys() != {field.name for field in fields(kind)}:
        raise ValueError(f"column Messages has {str(word)[:40]!r} with {sorted(item)!s:.200}")
    message: Outgoing = msgspec.convert(item, kind)
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
        columns = sorted(name for name in row if name.startswith("Data"))
        parts += [part for name in columns if isinstance(part := row[name], bytes)]
    data = b"".join(parts)
    if not matches(ref, data):
        raise _lost(order_id, ref, f"its {len(data):,} bytes do not match the reference")
    return data


def _lost(order_id: str, ref: PayloadRef, why: str) -> LostContentError:
    return LostContentError(
        f"order {order_id}: the payload of {ref.size:,} bytes (SHA-256 {ref.sha256}) cannot be "
        f"read: {why}. Restore its rows of the table (d|payload)"
    )
