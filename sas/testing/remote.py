"""Model services behind the agents of any workflow. They fail, answer late, and record effects."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from sas.ports import (
    AgentCall,
    AwaitCallback,
    Callback,
    Clock,
    RefusedError,
    StillRunning,
    TransientError,
)
from sas.testing.plan import Faults
from sas.testing.world import of_no_host

SendCallback = Callable[[Callback, bytes], Awaitable[bool]]
"""Sends the body of a callback to the endpoint; returns False if the endpoint did not accept it."""


@dataclass(slots=True, kw_only=True)
class Effects:
    """The effects of one key at one service.

    ``done`` counts them, and ``content`` is the input of the last one. After an undo the service
    keeps a ``tombstone``, and refuses the key. ``refused`` is drawn once for each key.
    """

    done: int = 0
    in_force: bool = False
    content: Any = None
    tombstone: bool = False
    refused: bool | None = None


@dataclass(slots=True)
class RemoteLedger:
    """The effects of all keys, over all services."""

    by_key: dict[str, Effects] = field(default_factory=dict)
    unmet: set[str] = field(default_factory=set)
    """The keys of calls that asked a service for an effect and got an error or no answer."""

    def of(self, key: str) -> Effects:
        """Return the effects of a key."""
        return self.by_key.setdefault(key, Effects())


class ModelService:
    """An agent and its service, which respects idempotency keys and refuses a key after its undo.

    A call goes on without its caller, so it may arrive at any later time. While ``down`` is set,
    every call that arrives fails. ``drain_times`` has the drain time of each step that has one. For
    these steps the service keeps no tombstones. Instead it refuses each call that arrives after
    CompleteBy and the drain time. If ``outside`` is set, the work happens outside of the service,
    and ends with a callback, which ``send_callback`` sends.
    """

    def __init__(
        self,
        clock: Clock,
        ledger: RemoteLedger,
        faults: Faults,
        rng: random.Random,
        *,
        drain_times: Mapping[str, timedelta] = MappingProxyType({}),
        send_callback: SendCallback | None = None,
    ) -> None:
        self._clock, self._ledger, self._faults, self._rng = clock, ledger, faults, rng
        self._drain_times, self._send_callback = drain_times, send_callback
        self.down = self.outside = False
        self.calls: set[asyncio.Task[Any]] = set()

    async def do(self, call: AgentCall) -> Any:
        """Have an effect once for each key, unless the key was undone before."""
        return await asyncio.shield(self._goes_on(self._do(call)))

    async def undo(self, call: AgentCall) -> Any:
        """Take the effect back, and refuse the key from now on."""
        return await asyncio.shield(self._goes_on(self._undo(call)))

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _goes_on(self, work: Any) -> asyncio.Task[Any]:
        """Return a task that goes on when its caller ends."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self.calls.add(task)
        task.add_done_callback(self._call_ended)
        return task

    def _call_ended(self, task: asyncio.Task[Any]) -> None:
        self.calls.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio warns of it, if its caller is gone

    async def _do(self, call: AgentCall) -> Any:
        await self._travel()
        effects = self._ledger.of(call.key)
        drain_time = self._drain_times.get(call.step)
        if drain_time is not None:
            if self._clock.now() > call.complete_by + drain_time:
                raise TransientError("cut off")
            return await self._done(call, effects)
        if effects.tombstone:
            raise RefusedError("undone", "this key was undone")
        if self.outside and self._send_callback is not None:
            return await self._outside(call, effects, self._send_callback)
        if effects.refused is None:
            effects.refused = self._faults.happens("refused", self._rng)
        if effects.refused:
            raise RefusedError("out-of-stock", "there is none left")
        if not effects.in_force and self._faults.happens("later", self._rng):
            return self._later()
        return await self._done(call, effects)

    async def _undo(self, call: AgentCall) -> Any:
        await self._travel()
        if self._faults.happens("undo_refused", self._rng):
            raise RefusedError("undo-refused", "it cannot be taken back")
        effects = self._ledger.of(call.key)
        if not effects.tombstone and self._faults.happens("later", self._rng):
            return self._later()
        effects.in_force = False
        effects.tombstone = call.step not in self._drain_times
        await self._answer()
        return {"undone": True}

    async def _done(self, call: AgentCall, effects: Effects) -> Any:
        if not effects.in_force:
            effects.done += 1
            effects.in_force, effects.content = True, call.order
        await self._answer()
        return {"done_by": call.key}

    def _later(self) -> StillRunning:
        seconds = self._rng.uniform(0.1, self._faults.look_seconds_max)
        return StillRunning(timedelta(seconds=seconds), "going on")

    async def _outside(self, call: AgentCall, effects: Effects, send_callback: SendCallback) -> Any:
        if effects.in_force:
            return {"done_by": call.key}
        seconds_left = (call.complete_by - self._clock.now()).total_seconds()
        within = timedelta(seconds=max(seconds_left, 1.0) * self._rng.uniform(2, 10))
        effects.content = call.order
        self._goes_on(
            self._happens(
                effects,
                call,
                callback=call.callback(within),
                within=within,
                send_callback=send_callback,
            )
        )
        await self._answer()
        return AwaitCallback(within, "for somebody outside")

    async def _happens(
        self,
        effects: Effects,
        call: AgentCall,
        *,
        callback: Callback,
        within: timedelta,
        send_callback: SendCallback,
    ) -> None:
        of_no_host()
        await self._clock.sleep(within.total_seconds() * self._rng.uniform(0, 1.1))
        if effects.tombstone:
            return
        effects.done += not effects.in_force
        effects.in_force = True
        body = json.dumps({"outcome": "done", "result": {"done_by": call.key}}).encode()
        while not await send_callback(callback, body):
            await self._clock.sleep(self._rng.uniform(1, 5))

    async def _travel(self) -> None:
        await self._clock.sleep(self._rng.uniform(0.0, self._faults.seconds_max))
        if self.down or self._faults.happens("transient", self._rng):
            raise TransientError("try again")
        if self._faults.happens("hangs", self._rng):
            await self._clock.sleep(self._rng.uniform(5, 60))

    async def _answer(self) -> None:
        if self._faults.happens("lost_answer", self._rng):
            raise TransientError("the answer was lost")
