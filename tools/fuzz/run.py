"""Draw inputs by seed and number, send each to its door, and make one that fails shorter."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sas.testing.platform import QUEUES
from tools.fuzz import mutation
from tools.fuzz.files import file_doors
from tools.fuzz.messages import check_http, check_message, http_parts, letter_parts, queue_parts
from tools.fuzz.rows import check_rows, row_parts
from tools.fuzz.scene import Scene, scene

Parts = dict[str, Any]
BLOCK = 200
"""Inputs that a process tries at once."""
QUEUES_OF_DOORS = (
    QUEUES.orders, QUEUES.scheduler, QUEUES.replies, QUEUES.callbacks, QUEUES.agent("stock"),
    QUEUES.agent("payment"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Door:
    """What makes inputs, and what tries one and returns what went wrong."""

    name: str
    draw: Callable[[Scene, random.Random], Parts]
    check: Callable[[Parts, Scene], Coroutine[Any, Any, str | None]]


@dataclass(frozen=True, slots=True)
class Found:
    """One input that went wrong."""

    seed: int
    number: int
    door: str
    parts: Parts = field(repr=False)
    problem: str


def doors() -> tuple[Door, ...]:
    """Return every entry point. Cheap and expensive ones are tried equally often."""
    queues = [
        Door(f"queue {name}", partial(_of_queue, name), check_message) for name in QUEUES_OF_DOORS
    ]
    files = [
        Door(name, partial(_drawn, draw), partial(_of_file, check))
        for name, draw, check in file_doors()
    ]
    return (
        *queues,
        Door(f"queue {QUEUES.dead_letters}", letter_parts, check_message),
        Door("callback by HTTP", http_parts, check_http),
        Door("rows", row_parts, check_rows),
        *files,
    )


def _of_queue(queue: str, of: Scene, rng: random.Random) -> Parts:
    return queue_parts(queue, of, rng)


def _drawn(draw: Callable[[random.Random], Parts], _scene: Scene, rng: random.Random) -> Parts:
    return draw(rng)


async def _of_file(check: Callable[[Parts], None], parts: Parts, _scene: Scene) -> None:
    check(parts)


class Fuzz:
    """The doors of one process, and its scene."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._scene = asyncio.run(scene())
        self._doors = {door.name: door for door in doors()}

    def drawn(self, number: int) -> tuple[str, Parts]:
        """Return an input: its door and its parts. They are the same in every process."""
        rng = random.Random(f"{self.seed}/{number}")  # noqa: S311  it repeats itself
        door = rng.choice(list(self._doors.values()))
        return door.name, door.draw(self._scene, rng)

    def tried(self, door: str, parts: Parts) -> str | None:
        """Send an input to its door; return what went wrong."""
        try:
            return asyncio.run(self._doors[door].check(parts, self._scene))
        except Exception as wrong:  # noqa: BLE001  an undocumented error
            return f"{type(wrong).__name__}: {wrong}"[:500]

    def found(self, number: int) -> Found | None:
        """Return what went wrong with an input; None if nothing did."""
        door, parts = self.drawn(number)
        problem = self.tried(door, parts)
        return None if problem is None else Found(self.seed, number, door, parts, problem)

    def shrunk(self, found: Found) -> Found:
        """Return a shorter input that goes wrong in the same way."""
        kind = _kind(found.problem)

        def fails(parts: Parts) -> bool:
            problem = self.tried(found.door, parts)
            return problem is not None and _kind(problem) == kind

        parts = mutation.shrunk(found.parts, fails)
        problem = self.tried(found.door, parts) or found.problem
        return Found(found.seed, found.number, found.door, parts, problem)


def _kind(problem: str) -> str:
    """Return the part of a problem that stays the same when its input is made shorter."""
    return problem.partition(":")[0][:40]


def fuzzed(seed: int, numbers: range, jobs: int) -> Iterator[tuple[int, Counter[str], list[Found]]]:
    """Try inputs in several processes; yield how many, by door, and what went wrong."""
    blocks = [numbers[start : start + BLOCK] for start in range(0, len(numbers), BLOCK)]
    if jobs == 1:
        yield from map(partial(_block, seed), blocks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(_block, seed), blocks)


_fuzz: Fuzz | None = None


def _block(seed: int, numbers: Iterable[int]) -> tuple[int, Counter[str], list[Found]]:
    global _fuzz  # noqa: PLW0603  one for each process
    if _fuzz is None or _fuzz.seed != seed:
        logging.disable(logging.CRITICAL)
        _fuzz = Fuzz(seed)
    count, by_door, wrong = 0, Counter[str](), []
    for number in numbers:
        door, parts = _fuzz.drawn(number)
        problem = _fuzz.tried(door, parts)
        count += 1
        by_door[door] += 1
        if problem is not None:
            wrong.append(Found(seed, number, door, parts, problem))
    return count, by_door, wrong
