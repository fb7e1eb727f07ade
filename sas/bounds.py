"""How large what is stored may be: the same for every state store.

Bounds are in UTF-16 units, because Table Storage counts those: 32,768 a property, 1 MiB
(524,288 units) an entity. Azurite counts the bytes of the JSON that is sent instead.
"""

from __future__ import annotations

import json

from sas.domain.change import Change
from sas.domain.content import Content, PayloadRef


class TooLargeError(ValueError):
    """An order, a result or a text is larger than the state store takes. Nothing was written and
    trying again cannot help: refuse the input with this sentence.
    """


PAYLOAD_INLINE_BYTES_MAX = 64 * 1024
"""A payload up to here, in bytes of UTF-8, stands in the order's own row; a longer one is kept
apart, so that loading an order stays one small query.
"""

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Longest payload, in bytes of UTF-8."""

RESULT_INLINE_BYTES_MAX = 48 * 1024
"""A result up to here, in bytes of UTF-8, travels in messages and stands in a row of its step."""

RESULT_BYTES_MAX = 1024 * 1024
"""Longest result of a step, in bytes of UTF-8."""

PAYLOAD_UNITS_MAX = 480_000
"""Longest payload that stands in the order's own row, in UTF-16 units. What is written today is
shorter; what an earlier version wrote stays readable.
"""

PAYLOAD_SENT_BYTES_MAX = 1_000_000
"""The same in bytes of the ASCII JSON that is sent (up to 6 for one character).

256 KB of UTF-8 that are a JSON text always fit both bounds: none of its bytes makes more than
one unit, nor more than three bytes sent.
"""

RESULT_UNITS_MAX = 65_536
"""Longest result that stands in a row of its step, in UTF-16 units."""

EDITED_UNITS_MAX = 4_000
"""Longest input that an operator may give a step, in UTF-16 units: the start of an undo rewrites
all step rows at once, and they must fit one transaction beside their results.
"""

TEXT_UNITS_MAX = 8_000
"""Longest of any other text (cause, correlation id, reply queue), in UTF-16 units."""


def utf16_units(text: str) -> int:
    """Return how many UTF-16 units a text has: its length as Table Storage counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_bounds(change: Change) -> None:
    """Raise TooLargeError for a change that no store takes; every store calls this first."""
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
        ("name of who acknowledged", change.after.acknowledged_by),
        ("cause", entry.cause),
        ("actor's name", entry.by),
        ("journal's word", entry.what),
    ):
        check_units(name, text, TEXT_UNITS_MAX)


def check_payload(payload: Content) -> None:
    """Raise TooLargeError when an order's content cannot be stored as it is."""
    if isinstance(payload, PayloadRef):
        check_bytes("payload", payload.size, PAYLOAD_BYTES_MAX)
        return
    check_units("payload", payload, PAYLOAD_UNITS_MAX)
    if len(payload) * 6 <= PAYLOAD_SENT_BYTES_MAX:
        return
    sent = len(json.dumps(payload))
    if sent > PAYLOAD_SENT_BYTES_MAX:
        raise TooLargeError(
            f"the payload has {sent} bytes as ASCII JSON: at most {PAYLOAD_SENT_BYTES_MAX} can be "
            "stored"
        )


def check_bytes(name: str, size: int, bytes_max: int) -> None:
    """Raise TooLargeError, naming what it is, for more than ``bytes_max`` bytes."""
    if size > bytes_max:
        raise TooLargeError(f"the {name} has {size:,} bytes: at most {bytes_max:,} can be stored")


def check_units(name: str, text: str | None, units_max: int) -> None:
    """Raise TooLargeError, naming what it is, when a text has more than ``units_max`` units."""
    if text is not None and len(text) * 2 > units_max and utf16_units(text) > units_max:
        raise TooLargeError(
            f"the {name} has {utf16_units(text)} UTF-16 units: at most {units_max} can be stored"
        )
