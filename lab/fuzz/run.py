"""Draw inputs by seed and number, and send each to its door."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from lab.fuzz.files import check_orders, orders_parts
from lab.fuzz.messages import check_http, check_message, http_parts, letter_parts, queue_parts
from lab.fuzz.rows import check_rows, row_parts
from lab.fuzz.scene import Scene, scene
from sas.testing.platform import QUEUES

Parts = dict[str, Any]
BLOCK = 200
"""How many inputs a process tries before it returns."""
WORKED = (
    QUEUES.orders,
    QUEUES.scheduler,
    QUEUES.agent("stock"),
    QUEUES.agent("payment"),
)


@dataclass(frozen=True, slots=True)
class Door:
    """An entry point: how to draw an input for it, and how to check what it does with one."""

    name: str
    draw: Callable[[Scene, random.Random], Parts]
    check: Callable[[Parts, Scene], Coroutine[Any, Any, str | None]]


@dataclass(frozen=True, slots=True)
class Failure:
    """One input that went wrong."""

    number: int
    door: str
    problem: str


def doors() -> tuple[Door, ...]:
    """Return every entry point. All are tried equally often."""
    return (
        *(Door(f"queue {name}", partial(queue_parts, name), check_message) for name in WORKED),
        Door(f"queue {QUEUES.dead_letters}", letter_parts, check_message),
        Door("callback by HTTP", http_parts, check_http),
        Door("rows", row_parts, check_rows),
        Door("sas submit FILE", orders_parts, check_orders),
    )


class Fuzz:
    """The doors of one process, and its scene."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._scene = asyncio.run(scene())
        self._doors = {door.name: door for door in doors()}

    def drawn(self, number: int) -> tuple[str, Parts]:
        """Return an input: its door and its parts. They are the same in every process."""
        rng = random.Random(f"{self.seed}/{number}")
        door = rng.choice(list(self._doors.values()))
        return door.name, door.draw(self._scene, rng)

    def tried(self, door: str, parts: Parts) -> str | None:
        """Send an input to its door; return what went wrong."""
        try:
            return asyncio.run(self._doors[door].check(parts, self._scene))
        except Exception as error:  # noqa: BLE001  an undocumented error
            return f"{type(error).__name__}: {error}"[:500]


@cache
def _fuzz(seed: int) -> Fuzz:
    """Return the fuzz of this process."""
    logging.disable(logging.CRITICAL)
    return Fuzz(seed)


def block(seed: int, numbers: Iterable[int]) -> tuple[Counter[str], list[Failure]]:
    """Try some inputs; return how many there were for each door, and the failures."""
    fuzz, tried, failures = _fuzz(seed), Counter[str](), list[Failure]()
    for number in numbers:
        door, parts = fuzz.drawn(number)
        tried[door] += 1
        problem = fuzz.tried(door, parts)
        if problem is not None:
            failures.append(Failure(number, door, problem))
    return tried, failures
