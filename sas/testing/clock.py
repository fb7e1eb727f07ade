"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
SETTLE_ROUNDS_MAX = 10_000
"""Most turns of the event loop before the clock moves on. They end if a task never waits."""


class VirtualClock:
    """Time that a test controls: every run is the same, and an hour takes a millisecond.

    Sleepers wake in the order of their times. Sleepers of the same time wake in the order in which
    they began to sleep. When a sleeper wakes, ``now()`` is exactly its time::

        clock = VirtualClock()
        sleeper = asyncio.create_task(clock.sleep(3600))
        await clock.advance(3600)      # the sleeper, and whatever it did next, has run
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._count = 0
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the virtual time in UTC, aware."""
        return self._now

    def set(self, moment: datetime) -> None:
        """Set the time, forward or back, without waking sleepers. This makes a wrong clock."""
        self._now = moment

    @property
    def next_wake(self) -> datetime | None:
        """Time of the next sleeper; None if no task sleeps."""
        self._drop_cancelled()
        return self._sleepers[0][0] if self._sleepers else None

    async def sleep(self, seconds: float) -> None:
        """Return when the clock has advanced by ``seconds``. For 0, let other tasks run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        at = self._now + timedelta(seconds=seconds)
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (at, self._count, wake))
        await wake

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.Future[None]:
        """Call a function when the clock has advanced by ``seconds``.

        Cancel the result to prevent the call.
        """
        self._count += 1
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def woken(ended: asyncio.Future[None]) -> None:
            if not ended.cancelled():
                call()

        wake.add_done_callback(woken)
        heapq.heappush(self._sleepers, (self._now + timedelta(seconds=seconds), self._count, wake))
        return wake

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Cancel the block after ``seconds`` of virtual time, and raise TimeoutError."""
        async with asyncio.timeout(None) as limit:
            expiry = self.call_later(seconds, lambda: limit.reschedule(0))
            try:
                yield limit
            finally:
                expiry.cancel()

    async def settle(self) -> None:
        """Let tasks run until each of them waits for the time, or for something outside."""
        ready = _ready()
        for _ in range(SETTLE_ROUNDS_MAX):
            await asyncio.sleep(0)
            if not ready:
                return

    async def advance(self, seconds: float) -> None:
        """Advance the time by ``seconds``, and wake the sleepers in order."""
        await self.advance_to(self._now + timedelta(seconds=seconds))

    async def step(self, moment: datetime) -> None:
        """Advance the time to the next sleeper and wake it, but not beyond ``moment``."""
        if (wake := self.next_wake) is None or wake > moment:
            self._now = max(self._now, moment)
        else:
            await self._wake_next()

    async def advance_to(self, moment: datetime) -> None:
        """Advance the time to ``moment``, and wake the sleepers in order."""
        await self.settle()
        while (wake := self.next_wake) is not None and wake <= moment:
            await self._wake_next()
        self._now = max(self._now, moment)
        await self.settle()

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``. The time advances whenever all tasks sleep.

        Raises:
            RuntimeError: the work is not done and no task sleeps, so it would never end.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self.settle()
                if task.done():
                    break
                if self.next_wake is None:
                    raise RuntimeError("all tasks wait and none sleeps: this never ends")
                await self._wake_next()
            return task.result()
        finally:
            task.cancel()

    async def _wake_next(self) -> None:
        at, _, wake = heapq.heappop(self._sleepers)
        self._now = max(self._now, at)
        wake.set_result(None)
        await self.settle()

    def _drop_cancelled(self) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)


async def others_run(turns: int) -> None:
    """Let other tasks run for up to ``turns`` turns. Return as soon as no other task is ready."""
    ready = _ready()
    while turns and ready:
        await asyncio.sleep(0)
        turns -= 1


def _ready() -> Sized:
    """Return what is ready to run beside the current task. asyncio has no public call for it."""
    return asyncio.get_running_loop()._ready  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001
