"""Moments at which something falls due, and the duplicate detection window."""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

_COMPACT_ABOVE = 1024


class DueHeap:
    """Sequence numbers by the moment they fall due. What is no longer alive is left out lazily.

    Only numbers are held, never messages, and the heap is rebuilt when dead entries outnumber
    live ones, so that a queue with an hour's time to live does not remember an hour's traffic.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._compact_at = _COMPACT_ABOVE

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, at: float, sequence: int) -> None:
        """Let ``sequence`` fall due at ``at``."""
        heapq.heappush(self._heap, (at, sequence))

    def pop_due(self, now: float) -> int | None:
        """Take one number that is due, None where there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[1]
        return None

    def next_at(self) -> float | None:
        """Say when the next one falls due."""
        return self._heap[0][0] if self._heap else None

    def compact(self, alive: Callable[[int], bool]) -> None:
        """Drop dead entries once there are twice as many entries as after the last time."""
        if len(self._heap) < self._compact_at:
            return
        self._heap = [entry for entry in self._heap if alive(entry[1])]
        heapq.heapify(self._heap)
        self._compact_at = max(_COMPACT_ABOVE, 2 * len(self._heap))


class DuplicateHistory:
    """The message-ids of the last while, and the sequence number each was given."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[float, int]] = {}
        self._order: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, message_id: Any, now: float, window_s: float) -> int | None:
        """Give the sequence number under which this id was taken, None where it is new."""
        self._forget_before(now - window_s)
        found = self._seen.get(message_id)
        return None if found is None else found[1]

    def remember(self, message_id: Any, now: float, sequence: int) -> None:
        """Note that this id was taken."""
        self._seen[message_id] = (now, sequence)
        self._order.append(message_id)

    def oldest_sequence(self) -> int:
        """Give the smallest sequence number that is still remembered, 0 where there is none."""
        return self._seen[self._order[0]][1] if self._order else 0

    def _forget_before(self, moment: float) -> None:
        while self._order and self._seen[self._order[0]][0] <= moment:
            del self._seen[self._order.popleft()]
