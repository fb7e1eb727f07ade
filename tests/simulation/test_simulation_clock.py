"""The virtual clock, which goes on once every task waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sas.testing.clock import VirtualClock

MINUTE = timedelta(minutes=1)


def test_the_clock_settles_once_every_task_waits() -> None:
    async def settled() -> list[int]:
        clock, turns = VirtualClock(), []

        async def turn(number: int) -> None:
            await asyncio.sleep(0)
            turns.append(number)
            if number < 3:
                await turn(number + 1)
            await clock.sleep(1)
            turns.append(-number)

        task = asyncio.ensure_future(turn(1))
        await clock.settle()
        task.cancel()
        return turns

    assert asyncio.run(settled()) == [1, 2, 3]


def test_a_task_that_never_waits_does_not_stop_the_clock() -> None:
    async def settled() -> bool:
        async def spin() -> None:
            while True:  # noqa: ASYNC110  it waits for nothing
                await asyncio.sleep(0)

        task = asyncio.ensure_future(spin())
        await VirtualClock().settle()
        return task.cancel()

    assert asyncio.run(settled())
