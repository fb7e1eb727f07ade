"""The circuit breaker: pure decisions, and agents of two instances that share one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from sas.bootstrap import Application, assemble
from sas.codec.external import AlertMessage
from sas.codec.internal import RequestMessage, encode
from sas.codec.strict import convert
from sas.domain.ids import key_time
from sas.domain.queues import Queues
from sas.domain.workflow import Workflows
from sas.engine.context import Context
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import (
    AgentCall,
    Business,
    RefusedError,
    SharedValue,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.bus import BusFault, MemoryBus
from sas.testing.clock import START, VirtualClock
from sas.testing.settings import settings
from sas.testing.store import MemoryStore, StoreFault
from tests.unit.actors_kit import (
    AGENTS,
    CHAIN,
    QUEUES,
    agent_actor,
    breaker_of,
    delivery,
    keep_breaker,
    received,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def check_health(context: Context) -> None:
    """Do what the end of a sweep does."""
    for task in context.sweep_tasks:
        await task()


POLICY = BreakerPolicy(
    failures_max=3, open_for=timedelta(seconds=15), open_for_max=timedelta(minutes=5)
)
QUEUE = "agent-stock"


def test_an_open_breaker_makes_requests_wait_until_its_time_and_then_lets_one_probe() -> None:
    opened = rules.opened(Breaker(), POLICY, NOW, "down")
    assert rules.wait_of(opened, "r1", NOW) == NOW + timedelta(seconds=15)
    later = NOW + timedelta(seconds=15)
    assert rules.wait_of(opened, "r1", later) is None
    probing = rules.probe(opened, "r1", POLICY, later)
    assert rules.wait_of(probing, "r1", later) is None
    assert rules.wait_of(probing, "r2", later) == later + rules.RECHECK


def test_every_failed_probe_doubles_the_wait_up_to_the_longest() -> None:
    policy = BreakerPolicy(open_for=timedelta(seconds=10), open_for_max=timedelta(seconds=60))
    waits = []
    breaker = Breaker()
    for _ in range(5):
        breaker = rules.opened(breaker, policy, NOW, "down")
        assert breaker.until is not None
        waits.append((breaker.until - NOW).total_seconds())
    assert waits == [10, 20, 40, 60, 60]
    assert breaker.since == NOW


def test_the_order_of_a_failed_probe_lets_others_probe_first_and_alone_does_not_lengthen_it() -> (
    None
):
    breaker = rules.opened(Breaker(), POLICY, NOW, "down")
    for _ in range(5):
        breaker = rules.opened(breaker, POLICY, now=NOW, why="slow", suspect="O-1")
    assert (breaker.rounds, breaker.until) == (2, NOW + timedelta(seconds=30))
    later = NOW + timedelta(seconds=30)
    assert rules.wait_of(breaker, "O-1/2/0", later, "O-1") == later + rules.RECHECK
    assert rules.wait_of(breaker, "O-2/2/0", later, "O-2") is None
    breaker = rules.opened(breaker, POLICY, now=NOW, why="slow", suspect="O-2")
    assert (breaker.rounds, breaker.until) == (3, NOW + timedelta(seconds=60))


def test_a_probe_without_an_answer_is_given_up_after_its_time() -> None:
    probing = rules.probe(rules.opened(Breaker(), POLICY, NOW, ""), "r1", POLICY, NOW)
    silence_end = NOW + POLICY.probe_for
    assert rules.wait_of(probing, "r2", silence_end) is None


class Remote:
    """A remote service with a script. It counts its calls."""

    def __init__(self) -> None:
        self.answer: Callable[[], Any] = dict
        self.calls: list[str] = []

    async def do(self, call: AgentCall) -> Any:
        self.calls.append(call.order_id)
        return self.answer()

    async def undo(self, call: AgentCall) -> Any:
        return await self.do(call)

    async def close(self) -> None:
        """Nothing is held."""


class Rig:
    """Two instances of one agent over the same store and bus."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.bus = MemoryBus(self.clock)
        queues = Queues()
        self.bus.declare(QUEUE, queues.scheduler, queues.alerts, queues.rejected)
        self.remote = Remote()
        self.actors = [
            agent_actor(self.context(name), "stock", self.remote, circuit=POLICY)
            for name in ("one", "two")
        ]

    def context(self, name: str) -> Context:
        """Return the context of an instance, with every feature in it."""
        return self.app(name).context

    def app(self, name: str) -> Application:
        business = Business(workflows=Workflows([CHAIN]), agents=dict.fromkeys(AGENTS, self.remote))
        return assemble(
            self.store, self.bus, clock=self.clock, business=business, settings=settings(name)
        )

    def request(self, order_id: str, seconds: float = 60) -> bytes:
        return encode(
            RequestMessage(
                id=f"{order_id}/2/0", order_id=order_id, workflow="order", step=0,
                step_name="reserve", direction="do", epoch=1,
                complete_by=self.clock.now() + timedelta(seconds=seconds),
                idempotency_key=f"{order_id}/reserve", order=msgspec.Raw(b"{}"),
                submission="s", time_allowed=seconds, seq=1,
            )
        )  # fmt: skip

    async def handle(self, actor: int, order_id: str, seconds: float = 60) -> object:
        body = self.request(order_id, seconds)
        return await self.clock.run(
            self.actors[actor].handle(received(QUEUES.agent("stock"), "m", body))
        )

    async def again(self, actor: int) -> object:
        message = self.bus.take(QUEUE)
        assert message is not None
        return await self.clock.run(self.actors[actor].handle(delivery(message)))

    async def state(self) -> Breaker:
        return await breaker_of(self.store)

    async def sweep(self) -> None:
        """Do what a supervisor of yet another instance does."""
        app = self.app("sweep")
        await self.clock.run(check_health(app.context))
        await self.clock.run(app.supervisor._held.send())

    def alert_bodies(self) -> list[AlertMessage]:
        messages = self.bus.messages("operator-alerts")
        return [convert(message.body, AlertMessage) for message in messages]

    def alerts(self) -> list[str]:
        return [alert.kind for alert in self.alert_bodies()]


