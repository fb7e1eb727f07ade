"""Orders as entities and back: details, state, steps, results and the index rows.

Columns keep the pattern's names: OrderID, LockedBy, CompleteBy, ProcessState, FailureCount. Times
are ISO strings of fixed width in UTC. A missing column means None. Table Storage allows 32,768
UTF-16 units a property, so a long text is spread over several (``Payload00``, ``Payload01``).

A large result (``has_own_row``) has a row of its own, which is written only when it changes. The
reason is the start of an undo: it rewrites up to 30 step rows in one transaction of at most 4 MiB,
and JSON may need 6 bytes for one unit (30 x 16,000 x 6 bytes fit).

Versions run side by side. Every row has a format number (``stored``). A row of a newer format is
left to an instance that knows it. All others are read by exact rules: a column that is missing,
unknown or of the wrong type makes its order unreadable, because such a row was changed by hand.

Large content is stored in rows outside of the order, in binary columns. The row that refers to it
(``PayloadRef``) holds its hash, its size and its number of chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from msgspec import MsgspecError

from sas.adapters.tables import keys
from sas.bounds import TEXT_UNITS_MAX, has_own_row, utf16_units
from sas.domain.content import Content, PayloadRef
from sas.domain.ids import key_time, parse_key_time
from sas.domain.order import (
    AttemptError,
    Details,
    Dispatched,
    Failures,
    Fault,
    LastCall,
    Order,
    OrderState,
    Ready,
    Resting,
    StepRecord,
    StepState,
    Turn,
    UndoStatus,
)
from sas.domain.texts import quoted, shortened
from sas.domain.workflow import STEPS_MAX
from sas.ports import FORMAT, CorruptOrderError, check_format

Entity = dict[str, Any]
Row = Mapping[str, Any]

CHUNK_UNITS = 32_000
"""Most UTF-16 units that one column of a long text gets."""

# The columns of all rows by type. A row with any other column was changed by hand.
_NUMBERS = frozenset(
    {
        "Steps",
        "Seq",
        "Version",
        "Epoch",
        "Generation",
        "FailureCount",
        "Number",
        "ExtendedWaits",
        "Excused",
        "Route",
        "Attempt",
        "PayloadBytes",
        "PayloadChunks",
        "ResultBytes",
        "ResultChunks",
    }
)
_FLAGS = frozenset({"Rejected", "Resting", "Urgent", "ResultRow", "Awaits"})
_TEXTS = frozenset(
    {
        "OrderID",
        "LockedBy",
        "CompleteBy",
        "ProcessState",
        "Workflow",
        "ContentHash",
        "ReplyQueue",
        "CorrelationID",
        "SubmittedAt",
        "TraceParent",
        "StoppedAt",
        "Deadline",
        "AcknowledgedBy",
        "UndoneBecause",
        "Name",
        "Since",
        "ErrorCode",
        "ErrorMessage",
        "CalledUntil",
        "Undo",
        "At",
        "Edited",
        "Note",
        "PayloadSha256",
        "ResultSha256",
        "What",
        "By",
        "CommitId",
        "Cause",
        "Reason",
        "Changes",
        "Queue",
        "MessageId",
        "ContentType",
        "Properties",
    }
)
_CHUNKED = re.compile(r"(Payload|Result|Messages)\d\d")
_BINARY = re.compile(r"Body\d\d")
_OF_EVERY_ROW = frozenset({"PartitionKey", "RowKey", "Format"})
_KNOWN = _NUMBERS | _FLAGS | _TEXTS
_SHORT = _TEXTS - {"ErrorMessage", "Reason", "Changes", "Properties", "Edited"}
ERROR_TEXT_LENGTH_MAX = 2000
"""Longest text of the errors of an order in its index row."""
NUMBER_MAX = 2**31 - 2
"""Largest number in a row. A column has 32 bits, and the next transition may add one."""


def stored(partition: str, row: Entity) -> Entity:
    """Return a row as it is written: with its partition, and the format number of this version."""
    return {"PartitionKey": partition, "Format": FORMAT, **row}


@contextmanager
def reading(order_id: str, row: Row) -> Iterator[None]:
    """Read a row of an order in this block, and check its format number and each column.

    Raises:
        CorruptOrderError: it cannot be read. The text names the row and the column.
        OtherVersionError: its format is newer.
    """
    try:
        check_format(row["Format"], f"row {row['RowKey']}")
        for column, value in row.items():
            _check_column(column, value)
        yield
    except KeyError as error:
        reason = f"column {error.args[0]} is missing"
    except (TypeError, ValueError, AttributeError, RecursionError, MsgspecError) as error:
        reason = shortened(str(error), 300)
    else:
        return
    raise CorruptOrderError(
        order_id, f"row {quoted(str(row.get('RowKey')))} cannot be read: {reason}"
    )


def _check_column(column: str, value: object) -> None:
    """Raise ValueError for an unknown column, or for a value of the wrong type."""
    if value is None or column in _OF_EVERY_ROW:
        return
    if column not in _KNOWN and not (_CHUNKED.fullmatch(column) or _BINARY.fullmatch(column)):
        raise ValueError(f"column {column[:100]} is not known")
    if column in _NUMBERS and not (type(value) is int and 0 <= value <= NUMBER_MAX):
        raise ValueError(f"column {column} is {str(value)[:40]!r}, not a number")
    if column in _FLAGS and not isinstance(value, bool):
        raise ValueError(f"column {column} is {str(value)[:40]!r}, not true or false")
    if (column in _TEXTS or _CHUNKED.fullmatch(column)) and not isinstance(value, str):
        raise ValueError(f"column {column} is {str(value)[:40]!r}, not text")
    if _BINARY.fullmatch(column) and not isinstance(value, bytes):
        raise ValueError(f"column {column} is {str(value)[:40]!r}, not binary")
    if column in _SHORT and len(str(value)) > TEXT_UNITS_MAX:
        raise ValueError(f"column {column} has {len(str(value)):,} characters")


def chunked(column: str, text: str) -> Entity:
    """Return a text as properties ``<column>00``, ``<column>01``, ... of 32,000 units at most."""
    return {f"{column}{number:02d}": part for number, part in enumerate(_parts(clean(text)))}


def joined(column: str, row: Row) -> str | None:
    """Return the text that ``chunked`` spread over properties; None if there is no such text."""
    if f"{column}00" not in row:
        return None
    parts: list[str] = []
    while (part := row.get(f"{column}{len(parts):02d}")) is not None:
        parts.append(part)
    return "".join(parts)


def clean(text: str) -> str:
    """Return a text that UTF-8 can encode: a lone surrogate (a bad JSON escape) becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parts(text: str) -> Iterator[str]:
    """Cut a text into parts, never within a surrogate pair; an empty text is one part."""
    size = CHUNK_UNITS if text.isascii() else CHUNK_UNITS // 2
    start = 0
    while start < len(text) or start == 0:
        end = start + size
        while end < len(text) and utf16_units(text[start : end + 1000]) <= CHUNK_UNITS:
            end += 1000
        yield text[start:end]
        start = end


