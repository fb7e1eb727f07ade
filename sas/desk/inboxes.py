"""The messages in the queues for an operator: alerts, rejected messages, dead letters.

The queues are peeked in the background, so a page never waits for them. Peeking removes nothing.
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
from sas.desk.watch import Row
from sas.domain.order import OrderState
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.operate.letters import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    is_order,
    who_worked,
)
from sas.ports import BusUnavailableError, MessageBus, Peeked

PEEK_EVERY_S = 15.0
PEEK_MAX = 200
QUEUES_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """One message for an operator. ``worked`` names the agent of the step of an alert.

    ``is_order``: it is an order that was rejected and never began.
    """

    at: datetime
    kind: str
    text: str
    queue: str
    message_id: str
    order_id: str | None = None
    step: str | None = None
    worked: str = ""
    command: str | None = None
    is_order: bool = False
    alert: AlertMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """The messages of one kind, the newest first. ``problems`` names queues that cannot be read."""

    name: str
    title: str
    about: str
    messages: Sequence[InboxMessage] = ()
    problems: Sequence[str] = ()
    read_at: datetime | None = None

    @property
    def resends(self) -> bool:
        """Whether its messages can be sent again."""
        return self.name != "alerts"

    def find(self, queue: str, message_id: str) -> InboxMessage | None:
        """Return a message by its queue and its id, or None."""
        for message in self.messages:
            if (message.queue, message.message_id) == (queue, message_id):
                return message
        return None

    @property
    def count(self) -> str:
        """How many messages there are; ``?`` before they were read."""
        if self.read_at is None or (self.problems and not self.messages):
            return "?"
        return f"{len(self.messages):,}" + ("+" if len(self.messages) >= PEEK_MAX else "")


_EMPTY = (
    InboxView(name="alerts", title="Alerts", about="Alerts that the system sent. You remove them."),
    InboxView(
        name="rejected",
        title="Rejected messages",
        about="Messages that could not be used, kept whole.",
    ),
    InboxView(name="dead-letters", title="Dead letters", about="Messages that a queue gave up."),
)


@dataclass(kw_only=True)
class Inboxes:
    """Peeks the queues, and keeps the messages."""

    bus: MessageBus
    queues: Queues
    now: Callable[[], datetime]
    agents: Sequence[str] = ()
    boxes: dict[str, InboxView] = field(default_factory=lambda: {box.name: box for box in _EMPTY})

    async def run(self) -> None:
        """Look again and again until this is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PEEK_EVERY_S)

    async def look(self) -> None:
        """Peek every queue that has something for an operator."""
        queues = self.queues
        dead_letters = [queues.dead_letters]
        dead_letters += [f"{name}{DEAD_LETTER_SUBQUEUE}" for name in queues.own(self.agents)]
        sources = {
            "alerts": [queues.alerts],
            "rejected": [queues.rejected],
            "dead-letters": dead_letters,
        }
        gate = asyncio.Semaphore(QUEUES_AT_ONCE)

        async def peek(path: str) -> tuple[str, list[Peeked], str]:
            async with gate:
                try:
                    return path, await self.bus.peek(path, PEEK_MAX), ""
                except BusUnavailableError as error:
                    return path, [], str(error)

        for name, paths in sources.items():
            answers = await asyncio.gather(*map(peek, paths))
            messages = [
                _message(path, peeked, queues) for path, batch, _ in answers for peeked in batch
            ]
            messages.sort(key=lambda message: message.at, reverse=True)
            problems = [f"{path}: {problem}" for path, _, problem in answers if problem]
            self.boxes[name] = replace(
                self.boxes[name], messages=messages, problems=problems, read_at=self.now()
            )

    def forget(self, resent: InboxMessage) -> None:
        """Hide a message that was sent again, until the queues are read the next time."""
        for name, box in self.boxes.items():
            messages = [message for message in box.messages if message != resent]
            self.boxes[name] = replace(box, messages=messages)

    def refused(self) -> list[Row]:
        """Return the orders on ``orders-rejected``, each once, as rows of a list."""
        rows: dict[str, Row] = {}
        for message in self.boxes["rejected"].messages:
            if message.is_order and message.order_id is not None:
                row = Row(
                    order_id=message.order_id,
                    state=OrderState.REJECTED,
                    since=message.at,
                    why=f"{message.kind}: {message.text}",
                )
                rows.setdefault(message.order_id, row)
        return list(rows.values())


def _message(queue: str, peeked: Peeked, queues: Queues) -> InboxMessage:
    """Return a message as an operator reads it, without its body, which may be personal."""
    base = partial(InboxMessage, at=peeked.enqueued_at, queue=queue, message_id=peeked.message_id)
    with suppress(MalformedError):
        alert = convert(peeked.body, AlertMessage)
        return base(
            kind=alert.kind,
            text=alert.text,
            order_id=alert.order_id,
            step=alert.step,
            worked=who_worked(alert),
            command=alert.command,
            alert=alert,
        )
    with suppress(MalformedError):
        rejected = convert(peeked.body, RejectedMessage)
        text = f"{rejected.description} (from {rejected.source_queue})"
        return base(
            kind=rejected.reason,
            text=text,
            order_id=rejected.order_id,
            is_order=is_order(rejected, queues),
        )
    reason = peeked.properties.get(DEAD_LETTER_REASON, "message")
    return base(kind=reason, text=peeked.properties.get(DEAD_LETTER_DESCRIPTION, ""))
