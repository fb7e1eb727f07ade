"""What became of the orders of one submission: counted, never kept."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from sas.client import is_end
from sas.codec.outward import Notification, event_type, notice_of
from sas.domain.messages import Notice
from sas.domain.order import OrderState

SEEN_MAX = 10_000
"""Notifications remembered, so that one delivered twice is counted once; and orders that ended."""

K = TypeVar("K")
_REJECTED = event_type(Notice.REJECTED)
_RECEIVED = event_type(Notice.RECEIVED)
_END_OF_STATE = {
    OrderState.PROCESSED.value: "completed",
    OrderState.COMPENSATED.value: "undone",
    OrderState.ERROR.value: "failed",
    OrderState.REJECTED.value: "rejected",
}


@dataclass(slots=True)
class Tally:
    """Counts, and the ids of the orders that have not ended: all that is held in memory.

    An id may be submitted several times (``waiting`` counts). Each repeat has an answer of its
    own, before or after the order's end: a duplicate's notice, with other content a rejection,
    with the same submission_id the very same *received* again.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    undone: int = 0
    rejected: int = 0
    repeated: int = 0
    others: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    all_sent: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _over: set[str] = field(default_factory=set)
    _seen: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)

    def expect(self, order_id: str) -> None:
        """An order is about to be sent: its answer may come before the sending returns."""
        self.waiting[order_id] = self.waiting.get(order_id, 0) + 1

    def forget(self, order_id: str) -> None:
        """An order was not sent after all, or one of its submissions has been answered."""
        left = self.waiting.pop(order_id, 0) - 1
        if left > 0:
            self.waiting[order_id] = left
        else:
            self._over.discard(order_id)
            _keep(self._ended, order_id)

    def sending_ended(self) -> None:
        """Nothing more will be submitted: from here on silence counts."""
        self.all_sent = True
        self.heard_at = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether everything was sent and has come to its end."""
        return self.all_sent and not self.waiting

    @property
    def ended(self) -> int:
        """How many orders came to an end."""
        return self.completed + self.failed + self.undone + self.rejected

    @property
    def went_well(self) -> bool:
        """Whether no order failed, was undone, was rejected or is unfinished."""
        return not (self.failed or self.undone or self.rejected or self.waiting)

    def silent_s(self) -> float:
        """Return for how many seconds nothing was heard."""
        return time.monotonic() - self.heard_at

    def note(self, told: Notification) -> bool:
        """Count a notification; False if it has been counted before."""
        self.heard_at = time.monotonic()
        order_id = told.data.order_id
        repeats = self.waiting.get(order_id, 0) > 1 or order_id in self._over
        known = self._known(told)
        if order_id not in self.waiting:
            # What runs beside a step that failed is told after its order's end: it is no other's.
            self.others += not known and order_id not in self._ended
        elif repeats and told.type == _RECEIVED and (known or told.data.duplicate):
            self.repeated += 1
            self.forget(order_id)
        elif known:
            return False
        elif told.type == _REJECTED or (is_end(told) and order_id not in self._over):
            self._end(_end_of(told))
            if told.type != _REJECTED:
                self._over.add(order_id)
            self.forget(order_id)
        return not known

    def _known(self, told: Notification) -> bool:
        """Return whether a notification has come before, and remember it."""
        key = (told.source, told.id)
        known = key in self._seen
        _keep(self._seen, key)
        return known

    def _end(self, how: str) -> None:
        match how:
            case "completed":
                self.completed += 1
            case "undone":
                self.undone += 1
            case "rejected":
                self.rejected += 1
            case _:
                self.failed += 1

    def counts(self) -> dict[str, int]:
        """Return the summary; the last two only where there are any."""
        unfinished = sum(self.waiting.values())
        said = {
            "submitted": self.submitted,
            "completed": self.completed,
            "failed": self.failed,
            "undone": self.undone,
            "rejected": self.rejected,
            "unfinished": unfinished,
        }
        extra = {"repeated": self.repeated, "of_other_orders": self.others}
        return said | {name: count for name, count in extra.items() if count}


def _keep(latest: OrderedDict[K, None], key: K) -> None:
    """Remember a key as the latest; forget the oldest where there are too many."""
    latest[key] = None
    latest.move_to_end(key)
    if len(latest) > SEEN_MAX:
        latest.popitem(last=False)


def _end_of(told: Notification) -> str:
    """Return how an order ended. That a repeat is told tells its state, not its end."""
    if told.type == _RECEIVED:
        return _END_OF_STATE.get(told.data.state, "failed")
    return notice_of(told.type)
