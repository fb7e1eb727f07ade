"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
SETTLE_ROUNDS = 64
"""How often tasks are let run before the clock moves on: longer chains of awaits need more."""


class VirtualClock:
    """Time under a test's control: the same run every time, an hour in a millisecond.

    Sleepers wake in the order of their times, those of one moment in the order in which they
    lay down, and each with ``now()`` at exactly its time::

        clock = VirtualClock()
        sleeper = asyncio.create_task(clock.sleep(3600))
        await clock.advance(3600)      # the sleeper, and whatever it did next, has run
    """

    def __init__(self, start: datetime = START, *, settle_rounds: int = SETTLE_ROUNDS) -> None:
        self._now = start
        self._rounds = settle_rounds
        self._count = 0
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the virtual time in UTC, aware."""
        return self._now

    def set(self, moment: datetime) -> None:
        """Put the time, forward or back, without waking anybody: a clock that is apart."""
        self._now = moment

    @property
    def next_wake(self) -> datetime | None:
        """When the next sleeper wants to wake; None where nobody sleeps."""
        self._drop_cancelled()
        return self._sleepers[0][0] if self._sleepers else None

    async def sleep(self, seconds: float) -> None:
        """Return when the clock has been advanced by ``seconds``; for none, let others run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        at = self._now + timedelta(seconds=seconds)
        heapq.heappush(self._sleepers, (at, self._count, wake))
        await wake

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have something happen once the clock has been advanced by ``seconds``."""
        self._count += 1
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wake.add_done_callback(lambda _: call())
        heapq.heappush(self._sleepers, (self._now + timedelta(seconds=seconds), self._count, wake))

    async def settle(self) -> None:
        """Let every task that can run do so, until each waits for time or for something outside."""
        for _ in range(self._rounds):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the time on by ``seconds``, waking sleepers in order and letting each run."""
        await self.advance_to(self._now + timedelta(seconds=seconds))

    async def advance_to(self, moment: datetime) -> None:
        """Move the time on to ``moment``, waking sleepers in order and letting each run."""
        await self.settle()
        while (wake := self.next_wake) is not None and wake <= moment:
            await self._wake_next()
        self._now = max(self._now, moment)
        await self.settle()

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``, moving the time on whenever everybody sleeps.

        Raises:
            RuntimeError: nobody sleeps and the work is not done: it waits for something that
                time does not bring.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self.settle()
                if task.done():
                    break
                if self.next_wake is None:
                    raise RuntimeError("everybody waits and nobody sleeps: this never ends")
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
