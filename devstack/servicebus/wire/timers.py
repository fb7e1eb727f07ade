"""Timers for the event loop that cost it nothing until they ring.

`loop.call_later` would do, but while asyncio has any timer, every turn of the loop works out how
long it may sleep and has the kernel set and unset an alarm: about 2 us for each read, a fifteenth
of a message's cost. Here one thread sleeps until the next moment and then calls the loop.
"""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Timer:
    """A call that is to come."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work

    def cancel(self) -> None:
        """Let it not come."""
        self.work = None


class Timers:
    """Calls to come, all made on the loop's own thread. Only `_sleep` runs on another."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._ticket = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._sleep, name="broker timers", daemon=True)
        self._changed = threading.Condition()
        self._rings_at: float | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to call."""
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Call nothing more, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def call_later(self, seconds: float, work: Callable[[], None]) -> Timer:
        """Call ``work`` on the loop after some seconds."""
        timer = Timer(work)
        heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._ticket), timer))
        self._set()
        return timer

    def _set(self) -> None:
        """See that the thread rings in time for the first call."""
        at = self._heap[0][0]
        if self._rings_at is None or at < self._rings_at:
            with self._changed:
                self._rings_at = at
                self._changed.notify()

    def _ring(self) -> None:
        """Make the calls whose moment has come."""
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if timer.work is not None and not self._stopped:
                timer.work()
        while self._heap and self._heap[0][2].work is None:
            heapq.heappop(self._heap)
        if self._heap:
            self._set()

    def _sleep(self) -> None:
        with self._changed:
            while not self._stopped and self._loop is not None:
                at = self._rings_at
                if at is None:
                    self._changed.wait()
                elif (left := at - time.monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    self._rings_at = None
                    try:
                        self._loop.call_soon_threadsafe(self._ring)
                    except RuntimeError:  # the loop was closed without a stop
                        return
