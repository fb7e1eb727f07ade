"""The rows of the lists, one for each order, in blocks.

There may be 100,000 finished orders, and new ones every second. It would take too long to sort all
of them for each page. So the rows are in blocks. A block never changes, so it is sorted and counted
only once. A page of a list merges the sorted blocks only up to its last row. When an order
finishes, a new block replaces the last block, and the others stay as they are.
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

BLOCK_ROWS_MAX = 1000
START_OF_TIME = datetime.min.replace(tzinfo=UTC)
"""The time of a row whose time is not known. Such rows are sorted before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One order in a list. ``state`` is None while it is under way and not loaded yet.

    ``since`` is the time at which it came into this state. ``fingerprints`` has ``step/code`` of
    each failed step. ``why`` says in words why the order is in this state, or what it does.
    """

    order_id: str
    state: OrderState | None
    workflow: str = ""
    since: datetime | None = None
    submitted_at: datetime | None = None
    seq: int = 0
    fingerprints: tuple[str, ...] = ()
    why: str = ""
    steps_done: int = 0
    steps: int = 0
    acknowledged_by: str | None = None
    urgent: bool = False


SORTS: Mapping[str, Callable[[Row], Any]] = {
    "since": lambda row: (row.since or START_OF_TIME, row.order_id),
    "order": lambda row: row.order_id,
    "workflow": lambda row: (row.workflow, row.order_id),
    "submitted": lambda row: (row.submitted_at or START_OF_TIME, row.order_id),
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
        """The time at which the first of its orders came into its state."""
        return self.rows[0].since or START_OF_TIME

    @property
    def newest(self) -> datetime:
        """The time at which the last of its orders came into its state."""
        return self.rows[-1].since or START_OF_TIME

    @cached_property
    def text(self) -> str:
        """All ids in lower case. A search skips a block that does not contain its text."""
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
        matches = map(contains, self._ids_by(sort), repeat(text))
        return list(compress(self.by(sort), matches))

    def _ids_by(self, sort: str) -> Sequence[str]:
        if sort not in self._ids:
            self._ids[sort] = [row.order_id.lower() for row in self.by(sort)]
        return self._ids[sort]

    def only(self, state: OrderState | None, workflow: str) -> Block:
        """Return its orders of one state and one workflow; None and "" mean any."""

        def fits(row_state: OrderState | None, row_workflow: str) -> bool:
            return state in {None, row_state} and workflow in {"", row_workflow}

        count = sum(number for key, number in self.counts.items() if fits(*key))
        if count in {0, len(self)}:
            return self if count else Block()
        key = state, workflow
        if key not in self._parts:
            self._parts[key] = Block(row for row in self if fits(row.state, row.workflow))
        return self._parts[key]

    def prepare(self) -> None:
        """Sort the block now, so that no page has to wait for it."""
        for sort in SORTS:
            self.by(sort)
        self._ids_by("since")


def with_rows(blocks: Sequence[Block], rows: Sequence[Row]) -> list[Block]:
    """Return blocks with more orders. Older and newer blocks stay as they are."""
    if not rows:
        return list(blocks)
    moments = [row.since or START_OF_TIME for row in rows]
    before = [block for block in blocks if block.newest < min(moments)]
    after = [block for block in blocks if block.oldest > max(moments)]
    between = list(blocks[len(before) : len(blocks) - len(after)])
    if before and len(before[-1]) < BLOCK_ROWS_MAX:  # fill up the last block
        between.insert(0, before.pop())
    merged = sorted([*rows, *(row for block in between for row in block)], key=SORTS["since"])
    starts = range(0, len(merged), BLOCK_ROWS_MAX)
    return [*before, *(Block(merged[start : start + BLOCK_ROWS_MAX]) for start in starts), *after]


def without(blocks: Sequence[Block], order_ids: set[str]) -> list[Block]:
    """Return blocks without some orders."""
    if not order_ids:
        return list(blocks)
    remainder: list[Block] = []
    for block in blocks:
        rows = [row for row in block if row.order_id not in order_ids]
        if rows:
            remainder.append(block if len(rows) == len(block) else Block(rows))
    return remainder
