"""The list of orders. The address of the page names its filters and its sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from sas.desk.watch import Picture
from sas.operate.rows import OrderRow

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
_START_OF_TIME = datetime.min.replace(tzinfo=UTC)
SORTS: Mapping[str, Callable[[OrderRow], Any]] = {
    # An order under way is not loaded yet: only the time is known at which it is due.
    "since": lambda row: (row.since or row.until or _START_OF_TIME, row.order_id),
    "order": lambda row: row.order_id,
    "workflow": lambda row: (row.workflow, row.order_id),
    "step": lambda row: (row.step, row.order_id),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which orders a list shows, and in which order. A sort that begins with ``-`` is reversed."""

    state: str = "error"
    workflow: str = ""
    text: str = ""
    fingerprint: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Query:
        """Return the query that the parameters of an address name. Unknown values are ignored."""
        state, sort = parameters.get("state", ""), parameters.get("sort", "")
        page = parameters.get("page", "1")
        return cls(
            state=state if state in STATE_FILTERS else "error",
            workflow=parameters.get("workflow", "")[:100],
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
        return "orders?" + urlencode({name: getattr(query, name) for name in names})

    def sorted_by(self, name: str) -> str:
        """Return the address of the list sorted by a column; reversed if it is sorted by it now."""
        return self.address(sort=f"-{name}" if self.sort_in_use == name else name)

    def matches(self, row: OrderRow) -> bool:
        """Return whether the list shows an order."""
        return (
            self.state in {"error", "under-way", "finished", "all"}
            or self.state == (row.process_state or "").lower()
        ) and (
            self.workflow in {"", row.workflow}
            and self.text.lower() in row.order_id.lower()
            and (not self.fingerprint or self.fingerprint in row.fingerprints)
        )


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list. ``total`` and ``pages`` count the whole list."""

    rows: Sequence[OrderRow]
    total: int
    pages: int


def list_page(picture: Picture, query: Query, refused: Sequence[OrderRow] = ()) -> ListPage:
    """Return the page of the list that a query asks for.

    ``refused`` are orders that never began. Only their messages on ``orders-rejected`` show them.
    """
    rows = [row for row in _in_state(picture, query.state, refused) if query.matches(row)]
    sort = query.sort_in_use
    rows.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    pages = max(1, -(-len(rows) // PER_PAGE))
    first = (min(query.page, pages) - 1) * PER_PAGE
    return ListPage(rows[first : first + PER_PAGE], len(rows), pages)


def _in_state(picture: Picture, state: str, refused: Sequence[OrderRow]) -> Iterator[OrderRow]:
    """Yield the orders that may be in the state of a query."""
    if state in {"error", "all"}:
        yield from picture.in_error
    if state in {"under-way", "all"}:
        yield from picture.under_way
    if state not in {"error", "under-way"}:
        yield from picture.finished.values()
        stored = {row.order_id for row in chain(picture.in_error, picture.under_way)}
        stored |= picture.finished.keys()
        yield from (row for row in refused if row.order_id not in stored)
