"""The messages in the queues for an operator: alerts, rejected messages, dead letters.

The queues are peeked in the background. Nothing is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.strict import MalformedError, convert
from sas.desk.rows import Row
from sas.domain.order import OrderState
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.operate.letters import who_worked
from sas.ports import BusUnavailableError, MessageBus, Peeked

EVERY_S = 15.0
PEEK_MAX = 200
AT_ONCE = 4
WHY, WHY_TEXT = "DeadLetterReason", "DeadLetterErrorDescription"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message for an operator."""

    at: datetime
    kind: str
    text: str
    queue: str
    message_id: str
    order_id: str | None = None
    step: str | None = None
    worked: str = ""
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The messages of one kind, the newest first. ``problems``: queues that cannot be read."""

    name: str
    title: str
    about: str
    items: Sequence[Item] = ()
    problems: Sequence[str] = ()
    read_at: datetime | None = None

    @property
    def resends(self) -> bool:
        """Whether its messages can be sent again."""
        return self.name != "alerts"

    def find(self, queue: str, message_id: str) -> Item | None:
        """Return a message by where it lies and its id."""
        own = (one for one in self.items if (one.queue, one.message_id) == (queue, message_id))
        return next(own, None)

    @property
    def count(self) -> str:
        """How many messages there are; ``?`` before they were read."""
        if self.read_at is None or (self.problems and not self.items):
            return "?"
        return f"{len(self.items):,}" + ("+" if len(self.items) >= PEEK_MAX else "")


def _empty() -> dict[str, Inbox]:
    return {
        one.name: one
        for one in (
            Inbox(
                name="alerts", title="Alerts", about="Alerts that the system sent. You remove them."
            ),
            Inbox(
                name="rejected",
                title="Rejected messages",
                about="Messages that could not be used, kept whole.",
            ),
            Inbox(
                name="dead-letters", title="Dead letters", about="Messages that a queue gave up."
            ),
        )
    }


@dataclass(kw_only=True)
class Inboxes:
    """Peeks the queues, and keeps what it saw."""

    bus: MessageBus
    queues: Queues
    now: Callable[[], datetime]
    agents: Sequence[str] = ()
    boxes: dict[str, Inbox] = field(default_factory=_empty)

    async def run(self) -> None:
        """Look again and again until this is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Peek every queue that has something for an operator."""
        own = self.queues
        dead = [own.dead_letters]
        dead += [f"{name}{DEAD_LETTER_SUBQUEUE}" for name in own.own(self.agents)]
        sources = {"alerts": [own.alerts], "rejected": [own.rejected], "dead-letters": dead}
        gate = asyncio.Semaphore(AT_ONCE)

        async def peeked(queue: str) -> tuple[str, list[Peeked], str]:
            async with gate:
                try:
                    return queue, await self.bus.peek(queue, PEEK_MAX), ""
                except BusUnavailableError as away:
                    return queue, [], str(away)

        for name, queues in sources.items():
            answers = await asyncio.gather(*map(peeked, queues))
            items = [_item(queue, one) for queue, got, _ in answers for one in got]
            items.sort(key=lambda item: item.at, reverse=True)
            problems = [f"{queue}: {why}" for queue, _, why in answers if why]
            known = self.boxes[name]
            self.boxes[name] = replace(known, items=items, problems=problems, read_at=self.now())

    def forget(self, item: Item) -> None:
        """Leave a message out that was sent again, until the queues are read."""
        for name, box in self.boxes.items():
            self.boxes[name] = replace(box, items=[one for one in box.items if one != item])

    def refused(self) -> list[Row]:
        """Return the orders on ``orders-rejected``, each once, as rows of a list."""
        found: dict[str, Row] = {}
        for one in self.boxes["rejected"].items:
            if one.order_id is not None:
                said = f"{one.kind}: {one.text}"
                row = Row(order_id=one.order_id, state=OrderState.REJECTED, since=one.at, said=said)
                found.setdefault(one.order_id, row)
        return list(found.values())


def _item(queue: str, one: Peeked) -> Item:
    """Return a message as an operator reads it. Its body, which may be personal, is not shown."""
    base = partial(Item, at=one.enqueued_at, queue=queue, message_id=one.message_id)
    with suppress(MalformedError):
        alert = convert(one.body, AlertMessage)
        return base(
            kind=alert.kind,
            text=alert.text,
            order_id=alert.order_id,
            step=alert.step,
            worked=who_worked(alert),
            command=alert.command,
        )
    with suppress(MalformedError):
        said = convert(one.body, RejectedMessage)
        text = f"{said.description} (from {said.source_queue})"
        return base(kind=said.reason, text=text, order_id=said.order_id)
    why = one.properties.get(WHY, "message")
    return base(kind=why, text=one.properties.get(WHY_TEXT, ""))
