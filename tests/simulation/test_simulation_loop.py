"""The event loop of simulations, and a clock that goes on while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sas.testing import loop
from sas.testing import play as playing
from sas.testing.clock import START, VirtualClock
from sas.testing.plan import drawn
from sas.testing.play import Project, play
from tests.simulation.test_everything_at_once import DEFINED

RUNS: list[Callable[[Coroutine[Any, Any, Any]], Any]] = [asyncio.run, loop.run]
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("seed", [0, 3, 11])
def test_a_story_is_the_same_to_the_letter_on_the_loop_of_asyncio(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project.of(DEFINED, Path())
    plan = drawn(seed, project.workflows)
    ours = play(project, plan, tell=True)
    monkeypatch.setattr(playing, "run", asyncio.run)
    theirs = play(project, plan, tell=True)
    assert ours.story == theirs.story
    assert (ours.words, ours.ends) == (theirs.words, theirs.ends)


@pytest.mark.parametrize("run", RUNS)
def test_the_clock_settles_once_every_task_waits(run: Callable[..., Any]) -> None:
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

    assert run(settled()) == [1, 2, 3]


@pytest.mark.parametrize("run", RUNS)
def test_a_task_that_never_waits_does_not_stop_the_clock(run: Callable[..., Any]) -> None:
    async def settled() -> bool:
        async def spin() -> None:
            while True:  # noqa: ASYNC110  it waits for nothing
                await asyncio.sleep(0)

        task = asyncio.ensure_future(spin())
        await VirtualClock().settle()
        return task.cancel()

    assert run(settled())


def test_threads_and_timers_work_on_the_loop_of_simulations() -> None:
    async def both() -> str:
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(lambda: "from a thread")

    assert loop.run(both()) == "from a thread"


def test_a_call_that_fails_is_reported_to_the_handler_of_the_loop_and_ends_nothing() -> None:
    async def fails() -> list[str]:
        told: list[str] = []
        running = asyncio.get_running_loop()
        running.set_exception_handler(lambda _loop, about: told.append(str(about["exception"])))
        running.call_soon(int, "no number")
        cancelled = running.call_soon(told.append, "cancelled")
        cancelled.cancel()
        await asyncio.sleep(0)
        return told

    assert loop.run(fails()) == ["invalid literal for int() with base 10: 'no number'"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("stays", [False, True])
def test_a_step_wakes_all_sleepers_before_its_end_unless_it_must_stay(
    run: Callable[..., Any], stays: bool
) -> None:
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
    assert run(step()) == (expected[0], timedelta(seconds=expected[1]))


@pytest.mark.parametrize("run", RUNS)
def test_within_a_step_a_lone_task_sleeps_on_and_never_past_its_end(
    run: Callable[..., Any],
) -> None:
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

    assert run(step()) == (8, timedelta(seconds=56))
