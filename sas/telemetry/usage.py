"""Counts of the requests to the state store and to the bus, in the units of a bill.

The adapters and their twins in memory count in the same way, so a figure that a test asserts in
memory holds over Azure too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(slots=True, kw_only=True)
class Usage:
    """Counted requests to the state store and to the bus, repeats included.

    ``transactions`` are entity group transactions. ``queries`` are pages of a range of rows,
    ``reads`` single rows, ``writes`` and ``deletes`` single rows too. ``sends`` are batches or
    single messages, ``peeks`` pages. ``receives`` are messages that an operator's command took. The
    Functions host receives those of the functions, and applications receive their own: neither is
    counted. Two usages are equal if all counts are, without rows and ``storage_bytes``, which the
    store in memory does not count.
    """

    transactions: int = 0
    queries: int = 0
    reads: int = 0
    writes: int = 0
    deletes: int = 0
    entities_read: int = field(default=0, compare=False)
    entities_written: int = field(default=0, compare=False)
    """Rows. The twin in memory counts requests only."""
    sends: int = 0
    messages: int = 0
    peeks: int = 0
    receives: int = 0
    storage_bytes: int = field(default=0, compare=False)
    """Bodies of the requests to Table Storage; the twin in memory sends none."""
    message_bytes: int = field(default=0, compare=False)
    """Bodies of the messages that were sent."""

    @property
    def requests(self) -> int:
        """How many requests the state store had."""
        return self.transactions + self.queries + self.reads + self.writes + self.deletes

    def now(self) -> Usage:
        """Return the counts so far; a later usage is measured from them."""
        return self + Usage()

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of each count."""
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    def __sub__(self, other: Usage) -> Usage:
        """Return the difference of each count."""
        return Usage(**{name: getattr(self, name) - getattr(other, name) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Usage))