def details_row(order: Order) -> Entity:
    """Return the details of an order as an entity."""
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
    """Return the rolled-up state as an entity; its ETag guards the whole order."""
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
        "StoppedAt": _time(order.stopped_at),
        "Rejected": order.rejected,
        "Deadline": _time(order.deadline),
        "AcknowledgedBy": None if order.acknowledged_by is None else clean(order.acknowledged_by),
        "UndoneBecause": None if order.undone_because is None else clean(order.undone_because),
        "CommitId": commit_id,
    }


def step_row(order_id: str, step: StepRecord) -> Entity:
    """Return one step as an entity, with its result unless that has a row of its own."""
    large = has_own_row(step.result)
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
        "Epoch": step.epoch,
        "Generation": step.call.generation,
        "Resting": True if step.resting else None,
        "Since": key_time(step.since),
        "ErrorCode": clean(step.error.code) if step.error else None,
        "ErrorMessage": clean(step.error.message) if step.error else None,
        "ResultRow": True if large else None,
        "ExtendedWaits": step.failures.extended_waits or None,
        "CalledUntil": _time(step.call.called_until),
        "Undo": None if step.undo is UndoStatus.NOT_DECIDED else step.undo.value,
        "Edited": None if step.call.edited is None else clean(step.call.edited),
        "Note": None if step.note is None else clean(step.note),
        "Excused": (step.turn.excused or None) if isinstance(step.turn, Dispatched) else None,
        "Awaits": True if step.awaits_callback else None,
        "Route": step.call.route or None,
        **inline,
    }


