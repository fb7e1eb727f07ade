"""The circuit breaker: pure decisions, and agents of two instances that share one."""

from __future__ import annotations

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
from sas.features.circuit_breaker.guard import LOOK_AGAIN_AFTER
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import (
    AgentCall,
    Business,
    RefusedError,
    TransientError,
)
from sas.testing.bus import MemoryBus
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
    await keep_breaker(rig.store, opened, "payment")
    for _ in range(5):
        rig.clock.set(rig.clock.now() + timedelta(hours=10))
        await rig.sweep()
    assert set(rig.alerts()) == {"breaker-open"}, "it is not over while the circuit is open"
    for agent in AGENTS:
        await keep_breaker(rig.store, rules.closed(rig.clock.now()), agent)
    rig.clock.set(rig.clock.now() + timedelta(minutes=1))
    await rig.sweep()
    assert rig.alerts().count("cleared") == 2


async def test_breakers_that_cannot_be_read_are_looked_at_in_the_next_sweep(rig: Rig) -> None:
    await rig.handle(0, "O-1")
    rig.store.fail_next("shared_values", StoreFault.UNAVAILABLE)
    await rig.sweep()
    await rig.sweep()
    assert rig.alerts() == ["breaker-open"]


async def test_an_answer_begins_the_count_of_failures_anew(rig: Rig) -> None:
    def answer() -> Any:
        return {} if len(rig.remote.calls) % POLICY.failures_max == 0 else _down()

    rig.remote.answer = answer
    for number in range(3):
        await rig.handle(0, f"O-{number}")
    assert len(rig.remote.calls) == 3 * POLICY.failures_max
    assert (await rig.state()).state is BreakerState.CLOSED


async def test_a_definite_refusal_is_an_answer_that_closes_it_and_opens_nothing(rig: Rig) -> None:
    await keep_breaker(rig.store, rules.opened(Breaker(), POLICY, START - POLICY.open_for, "down"))
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


async def test_a_request_that_others_always_keep_from_becoming_the_probe_looks_again_later(
    rig: Rig,
) -> None:
    await keep_breaker(rig.store, rules.opened(Breaker(), POLICY, START - POLICY.open_for, "down"))
    rig.store.plan = lambda operation, _key: (
        StoreFault.CONFLICT if operation == "write_shared" else None
    )
    await rig.handle(0, "O-1")
    assert rig.remote.calls == []
    (waiting,) = rig.bus.queues[QUEUE].waiting
    assert waiting.message.scheduled_at == START + LOOK_AGAIN_AFTER
