"""The journal as entities and back, with the messages that each transition wants sent.

Messages are kept as compact JSON, one object each with its kind under ``k``. A later
version may add members with defaults, never rename one: old rows are read for as long as
orders live.
"""

from __future__ import annotations

import json
from typing import Any

from sas.adapters import keys
from sas.adapters.rows import Entity, Row, chunked, clean, joined
from sas.domain.ids import key_time, parse_key_time
from sas.domain.messages import (
    Alert,
    AlertKind,
    JournalEntry,
    Notice,
    Notify,
    Outgoing,
    Request,
    Wake,
)
from sas.domain.model import Direction, Fault


def journal_row(order_id: str, entry: JournalEntry) -> Entity:
    """Return one transition as an entity."""
    return {
        "RowKey": keys.journal(order_id, entry.seq),
        "OrderID": order_id,
        "Seq": entry.seq,
        "At": key_time(entry.at),
        "What": clean(entry.what),
        "By": clean(entry.by),
        "CommitId": entry.commit_id,
        "Cause": None if entry.cause is None else clean(entry.cause),
        **chunked("Messages", messages_to_json(entry.messages)),
    }


def entry_from(row: Row) -> JournalEntry:
    """Return the transition that ``journal_row`` was given."""
    return JournalEntry(
        seq=row["Seq"],
        at=parse_key_time(row["At"]),
        what=row["What"],
        by=row["By"],
        commit_id=row["CommitId"],
        cause=row.get("Cause"),
        messages=messages_from_json(joined("Messages", row) or "[]"),
    )


def cause_row(order_id: str, cause: str, seq: int) -> Entity:
    """Return what remembers a cause, as an entity."""
    return {
        "RowKey": keys.cause(order_id, cause),
        "OrderID": order_id,
        "Cause": clean(cause),
        "Seq": seq,
    }


def messages_to_json(messages: tuple[Outgoing, ...]) -> str:
    """Return messages as compact JSON."""
    return json.dumps([_to_json(m) for m in messages], separators=(",", ":"), ensure_ascii=True)


def messages_from_json(text: str) -> tuple[Outgoing, ...]:
    """Return the messages that ``messages_to_json`` was given.

    Raises:
        ValueError: a kind that this version does not know.
    """
    return tuple(_from_json(item) for item in json.loads(text))


def _to_json(message: Outgoing) -> dict[str, Any]:
    match message:
        case Wake():
            return {"k": "wake"}
        case Request(step, direction, epoch, generation, complete_by):
            return {
                "k": "request",
                "step": step,
                "direction": direction.value,
                "epoch": epoch,
                "generation": generation,
                "complete_by": key_time(complete_by),
            }
        case Notify(notice, step, fault, undoing):
            told = {"k": "notify", "notice": notice.value, "step": step, "undoing": undoing}
            return told | ({"fault": [fault.code, fault.message]} if fault else {})
        case Alert(alert, step, text):
            return {"k": "alert", "alert": alert.value, "step": step, "text": text}


def _from_json(item: dict[str, Any]) -> Outgoing:
    match item["k"]:
        case "wake":
            return Wake()
        case "request":
            return Request(
                item["step"],
                Direction(item["direction"]),
                item["epoch"],
                item["generation"],
                parse_key_time(item["complete_by"]),
            )
        case "notify":
            fault = Fault(*item["fault"]) if "fault" in item else None
            return Notify(Notice(item["notice"]), item["step"], fault, item.get("undoing", False))
        case "alert":
            return Alert(AlertKind(item["alert"]), item["step"], item["text"])
        case kind:
            raise ValueError(f"a message of kind {kind!r} was recorded by a newer version")
