"""The messages in the queues for an operator: alerts, rejected messages, dead letters.

The queues are peeked in the background, so a page never waits for them. Peeking removes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from msgspec import structs

from sas.desk.watch import Watch
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.operate import letters, messages
from sas.operate.letters import PeekResult
from sas.operate.messages import MessageList, MessageRow
from sas.operate.rows import OrderRow
from sas.operate.status import is_forbidden, queue_counts, queue_names
from sas.ports import MessageBus, StateStore, UnavailableError

PEEK_EVERY_S = 15.0
REPAIR_EVERY_S = 3.0
"""While a queue cannot be read, the queues are peeked so often: the problem goes soon after it."""
_NOTHING = MessageList()


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """The messages of one kind, as ``list`` has them; they were read at ``read_at``."""

    name: str
    title: str
    about: str
    list: MessageList = _NOTHING
    read_at: datetime | None = None

    @property
    def resends(self) -> bool:
        """Whether its messages can be sent again."""
        return self.name != messages.ALERTS

    def find(self, place: str, message_id: str) -> MessageRow | None:
        """Return a message by its place and its id, or None."""
        rows = [row for row in self.list.rows if (row.place, row.message_id) == (place, message_id)]
        return rows[0] if rows else None

    @property
    def count(self) -> int:
        """How many messages need somebody; alerts of one cause count as one."""
        return len(self.list.groups)


_EMPTY = (
    InboxView(
        name=messages.ALERTS,
        title="Alerts",
        about="Alerts that the system sent, those of one cause together. You remove them.",
    ),
    InboxView(
        name=messages.REJECTED,
        title="Rejected messages",
        about="Messages that could not be used.",
    ),
    InboxView(
        name=messages.DEAD_LETTERS,
        title="Dead letters",
        about="Messages that a queue gave up.",
    ),
)


@dataclass(kw_only=True)
class Inboxes:
    """Peeks the queues, and keeps the messages. ``watch`` knows their orders."""

    store: StateStore
    bus: MessageBus
    queues: Queues
    watch: Watch
    now: Callable[[], datetime]
    agents: Sequence[str] = ()
    boxes: dict[str, InboxView] = field(default_factory=lambda: {box.name: box for box in _EMPTY})

    async def run(self) -> None:
        """Look again and again until this is cancelled."""
        while True:
            await self.look_at_all()
            with suppress(UnavailableError):  # of the store: the overview says so
                await self.look()
            await asyncio.sleep(REPAIR_EVERY_S if self._is_broken else PEEK_EVERY_S)

    @property
    def _is_broken(self) -> bool:
        """Whether the overview has a problem of a queue that cannot be read."""
        return any(count.problem and not is_forbidden(count) for count in self.watch.queues)

    async def look(self) -> None:
        """Peek every queue that has something for an operator."""
        for name, box in self.boxes.items():
            paths = messages.paths_of(name, self.queues, self.agents, ())
            contents = await letters.read(self.bus, paths, self.queues)
            if name == messages.DEAD_LETTERS:
                answer = await messages.joined(self.store, contents, self.queues)
            else:
                answer = await self._look_at(contents)
            self.boxes[name] = replace(box, list=answer, read_at=self.now())

    async def _look_at(self, contents: PeekResult) -> MessageList:
        """Return messages with their orders, of which none is loaded."""
        picture = self.watch.picture
        rows = (*picture.finished.values(), *picture.under_way, *picture.in_error)
        orders = {row.order_id: row for row in rows}
        return messages.list_of(contents, self.queues, orders)

    async def look_at_all(self) -> None:
        """Count what lies in every queue of the system, for the overview."""
        names = queue_names(self.queues, self.agents)
        at = self.now()
        self.watch.queues = await queue_counts(self.bus, names, self.queues, self._look_at)
        self.watch.queues_at = at

    def forget(self, resent: MessageRow) -> None:
        """Hide a message that was sent again, until the queues are read the next time."""
        for name, box in self.boxes.items():
            rows = tuple(row for row in box.list.rows if row != resent)
            groups = tuple(group for group in box.list.groups if group.newest != resent)
            self.boxes[name] = replace(
                box, list=structs.replace(box.list, rows=rows, groups=groups)
            )

    def refused(self) -> list[OrderRow]:
        """Return the orders that were rejected and never began, each once, as rows of a list."""
        rows = {
            row.order_id: OrderRow(
                order_id=row.order_id,
                process_state=OrderState.REJECTED.value,
                since=row.since,
                why=f"{row.kind}: {row.cause}",
            )
            for row in self.boxes[messages.REJECTED].list.rows
            if row.what == messages.REJECTED_ORDER and row.order_id is not None
        }
        return list(rows.values())
