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
from sas.ports import Call, StoreUnavailableError, TransientError
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
from tests.unit.test_actors_waiting import (
    POLICY,
    RETRY,
    STOCK,
    cut_off,
    hangs,
    made_with,
    pass_time,
)


async def test_a_probe_that_fails_counts_no_failure_and_its_step_waits() -> None:
    """A service that is away fails the one call that tests it now and then. No step has failed."""
    made = made_with()
    await cut_off(made, seconds=0)
    made.agents["stock"].then(*(TransientError("down") for _ in range(100)))
    await made.submit()
    await made.drain()
    await pass_time(made, 600)
    assert len(made.agents["stock"].calls) >= 10
    assert made.order().failure_count == 0
    assert made.state() in {"Pending", "Processing"}
    made.agents["stock"].script.clear()
    await pass_time(made, 60)
    assert made.state() == "Processed"


async def test_a_probe_without_an_answer_counts_no_failure_and_opens_the_circuit_again() -> None:
    made = made_with()
    await cut_off(made, seconds=0)
    made.agents["stock"].then(hangs)
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    reply = await made.run(made.actors["stock"].handle(delivery(message)))
    assert reply is not None
    assert reply.outcome is Outcome.WAITED
    complete_by = made.order().complete_by
    assert complete_by is not None
    assert made.clock.now() < complete_by
    found = await breaker_of(made.store)
    assert (found.state, found.rounds) == (BreakerState.OPEN, 2)
    await made.drain()
    assert (made.words()[-1], made.order().failure_count) == ("waiting: no call could begin", 0)


async def test_a_probe_that_fails_while_the_store_is_away_too_is_no_call_of_its_step() -> None:
    made = made_with()
    await cut_off(made, seconds=0)

    async def fails(_call: object) -> None:
        made.store.fail_next("write_shared", StoreFault.UNAVAILABLE)
        raise TransientError("down")

    made.agents["stock"].then(fails)
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    with pytest.raises(StoreUnavailableError) as away:
        await made.run(made.actors["stock"].handle(delivery(message)))
    assert away.value.put_back_with[CALL_STATE] == "waiting"


@pytest.mark.parametrize("probe", ["fails", "gets no answer"])
async def test_a_failed_call_before_the_probe_of_the_same_delivery_still_counts(probe: str) -> None:
    made = made_with()
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None

    async def opened_meanwhile(_call: object) -> None:
        await cut_off(made, seconds=0)
        raise TransientError("down", retry_after=timedelta(seconds=2))

    probes = [TransientError("down") for _ in range(9)] if probe == "fails" else [hangs]
    made.agents["stock"].then(opened_meanwhile, *probes)
    assert await made.run(made.actors["stock"].handle(delivery(message))) is None


async def test_a_slow_probe_that_fails_after_the_circuit_closed_waits_before_its_next_call() -> (
    None
):
    made = made_with()
    await cut_off(made, seconds=0)
    at: list[float] = []

    async def closed_meanwhile(_call: object) -> None:
        await keep_breaker(made.store, Breaker(since=made.clock.now()))
        raise TransientError("busy", retry_after=timedelta(seconds=5))

    async def note(_call: object) -> None:
        at.append((made.clock.now() - began).total_seconds())

    made.agents["stock"].then(closed_meanwhile, note)
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    began = made.clock.now()
    await made.run(made.actors["stock"].handle(delivery(message)))
    assert at
    assert at[0] >= 5


async def test_an_order_whose_calls_alone_get_no_answer_waits_with_an_alert() -> None:
    """A service that is away looks the same. Another order's success would close the circuit."""
    made = made_with()
    made.agents["stock"].then(*(TransientError("connection closed") for _ in range(1000)))
    await made.submit()
    await made.drain()
    await pass_time(made, 1200)
    assert made.order().failure_count == 1
    assert made.state() in {"Pending", "Processing"}
    assert {"breaker-open", "waiting"} <= {alert.kind for alert in made.alerts()}
    await made.hand(command("cancel", made.order().seq))
    await pass_time(made, 120)
    assert made.order().direction is Direction.UNDO


async def test_a_probe_that_succeeds_after_its_time_closes_the_circuit() -> None:
    """Calls take 22 s. After 20 s another instance probes too. The service is well."""
    made = made_with()
    await cut_off(made, seconds=0)
    other = agent_actor(made.context, "stock", made.agents["stock"], policy=RETRY, circuit=POLICY)

    async def slow(_call: Call) -> Any:
        await made.clock.sleep(22)
        return {"ok": True}

    made.agents["stock"].then(slow, slow)
    for number in range(2):
        await made.submit(order(f"O-{number}"), f"m-{number}")
        await made.step(QUEUES.scheduler)
    first, second = made.bus.take(STOCK), made.bus.take(STOCK)
    assert first is not None
    assert second is not None
    probe = asyncio.ensure_future(made.actors["stock"].handle(delivery(first)))
    await made.clock.advance(20)
    await made.clock.advance(0)
    rival = asyncio.ensure_future(other.handle(delivery(second)))
    await made.clock.advance(2)
    await made.clock.advance(0)
    assert probe.done()
    found = await breaker_of(made.store)
    await made.clock.advance(60)
    await asyncio.gather(probe, rival)
    assert found.state is BreakerState.CLOSED


async def test_a_probe_may_use_all_the_time_allowed() -> None:
    """30 s are allowed and each call takes 26 s. The service is well."""
    made = made_with()
    await cut_off(made, seconds=0)

    async def slow(_call: Call) -> Any:
        await made.clock.sleep(26)
        return {"ok": True}

    made.agents["stock"].then(*(slow for _ in range(1000)))
    await made.submit()
    await made.drain()
    await pass_time(made, 600)
    calls = len(made.agents["stock"].calls)
    assert made.order().steps[0].process_state.value == "Processed", calls
