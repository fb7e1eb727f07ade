"""The driver's process, as the benchmark sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

from lab.benchmarks.orders import content
from lab.benchmarks.peers.install import PROJECT
from lab.benchmarks.peers.rigs import Rig
from orders.content import amount_due

READY_S = 30.0
QUIET_S = 120.0
"""Longest time without the end of an order, before a run is given up."""


@dataclass(slots=True)
class Ended:
    """The orders of one run that ended, and when."""

    outcomes: dict[str, str] = field(default_factory=dict)
    sent: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Orders a second, from the first that was sent to the last that ended."""
        return len(self.told) / (max(self.told) - min(self.sent))

    @property
    def latencies_ms(self) -> list[float]:
        """How long each order took, as its client saw it."""
        return [1000 * (told - sent) for sent, told in zip(self.sent, self.told, strict=True)]


class Driver:
    """Drives one peer; an async context manager."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def __aenter__(self) -> Self:
        order = content()
        order["amount"] = amount_due(order)
        rig = self._rig
        self._log = (rig.folder / "driver.log").open("wb")
        self._process = await asyncio.create_subprocess_exec(
            rig.python, "-m", "lab.benchmarks.peers.apps.drive", rig.name, rig.address,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._log,
            env={**rig.environment(), "PEERS_ORDER": json.dumps(order)}, cwd=PROJECT,
        )  # fmt: skip
        await self._line(READY_S)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 2)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._log.close()

    async def run(self, **asked: Any) -> Ended:
        """Carry out a whole run: ``prefix``, ``in_flight``, and ``seconds`` or ``orders``."""
        ended = Ended()
        async for _ in self.follow(ended, **asked):
            pass
        return ended

    async def follow(self, ended: Ended, **asked: Any) -> AsyncIterator[None]:
        """Carry out a run; yield after each order that was added to ``ended``.

        Raises:
            TimeoutError: no order ended for QUIET_S seconds.
        """
        if self._process.stdin is None:
            raise RuntimeError("the driver was started without an input: report this")
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        while isinstance(found := await self._line(QUIET_S), list):
            order_id, outcome, sent, told = found
            ended.outcomes[order_id] = outcome
            ended.sent.append(sent)
            ended.told.append(told)
            yield

    async def _line(self, seconds: float) -> Any:
        if self._process.stdout is None:
            raise RuntimeError("the driver was started without an output: report this")
        line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        if not line:
            text = (self._rig.folder / "driver.log").read_text(errors="replace")
            raise OSError(f"the driver of {self._rig.name} ended:\n{text[-2000:]}")
        return json.loads(line)
