"""Input read in the background, so that a slow pipe never keeps notifications waiting."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator

from sas.cli.reading import Item

AHEAD_MAX = 1000
"""Items read ahead at most: what bounds memory, however long the input is."""


class Feed:
    """Hands on what an iterator yields, which a thread of its own pulls.

    The thread is a daemon: one that waits for a terminal's next line must not keep the
    process from ending.
    """

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._changed = threading.Condition()
        self._ahead: deque[Item] = deque()
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._pull, name="input", daemon=True)
        self._thread.start()

    async def take(self, most: int) -> list[Item]:
        """Return what has been read, at least one and at most so many; nothing at the end.

        Raises:
            Exception: what the iterator raised, once all before it was taken.
        """
        while True:
            self._wake.clear()
            with self._changed:
                taken = [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
                self._changed.notify()
                if taken:
                    return taken
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return []
            await self._wake.wait()

    def close(self) -> None:
        """Let the thread end as soon as it has read what it is reading."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pull(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ahead) < AHEAD_MAX)
                    if self._closed:
                        return
                    self._ahead.append(item)
                    first = len(self._ahead) == 1
                if first:
                    self._tell()
        except Exception as wrong:  # noqa: BLE001  # handed to whoever takes
            self._error = wrong
        with self._changed:
            self._ended = True
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._wake.set)
