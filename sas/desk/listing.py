"""The list of orders. The address of the page names its filters and its sort."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, islice
from urllib.parse import urlencode

from sas.desk.rows import SORTS, START_OF_TIME, Block, Row
from sas.desk.watch import Picture
from sas.domain.order import OrderState

PER_PAGE = 50
STATE_FILTERS = {
    "error": "in Error",
    "under-way": "under way",
    "finished": "finished",
    "processed": "Processed",
    "compensated": "Compensated",
    "rejected": "Rejected",
    "all": "all",
}
AGE_FILTERS = {
    "": "any time",
    "1m": "over 1 minute",
    "10m": "over 10 minutes",
    "1h": "over 1 hour",
    "1d": "over 1 day",
}
_SPANS = {
    "1m": timedelta(minutes=1),
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which orders a list shows, and in which order. A sort that begins with ``-`` is reversed."""

    state: str = "error"
    workflow: str = ""
    age: str = ""
    text: str = ""
    fingerprint: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Query:
        """Return the query that the parameters of an address name. Unknown values are ignored."""
        state, age = parameters.get("state", ""), parameters.get("age", "")
        sort, page = parameters.get("sort", ""), parameters.get("page", "1")
        return cls(
            state=state if state in STATE_FILTERS else "error",
            workflow=parameters.get("workflow", "")[:100],
            age=age if age in AGE_FILTERS else "",
            text=parameters.get("text", "")[:200].strip(),
            fingerprint=parameters.get("fingerprint", "")[:300],
            sort=sort if sort.removeprefix("-") in SORTS else "",
            page=int(page) if page.isdecimal() and len(page) < 8 and int(page) else 1,
        )

    @property
    def sort_in_use(self) -> str:
        """The sort that the query names, or else the usual sort of the state.

        Orders in Error or under way begin with the order that has waited longest, because it may
        need somebody. All other lists begin with the newest order.
        """
        return self.sort or ("since" if self.state in {"error", "under-way"} else "-since")

    def address(self, **changes: str | int) -> str:
        """Return the address of the list with some of the query changed."""
        query = replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]
        default = Query(state="")
        names = [name for name in Query.__slots__ if getattr(query, name) != getattr(default, name)]
        return "/orders?" + urlencode({name: getattr(query, name) for name in names})

    def sorted_by(self, name: str) -> str:
        """Return the address of the list sorted by a column; reversed if it is sorted by it now."""
        return self.address(sort=f"-{name}" if self.sort_in_use == name else name)


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list. ``total`` and ``pages`` count the whole list."""

    rows: list[Row]
    total: int
    pages: int


def list_page(picture: Picture, query: Query, refused: Sequence[Row] = ()) -> ListPage:
    """Return the page of the list that a query asks for.

    ``refused`` are orders that never began. Only their messages on ``orders-rejected`` show them.
    """
    sort, last_first = query.sort_in_use.removeprefix("-"), query.sort_in_use.startswith("-")
    blocks = _blocks_of(picture, query, refused)
    runs = [_matching(block, query, sort, picture) for block in blocks]
    total = sum(map(len, runs))
    pages = max(1, -(-total // PER_PAGE))
    first = (min(query.page, pages) - 1) * PER_PAGE
    last = min(first + PER_PAGE, total)
    if from_the_end := first > total - last:  # fewer rows to merge before the page
        first, last = total - last, total - first
    backwards = last_first != from_the_end
    iterators = [reversed(run) if backwards else iter(run) for run in runs]
    merged = heapq.merge(*iterators, key=SORTS[sort], reverse=backwards)
    rows = list(islice(merged, first, last))
    return ListPage(rows[::-1] if from_the_end else rows, total, pages)


def _blocks_of(picture: Picture, query: Query, refused: Sequence[Row]) -> list[Block]:
    """Return the blocks that may have orders in the state of a query."""
    state = query.state
    blocks = [picture.in_error] if state in {"error", "all"} else []
    blocks += [picture.under_way] if state in {"under-way", "all"} else []
    if state not in {"error", "under-way"}:
        blocks += picture.blocks
    if refused and state in {"finished", "rejected", "all"}:
        stored = {row.order_id for row in chain(picture.in_error, picture.under_way)}
        stored |= {row.order_id for row in refused if row.order_id in picture.finished}
        blocks.append(Block(row for row in refused if row.order_id not in stored))
    return [block for block in blocks if len(block)]


def _matching(block: Block, query: Query, sort: str, picture: Picture) -> Sequence[Row]:
    """Return the orders of a block that match, sorted."""
    state = {state.value.lower(): state for state in OrderState}.get(query.state)
    before = picture.at - _SPANS[query.age] if query.age else None
    if before is not None and block.oldest > before:
        return ()
    part = block.only(state, query.workflow)
    rows = part.with_text(query.text, sort) if query.text else part.by(sort)
    if query.fingerprint:
        rows = [row for row in rows if query.fingerprint in row.fingerprints]
    if before is not None and not START_OF_TIME < block.oldest <= block.newest <= before:
        rows = [row for row in rows if row.since is not None and row.since <= before]
    return rows
