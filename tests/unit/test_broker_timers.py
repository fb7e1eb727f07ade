"""The broker's timers: in order, on the loop's thread, not after a stop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from devstack.servicebus.wire.timers import Timers


@pytest.fixture
async def timers() -> AsyncIterator[Timers]:
    timers = Timers()
    timers.start(asyncio.get_running_loop())
    yield timers
    timers.stop()


async def test_calls_come_in_the_order_of_their_moments_on_the_loops_thread(
    timers: Timers,
) -> None:
    came: list[tuple[int, int, float]] = []
    started = time.monotonic()
    done = asyncio.Event()

    def note(number: int) -> None:
        came.append((number, threading.get_ident(), time.monotonic() - started))
        if number == 3:
            done.set()

    for number, seconds in ((3, 0.15), (1, 0.05), (0, -1.0), (2, 0.1)):
        timers.call_later(seconds, partial(note, number))
    await asyncio.wait_for(done.wait(), 120)
    assert [number for number, _, _ in came] == [0, 1, 2, 3]
    assert {thread for _, thread, _ in came} == {threading.get_ident()}
    assert all(at >= number * 0.05 for number, _, at in came)


async def test_a_call_may_ask_for_the_next_and_a_cancelled_one_never_comes(
    timers: Timers,
) -> None:
    rounds: list[int] = []
    done = asyncio.Event()

    def again() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 50:
            done.set()
        else:
            timers.call_later(0.001, again)

    cancelled = timers.call_later(0.01, lambda: rounds.append(-1))
    timers.call_later(0, again)
    cancelled.cancel()
    await asyncio.wait_for(done.wait(), 120)
    assert rounds == list(range(50))


async def test_after_a_stop_nothing_is_called_and_the_thread_is_gone() -> None:
    timers = Timers()
    before = threading.active_count()
    timers.start(asyncio.get_running_loop())
    assert threading.active_count() == before + 1
    called: list[int] = []
    timers.call_later(0.0, lambda: called.append(1))
    timers.stop()
    timers.stop()
    await asyncio.sleep(0.05)
    assert called == []
    assert threading.active_count() == before


def test_a_loop_that_was_closed_without_a_stop_ends_the_thread() -> None:
    timers = Timers()

    async def run() -> None:
        timers.start(asyncio.get_running_loop())
        timers.call_later(0.1, lambda: None)

    asyncio.run(run())
    thread = next(t for t in threading.enumerate() if t.name == "broker timers")
    thread.join(5)
    assert not thread.is_alive()
