"""The virtual clock, which goes on while nothing changes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sas.testing.clock import START, VirtualClock

MINUTE = timedelta(minutes=1)


def test_the_clock_settles_once_every_task_waits() -> None:
    async def settled() -> list[int]:
        clock, seen = VirtualClock(), []

        async def turn(number: int) -> None:
            await asyncio.sleep(0)
            seen.append(number)
            if number < 3:
                await turn(number + 1)
            await clock.sleep(1)
            seen.append(-number)

        task = asyncio.ensure_future(turn(1))
        await clock.settle()
        task.cancel()
        return seen

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


@pytest.mark.parametrize("stays", [False, True])
def test_a_step_wakes_all_sleepers_before_its_end_unless_it_must_stay(stays: bool) -> None:
    async def step() -> tuple[list[int], timedelta]:
        clock, woken = VirtualClock(), []

        async def sleeps(seconds: int) -> None:
            await clock.sleep(seconds)
            woken.append(seconds)
            if stays:
                clock.stay()
            await clock.sleep(100)

        tasks = [asyncio.ensure_future(sleeps(seconds)) for seconds in (20, 10, 60, 40)]
        await clock.settle()
        await clock.step(START + MINUTE)
        for task in tasks:
            task.cancel()
        return woken, clock.now() - START

    expected = ([10], 10) if stays else ([10, 20, 40], 40)
    assert asyncio.run(step()) == (expected[0], timedelta(seconds=expected[1]))


def test_within_a_step_a_lone_task_sleeps_on_and_never_past_its_end() -> None:
    async def step() -> tuple[int, timedelta]:
        clock, naps = VirtualClock(), 0

        async def sleeps() -> None:
            nonlocal naps
            while True:
                await clock.sleep(7)
                naps += 1

        task = asyncio.ensure_future(sleeps())
        await clock.settle()
        await clock.step(START + MINUTE)
        task.cancel()
        return naps, clock.now() - START

    assert asyncio.run(step()) == (8, timedelta(seconds=56))
