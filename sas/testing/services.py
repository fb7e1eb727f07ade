"""Model services behind the agents of any workflow: what a remote service should do, and may do."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from sas.domain.workflow import Workflows
from sas.ports import AwaitCallback, Call, Callback, Clock, RefusedError, TransientError
from sas.testing.remote import RemoteFaults, RemoteLedger, SimulatedAgent
from sas.testing.world import of_no_host

Tell = Callable[[Callback, bytes], Awaitable[bool]]
"""Hands the result of a callback over; False if it was not taken."""


class ModelService(SimulatedAgent):
    """Respects keys and refuses one after its undo.

    ``drain_times`` are those of the steps that have one: their service keeps no tombstones, and
    cuts off each call that arrives later than that after CompleteBy. With ``tell`` the work happens
    outside, and ends by a callback.
    """

    def __init__(
        self,
        clock: Clock,
        ledger: RemoteLedger,
        faults: RemoteFaults,
        rng: random.Random,
        *,
        drain_times: Mapping[str, timedelta],
        tell: Tell | None = None,
    ) -> None:
        super().__init__(clock, ledger, faults, rng)
        self.drain_times = drain_times
        self._tell = tell

    async def _do(self, call: Call) -> Any:
        drain_time = self.drain_times.get(call.step)
        if drain_time is not None:
            return await self._cut_off(call, drain_time)
        if self._tell is not None:
            return await self._outside(call, self._tell)
        return await super()._do(call)

    async def _undo(self, call: Call) -> Any:
        result = await super()._undo(call)
        if call.step in self.drain_times:
            self._ledger.of(call.key).tombstone = False
        return result

    async def _cut_off(self, call: Call, drain_time: timedelta) -> Any:
        await self._travel(call)
        if self._clock.now() > call.complete_by + drain_time:
            raise TransientError("cut off")
        effects = self._ledger.of(call.key)
        effects.done += not effects.in_force
        effects.in_force, effects.content = True, call.order
        await self._answer(call)
        return {"done_by": call.key}

    async def _outside(self, call: Call, tell: Tell) -> Any:
        await self._travel(call)
        effects = self._ledger.of(call.key)
        if effects.tombstone:
            raise RefusedError("undone", "this key was undone")
        if effects.in_force:
            return {"done_by": call.key}
        left = (call.complete_by - self._clock.now()).total_seconds()
        within = timedelta(seconds=max(left, 1.0) * self._rng.uniform(2, 10))
        effects.content = call.order
        task = asyncio.ensure_future(self._happens(call.key, call.callback(within), within, tell))
        self.calls.add(task)
        task.add_done_callback(self._call_ended)
        await self._answer(call)
        return AwaitCallback(within, "for somebody outside")

    async def _happens(self, key: str, callback: Callback, within: timedelta, tell: Tell) -> None:
        of_no_host()
        await self._clock.sleep(within.total_seconds() * self._rng.uniform(0, 1.1))
        effects = self._ledger.of(key)
        if effects.tombstone:
            return
        effects.done += not effects.in_force
        effects.in_force = True
        body = json.dumps({"outcome": "done", "result": {"done_by": key}}).encode()
        while not await tell(callback, body):
            await self._clock.sleep(self._rng.uniform(1, 5))


def drain_times(workflows: Workflows) -> dict[str, dict[str, timedelta]]:
    """Return the drain times of steps by name, for each agent that can do them."""
    found: dict[str, dict[str, timedelta]] = {}
    for workflow in workflows:
        for step in workflow.steps:
            if step.undo is not None and step.undo.drain_time is not None:
                for agent in step.agents:
                    found.setdefault(agent, {})[step.name] = step.undo.drain_time
    return found


def service_seconds(
    workflows: Workflows, given: Mapping[str, tuple[float, float]]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return how long services take, by agent and step, from times by the name of either."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for workflow in workflows:
        for step in workflow.steps:
            for agent in step.agents:
                takes = given.get(step.name) or given.get(agent)
                if takes is not None:
                    found.setdefault(agent, {})[step.name] = takes
    return found
