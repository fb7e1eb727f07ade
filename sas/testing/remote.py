"""Remote services in memory. They fail, answer late, and record every effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sas.ports import Call, Clock, RefusedError, StillRunning, TransientError


@dataclass(slots=True)
class RemoteFaults:
    """Shares of calls, from 0 to 1.

    Calls with a ``lost_answer`` have their effect. Calls that end ``later`` return
    ``StillRunning`` and have their effect at a later call, after ``look_seconds_max`` at most.
    ``strikes`` gets each fault that happens.
    """

    transient: float = 0.0
    lost_answer: float = 0.0
    hangs: float = 0.0
    refused: float = 0.0
    undo_refused: float = 0.0
    seconds_max: float = 2.0
    later: float = 0.0
    look_seconds_max: float = 120.0
    strikes: Callable[[str], None] = field(default=lambda _fault: None, init=False)

    def happens(self, fault: str, rng: random.Random) -> bool:
        """Return whether a fault happens now."""
        happens: bool = rng.random() < getattr(self, fault)
        if happens:
            self.strikes(fault)
        return happens


@dataclass(slots=True)
class Effects:
    """Effects of one key at one service. ``done`` counts them; ``content`` is the last input."""

    done: int = 0
    in_force: bool = False
    content: Any = None
    tombstone: bool = False
    refused: bool | None = None


@dataclass(slots=True)
class RemoteLedger:
    """The effects of all keys, over all services."""

    by_key: dict[str, Effects] = field(default_factory=dict)
    disturbed: set[str] = field(default_factory=set)
    """The keys of calls that met a fault: on the way, in the service, or on the way back."""
    unmet: set[str] = field(default_factory=set)
    """The keys of calls whose service was asked for an effect, and did not have it."""

    def of(self, key: str) -> Effects:
        """Return the effects of a key."""
        return self.by_key.setdefault(key, Effects())


class SimulatedAgent:
    """An agent of a service that respects idempotency keys, and refuses a key after its undo.

    A call goes on without its caller: it may arrive at any later time. While ``down`` is set,
    every call that arrives fails.
    """

    def __init__(
        self, clock: Clock, ledger: RemoteLedger, faults: RemoteFaults, rng: random.Random
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._faults = faults
        self._rng = rng
        self.down = False
        self.seconds: Mapping[str, tuple[float, float]] = {}
        """How long the service takes for a step: between these. Other steps: ``seconds_max``."""
        self.calls: set[asyncio.Task[Any]] = set()

    async def do(self, call: Call) -> Any:
        """Have an effect once for each key, unless the key was undone before."""
        return await self._out(self._do(call))

    async def undo(self, call: Call) -> Any:
        """Take the effect back, and refuse the key from now on."""
        return await self._out(self._undo(call))

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _out(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        self.calls.add(task)
        task.add_done_callback(self._call_ended)
        return await asyncio.shield(task)

    def _call_ended(self, task: asyncio.Task[Any]) -> None:
        self.calls.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; without this asyncio warns

    async def _do(self, call: Call) -> Any:
        await self._travel(call)
        effects = self._ledger.of(call.key)
        if effects.refused is None:
            effects.refused = self._faults.happens("refused", self._rng)
        if effects.tombstone:
            raise RefusedError("undone", "this key was undone")
        if effects.refused:
            raise RefusedError("out-of-stock", "there is none left")
        if not effects.in_force and self._goes_on():
            return self._later()
        if not effects.in_force:
            effects.in_force = True
            effects.done += 1
            effects.content = call.order
        await self._answer(call)
        return {"done_by": call.key}

    async def _undo(self, call: Call) -> Any:
        await self._travel(call)
        if self._faults.happens("undo_refused", self._rng):
            raise RefusedError("undo-refused", "it cannot be taken back")
        effects = self._ledger.of(call.key)
        if not effects.tombstone and self._goes_on():
            return self._later()
        effects.in_force = False
        effects.tombstone = True
        await self._answer(call)
        return {"undone": True}

    def _goes_on(self) -> bool:
        return bool(self._faults.later) and self._faults.happens("later", self._rng)

    def _later(self) -> StillRunning:
        seconds = self._rng.uniform(0.1, self._faults.look_seconds_max)
        return StillRunning(timedelta(seconds=seconds), "going on")

    async def _travel(self, call: Call) -> None:
        least, most = self.seconds.get(call.step, (0.0, self._faults.seconds_max))
        await self._clock.sleep(self._rng.uniform(least, most))
        if self.down or self._faults.happens("transient", self._rng):
            self._ledger.disturbed.add(call.key)
            raise TransientError("try again")
        if self._faults.happens("hangs", self._rng):
            self._ledger.disturbed.add(call.key)
            await self._clock.sleep(self._rng.uniform(5, 60))

    async def _answer(self, call: Call) -> None:
        if self._faults.happens("lost_answer", self._rng):
            self._ledger.disturbed.add(call.key)
            raise TransientError("the answer was lost")
