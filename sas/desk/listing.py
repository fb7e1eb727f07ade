"""The list of orders: its filters and sorting, as the address of the page names them."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from sas.desk.watch import Picture, Row
from sas.domain.order import OrderState

PER_PAGE = 50
_HEAP_MAX = 2000
"""For more rows than these a sort is faster than a heap."""
_NO_TIME = datetime.min.replace(tzinfo=UTC)
STATES = {
    "error": "in Error",
    "under-way": "under way",
    "finished": "finished",
    "processed": "Processed",
    "compensated": "Compensated",
    "rejected": "Rejected",
    "all": "all",
}
AGES = {
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
_SORTS: Mapping[str, Callable[[Row], Any]] = {
    "since": lambda row: row.since or _NO_TIME,
    "order": attrgetter("order_id"),
    "workflow": attrgetter("workflow", "order_id"),
    "submitted": lambda row: row.submitted_at or _NO_TIME,
}


@dataclass(frozen=True, slots=True)
class Query:
    """What a list shows. A sort that begins with ``-`` is from last to first."""

    state: str = "error"
    workflow: str = ""
    age: str = ""
    text: str = ""
    fingerprint: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Query:
        """Return the query that an address names. What it does not understand is left out."""
        state, age, sort = given.get("state", ""), given.get("age", ""), given.get("sort", "")
        page = given.get("page", "1")
        return cls(
            state if state in STATES else "error",
            given.get("workflow", "")[:100],
            age if age in AGES else "",
            given.get("text", "")[:200].strip(),
            given.get("fingerprint", "")[:300],
            sort if sort.removeprefix("-") in _SORTS else "",
            int(page) if page.isdecimal() and len(page) < 8 and int(page) else 1,
        )

    @property
    def order(self) -> str:
        """The sort, or the usual one: the longest waiting first, of what ended the newest."""
        return self.sort or ("since" if self.state in {"error", "under-way"} else "-since")

    def address(self, **changes: str | int) -> str:
        """Return the address of the list with some of the query changed."""
        now = replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]
        usual = Query(state="")
        names = [name for name in Query.__slots__ if getattr(now, name) != getattr(usual, name)]
        return "/orders?" + urlencode({name: getattr(now, name) for name in names})

    def sorted_by(self, name: str) -> str:
        """Return the address of the list sorted by a column, or the other way round."""
        return self.address(sort=f"-{name}" if self.order == name else name)


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list."""

    rows: list[Row]
    total: int
    pages: int


def listed(picture: Picture, query: Query, refused: Sequence[Row] = ()) -> Listed:
    """Return the page of the list that a query asks for.

    ``refused`` are orders that never began: only their messages on ``orders-rejected`` tell.
    There may be 100,000 finished orders, so only the rows up to this page are sorted.
    """
    finished = _matching(_finished_of(picture, query), replace(query, age=""), picture)
    others = _matching(_others_of(picture, query.state, refused), query, picture)
    total = len(finished) + len(others)
    pages = max(1, -(-total // PER_PAGE))
    last = min(query.page, pages) * PER_PAGE
    by, last_first = query.order.removeprefix("-"), query.order.startswith("-")
    if by == "since":  # the finished ones are sorted so already
        finished = finished[-last:] if last_first else finished[:last]
    rows = _first(last, [*others, *finished], _SORTS[by], last_first=last_first)
    return Listed(rows[last - PER_PAGE :], total, pages)


def _first(
    count: int, rows: list[Row], key: Callable[[Row], Any], *, last_first: bool
) -> list[Row]:
    if count > _HEAP_MAX:
        return sorted(rows, key=key, reverse=last_first)[:count]
    return (heapq.nlargest if last_first else heapq.nsmallest)(count, rows, key=key)


def _matching(rows: Sequence[Row], query: Query, picture: Picture) -> Sequence[Row]:
    if query.workflow:
        rows = [row for row in rows if row.workflow == query.workflow]
    if query.fingerprint:
        rows = [row for row in rows if query.fingerprint in row.failed]
    if query.text:
        text = query.text.lower()
        rows = [row for row in rows if text in row.order_id.lower()]
    if query.age:
        before = picture.at - _SPANS[query.age]
        rows = [row for row in rows if row.since is not None and row.since <= before]
    return rows


def _others_of(picture: Picture, state: str, refused: Sequence[Row]) -> Sequence[Row]:
    in_error = picture.in_error if state in {"error", "all"} else ()
    under_way = picture.under_way if state in {"under-way", "all"} else ()
    if not refused or state not in {"finished", "rejected", "all"}:
        return (*in_error, *under_way)
    named = {row.order_id for row in refused}
    every = (picture.in_error, picture.under_way, picture.finished)
    known = {row.order_id for rows in every for row in rows if row.order_id in named}
    return (*in_error, *under_way, *(row for row in refused if row.order_id not in known))


def _finished_of(picture: Picture, query: Query) -> Sequence[Row]:
    state, rows = query.state, picture.finished
    wanted = {one.value.lower(): one for one in OrderState}.get(state)
    if state not in {"finished", "all"} and (wanted is None or state == "error"):
        return ()
    if query.age:  # they are sorted by time
        before = picture.at - _SPANS[query.age]
        rows = rows[: bisect_right(rows, before, key=lambda row: row.since or _NO_TIME)]
    return rows if wanted is None else [row for row in rows if row.state is wanted]
