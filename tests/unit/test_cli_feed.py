from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sas.cli.reading import AHEAD_MAX, Feed, InputError, InputItem
from sas.client import NewOrder


def items(count: int) -> Iterator[InputItem]:
    for number in range(count):
        yield InputItem(number, NewOrder(order_id=f"A-{number}", order={}))


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a thread does; a test that times out fails."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)  # no event tells it


async def test_everything_comes_out_once_and_in_order() -> None:
    feed = Feed(items(5000))
    lines: list[int] = []
    while batch := await feed.take(300):
        assert len(batch) <= 300
        lines += [item.line for item in batch]
    assert lines == list(range(5000))
    assert await feed.take(1) == []


async def test_nothing_in_is_nothing_out() -> None:
    assert await Feed(items(0)).take(10) == []


async def test_no_more_is_read_ahead_than_the_bound() -> None:
    read: list[int] = []

    def counted() -> Iterator[InputItem]:
        for item in items(10 * AHEAD_MAX):
            read.append(item.line)
            yield item

    feed = Feed(counted())
    await until(lambda: len(read) > AHEAD_MAX)
    await asyncio.sleep(0.1)
    assert len(read) == AHEAD_MAX + 1
    assert len(await feed.take(10)) == 10
    await until(lambda: len(read) == AHEAD_MAX + 11)
    feed.close()


async def test_an_item_is_handed_on_while_the_next_is_waited_for() -> None:
    next_item = threading.Event()

    def slow() -> Iterator[InputItem]:
        yield from items(1)
        next_item.wait(120)
        yield from items(1)

    feed = Feed(slow())
    assert len(await asyncio.wait_for(feed.take(500), 120)) == 1
    next_item.set()
    assert len(await asyncio.wait_for(feed.take(500), 120)) == 1
    assert await feed.take(500) == []


async def test_an_error_comes_after_what_was_read_before_it() -> None:
    def bad() -> Iterator[InputItem]:
        yield from items(3)
        raise InputError(4, "no")

    feed = Feed(bad())
    await until(lambda: not feed._thread.is_alive())
    assert [item.line for item in await feed.take(2)] == [0, 1]
    assert [item.line for item in await feed.take(2)] == [2]
    with pytest.raises(InputError, match="line 4: no"):
        await feed.take(2)


async def test_closing_ends_a_thread_that_waits_for_room() -> None:
    feed = Feed(items(10 * AHEAD_MAX))
    await asyncio.sleep(0.05)
    feed.close()
    await until(lambda: not feed._thread.is_alive())
