"""An agent with a bug as a sequence: deploys, an operator and full call slots come between.

The model follows ``sas.engine.failing_agent``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from sas.domain.calls import CallState
from sas.domain.order import AttemptError
from sas.engine.in_flight import CALL_STATE
from sas.engine.receiver import FIRST_DELAY_S
from sas.features.call_limit import lease_name
from sas.ports import AgentCall, HeldError, RefusedError, StillRunning
from sas.testing.bus import Queued
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.actors_kit import ALLOWED, CHAIN, QUEUES, Kit, agent_actor, command, kit, order

STOCK = QUEUES.agent("stock")
SLOT = lease_name("stock", 0)
ORDERS = ("O-1", "O-2")
BUGS: dict[str, Exception] = {
    "bug": KeyError("room"),
    "another bug": ZeroDivisionError("by zero"),
    "held": HeldError("deploy a version that reads it"),
}
BEHAVIOURS = [*BUGS, "fine", "no", "goes on", "goes on"]


@dataclass
class Model:
    """One order: how its agent behaves, and the failures in a row of its request."""

    behaviour: str = "bug"
    failures: int = 0
    is_cancelled: bool = False
    is_done: bool = False

    @property
    def waits_for_a_deploy(self) -> bool:
        return self.failures > 0 and not (self.is_cancelled or self.is_done)


class FailingAgentMachine(AsyncMachine):
    """Requests of two orders come again as soon as their pauses are over."""

    @initialize()
    def begin(self) -> None:
        self.run(self.begins())

    async def begins(self) -> None:
        self.start(None)
        self.models = {order_id: Model() for order_id in ORDERS}
        self.alerts: list[str] = []
        self.is_active = False
        self.agent = self.system.agents["stock"]
        for order_id in ORDERS:
            await self.system.submit(order(order_id), f"m-{order_id}")
            await self.system.step(QUEUES.scheduler)

    def start(self, beside: Kit | None) -> None:
        """Start an instance whose first agent may have one call in flight."""
        instance = "host-2" if beside else "host-1"
        self.system = system = kit(CHAIN, beside=beside, instance=instance)
        stock = agent_actor(system.context, "stock", system.agents["stock"], limit=1)
        system.actors["stock"] = stock

    @rule(
        order_id=st.sampled_from(ORDERS),
        behaviours=st.just([]) | st.lists(st.sampled_from(BEHAVIOURS), max_size=3),
        event=st.sampled_from([None] * 5 + ["restart", "cancel", "busy"]),
        times=st.sampled_from([1, 2, 10]),
        late_s=st.sampled_from([0, 1, 8]),
        redelivered=st.booleans(),
    )
    def works(
        self,
        order_id: str,
        *,
        behaviours: list[str],
        event: str | None,
        times: int,
        late_s: int,
        redelivered: bool,
    ) -> None:
        """After deploys, perhaps with other bugs, some requests come: one order meets the bugs."""
        model = self.models[order_id]
        if event == "restart":  # counts travel with the requests, and incidents lie in the store
            self.start(self.system)
        if event == "cancel" and model.failures >= 3:
            model.is_cancelled = True
            seq = self.system.order(order_id).seq
            self.run(self.system.hand(command("cancel", seq, f"w-{order_id}", order_id)))
        for number in range(times):
            if behaviours:
                model.behaviour = behaviours[number % len(behaviours)]
            self.run(self.works_once(late_s, redelivered=redelivered, is_busy=event == "busy"))

    async def works_once(self, late_s: int, *, redelivered: bool, is_busy: bool = False) -> None:
        """The request that comes first is handled; all that follows from it, too.

        If its agent is busy, a request that waits for a deploy finds no slot for its call.
        """
        system, waiting = self.system, self.system.bus.queues[STOCK].waiting
        if not waiting:
            return
        first = min(waiting, key=lambda queued: queued.visible_at)
        system.clock.set(max(system.clock.now(), first.visible_at) + timedelta(seconds=late_s))
        waiting.remove(first)
        order_id = next(order_id for order_id in ORDERS if order_id.encode() in first.message.body)
        model = self.models[order_id]
        self.agent.script.clear()
        self.agent.then(*[self.behave] * 10)
        calls = len(self.agent.calls)
        is_busy = is_busy and model.waits_for_a_deploy
        now = system.clock.now()
        if is_busy:
            assert await system.store.acquire_lease(SLOT, "another", now + ALLOWED, now)
        await system.receive(first.message, count=2 if redelivered else 1)
        was_called = len(self.agent.calls) > calls
        for queue in (QUEUES.scheduler, QUEUES.agent("payment")) * 3:
            for _ in system.bus.messages(queue):
                await system.step(queue)
        if was_called and not (model.is_cancelled or model.is_done):
            self.check(order_id, model)
        if is_busy:
            assert not was_called
            assert self.again(order_id).message.properties[CALL_STATE] == CallState.GOES_ON.value
            now = system.clock.now()
            assert await system.store.acquire_lease(SLOT, "another", now, now)

    async def behave(self, call: AgentCall) -> Any:
        model, (verb, _) = self.models[call.order_id], self.agent.calls[-1]
        behaviour = "fine" if model.is_done else model.behaviour
        if behaviour in BUGS:
            raise BUGS[behaviour].with_traceback(None)
        if behaviour == "goes on":
            return StillRunning(timedelta(seconds=10))
        if behaviour == "no" and verb == "do":
            raise RefusedError("sold-out", "none left")
        return {}

    def check(self, order_id: str, model: Model) -> None:
        """Compare what became of the order, when it comes again, and which alerts were sent."""
        now, record = self.system.clock.now(), self.system.order(order_id)
        if model.behaviour in BUGS:
            model.failures += 1
            again = self.again(order_id)
            longest = min(FIRST_DELAY_S * 2.0**model.failures, 300)
            assert longest / 2 <= (again.visible_at - now).total_seconds() <= longest
            error = self.system.store.orders[order_id].errors[0]
            assert error.kind == (
                AttemptError.HELD if model.behaviour == "held" else AttemptError.BUG
            )
            assert str(BUGS[model.behaviour]).strip("'") in error.message
            if model.failures >= 2 and not self.is_active:
                self.is_active = True
                self.alerts.append("agent-failing")
        else:
            states = {"fine": "Processed", "no": "Compensat", "goes on": "Processing"}
            expected = states[model.behaviour]
            assert record.process_state.value.startswith(expected)
            if model.failures >= 2 and self.is_active:
                self.is_active = False
                self.alerts.append("cleared")
            model.is_done, model.failures = model.behaviour != "goes on", 0
        if not any(each.is_cancelled for each in self.models.values()):
            assert self.kinds() == self.alerts

    def again(self, order_id: str) -> Queued:
        """Return the request of a step that waits as it comes again, in its time allowed."""
        (again,) = [
            queued
            for queued in self.system.bus.queues[STOCK].waiting
            if order_id.encode() in queued.message.body
        ]
        step = self.system.order(order_id).steps[0]
        assert (step.epoch, step.failure_count) == (1, 0)
        assert step.complete_by is not None
        assert step.complete_by >= again.visible_at + ALLOWED / 3
        return again

    def kinds(self) -> list[str]:
        """Return the alerts of beginnings and ends, without those of an incident that lasts."""
        alerts = dict.fromkeys((alert.kind, alert.since) for alert in self.system.alerts())
        return [kind for kind, _ in alerts]

    def teardown(self) -> None:
        try:
            self.run(self.ends())
        finally:
            super().teardown()

    async def ends(self) -> None:
        """A deploy mends everything within five minutes, and no incident stays."""
        for model in self.models.values():
            model.behaviour = "no" if model.behaviour == "no" else "fine"
        for _ in range(10):
            await self.works_once(0, redelivered=False)
            await self.system.sweep()
        for _ in range(8):
            await self.system.later(120)
            await self.system.sweep()
            await self.system.drain()
        assert {self.system.state(order_id) for order_id in ORDERS} <= {"Processed", "Compensated"}
        kinds = self.kinds()
        assert kinds == ["agent-failing", "cleared"] * (len(kinds) // 2)


FailingAgentMachine.TestCase.settings = settings(stateful_step_count=6)
TestFailingAgent = FailingAgentMachine.TestCase
