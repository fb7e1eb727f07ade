"""Limits of stored data, the same for every state store.

Texts are limited in UTF-16 units, because Table Storage counts those: 32,768 for a property and
1 MiB (524,288 units) for an entity. Azurite counts the bytes of the JSON that is sent instead.
"""

from __future__ import annotations

import json

from sas.domain.change import Change
from sas.domain.content import Content, PayloadRef


class TooLargeError(ValueError):
    """An order, a result or a text is too large for the state store.

    Nothing was written, and a retry cannot succeed: refuse the input with this text.
    """


SHARDS_MAX = 256
"""Largest number of shards of one state store."""
PAYLOAD_INLINE_BYTES_MAX = 64 * 1024
"""Largest payload in the order's own row, in bytes of UTF-8. A larger one has rows of its own, so
that loading an order stays one small query.
"""
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Largest payload, in bytes of UTF-8."""
RESULT_INLINE_BYTES_MAX = 48 * 1024
"""Largest result in messages and in the rows of its step, in bytes of UTF-8. A larger one is
offloaded.
"""
RESULT_OWN_ROW_UNITS = 16_000
"""A result in the store that is longer, in UTF-16 units, has a row of its own beside its step's."""
RESULT_BYTES_MAX = 1024 * 1024
"""Largest result of a step, in bytes of UTF-8."""
PAYLOAD_UNITS_MAX = 480_000
"""Largest payload in the order's own row, in UTF-16 units."""
PAYLOAD_SENT_BYTES_MAX = 1_000_000
"""The same limit in bytes of ASCII JSON. One UTF-16 unit takes up to 6 of them.

A JSON text of 256 KB in UTF-8 always fits both limits: each of its bytes becomes at most one unit,
and at most three bytes of ASCII JSON.
"""
RESULT_UNITS_MAX = 65_536
"""Largest result in a row of its step, in UTF-16 units."""
EDITED_UNITS_MAX = 4_000
"""Largest input that an operator may give a step, in UTF-16 units. The start of an undo rewrites
all step rows, and they must fit in one transaction with their results.
"""
TEXT_UNITS_MAX = 8_000
"""Largest other text (cause, correlation id, reply queue), in UTF-16 units."""


def utf16_units(text: str) -> int:
    """Return the number of UTF-16 units of a text, which Table Storage counts as its length."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def has_own_row(result: Content | None) -> bool:
    """Return whether a result has a row of its own in the store."""
    return isinstance(result, str) and utf16_units(result) > RESULT_OWN_ROW_UNITS


def check_bounds(change: Change) -> None:
    """Raise TooLargeError if a change is too large. Every store calls this before it writes."""
    details, entry = change.after.details, change.entry
    check_payload(details.payload)
    for step in change.after.steps:
        name = f"result of step {step.name}"
        if isinstance(step.result, PayloadRef):
            check_bytes(name, step.result.size, RESULT_BYTES_MAX)
        else:
            check_units(name, step.result, RESULT_UNITS_MAX)
        check_units(f"edited input of step {step.name}", step.call.edited, EDITED_UNITS_MAX)
        check_units(f"LockedBy of step {step.name}", step.locked_by, TEXT_UNITS_MAX)
        check_units(f"note of step {step.name}", step.note, TEXT_UNITS_MAX)
    for name, text in (
        ("content hash", details.content_hash),
        ("reply queue", details.reply_queue),
        ("correlation id", details.correlation_id),
        ("operator who acknowledged", change.after.acknowledged_by),
        ("cause", entry.cause),
        ("actor's name", entry.by),
        ("journal's word", entry.what),
    ):
        check_units(name, text, TEXT_UNITS_MAX)


def check_payload(payload: Content) -> None:
    """Raise TooLargeError if an order's payload is too large to be stored."""
    if isinstance(payload, PayloadRef):
        check_bytes("payload", payload.size, PAYLOAD_BYTES_MAX)
        return
    check_units("payload", payload, PAYLOAD_UNITS_MAX)
    if len(payload) * 6 <= PAYLOAD_SENT_BYTES_MAX:
        return
    size = len(json.dumps(payload))
    if size > PAYLOAD_SENT_BYTES_MAX:
        raise TooLargeError(
            f"the payload has {size} bytes as ASCII JSON: at most {PAYLOAD_SENT_BYTES_MAX} can be "
            "stored"
        )


def check_bytes(name: str, size: int, bytes_max: int) -> None:
    """Raise TooLargeError, with the name, if the size is above ``bytes_max``."""
    if size > bytes_max:
        raise TooLargeError(f"the {name} has {size:,} bytes: at most {bytes_max:,} can be stored")


def check_units(name: str, text: str | None, units_max: int) -> None:
    """Raise TooLargeError, with the name, if a text has more than ``units_max`` units."""
    if text is not None and len(text) * 2 > units_max and utf16_units(text) > units_max:
        raise TooLargeError(
            f"the {name} has {utf16_units(text)} UTF-16 units: at most {units_max} can be stored"
        )
