"""CPU and memory of the processes that a benchmark loads."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BODY = b"x" * 256


@dataclass(frozen=True)
class Cost:
    """One measurement: how many messages, wall time and CPU seconds of either side.

    ``waits`` says how often the client slept, for each message.
    """

    count: int
    seconds: float
    client: float
    broker: float

    waits: float = 0.0

    @property
    def ratio(self) -> float:
        """The broker's CPU over the client's."""
        return self.broker / self.client

    @property
    def client_us(self) -> float:
        """The client's CPU for one message."""
        return 1e6 * self.client / self.count

    @property
    def broker_us(self) -> float:
        """The broker's CPU for one message."""
        return 1e6 * self.broker / self.count

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.rate:7.0f} msg/s | client {self.client_us:4.0f} us/msg "
            f"({100 * self.client / self.seconds:3.0f} % of a core) | broker "
            f"{self.broker_us:4.0f} us/msg ({100 * self.broker / self.seconds:3.0f} %) | "
            f"ratio {self.ratio:.2f}"
        )


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all its threads, to the nanosecond.

    It is the clock that `time.process_time` reads of one's own process: what the scheduler has
    charged, without the time that a hypervisor took away (where it tells, /proc/stat "steal").
    """
    clock = ~pid << 3 | 2  # Linux: CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it
    return time.clock_gettime(clock)


def steal_seconds() -> float:
    """CPU seconds that the hypervisor has taken away since the machine started."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(first[8]) / os.sysconf("SC_CLK_TCK")


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
        self.start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        now = self._now()
        wall, client, broker, waits = (b - a for a, b in zip(self.start, now, strict=True))
        self.cost = Cost(self.count, wall, client, broker, waits / self.count)

    def _now(self) -> tuple[float, float, float, float]:
        waits = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        return time.perf_counter(), time.process_time(), cpu_of(self.pid), waits