@pytest.fixture
def rig() -> Rig:
    new_rig = Rig()
    new_rig.remote.answer = _down
    return new_rig


def _down() -> Any:
    raise TransientError("connection refused")


def _refused() -> Any:
    raise RefusedError("out-of-stock", "there is none left")


async def test_failures_in_a_row_open_it_and_the_request_is_put_back_within_complete_by(
    rig: Rig,
) -> None:
    assert await rig.handle(0, "O-1") is None
    assert len(rig.remote.calls) == POLICY.failures_max
    assert (await rig.state()).state is BreakerState.OPEN
    assert rig.alerts() == ["breaker-open"]
    (waiting,) = rig.bus.queues[QUEUE].waiting
    assert waiting.message.scheduled_at == (await rig.state()).until
    assert START < waiting.visible_at < START + timedelta(seconds=60)


async def test_while_it_is_open_no_instance_calls(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    calls = len(rig.remote.calls)
    assert await rig.handle(1, "O-2") is None
    assert len(rig.remote.calls) == calls
    assert len(rig.bus.queues[QUEUE].waiting) == 2


async def test_a_request_whose_complete_by_comes_first_is_left_to_the_supervisor(rig: Rig) -> None:
    await rig.handle(0, "O-1", seconds=5)
    assert rig.bus.queues[QUEUE].waiting == []


async def test_one_probe_goes_out_and_its_success_closes_it_for_all(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    await rig.handle(1, "O-2")
    calls = len(rig.remote.calls)
    await rig.clock.advance(16)
    rig.remote.answer = dict
    assert await rig.again(0) is not None
    assert len(rig.remote.calls) == calls + 1
    assert (await rig.state()).state is BreakerState.CLOSED
    assert rig.alerts() == ["breaker-open", "cleared"]
    assert await rig.again(1) is not None


async def test_an_alert_that_could_not_be_sent_while_the_bus_was_down_is_sent_by_the_next_sweep(
    rig: Rig,
) -> None:
    rig.bus.plan = lambda message: (
        BusFault.UNAVAILABLE if message.queue == "operator-alerts" else None
    )
    await rig.handle(0, "O-1")
    assert (await rig.state()).state is BreakerState.OPEN
    await rig.sweep()
    assert rig.alerts() == []
    rig.bus.plan = lambda _message: None
    await rig.clock.advance(31)
    await rig.sweep()
    assert rig.alerts() == ["breaker-open"]


async def test_a_breaker_that_closed_before_its_alert_could_be_sent_is_not_reported_afterwards(
    rig: Rig,
) -> None:
    rig.bus.plan = lambda message: (
        BusFault.UNAVAILABLE if message.queue == "operator-alerts" else None
    )
    await rig.handle(0, "O-1")
    sweeper = rig.context("sweep")
    await rig.clock.run(check_health(sweeper))
    await rig.clock.advance(61)
    rig.remote.answer = dict
    await rig.handle(1, "O-2")
    assert (await rig.state()).state is BreakerState.CLOSED
    rig.bus.plan = lambda _message: None
    for _ in range(3):
        await rig.clock.run(check_health(sweeper))
        await rig.clock.advance(61)
    assert rig.alerts() == []


async def test_an_instance_that_dies_as_it_opens_a_breaker_leaves_its_alert_to_the_sweep(
    rig: Rig,
) -> None:
    opened = rules.opened(Breaker(), POLICY, NOW, "down")
    await keep_breaker(rig.store, opened)
    await rig.sweep()
    (alert,) = rig.alert_bodies()
    assert (alert.kind, alert.scope) == ("breaker-open", "agent stock")
    assert (alert.agent, alert.command) == ("stock", "sas status")
    assert "of agent stock failed too often in a row, with “down”. No calls" in alert.text
    assert alert.since == key_time(NOW)


async def test_an_end_that_could_not_be_reported_is_reported_by_the_next_sweep(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    await rig.clock.advance(16)
    rig.remote.answer = dict
    original = rig.store.read_shared

    async def read_shared(name: str) -> SharedValue[str] | None:
        if name.startswith("incident|"):
            raise StoreUnavailableError("away")
        return await original(name)

    rig.store.read_shared = read_shared  # type: ignore[method-assign]
    assert await rig.again(0) is not None
    assert (await rig.state()).state is BreakerState.CLOSED
    assert rig.alerts() == ["breaker-open"]
    await rig.sweep()
    await rig.sweep()
    assert rig.alerts() == ["breaker-open", "cleared"]


async def test_a_breaker_that_stays_open_is_reported_again_at_growing_intervals(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    for _ in range(6 * 60 // 5):
        await rig.clock.advance(300)
        await rig.sweep()
    first, *later = rig.alert_bodies()
    assert [alert.kind for alert in later] == ["breaker-open"] * 3  # after 15 min, 1 h, 4 h
    assert {alert.since for alert in later} == {first.since}


async def test_breakers_that_cannot_be_read_are_looked_at_in_the_next_sweep(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    rig.store.fail_next("shared_values", StoreFault.UNAVAILABLE)
    await rig.sweep()
    await rig.sweep()
    assert rig.alerts() == ["breaker-open"]


def test_a_circuit_names_one_cause_the_failure_that_opened_it() -> None:
    breaker = rules.opened(Breaker(), POLICY, NOW, "connection refused")
    breaker = rules.opened(breaker, POLICY, NOW, "no answer until CompleteBy", "O-1")
    assert breaker.why == "connection refused"
    again = rules.opened(rules.closed(NOW), POLICY, NOW, "certificate expired")
    assert again.why == "certificate expired"


async def test_a_failed_probe_opens_it_for_longer_and_alerts_no_more(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    await rig.clock.advance(16)
    calls = len(rig.remote.calls)
    assert await rig.again(1) is None
    assert len(rig.remote.calls) == calls + 1
    breaker = await rig.state()
    assert (breaker.state, breaker.rounds) == (BreakerState.OPEN, 2)
    assert rig.alerts() == ["breaker-open"]


async def test_of_two_instances_only_one_becomes_the_probe(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    await rig.handle(1, "O-2")
    await rig.clock.advance(16)
    calls = len(rig.remote.calls)
    gate = rig.clock.sleep

    async def slow(call: AgentCall) -> Any:
        rig.remote.calls.append(call.order_id)
        await gate(10)
        return {}

    rig.remote.do = slow  # type: ignore[method-assign]  # the probe takes its time
    first, second = rig.bus.take(QUEUE), rig.bus.take(QUEUE)
    assert first is not None
    assert second is not None

    async def probe_twice() -> None:
        await asyncio.gather(
            rig.actors[0].handle(delivery(first, message_id="a")),
            rig.actors[1].handle(delivery(second, message_id="b")),
        )

    await rig.clock.run(probe_twice())
    assert len(rig.remote.calls) == calls + 1
    assert len(rig.bus.queues[QUEUE].waiting) == 1


async def test_a_definite_refusal_is_an_answer_and_opens_nothing(rig: Rig) -> None:
    rig.remote.answer = _refused
    for number in range(10):
        await rig.handle(0, f"O-{number}")
    assert (await rig.state()).state is BreakerState.CLOSED
    assert rig.alerts() == []


def _in_progress() -> Any:
    raise TransientError("this key is being worked on", answered=True)


async def test_a_call_that_has_to_wait_for_its_own_sake_is_an_answer_and_opens_nothing(
    rig: Rig,
) -> None:
    """One slow call, asked for again and again, must not cut all others off."""
    rig.remote.answer = _in_progress
    assert await rig.handle(0, "O-1") is None
    assert len(rig.remote.calls) > POLICY.failures_max
    assert (await rig.state()).state is BreakerState.CLOSED
    assert rig.alerts() == []


def _error() -> Any:
    raise TransientError("stock answered 500", error_answer=True)


async def test_error_answers_to_one_order_alone_open_nothing_and_others_go_on(rig: Rig) -> None:
    rig.remote.answer = _error
    assert await rig.handle(0, "O-1") is None
    assert len(rig.remote.calls) > 10 * POLICY.failures_max
    assert (await rig.state()).state is BreakerState.CLOSED
    rig.remote.answer = dict
    assert await rig.handle(0, "O-2") is not None


async def test_error_answers_to_enough_orders_in_a_row_open_it(rig: Rig) -> None:
    rig.remote.answer = _error
    for number in range(POLICY.failures_max):
        assert (await rig.state()).state is BreakerState.CLOSED
        await rig.handle(0, f"O-{number}")
    assert (await rig.state()).state is BreakerState.OPEN
    assert rig.alerts() == ["breaker-open"]


async def test_an_order_that_fails_as_the_probe_keeps_others_waiting_for_one_pause(
    rig: Rig,
) -> None:
    """Its own retries open the circuit, then its own probes fail, again and again."""
    await rig.handle(0, "O-1", seconds=600)
    for _ in range(4):
        until = (await rig.state()).until
        assert until is not None
        rig.clock.set(max(rig.clock.now(), until + rules.RECHECK))
        await rig.again(0)
    rig.remote.answer = dict
    assert await rig.handle(0, "O-2", seconds=600) is None
    await rig.clock.advance(31)
    waiting = [rig.bus.take(QUEUE), rig.bus.take(QUEUE)]
    healthy = next(m for m in waiting if m is not None and b"O-2" in m.body)
    assert await rig.clock.run(rig.actors[0].handle(delivery(healthy))) is not None
    assert (await rig.state()).state is BreakerState.CLOSED


async def test_a_success_between_failures_keeps_it_closed(rig: Rig) -> None:
    answers = iter([_down, _down, dict] * 10)

    def answer() -> Any:
        return next(answers)()

    rig.remote.answer = answer
    for number in range(10):
        assert await rig.handle(0, f"O-{number}") is not None
    assert (await rig.state()).state is BreakerState.CLOSED


async def test_a_request_that_comes_back_before_its_time_is_put_back_again(rig: Rig) -> None:
    """The bus's clock runs ahead of the agent's: duplicate detection must not swallow it."""
    rig.bus.declare(QUEUE, duplicate_window=timedelta(minutes=10))
    await rig.handle(0, "O-1")
    for _ in range(3):
        (early,) = rig.bus.queues[QUEUE].waiting
        rig.bus.queues[QUEUE].waiting.clear()
        await rig.clock.run(rig.actors[0].handle(delivery(early.message)))
    assert len(rig.bus.queues[QUEUE].waiting) == 1


async def test_requests_of_orders_with_long_ids_that_differ_at_the_front_are_all_put_back(
    rig: Rig,
) -> None:
    rig.bus.declare(QUEUE, duplicate_window=timedelta(minutes=10))
    for first in "abc":
        await rig.handle(0, first + 99 * "x")
    assert len(rig.bus.queues[QUEUE].waiting) == 3


async def test_a_request_handled_twice_is_put_back_once(rig: Rig) -> None:
    rig.bus.declare(QUEUE, duplicate_window=timedelta(minutes=10))
    await rig.handle(0, "O-1")
    await rig.handle(1, "O-1")
    assert len(rig.bus.queues[QUEUE].waiting) == 1
