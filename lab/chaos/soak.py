"""Memory and open files of one worker over a long run, and whether they stay flat.

The verdict is about memory that is allocated and not freed. The table also shows the resident
memory. That includes memory that the allocators keep for later, so it follows the highest load.

A short run shows large leaks only, so the table says how large a leak must be to show.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path

from samples.demo.tally import Tally

RESTS_MIN = 3
RESTS = 10
"""How often a run pauses, and waits until no order is under way."""
REST_S = 30.0
"""How long a run pauses before a sample. Connections that are idle for 15 s are closed by then."""
FLAT_SHARE = 0.10
JUDGED = ("in_use_mib", "files", "sockets")
MEMORY_FILE_S = 60.0
"""How long a worker may take to write how much memory it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A worker at one moment."""

    ended: int
    memory_mib: float
    files: int
    sockets: int
    in_use_mib: float = 0.0


@dataclass(kw_only=True)
class Samples:
    """Samples of one process, by its pid. ``tally`` says how many orders have ended.

    At SIGUSR1 the process writes how many bytes it uses into the file ``memory``. Samples
    ``at_rest`` are compared: under load, memory and sockets change with the calls in flight.
    """

    pid: int
    memory: Path
    tally: Tally
    at_rest: list[Sample] = field(default_factory=list)

    async def rest(self) -> None:
        """Take a sample once idle connections are closed. No order is under way."""
        await asyncio.sleep(REST_S)
        self.at_rest.append(replace(self._take(), in_use_mib=await self._in_use_mib()))
        print(f"at rest: {self.at_rest[-1]}", flush=True)

    async def _in_use_mib(self) -> float:
        self.memory.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        async with asyncio.timeout(MEMORY_FILE_S):
            while not self.memory.exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.05)
        return int(self.memory.read_text("utf-8")) / 2**20

    def _take(self) -> Sample:
        process = Path(f"/proc/{self.pid}")
        [kib] = re.findall(r"VmRSS:\s+(\d+) kB", (process / "status").read_text("utf-8"))
        targets = []
        for descriptor in (process / "fd").iterdir():
            try:
                targets.append(os.readlink(descriptor))  # noqa: PTH115  the target is not a path
            except OSError:
                continue  # closed in the meantime
        sockets = sum(target.startswith("socket:") for target in targets)
        return Sample(
            ended=len(self.tally.ended),
            memory_mib=int(kib) / 1024,
            files=len(targets),
            sockets=sockets,
        )

    def _trend(self, name: str) -> tuple[float, float]:
        """Return the mean after the first third, and by how much the line through it rises.

        In the first third caches and pools fill up. The line goes through all other samples, so
        that a single sample with many open connections does not decide.
        """
        values = [float(getattr(sample, name)) for sample in self.at_rest][len(self.at_rest) // 3 :]
        if len(values) < 2:
            return statistics.fmean(values or [0.0]), 0.0
        slope, _ = statistics.linear_regression(range(len(values)), values)
        return statistics.fmean(values), slope * (len(values) - 1)

    def _is_flat(self, name: str) -> bool:
        mean, rise = self._trend(name)
        return rise <= mean * FLAT_SHARE

    @property
    def leak_shown_kib(self) -> float:
        """The smallest leak that makes the memory of this run grow, in KiB an order."""
        mean, _ = self._trend("in_use_mib")
        return 1024 * mean * FLAT_SHARE / max(1.0, len(self.tally.ended) * 2 / 3)

    @property
    def flat(self) -> bool:
        """Whether no figure rises by more than a tenth after the first third.

        With fewer than three samples at rest this is unknown, and the value is False.
        """
        return len(self.at_rest) >= RESTS_MIN and all(map(self._is_flat, JUDGED))

    def table(self) -> list[str]:
        """Return the samples as a table, and the verdict."""
        lines = ["at rest, orders ended   MiB in use   resident   open files   sockets"]
        lines += [
            f"{sample.ended:21} {sample.in_use_mib:12.1f} {sample.memory_mib:10.1f} "
            f"{sample.files:12} {sample.sockets:9}"
            for sample in self.at_rest
        ]
        for name in JUDGED:
            mean, rise = self._trend(name)
            word = "flat" if self._is_flat(name) else "GROWS"
            lines.append(f"{name}: {mean:.1f} after the first third, {rise:+.1f} in all: {word}")
        mean, rise = self._trend("memory_mib")
        lines.append(f"resident, with what is free: {mean:.1f} MiB, {rise:+.1f} in all")
        if len(self.at_rest) < RESTS_MIN:
            lines.append(f"only {len(self.at_rest)} samples at rest: run longer to see a trend")
        lines.append(f"a leak of {self.leak_shown_kib:.1f} KiB an order or more would show")
        return lines
