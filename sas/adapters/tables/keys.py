"""Row keys of the one table, and the ranges that queries read.

All rows of an order share its partition. ``|`` separates the parts of a key. No order id may
contain it, so the keys of one order never fall into the range of another. ``}`` is the character
after ``|`` and ends a range.

Keys sort so that an order's details, state and steps come together (the *aggregate*), before its
journal, its causes and its payloads. So one contiguous range holds the aggregate, and a load never
reads the other rows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sas.domain.change import DeadlineDue, DeferredDue, Due, OtherDue, OutDue, StepDue
from sas.domain.ids import digest_id, key_time, parse_key_time

META_PARTITION = "meta"
"""Partition of the row with the number of shards, the shared values and the leases."""
HELD_PARTITION = "held"
"""Partition of the messages that their queues did not take."""
META_ROW = "meta"
"""Row with the number of shards and the format."""

# The service decodes the path of a URL twice. So with '%' or '+' in a key, a read, update or delete
# of one row fails or finds another row. A quote would have to be doubled, but not everywhere.
# '=' begins an escape.
_UNSAFE = re.compile(r"[%+'=]")
_ESCAPED = re.compile(r"=([0-9a-f]{2})")


def escape(order_id: str) -> str:
    """Return an order id for use in keys: each of ``% + ' =`` becomes ``=25`` and so on."""
    return _UNSAFE.sub(lambda match: f"={ord(match.group()):02x}", order_id)


def unescape(part: str) -> str:
    """Return the order id that ``escape`` was given."""
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), part)


def details(order_id: str) -> str:
    """Row of what was ordered."""
    return f"order|{escape(order_id)}|a|details"


def state(order_id: str) -> str:
    """Row of the state; its ETag guards every change of the order."""
    return f"order|{escape(order_id)}|a|state"


def step(order_id: str, number: int) -> str:
    """Row of one step."""
    return f"order|{escape(order_id)}|a|step|{number:02d}"


def result(order_id: str, number: int) -> str:
    """Row of a result that is too large for the row of its step."""
    return f"{step(order_id, number)}|result"


def error(order_id: str, number: int) -> str:
    """Row of the last error of a step's attempts."""
    return f"{step(order_id, number)}|error"


def is_error(row_key: str) -> bool:
    """Return whether a row of an order's aggregate is the last error of a step."""
    return row_key.endswith("|error")


def aggregate(order_id: str) -> tuple[str, str]:
    """Range (from, below) of an order's details, state, steps, results and last errors."""
    return _range(f"order|{escape(order_id)}|a")


def journal(order_id: str, seq: int) -> str:
    """Row of one transition."""
    return f"order|{escape(order_id)}|b|journal|{seq:010d}"


def journals(order_id: str) -> tuple[str, str]:
    """Range (from, below) of an order's journal."""
    return _range(f"order|{escape(order_id)}|b|journal")


def cause(order_id: str, text: str) -> str:
    """Row that remembers a cause."""
    return f"order|{escape(order_id)}|c|cause|{digest_id(text)}"


def payload_chunk(order_id: str, sha256: str, number: int) -> str:
    """Row of one chunk of a payload."""
    return f"{_payload(order_id, sha256)}|{number:02d}"


def payload_chunks(order_id: str, sha256: str) -> tuple[str, str]:
    """Range (from, below) of the chunks of one payload."""
    return _range(_payload(order_id, sha256))


def due(row: Due) -> str:
    """Row of a due step, of an order's deadline, or of unsent messages."""
    prefix = f"due|{key_time(row.at)}|{escape(row.order_id)}"
    if isinstance(row, OutDue):
        return f"{prefix}|out|{row.seq:010d}"
    if isinstance(row, DeferredDue):
        return f"{prefix}|deferred|{row.key}"
    if isinstance(row, DeadlineDue):
        return f"{prefix}|deadline|0"
    if isinstance(row, OtherDue):
        return row.row_key
    return f"{prefix}|{row.step:02d}|{row.epoch}"


def parse_due(row_key: str) -> Due:
    """Return the due row of a key, which holds everything; an ``OtherDue`` for a broken key."""
    try:
        return _parse_due(row_key)
    except ValueError:
        return OtherDue(datetime.min.replace(tzinfo=UTC), "", row_key)


def _parse_due(row_key: str) -> Due:
    match row_key.split("|"):
        case [_, at, order_id, "out", seq]:
            return OutDue(parse_key_time(at), unescape(order_id), int(seq))
        case [_, at, order_id, "deferred", key]:
            return DeferredDue(parse_key_time(at), unescape(order_id), key)
        case [_, at, order_id, "deadline", _]:
            return DeadlineDue(parse_key_time(at), unescape(order_id))
        case [_, at, order_id, step, epoch] if step.isdecimal():
            return StepDue(
                at=parse_key_time(at), order_id=unescape(order_id), step=int(step), epoch=int(epoch)
            )
        case [_, at, order_id, *_]:
            return OtherDue(parse_key_time(at), unescape(order_id), row_key)
        case _:
            raise ValueError(f"{row_key!r} is not the key of a due row: remove it")


def held(queue: str, since: datetime, message_id: str) -> str:
    """Row of a message that its queue did not take."""
    return f"held|{escape(queue)}|{key_time(since)}|{digest_id(queue, message_id)}"


def held_for(queue: str) -> tuple[str, str]:
    """Range (from, below) of the messages that are held for a queue."""
    return _range(f"held|{escape(queue)}")


def held_behind(queue: str) -> tuple[str, str]:
    """Range (from, below) of what is held for the queues behind one; for all, if it is empty."""
    low, high = _range("held")
    return held_for(queue)[1] if queue else low, high


def held_queue(row_key: str) -> str:
    """Return the queue of a held message by its row key."""
    return unescape(row_key.split("|")[1])


def stopped(kind: str, at: datetime, order_id: str) -> str:
    """Row of an order in Error (kind ``attention``) or finished (``done``)."""
    return f"{kind}|{key_time(at)}|{escape(order_id)}"


def between(
    kind: str, since: datetime | None = None, until: datetime | None = None
) -> tuple[str, str]:
    """Range (from, below) of ``due``, ``attention`` or ``done`` rows, both times included."""
    low, high = _range(kind)
    first = low if since is None else f"{low}{key_time(since)}"
    return first, high if until is None else f"{low}{key_time(until)}}}"


def whole(order_id: str) -> tuple[str, str]:
    """Range (from, below) of all rows of an order: aggregate, journal, causes, payloads."""
    return _range(f"order|{escape(order_id)}")


def shared(name: str) -> str:
    """Row of a shared value."""
    return f"shared|{name}"


def shared_name(row_key: str) -> str:
    """Return the name of a shared value by its row key."""
    return row_key.removeprefix("shared|")


def shared_range(prefix: str) -> tuple[str, str]:
    """Range (from, below) of the shared values whose names begin with ``prefix``."""
    low = shared(prefix)
    return low, low[:-1] + chr(ord(low[-1]) + 1)


def lease(name: str) -> str:
    """Row of a lease."""
    return f"lease|{name}"


def _payload(order_id: str, sha256: str) -> str:
    return f"order|{escape(order_id)}|d|payload|{sha256[:32]}"


def _range(prefix: str) -> tuple[str, str]:
    return f"{prefix}|", f"{prefix}}}"