def result_row(order_id: str, step: StepRecord) -> Entity:
    """Return a large result as an entity."""
    return {
        "RowKey": keys.result(order_id, step.number),
        "OrderID": order_id,
        **_content("Result", step.result or ""),
    }


def error_row(order_id: str, number: int, error: AttemptError) -> Entity:
    """Return the last error of a step's attempts as an entity."""
    return {
        "RowKey": keys.error(order_id, number),
        "OrderID": order_id,
        "Epoch": error.epoch,
        "Attempt": error.attempt,
        "ErrorCode": clean(error.kind),
        "ErrorMessage": clean(error.message),
        "At": key_time(error.at),
    }


def stopped_row(order: Order) -> Entity | None:
    """Return the index row of an order in Error, finished or Rejected; else None.

    It has everything that a list shows, so a list loads no orders. Of an order in Error,
    ErrorCode has the fingerprints, one a line: every version knows that column.
    """
    if order.stopped_at is None:
        return None
    kind = "attention" if order.process_state is OrderState.ERROR else "done"
    return {
        "RowKey": keys.stopped(kind, order.stopped_at, order.order_id),
        "OrderID": order.order_id,
        "At": key_time(order.stopped_at),
        "ProcessState": order.process_state.value,
        "Workflow": order.details.workflow,
        "SubmittedAt": key_time(order.details.submitted_at),
        "UndoneBecause": None if order.undone_because is None else clean(order.undone_because),
        "Version": order.details.version,
        "ErrorCode": clean("\n".join(order.fingerprints)) or None,
        "ErrorMessage": clean(shortened(order.error_text, ERROR_TEXT_LENGTH_MAX)) or None,
        "AcknowledgedBy": None if order.acknowledged_by is None else clean(order.acknowledged_by),
    }


def order_from(order_id: str, by_key: Mapping[str, Row], token: str) -> Order:
    """Return the order that these rows, by row key, make up.

    Raises:
        CorruptOrderError: rows are missing or broken.
        OtherVersionError: a newer version wrote the order.
    """
    state, details = by_key.get(keys.state(order_id)), by_key.get(keys.details(order_id))
    if state is None:
        raise CorruptOrderError(order_id, "its state row is missing")
    with reading(order_id, state):  # checks the format first: a newer one may have other rows
        if details is None:
            raise CorruptOrderError(order_id, "its details row is missing")
        count = state["Steps"]
        if count > STEPS_MAX:
            raise ValueError(f"column Steps is {count}")
        order = Order(
            details=_details_from(order_id, details),
            steps=(),
            seq=state["Seq"],
            stopped_at=_moment(state.get("StoppedAt")),
            rejected=state["Rejected"],
            deadline=_moment(state.get("Deadline")),
            acknowledged_by=state.get("AcknowledgedBy"),
            undone_because=state.get("UndoneBecause"),
            token=token,
        )
    steps = tuple(_step_of(order_id, number, by_key, details) for number in range(count))
    for step in steps:
        # Each edit is a transition. A higher number would have the agent undo keys without end.
        if step.call.generation > order.seq:
            raise CorruptOrderError(
                order_id,
                f"column Generation of step {step.number} is {step.call.generation}, "
                f"with {order.seq} transitions",
            )
    return replace(order, steps=steps)


