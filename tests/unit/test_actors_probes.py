"""Probes: the request that tests a service whose circuit is open. Its failure is not counted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.messages import Outcome
from sas.domain.order import Direction
from sas.engine.in_flight import CALL_STATE
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.ports import AgentCall, StoreUnavailableError, TransientError
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    QUEUES,
    agent_actor,
    breaker_of,
    command,
    delivery,
    keep_breaker,
    order,
)
from tests.unit.guarded_kit import (
    POLICY,
    RETRY,
    STOCK,
    cut_off,
    hangs,
    pass_time,
    system_with,
)


async def test_a_probe_that_fails_counts_no_failure_and_its_step_waits() -> None:
    """A service that is away fails the one call that tests it now and then. No step has failed."""
    system = system_with()
    await cut_off(system, seconds=0)
    system.agents["stock"].then(*(TransientError("down") for _ in range(100)))
    await system.submit()
    await system.drain()
    await pass_time(system, 600)
    assert len(system.agents["stock"].calls) >= 10
    assert system.order().failure_count == 0
    assert system.state() in {"Pending", "Processing"}
    system.agents["stock"].script.clear()
    await pass_time(system, 60)
    assert system.state() == "Processed"


async def test_a_probe_without_an_answer_counts_no_failure_and_opens_the_circuit_again() -> None:
    system = system_with()
    await cut_off(system, seconds=0)
    system.agents["stock"].then(hangs)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    reply = await system.run(system.actors["stock"].handle(delivery(message)))
    assert reply is not None
    assert reply.outcome is Outcome.WAITED
    complete_by = system.order().complete_by
    assert complete_by is not None
    assert system.clock.now() < complete_by
    breaker = await breaker_of(system.store)
    assert (breaker.state, breaker.rounds) == (BreakerState.OPEN, 2)
    await system.drain()
    assert (system.words()[-1], system.order().failure_count) == ("waiting: no call could begin", 0)


async def test_a_probe_that_fails_while_the_store_is_away_too_is_no_call_of_its_step() -> None:
    system = system_with()
    await cut_off(system, seconds=0)

    async def fails(_call: object) -> None:
        system.store.fail_next("write_shared", StoreFault.UNAVAILABLE)
        raise TransientError("down")

    system.agents["stock"].then(fails)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    with pytest.raises(StoreUnavailableError) as outage:
        await system.run(system.actors["stock"].handle(delivery(message)))
    assert outage.value.put_back_with[CALL_STATE] == "waiting"


@pytest.mark.parametrize("probe", ["fails", "gets no answer"])
async def test_a_failed_call_before_the_probe_of_the_same_delivery_still_counts(probe: str) -> None:
    system = system_with()
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None

    async def opened_meanwhile(_call: object) -> None:
        await cut_off(system, seconds=0)
        raise TransientError("down", retry_after=timedelta(seconds=2))

    probes = [TransientError("down") for _ in range(9)] if probe == "fails" else [hangs]
    system.agents["stock"].then(opened_meanwhile, *probes)
    assert await system.run(system.actors["stock"].handle(delivery(message))) is None


async def test_a_slow_probe_that_fails_after_the_circuit_closed_waits_before_its_next_call() -> (
    None
):
    system = system_with()
    await cut_off(system, seconds=0)
    at: list[float] = []

    async def closed_meanwhile(_call: object) -> None:
        await keep_breaker(system.store, Breaker(since=system.clock.now()))
        raise TransientError("busy", retry_after=timedelta(seconds=5))

    async def note(_call: object) -> None:
        at.append((system.clock.now() - start).total_seconds())

    system.agents["stock"].then(closed_meanwhile, note)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    start = system.clock.now()
    await system.run(system.actors["stock"].handle(delivery(message)))
    assert at
    assert at[0] >= 5


async def test_an_order_whose_calls_alone_get_no_answer_waits_with_an_alert() -> None:
    """A service that is away looks the same. Another order's success would close the circuit."""
    system = system_with()
    system.agents["stock"].then(*(TransientError("connection closed") for _ in range(1000)))
    await system.submit()
    await system.drain()
    await pass_time(system, 1200)
    assert system.order().failure_count == 1
    assert system.state() in {"Pending", "Processing"}
    assert {alert.kind for alert in system.alerts()} == {"breaker-open"}
    assert "Waits behind it so far: " in system.alerts()[-1].text
    assert "of orders such as “O-1”." in system.alerts()[-1].text
    await system.hand(command("cancel", system.order().seq))
    await pass_time(system, 120)
    assert system.order().direction is Direction.UNDO


async def test_a_probe_that_succeeds_after_its_time_closes_the_circuit() -> None:
    """Calls take 22 s. After 20 s another instance probes too. The service is well."""
    system = system_with()
    await cut_off(system, seconds=0)
    other = agent_actor(
        system.context, "stock", system.agents["stock"], policy=RETRY, circuit=POLICY
    )

    async def slow(_call: AgentCall) -> Any:
        await system.clock.sleep(22)
        return {"ok": True}

    system.agents["stock"].then(slow, slow)
    for number in range(2):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
    first, second = system.bus.take(STOCK), system.bus.take(STOCK)
    assert first is not None
    assert second is not None
    probe = asyncio.ensure_future(system.actors["stock"].handle(delivery(first)))
    await system.clock.advance(20)
    await system.clock.advance(0)
    rival = asyncio.ensure_future(other.handle(delivery(second)))
    await system.clock.advance(2)
    await system.clock.advance(0)
    assert probe.done()
    breaker = await breaker_of(system.store)
    await system.clock.advance(60)
    await asyncio.gather(probe, rival)
    assert breaker.state is BreakerState.CLOSED


async def test_a_probe_may_use_all_the_time_allowed() -> None:
    """30 s are allowed and each call takes 26 s. The service is well."""
    system = system_with()
    await cut_off(system, seconds=0)

    async def slow(_call: AgentCall) -> Any:
        await system.clock.sleep(26)
        return {"ok": True}

    system.agents["stock"].then(*(slow for _ in range(1000)))
    await system.submit()
    await system.drain()
    await pass_time(system, 600)
    calls = len(system.agents["stock"].calls)
    assert system.order().steps[0].process_state.value == "Processed", calls
