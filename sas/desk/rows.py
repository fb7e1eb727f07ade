"""The rows of the lists, one for each order, in blocks.

There may be 100,000 finished orders, and new ones every second. A block never changes, so it is
sorted and counted once. A list that is looked at merges the sorted blocks as far as its page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import compress, repeat
from operator import contains
from typing import Any

from sas.domain.order import OrderState

BLOCK = 1000
NO_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One order in a list. ``state`` None: it is under way, and not loaded yet."""

    order_id: str
    state: OrderState | None
    workflow: str = ""
    since: datetime | None = None
    submitted_at: datetime | None = None
    seq: int = 0
    failed: tuple[str, ...] = ()
    said: str = ""
    done: int = 0
    steps: int = 0
    acknowledged_by: str | None = None
    urgent: bool = False


SORTS: Mapping[str, Callable[[Row], Any]] = {
    "since": lambda row: (row.since or NO_TIME, row.order_id),
    "order": lambda row: row.order_id,
    "workflow": lambda row: (row.workflow, row.order_id),
    "submitted": lambda row: (row.submitted_at or NO_TIME, row.order_id),
}


class Block:
    """Some orders. The first is the one that has been in its state for the longest time."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._sorted = {"since": sorted(rows, key=SORTS["since"])}
        self._ids: dict[str, Sequence[str]] = {}
        self._parts: dict[tuple[OrderState | None, str], Block] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def rows(self) -> Sequence[Row]:
        """Its orders by time."""
        return self._sorted["since"]

    @property
    def oldest(self) -> datetime:
        """Since when the first of its orders has been in its state."""
        return self.rows[0].since or NO_TIME

    @property
    def newest(self) -> datetime:
        """Since when the last of its orders has been in its state."""
        return self.rows[-1].since or NO_TIME

    @cached_property
    def text(self) -> str:
        """All ids in lower case: a block that does not contain the text of a search is skipped."""
        return "\n".join(self._ids_by("since"))

    @cached_property
    def counts(self) -> Counter[tuple[OrderState | None, str]]:
        """How many orders it has of each state and workflow."""
        return Counter((row.state, row.workflow) for row in self.rows)

    def by(self, sort: str) -> Sequence[Row]:
        """Return its orders in the order of a sort."""
        if sort not in self._sorted:
            self._sorted[sort] = sorted(self.rows, key=SORTS[sort])
        return self._sorted[sort]

    def with_text(self, text: str, sort: str) -> Sequence[Row]:
        """Return its orders with a text in the id, in the order of a sort."""
        text = text.lower()
        if text not in self.text:
            return ()
        found = map(contains, self._ids_by(sort), repeat(text))
        return list(compress(self.by(sort), found))

    def _ids_by(self, sort: str) -> Sequence[str]:
        if sort not in self._ids:
            self._ids[sort] = [row.order_id.lower() for row in self.by(sort)]
        return self._ids[sort]

    def only(self, state: OrderState | None, workflow: str) -> Block:
        """Return its orders of one state and one workflow; None and "" mean any."""

        def fits(one_state: OrderState | None, one_workflow: str) -> bool:
            return state in {None, one_state} and workflow in {"", one_workflow}

        count = sum(number for key, number in self.counts.items() if fits(*key))
        if count in {0, len(self)}:
            return self if count else Block()
        key = state, workflow
        if key not in self._parts:
            self._parts[key] = Block(row for row in self if fits(row.state, row.workflow))
        return self._parts[key]

    def prepare(self) -> None:
        """Sort it now, so that no page has to."""
        for sort in SORTS:
            self.by(sort)
        self._ids_by("since")


def with_rows(blocks: Sequence[Block], rows: Sequence[Row]) -> list[Block]:
    """Return blocks with more orders. Blocks of another time stay as they are."""
    if not rows:
        return list(blocks)
    moments = [row.since or NO_TIME for row in rows]
    before = [one for one in blocks if one.newest < min(moments)]
    after = [one for one in blocks if one.oldest > max(moments)]
    between = list(blocks[len(before) : len(blocks) - len(after)])
    if before and len(before[-1]) < BLOCK:
        between.insert(0, before.pop())
    every = sorted([*rows, *(row for one in between for row in one)], key=SORTS["since"])
    cut = [Block(every[start : start + BLOCK]) for start in range(0, len(every), BLOCK)]
    return [*before, *cut, *after]


def without(blocks: Sequence[Block], names: set[str]) -> list[Block]:
    """Return blocks without some orders."""
    if not names:
        return list(blocks)
    kept: list[Block] = []
    for one in blocks:
        rows = [row for row in one if row.order_id not in names]
        if rows:
            kept.append(one if len(rows) == len(one) else Block(rows))
    return kept
