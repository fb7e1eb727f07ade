"""The list of orders: its filters and sorting, as the address of the page names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from sas.desk.watch import Picture, Row
from sas.domain.order import OrderState

PER_PAGE = 50
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
    "order": lambda row: row.order_id,
    "workflow": lambda row: (row.workflow, row.order_id),
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


def listed(picture: Picture, query: Query) -> Listed:
    """Return the page of the list that a query asks for."""
    rows = list(_matching(picture, query))
    by, last_first = query.order.removeprefix("-"), query.order.startswith("-")
    if by == "since" and query.state in {"finished", "processed", "compensated", "rejected"}:
        if last_first:  # these are sorted by time already
            rows.reverse()
    else:
        rows.sort(key=_SORTS[by], reverse=last_first)
    pages = max(1, -(-len(rows) // PER_PAGE))
    first = (min(query.page, pages) - 1) * PER_PAGE
    return Listed(rows[first : first + PER_PAGE], len(rows), pages)


def _matching(picture: Picture, query: Query) -> Iterator[Row]:
    text, before = query.text.lower(), None
    if query.age:
        before = picture.at - _SPANS[query.age]
    for row in _of_state(picture, query.state):
        if (
            (not text or text in row.order_id.lower())
            and (not query.workflow or row.workflow == query.workflow)
            and (before is None or (row.since is not None and row.since <= before))
            and (not query.fingerprint or query.fingerprint in row.failed)
        ):
            yield row


def _of_state(picture: Picture, state: str) -> Iterator[Row]:
    match state:
        case "error":
            return iter(picture.in_error)
        case "under-way":
            return iter(picture.under_way)
        case "finished":
            return iter(picture.finished)
        case "all":
            return chain(picture.in_error, picture.under_way, picture.finished)
    wanted = {one.value.lower(): one for one in OrderState}[state]
    return (row for row in picture.finished if row.state is wanted)
