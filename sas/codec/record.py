"""An order and its journal as one JSON object: what ``sas show --json`` and an export write.

The five fields keep the pattern's names. The content of applications and agents (``Payload``,
``Result``, ``Edited``) is included only on request, because it may be personal. It is written
as it was received, but for characters that no screen shows: they are escaped. The schema is
docs/contract/exported-order.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from sas.domain.content import Content, PayloadRef
from sas.domain.ids import key_time
from sas.domain.messages import JournalEntry, Outgoing
from sas.domain.order import AttemptError, Order, StepRecord, UndoStatus
from sas.domain.texts import visible_json


def record_of(order: Order, journal: Sequence[JournalEntry], *, content: bool) -> dict[str, Any]:
    """Return everything about an order, with its content if ``content`` is true.

    Then the caller must have fetched the payload references (``sas.features.claim_check``).
    """
    details = order.details
    members = {
        "OrderID": order.order_id,
        "LockedBy": order.locked_by,
        "CompleteBy": _time(order.complete_by),
        "ProcessState": order.process_state.value,
        "FailureCount": order.failure_count,
        "Seq": order.seq,
        "Workflow": details.workflow,
        "Version": details.version,
        "ReplyQueue": details.reply_queue,
        "CorrelationID": details.correlation_id,
        "Urgent": details.urgent,
        "SubmittedAt": _time(details.submitted_at),
        "StoppedAt": _time(order.stopped_at),
        "Deadline": _time(order.deadline),
        "AcknowledgedBy": order.acknowledged_by,
        "UndoneBecause": order.undone_because,
        "Steps": [_step(step, content=content) for step in order.steps],
        "Journal": [_entry(entry) for entry in journal],
    }
    return members | ({"Payload": _json(details.payload)} if content else {})


def to_line(record: Any) -> str:
    """Return a record as one line of JSON, in which a screen shows each character."""
    return visible_json(msgspec.json.encode(record).decode())


def _step(step: StepRecord, *, content: bool) -> dict[str, Any]:
    members = {
        "Name": step.name,
        "LockedBy": step.locked_by,
        "CompleteBy": _time(step.complete_by),
        "ProcessState": step.process_state.value,
        "FailureCount": step.failure_count,
        "Direction": step.direction.value,
        "Undo": None if step.undo is UndoStatus.NOT_DECIDED else step.undo.value,
        "Error": {"Code": step.error.code, "Message": step.error.message} if step.error else None,
        "LastError": _last_error(step.last_error),
        "Since": _time(step.since),
        "Epoch": step.epoch,
        "Generation": step.call.generation,
        "Resting": step.resting,
        "AwaitsCallback": step.awaits_callback,
        "Note": step.note,
        "Route": step.call.route,
    }
    contents = {"Result": _json(step.result), "Edited": _json(step.call.edited)}
    return members | (contents if content else {})


def _last_error(error: AttemptError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "Epoch": error.epoch,
        "Attempt": error.attempt,
        "Code": error.kind,
        "Message": error.message,
        "At": _time(error.at),
    }


def _entry(entry: JournalEntry) -> dict[str, Any]:
    return {
        "Seq": entry.seq,
        "At": _time(entry.at),
        "What": entry.what.value,
        "By": entry.by,
        "Cause": entry.cause,
        "Reason": entry.reason or None,
        "Changes": [
            {
                "Step": change.step,
                "Before": change.before.value,
                "After": change.after.value,
                "Edited": change.edited,
            }
            for change in entry.changes
        ],
        "Sent": [_sent(message) for message in entry.messages],
    }


def _sent(message: Outgoing) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.to_builtins(message)
    return {"kind": type(message).__name__.lower(), **members}


def _json(content: Content | None) -> Any:
    """Return JSON text as it was written; parsing it would change its numbers.

    If the content of a rejected order is not JSON, it is returned as text. A payload reference
    that is still here could not be fetched: its content is lost.
    """
    if isinstance(content, PayloadRef):
        return {"Lost": True, "Sha256": content.sha256, "Bytes": content.size}
    if content is None:
        return None
    try:
        json.loads(content, parse_int=len, parse_float=len)  # checks the syntax only
    except ValueError:
        return content
    return msgspec.Raw(content.encode())


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else key_time(moment)
