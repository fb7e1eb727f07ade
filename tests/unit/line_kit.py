"""The operator's bus over all actors in memory: see ``sas.ports.OperatorBus``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sas.ports import BusUnavailableError, Message, MessageMove, Peeked, UndeliverableError
from tests.unit.actors_kit import Kit

NO_RIGHT = "queue {}: to read it you need the role Azure Service Bus Data Receiver on it."


@dataclass(kw_only=True)
class OperatorLine:
    """The actors work on each command at once, if they run. Messages lie where ``put`` put them."""

    system: Kit
    runs: bool = True
    outage: str = ""
    forbidden: set[str] = field(default_factory=set)
    unusable: dict[str, str] = field(default_factory=dict)
    """Why a queue cannot be used, by its name."""
    sent_messages: list[Message] = field(default_factory=list)
    lying: dict[str, list[Peeked]] = field(default_factory=dict)
    before_send: Callable[[], Awaitable[None]] | None = None

    def put(self, path: str, body: bytes, **members: Any) -> None:
        """Put a message into a queue, as the bus shows it."""
        messages = self.lying.setdefault(path, [])
        number = len(messages) + 1
        fields: dict[str, Any] = {
            "message_id": f"m-{number}",
            "enqueued_at": self.system.clock.now(),
        } | members
        messages.append(Peeked(body=body, sequence=number, **fields))

    async def send(self, messages: Sequence[Message]) -> None:
        if self.outage:
            raise BusUnavailableError(self.outage)
        if self.before_send is not None:
            happens, self.before_send = self.before_send, None
            await happens()
        self.sent_messages += messages
        for message in messages if self.runs else ():
            await self.system.hand(message)
        await self.system.drain()

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        if self.outage:
            raise BusUnavailableError(self.outage)
        if queue in self.unusable:
            raise BusUnavailableError(f"queue {queue}: {self.unusable[queue]}")
        if queue in self.forbidden or "*" in self.forbidden:
            raise BusUnavailableError(NO_RIGHT.format(queue))
        messages = (
            await self.system.bus.peek(queue, limit, after)
            if queue in self.system.bus.queues
            else []
        )
        return [*messages, *self.lying.get(queue, ())][:limit]

    async def move(self, path: str, moves: Sequence[MessageMove]) -> AsyncGenerator[bool]:
        """Move messages that ``put`` put there. Another reader may have taken them."""
        for move in moves:
            rest = [peeked for peeked in self.lying[path] if peeked.sequence not in move.sequences]
            if len(rest) == len(self.lying[path]):
                continue
            if move.message is not None:
                await self.send([move.message])
            self.lying[path] = rest
            yield True

    async def check_sending(self, queue: str) -> None:
        if self.outage:
            raise BusUnavailableError(self.outage)
        if f"send {queue}" in self.forbidden:
            raise UndeliverableError(f"queue {queue}: no right to send.", Message(queue, "", b""))

    async def close(self) -> None:
        pass
