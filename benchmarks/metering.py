"""CPU and memory of the processes that a benchmark loads."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BODY = b"x" * 256


@dataclass(frozen=True)
class Cost:
    """One measurement: how many messages, wall time and CPU seconds of either side."""

    count: int
    seconds: float
    client: float
    broker: float

    @property
    def ratio(self) -> float:
        return self.broker / self.client

    def __str__(self) -> str:
        per = 1e6 / self.count
        return (
            f"{self.count / self.seconds:7.0f} msg/s | client {self.client * per:4.0f} us/msg "
            f"({100 * self.client / self.seconds:3.0f} % of a core) | broker "
            f"{self.broker * per:4.0f} us/msg ({100 * self.broker / self.seconds:3.0f} %) | "
            f"ratio {self.ratio:.2f}"
        )


def cpu_of(pid: int) -> float:
    """CPU seconds of a process of one thread, to the nanosecond (schedstat counts no ticks)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_of(pid: int) -> float:
    """Resident memory in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Meter:
    """Measures a block of work on this process and on the server's process ``pid``."""

    def __init__(self, pid: int, count: int) -> None:
        self.pid = pid
        self.count = count

    def __enter__(self) -> Self:
        self.start = (time.perf_counter(), time.process_time(), cpu_of(self.pid))
        return self

    def __exit__(self, *_: object) -> None:
        now = (time.perf_counter(), time.process_time(), cpu_of(self.pid))
        wall, client, broker = (b - a for a, b in zip(self.start, now, strict=True))
        self.cost = Cost(self.count, wall, client, broker)
