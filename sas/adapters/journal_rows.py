"""The journal as entities and back, with the messages that each transition wants sent.

Messages are kept as compact JSON, one object each with its kind under ``k`` and the members
of its class. A later version may add members with defaults, never rename one nor a kind: old
rows are read for as long as orders live.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from sas.adapters import keys
from sas.adapters.rows import Entity, Row, chunked, clean, joined
from sas.domain.ids import key_time, parse_key_time
from sas.domain.messages import Alert, JournalEntry, JournalWord, Notify, Outgoing, Request, Wake

KINDS: Mapping[str, type[Outgoing]] = {
    "wake": Wake,
    "request": Request,
    "notify": Notify,
    "alert": Alert,
}
_KIND_OF = {made: kind for kind, made in KINDS.items()}


def journal_row(order_id: str, entry: JournalEntry) -> Entity:
    """Return one transition as an entity."""
    return {
        "RowKey": keys.journal(order_id, entry.seq),
        "OrderID": order_id,
        "Seq": entry.seq,
        "At": key_time(entry.at),
        "What": entry.what.value,
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
        what=JournalWord(row["What"]),
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
    return json.dumps([_to_json(message) for message in messages], separators=(",", ":"))


def messages_from_json(text: str) -> tuple[Outgoing, ...]:
    """Return the messages that ``messages_to_json`` was given.

    Raises:
        ValueError, msgspec.ValidationError: a kind or a content that this version does not know.
    """
    return tuple(_from_json(item) for item in json.loads(text))


def _to_json(message: Outgoing) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(message)
    return {"k": _KIND_OF[type(message)], **said}


def _from_json(item: dict[str, Any]) -> Outgoing:
    kind = KINDS.get(item.pop("k"))
    if kind is None:
        raise ValueError("a message was recorded that only a newer version knows")
    return msgspec.convert(item, kind)
