"""Play many seeds in several processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import active_children

from sas.testing.plan import drawn
from sas.testing.play import Played, Project, play

_project: Project | None = None
_orders = 0
Load = Callable[[], Project]


def played(load: Load, seeds: Iterable[int], orders: int, jobs: int) -> Iterator[Played]:
    """Yield the result of each seed as it ends. ``load`` makes the project once in each process."""
    if jobs == 1:
        project = load()
        for seed in seeds:
            yield play(project, drawn(seed, project.workflows, orders))
        return
    seeds_left = iter(seeds)
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(load, orders)) as pool:
        under_way: set[Future[Played]] = {
            pool.submit(_play, seed) for seed in islice(seeds_left, jobs * 2)
        }
        try:
            while under_way:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                under_way |= {pool.submit(_play, seed) for seed in islice(seeds_left, len(done))}
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children() if under_way else ():  # Ctrl-C
                process.terminate()


def jobs_here() -> int:
    """Return how many processes this machine can run at once."""
    return os.cpu_count() or 1


def _begin(load: Load, orders: int) -> None:
    global _project, _orders
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _project, _orders = load(), orders


def _play(seed: int) -> Played:
    assert _project is not None  # noqa: S101  _begin has set it
    return play(_project, drawn(seed, _project.workflows, _orders))
