"""An order and its journal as one JSON object: what ``sas show --json`` and an export write.

The five fields keep the pattern's names. What an application sent and what agents returned
(``Payload``, ``Result``, ``Edited``) is there only when asked for: it may be personal. It is there
as it was written, to the digit: docs/contract/exported-order.schema.json.
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
from sas.domain.order import Order, StepRecord


def record_of(order: Order, journal: Sequence[JournalEntry], *, content: bool) -> dict[str, Any]:
    """Return everything about an order; ``content`` says whether with what was ordered: then its
    content must be in place (``sas.actors.contents.whole``).
    """
    details = order.details
    said = {
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
        "SettledAt": _time(order.settled_at),
        "Deadline": _time(order.deadline),
        "AcknowledgedBy": order.acknowledged_by,
        "Steps": [_step(step, content=content) for step in order.steps],
        "Journal": [_entry(entry) for entry in journal],
    }
    return said | ({"Payload": _json(details.payload)} if content else {})


def to_line(record: dict[str, Any]) -> str:
    """Return a record as one line of JSON."""
    return msgspec.json.encode(record).decode()


def _step(step: StepRecord, *, content: bool) -> dict[str, Any]:
    said = {
        "Name": step.name,
        "LockedBy": step.locked_by,
        "CompleteBy": _time(step.complete_by),
        "ProcessState": step.process_state.value,
        "FailureCount": step.failure_count,
        "Direction": step.direction.value,
        "Undo": step.undo.value if step.undo else None,
        "Error": {"Code": step.error.code, "Message": step.error.message} if step.error else None,
        "Since": _time(step.since),
        "Epoch": step.epoch,
        "Generation": step.generation,
        "Hold": step.hold,
        "Note": step.note,
        "Route": step.route,
        "Tried": list(step.tried),
    }
    inside = {"Result": _json(step.result), "Edited": _json(step.edited)}
    return said | (inside if content else {})


def _entry(entry: JournalEntry) -> dict[str, Any]:
    return {
        "Seq": entry.seq,
        "At": _time(entry.at),
        "What": entry.what,
        "By": entry.by,
        "Cause": entry.cause,
        "Sent": [_sent(message) for message in entry.messages],
    }


def _sent(message: Outgoing) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(message)
    return {"kind": type(message).__name__.lower(), **said}


def _json(content: Content | None) -> Any:
    """Return JSON as it was written, on one line (a number that passed through a float would be
    another one); its text where it is none (a rejected order's), and what stood for it where it
    was kept apart and is lost.
    """
    if isinstance(content, PayloadRef):
        return {"Lost": True, "Sha256": content.sha256, "Bytes": content.size}
    if content is None:
        return None
    try:
        json.loads(content, parse_int=len, parse_float=len)  # any cheap value does
    except ValueError:
        return content
    # Within its texts JSON has no line breaks.
    return msgspec.Raw(content.replace("\r", " ").replace("\n", " ").encode())


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else key_time(moment)
