"""Senders of one Service Bus client: one a queue, opened when first needed and kept.

Opening a sender costs half a second, closing one up to a second, each holds a connection,
and none may be used by two tasks at once: hence a lock each, a bounded number of them, and
closing in the background.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusSender

CLOSE_S = 5.0
"""Longest that closing one sender is waited for, in seconds: a dead connection may not answer."""


@dataclass(slots=True)
class Entry:
    """One queue's sender, if it is open, and how many tasks use it or wait for it."""

    sender: ServiceBusSender | None = None
    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Senders:
    """At most ``senders_max`` idle senders, the least recently used closed first."""

    def __init__(self, open_sender: Callable[[str], ServiceBusSender], senders_max: int) -> None:
        self._open = open_sender
        self._max = senders_max
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many queues have a sender."""
        return len(self._entries)

    @asynccontextmanager
    async def use(self, queue: str) -> AsyncIterator[ServiceBusSender]:
        """Lend a queue's sender to one task at a time.

        A sender whose use ended with an exception (or was cancelled) is closed, and the next
        user gets a new one: in what state its link is, is not known.
        """
        entry = self._entries.setdefault(queue, Entry())
        self._entries.move_to_end(queue)
        entry.users += 1
        try:
            async with entry.lock:
                if entry.sender is None:
                    entry.sender = self._open(queue)
                try:
                    yield entry.sender
                except BaseException:
                    self._close_later(entry)
                    raise
        finally:
            entry.users -= 1
            self._evict()

    def _evict(self) -> None:
        idle = [queue for queue, entry in self._entries.items() if not entry.users]
        for queue in idle[: max(0, len(self._entries) - self._max)]:
            self._close_later(self._entries.pop(queue))

    def _close_later(self, entry: Entry) -> None:
        sender, entry.sender = entry.sender, None
        if sender is not None:
            task = asyncio.get_running_loop().create_task(_close(sender))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every sender, and wait for those closing already."""
        for entry in self._entries.values():
            self._close_later(entry)
        self._entries.clear()
        await asyncio.gather(*self._closing)


async def _close(sender: ServiceBusSender) -> None:
    """Close as well as it goes: nothing is lost with a sender that does not close."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await sender.close()
    except (AzureError, OSError, TimeoutError, ValueError, AttributeError):
        return
