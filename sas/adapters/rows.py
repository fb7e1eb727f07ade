"""Orders as entities and back: details, state, steps, results and the index rows.

Columns keep the pattern's names: OrderID, LockedBy, CompleteBy, ProcessState, FailureCount.
Times are fixed-width ISO strings in UTC; a missing column means None. Table Storage allows
32,768 UTF-16 units a property, so long texts go over several (``Payload00``, ``Payload01``).

A result above ``INLINE_UNITS_MAX`` has a row of its own, written only when it changes: the
start of an undo rewrites up to 30 step rows at once, and their results would not fit into the
4 MiB of one transaction (the SDK writes up to 6 bytes for one unit: 30 x 16,000 x 6 do).

Content kept apart (a ``PayloadRef``) stands in rows outside of the aggregate, in binary columns;
the row that refers to it has its hash, its bytes and its chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sas.adapters import keys
from sas.bounds import utf16_units
from sas.domain.content import Content, PayloadRef
from sas.domain.ids import key_time, parse_key_time
from sas.domain.order import (
    Details,
    Direction,
    Fault,
    Order,
    OrderState,
    StepRecord,
    StepState,
    UndoRecord,
)

Entity = dict[str, Any]
Row = Mapping[str, Any]

CHUNK_UNITS = 32_000
INLINE_UNITS_MAX = 16_000


class CorruptOrderError(Exception):
    """The rows of an order do not fit together: somebody edited or deleted some by hand."""


def chunked(column: str, text: str) -> Entity:
    """Return a text as properties ``<column>00``, ``<column>01``, ... of 32,000 units at most."""
    return {f"{column}{number:02d}": part for number, part in enumerate(_parts(clean(text)))}


def joined(column: str, row: Row) -> str | None:
    """Return the text that ``chunked`` spread over properties; None where there is none."""
    if f"{column}00" not in row:
        return None
    parts: list[str] = []
    while (part := row.get(f"{column}{len(parts):02d}")) is not None:
        parts.append(part)
    return "".join(parts)


def clean(text: str) -> str:
    """Return a text that UTF-8 can hold: lone surrogates (bad escapes in JSON) become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parts(text: str) -> Iterator[str]:
    """Cut between characters, never through a surrogate pair; an empty text is one part."""
    size = CHUNK_UNITS if text.isascii() else CHUNK_UNITS // 2
    start = 0
    while start < len(text) or start == 0:
        end = start + size
        while end < len(text) and utf16_units(text[start : end + 1000]) <= CHUNK_UNITS:
            end += 1000
        yield text[start:end]
        start = end


def details_row(order: Order) -> Entity:
    """Return what was ordered, as an entity."""
    details = order.details
    return {
        "RowKey": keys.details(order.order_id),
        "OrderID": order.order_id,
        "Workflow": details.workflow,
        "Version": details.version,
        "ContentHash": clean(details.content_hash),
        "ReplyQueue": clean(details.reply_queue),
        "CorrelationID": None if details.correlation_id is None else clean(details.correlation_id),
        "SubmittedAt": key_time(details.submitted_at),
        "TraceParent": details.traceparent,
        "Urgent": True if details.urgent else None,
        **_content("Payload", details.payload),
    }


def state_row(order: Order, commit_id: str) -> Entity:
    """Return the roll-up whose ETag guards the order, as an entity."""
    return {
        "RowKey": keys.state(order.order_id),
        "OrderID": order.order_id,
        "LockedBy": order.locked_by,
        "CompleteBy": _time(order.complete_by),
        "ProcessState": order.process_state.value,
        "FailureCount": order.failure_count,
        "Seq": order.seq,
        "Workflow": order.details.workflow,
        "Version": order.details.version,
        "Steps": len(order.steps),
        "SettledAt": _time(order.settled_at),
        "Rejected": order.rejected,
        "Deadline": _time(order.deadline),
        "AcknowledgedBy": None if order.acknowledged_by is None else clean(order.acknowledged_by),
        "CommitId": commit_id,
    }


def step_row(order_id: str, step: StepRecord) -> Entity:
    """Return one step as an entity, with its result unless that is too large."""
    large = is_large(step.result)
    inline = {} if step.result is None or large else _content("Result", step.result)
    return {
        "RowKey": keys.step(order_id, step.number),
        "OrderID": order_id,
        "LockedBy": step.locked_by,
        "CompleteBy": _time(step.complete_by),
        "ProcessState": step.process_state.value,
        "FailureCount": step.failure_count,
        "Number": step.number,
        "Name": step.name,
        "Direction": step.direction.value,
        "Epoch": step.epoch,
        "Generation": step.generation,
        "Hold": step.hold,
        "Since": key_time(step.since),
        "ErrorCode": clean(step.error.code) if step.error else None,
        "ErrorMessage": clean(step.error.message) if step.error else None,
        "ResultRow": True if large else None,
        "Waits": step.waits,
        "CalledUntil": _time(step.called_until),
        "Undo": step.undo.value if step.undo else None,
        "Edited": None if step.edited is None else clean(step.edited),
        "Note": None if step.note is None else clean(step.note),
        "Route": step.route or None,
        "Tried": ",".join(map(str, step.tried)) or None,
        **inline,
    }