def _step_of(order_id: str, number: int, by_key: Mapping[str, Row], details: Row) -> StepRecord:
    row = by_key.get(keys.step(order_id, number))
    if row is None:
        raise CorruptOrderError(order_id, f"the row of step {number} is missing")
    large = by_key.get(keys.result(order_id, number)) if row.get("ResultRow") else row
    if large is None:
        raise CorruptOrderError(order_id, f"the result row of step {number} is missing")
    error = by_key.get(keys.error(order_id, number))
    last_error = None if error is None else _error_from(order_id, error, details)
    with reading(order_id, large):
        result = _content_of("Result", large)
        if result is None and row.get("ResultRow"):
            raise KeyError("Result00")
    with reading(order_id, row):
        if row["Number"] != number:
            raise ValueError(f"column Number is {row['Number']}, and not {number}")
        return _step_from(row, result, last_error)


def _details_from(order_id: str, row: Row) -> Details:
    with reading(order_id, row):
        if row["OrderID"] != order_id:
            raise ValueError(f"column OrderID is {row['OrderID'][:100]!r}")
        payload = _content_of("Payload", row)
        if payload is None:
            raise KeyError("Payload00")
        return Details(
            order_id=row["OrderID"],
            workflow=row["Workflow"],
            version=row["Version"],
            payload=payload,
            content_hash=row["ContentHash"],
            reply_queue=row["ReplyQueue"],
            correlation_id=row.get("CorrelationID"),
            submitted_at=parse_key_time(row["SubmittedAt"]),
            traceparent=row.get("TraceParent"),
            urgent=bool(row.get("Urgent")),
        )


def _error_from(order_id: str, row: Row, details: Row) -> AttemptError | None:
    """Return the last error of a step; None if it is older than the order.

    Then the agent of an earlier order with this id, which was purged, wrote it.
    """
    with reading(order_id, row):
        if row["At"] < details["SubmittedAt"]:
            return None
        return AttemptError(
            epoch=row["Epoch"],
            attempt=row["Attempt"],
            kind=row["ErrorCode"],
            message=row["ErrorMessage"],
            at=parse_key_time(row["At"]),
        )


def _step_from(row: Row, result: Content | None, last_error: AttemptError | None) -> StepRecord:
    code = row.get("ErrorCode")
    undo = row.get("Undo")
    return StepRecord(
        number=row["Number"],
        name=row["Name"],
        process_state=StepState(row["ProcessState"]),
        since=parse_key_time(row["Since"]),
        turn=_turn_from(row),
        epoch=row["Epoch"],
        failures=Failures(row["FailureCount"], row.get("ExtendedWaits") or 0),
        call=LastCall(
            route=row.get("Route") or 0,
            called_until=_moment(row.get("CalledUntil")),
            generation=row["Generation"],
            edited=row.get("Edited"),
        ),
        result=result,
        error=None if code is None else Fault(code, row["ErrorMessage"]),
        undo=UndoStatus(undo) if undo else UndoStatus.NOT_DECIDED,
        last_error=last_error,
    )


def _turn_from(row: Row) -> Turn:
    due, locked_by = _moment(row.get("CompleteBy")), row.get("LockedBy")
    if due is None:
        return None
    if locked_by is not None:
        return Dispatched(
            locked_by=locked_by,
            complete_by=due,
            note=row.get("Note"),
            excused=row.get("Excused") or 0,
            awaits=row.get("Awaits") or False,
        )
    return Resting(due) if row.get("Resting") else Ready(due)


def _content(column: str, content: Content) -> Entity:
    """Return content as properties: its text, or its reference."""
    if isinstance(content, str):
        return chunked(column, content)
    return {
        f"{column}Sha256": content.sha256,
        f"{column}Bytes": content.size,
        f"{column}Chunks": content.chunks,
    }


def _content_of(column: str, row: Row) -> Content | None:
    """Return the content that ``_content`` wrote; None if the row has none."""
    sha256 = row.get(f"{column}Sha256")
    if sha256 is None:
        return joined(column, row)
    return PayloadRef(sha256, row[f"{column}Bytes"], row[f"{column}Chunks"])


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else key_time(moment)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_key_time(text)
