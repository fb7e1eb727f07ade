"""The messages in the queues for an operator: alerts, rejected messages, dead letters.

The queues are peeked in the background, so a page never waits for them. Peeking removes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from msgspec import structs

from sas.desk.rows import Row
from sas.desk.watch import Picture, Watch
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.operate import letters, messages
from sas.operate.messages import ALERTS, PLACES, REJECTED_ORDER, MessageList, MessageRow, OrderNow
from sas.ports import MessageBus

PEEK_EVERY_S = 15.0
PEEK_MAX = 200
_EMPTY = MessageList(rows=(), groups=(), over=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """The messages of one place, the newest first; ``read_at`` is None before they were read."""

    name: str
    title: str
    about: str
    content: MessageList = _EMPTY
    read_at: datetime | None = None

    @property
    def messages(self) -> Sequence[MessageRow]:
        """Its messages; of alerts, those that still need somebody."""
        return [row for row in self.content.rows if not row.over]

    @property
    def resends(self) -> bool:
        """Whether its messages can be sent again."""
        return self.name != ALERTS

    def find(self, place: str, message_id: str) -> MessageRow | None:
        """Return a message by its place and its id, or None."""
        for row in self.content.rows:
            if (row.place, row.message_id) == (place, message_id):
                return row
        return None

    @property
    def count(self) -> str:
        """How many messages there are, or causes of alerts; ``?`` before they were read."""
        shown = self.content.groups if self.name == ALERTS else self.messages
        if self.read_at is None or (self.content.problems and not shown):
            return "?"
        return f"{len(shown):,}" + ("+" if len(shown) >= PEEK_MAX else "")


_BOXES = (
    InboxView(name=ALERTS, title="Alerts", about="Alerts that the system sent. You remove them."),
    InboxView(
        name=messages.REJECTED,
        title="Rejected messages",
        about="Messages that could not be used, kept whole.",
    ),
    InboxView(
        name=messages.DEAD_LETTERS, title="Dead letters", about="Messages that a queue gave up."
    ),
)


@dataclass(kw_only=True)
class Inboxes:
    """Peeks the queues, and keeps the messages, joined with the orders that the desk watches."""

    bus: MessageBus
    queues: Queues
    now: Callable[[], datetime]
    watch: Watch
    agents: Sequence[str] = ()
    boxes: dict[str, InboxView] = field(default_factory=lambda: {box.name: box for box in _BOXES})

    async def run(self) -> None:
        """Look again and again until this is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PEEK_EVERY_S)

    async def look(self) -> None:
        """Peek every queue that has something for an operator."""
        order_of = _orders(self.watch.picture)
        for name in PLACES:
            paths = messages.paths_of(name, self.queues, self.agents, ())
            contents = await letters.read(self.bus, paths, PEEK_MAX)
            content = messages.list_of(contents.letters, self.queues, order_of)
            content = structs.replace(content, problems=tuple(contents.problems.values()))
            self.boxes[name] = replace(self.boxes[name], content=content, read_at=self.now())

    def forget(self, resent: MessageRow) -> None:
        """Hide a message that was sent again, until the queues are read the next time."""
        for name, box in self.boxes.items():
            rows = tuple(row for row in box.content.rows if row != resent)
            self.boxes[name] = replace(box, content=structs.replace(box.content, rows=rows))

    def refused(self) -> list[Row]:
        """Return the orders on ``orders-rejected``, each once, as rows of a list."""
        rows: dict[str, Row] = {}
        for message in self.boxes[messages.REJECTED].messages:
            if message.what == REJECTED_ORDER and message.order_id is not None:
                row = Row(
                    order_id=message.order_id,
                    state=OrderState.REJECTED,
                    since=message.since,
                    why=f"{message.kind}: {message.cause}",
                )
                rows.setdefault(message.order_id, row)
        return list(rows.values())


def _orders(picture: Picture) -> Callable[[str], OrderNow | None]:
    """Return the function that finds an order in a picture by its id."""
    rows = {row.order_id: row for row in chain(picture.under_way, picture.in_error)}

    def order_of(order_id: str) -> OrderNow | None:
        row = rows.get(order_id) or picture.finished.get(order_id)
        if row is None or row.state is None:
            return None
        return OrderNow(row.state, row.since, row.submitted_at)

    return order_of