def is_large(result: Content | None) -> bool:
    """Return whether a result goes into a row of its own."""
    return isinstance(result, str) and utf16_units(result) > INLINE_UNITS_MAX


def result_row(order_id: str, step: StepRecord) -> Entity:
    """Return a large result as an entity."""
    return {
        "RowKey": keys.result(order_id, step.number),
        "OrderID": order_id,
        **_content("Result", step.result or ""),
    }


def settled_row(order: Order) -> Entity | None:
    """Return the index row of an order in Error or finished (or Rejected); else None.

    It carries what a list shows, so that lists load no order.
    """
    if order.settled_at is None:
        return None
    kind = "attention" if order.process_state is OrderState.ERROR else "done"
    return {
        "RowKey": keys.settled(kind, order.settled_at, order.order_id),
        "OrderID": order.order_id,
        "At": key_time(order.settled_at),
        "ProcessState": order.process_state.value,
        "Workflow": order.details.workflow,
    }


def order_from(order_id: str, by_key: Mapping[str, Row], token: str) -> Order:
    """Return the order that the rows of an aggregate, by row key, hold.

    Raises:
        CorruptOrderError: rows are missing.
    """
    state, details = by_key.get(keys.state(order_id)), by_key.get(keys.details(order_id))
    if state is None or details is None:
        raise CorruptOrderError(f"order {order_id}: its details or its state row is missing")
    steps: list[StepRecord] = []
    for number in range(state["Steps"]):
        row = by_key.get(keys.step(order_id, number))
        if row is None:
            raise CorruptOrderError(f"order {order_id}: the row of step {number} is missing")
        large = by_key.get(keys.result(order_id, number)) if row.get("ResultRow") else row
        if large is None:
            raise CorruptOrderError(f"order {order_id}: the result row of step {number} is missing")
        steps.append(_step_from(row, _content_of("Result", large)))
    return Order(
        _details_from(details),
        tuple(steps),
        seq=state["Seq"],
        settled_at=_moment(state.get("SettledAt")),
        rejected=state["Rejected"],
        deadline=_moment(state.get("Deadline")),
        acknowledged_by=state.get("AcknowledgedBy"),
        token=token,
    )


def _details_from(row: Row) -> Details:
    return Details(
        order_id=row["OrderID"],
        workflow=row["Workflow"],
        version=row["Version"],
        payload=_content_of("Payload", row) or "",
        content_hash=row["ContentHash"],
        reply_queue=row["ReplyQueue"],
        correlation_id=row.get("CorrelationID"),
        submitted_at=parse_key_time(row["SubmittedAt"]),
        traceparent=row.get("TraceParent"),
        urgent=bool(row.get("Urgent")),
    )


def _step_from(row: Row, result: Content | None) -> StepRecord:
    code = row.get("ErrorCode")
    return StepRecord(
        number=row["Number"],
        name=row["Name"],
        process_state=StepState(row["ProcessState"]),
        since=parse_key_time(row["Since"]),
        locked_by=row.get("LockedBy"),
        complete_by=_moment(row.get("CompleteBy")),
        failure_count=row["FailureCount"],
        direction=Direction(row["Direction"]),
        epoch=row["Epoch"],
        generation=row["Generation"],
        hold=row["Hold"],
        result=result,
        error=None if code is None else Fault(code, row.get("ErrorMessage") or ""),
        waits=row.get("Waits", 0),
        called_until=_moment(row.get("CalledUntil")),
        undo=UndoRecord(row["Undo"]) if row.get("Undo") else None,
        edited=row.get("Edited"),
        note=row.get("Note"),
        route=row.get("Route") or 0,
        tried=tuple(map(int, row["Tried"].split(","))) if row.get("Tried") else (),
    )


def _content(column: str, content: Content) -> Entity:
    """Return content as properties: its text, or what stands for it."""
    if isinstance(content, str):
        return chunked(column, content)
    return {
        f"{column}Sha256": content.sha256,
        f"{column}Bytes": content.size,
        f"{column}Chunks": content.chunks,
    }


def _content_of(column: str, row: Row) -> Content | None:
    """Return the content that ``_content`` wrote; None where there is none."""
    sha256 = row.get(f"{column}Sha256")
    if sha256 is None:
        return joined(column, row)
    return PayloadRef(sha256, row[f"{column}Bytes"], row[f"{column}Chunks"])


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else key_time(moment)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_key_time(text)
