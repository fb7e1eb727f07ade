"""Play many seeds in several processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import active_children
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_play: Callable[[int], Any] | None = None


def played(
    load: Callable[[], T], play: Callable[[T, int], R], seeds: Iterable[int], jobs: int
) -> Iterator[R]:
    """Yield the result of each seed, in their order.

    ``load`` makes what is played, once in each process. Both functions are sent to processes.
    """
    if jobs == 1:
        thing = load()
        for seed in seeds:
            yield play(thing, seed)
        return
    seeds_left = iter(seeds)
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(load, play)) as pool:
        under_way: deque[Future[R]] = deque(
            pool.submit(_played, seed) for seed in islice(seeds_left, jobs * 2)
        )
        try:
            while under_way:
                yield under_way[0].result()
                under_way.popleft()
                under_way.extend(pool.submit(_played, seed) for seed in islice(seeds_left, 1))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children() if under_way else ():  # the caller has seen enough
                process.terminate()


def jobs_here() -> int:
    """Return how many processes this machine can run at once."""
    return os.cpu_count() or 1


def _begin(load: Callable[[], T], play: Callable[[T, int], Any]) -> None:
    global _play  # noqa: PLW0603  a process plays one thing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    thing = load()
    _play = lambda seed: play(thing, seed)  # noqa: E731


def _played(seed: int) -> Any:
    assert _play is not None  # noqa: S101  _begin has set it
    return _play(seed)
