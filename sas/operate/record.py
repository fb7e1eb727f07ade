"""The base of the records with which ``sas.operate`` answers.

A record is plain data: texts, numbers, moments in UTC, and other records. The terminal and the desk
draw it. ``line`` is its JSON: its members in their order, with the names that the pattern uses.
"""

from __future__ import annotations

import msgspec

from sas.codec.record import to_line

_NAMES = {"order_id": "OrderID", "message_id": "MessageID", "correlation_id": "CorrelationID"}


def _json_name(member: str) -> str:
    """Return the name in JSON: ``failure_count`` is ``FailureCount``."""
    return _NAMES.get(member, "".join(part.capitalize() for part in member.split("_")))


class Record(msgspec.Struct, frozen=True, kw_only=True, rename=_json_name):
    """A plain answer. Members in JSON are written ``LikeThis``, moments in ISO 8601 with ``Z``."""

    def line(self) -> str:
        """Return the record as one line of JSON."""
        return to_line(self)
