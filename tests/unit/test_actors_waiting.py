"""A step that could not begin has not failed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.messages import Outcome
from sas.domain.workflow import OnFailure, Step, Workflow
from sas.engine.in_flight import CALL_STATE
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import BreakerState
from sas.ports import AgentCall, AwaitCallback, Message, TransientError
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    UNDO,
    Kit,
    breaker_of,
    command,
    delivery,
    order,
)
from tests.unit.guarded_kit import POLICY, STOCK, cut_off, hangs, pass_time, system_with

BOTH = Workflow(
    "both",
    version=1,
    steps=(
        Step(
            "reserve",
            agent="stock",
            time_allowed=ALLOWED,
            undo=UNDO,
            failures_max=1,
            alternatives=("payment",),
        ),
    ),
    on_failure=OnFailure.UNDO,
)


@pytest.mark.long
async def test_an_order_waits_for_a_service_that_is_down_for_hours_and_is_processed_then() -> None:
    system = system_with()
    await cut_off(system, seconds=2 * 3600)
    await system.sweep()
    await system.submit()
    await system.drain()
    await pass_time(system, 7100)
    assert system.agents["stock"].calls == []
    assert system.order().failure_count == 0
    assert {"waiting: no call could begin", "released"} <= set(system.words())
    assert [alert.kind for alert in system.alerts()] == ["breaker-open"] * 3  # after 0, 15, 75 min
    assert "Waits behind it so far: " in system.alerts()[-1].text
    await pass_time(system, 300)
    assert system.state() == "Processed"
    assert "step reset" not in system.words()


async def test_an_undo_is_not_given_up_while_its_service_is_not_even_called() -> None:
    system = system_with()
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(STOCK)
    await system.step(QUEUES.scheduler)
    await cut_off(system, seconds=1800)
    system.bus.take(QUEUES.agent("payment"))
    await system.later(1)
    await system.hand(command("undo", system.order().seq))
    await system.drain()
    await pass_time(system, 1700)
    assert system.state() == "Compensating"
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do"]
    await pass_time(system, 300)
    assert system.state() == "Compensated"
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do", "undo"]


async def test_a_failure_is_counted_where_a_call_went_out_before_the_breaker_opened() -> None:
    system = system_with()
    system.agents["stock"].then(*(TransientError("down") for _ in range(POLICY.failures_max)))
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(STOCK)
    await cut_off(system, seconds=3600)
    (waiting,) = system.bus.queues[STOCK].waiting
    system.bus.queues[STOCK].waiting.clear()
    await system.later(20)
    stock = system.actors["stock"]
    request = waiting.message
    handled = stock.handle(delivery(request, count=1))
    assert await system.run(handled) is None
    await system.later(11)
    await system.sweep()
    assert system.order().failure_count == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_only_the_first_delivery_of_a_request_may_reply_that_it_waited(count: int) -> None:
    system = system_with()
    await cut_off(system, seconds=3600)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    stock = system.actors["stock"]
    reply = await system.run(stock.handle(delivery(message, count=count)))
    assert (reply.outcome if reply else None) == (Outcome.WAITED if count == 1 else None)


async def test_a_request_that_finds_no_slot_in_all_its_time_counts_no_failure() -> None:
    system = system_with(limit=1)
    now = system.clock.now()
    assert await system.store.acquire_lease("slot|stock|0", "x", now + timedelta(hours=1), now)
    await system.submit()
    await system.drain()
    await pass_time(system, 600)
    assert system.order().failure_count == 0
    assert system.state() in {"Pending", "Processing"}  # it rests for the last seconds of each try
    assert await system.store.acquire_lease("slot|stock|0", "x", now, now)
    await pass_time(system, 100)
    assert system.state() == "Processed"


async def test_a_step_whose_agents_are_all_busy_asks_one_after_the_other_and_fills_no_journal() -> (
    None
):
    system = system_with(BOTH, limit=1)
    now = system.clock.now()
    for name in ("stock", "payment"):
        assert await system.store.acquire_lease(f"slot|{name}|0", "x", now + 40 * ALLOWED, now)
    await system.submit(order(workflow="both"))
    await system.drain()
    await pass_time(system, 600)
    assert system.order().failure_count == 0
    assert len(system.journal()) < 6 * 600 / ALLOWED.total_seconds()
    assert await system.store.acquire_lease("slot|stock|0", "x", now, now)
    await pass_time(system, 60)
    assert system.states() == ["Processed"]
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}


async def test_no_call_goes_out_where_the_breaker_opened_while_a_request_waited_for_a_slot() -> (
    None
):
    system = system_with(limit=1)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    now = system.clock.now()
    assert await system.store.acquire_lease("slot|stock|0", "x", now + timedelta(seconds=3), now)
    handling = asyncio.ensure_future(system.actors["stock"].handle(delivery(message)))
    await system.later(1.5)
    await cut_off(system, seconds=20)
    assert await system.run(handling) is None
    assert system.agents["stock"].calls == []
    now = system.clock.now()
    assert await system.store.acquire_lease("slot|stock|0", "another", now + ALLOWED, now)


async def test_a_call_that_its_function_cuts_off_is_made_again_and_is_remembered() -> None:
    system = system_with()
    system.agents["stock"].then(hangs)
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    ends_at = system.clock.now() + timedelta(seconds=5)
    await system.run(system.actors["stock"].handle(delivery(message, ends_at=ends_at)))
    again = system.bus.queues[STOCK].waiting[0].message
    assert again.properties[CALL_STATE] == "tried"
    await system.later(2)
    await system.drain()
    assert system.state() == "Processed"
    assert len({call.key for _, call in system.agents["stock"].calls}) == 1


async def late(system: Kit, *, seconds: float) -> Message:
    """Return a request that was taken from its queue so many seconds before its CompleteBy."""
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.later(ALLOWED.total_seconds() - seconds)
    message = system.bus.take(STOCK)
    assert message is not None
    return message


async def handled(system: Kit, message: Message, seconds: int) -> None:
    """Run an agent on a request and take its replies, second by second."""
    stock = system.actors["stock"]
    tasks = [asyncio.ensure_future(stock.handle(delivery(message, count=1)))]
    for _ in range(seconds):
        await system.later(1)
        for reply in system.taken(QUEUES.scheduler):
            await system.scheduler.handle(delivery(reply))
        tasks += [
            asyncio.ensure_future(stock.handle(delivery(request, count=1)))
            for request in system.taken(STOCK)
        ]
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize("seconds", [15, 8])
async def test_a_request_received_late_is_given_the_time_allowed_from_then_on(
    seconds: float,
) -> None:
    system = system_with()

    async def slow(call: AgentCall) -> Any:
        await system.clock.sleep(20)
        return {}

    system.agents["stock"].then(slow)
    await handled(system, await late(system, seconds=seconds), 30)
    assert system.states()[0] == "Processed"
    assert (len(system.agents["stock"].calls), system.order().steps[0].failure_count) == (1, 0)


async def test_a_request_received_late_is_given_time_once_and_not_for_ever() -> None:
    system = system_with()
    system.agents["stock"].then(*(TransientError("busy", answered=True) for _ in range(500)))
    await handled(system, await late(system, seconds=8), 60)
    assert system.words().count("progress") == 1
    await system.sweep()
    assert system.order().failure_count == 1


async def test_one_that_has_time_enough_asks_for_none() -> None:
    system = system_with()
    await handled(system, await late(system, seconds=21), 3)
    assert "progress" not in system.words()
    assert system.states()[0] == "Processed"


@pytest.mark.parametrize("seconds", [4, 0, -3600])
async def test_one_that_is_received_at_its_complete_by_or_hours_later_is_given_time_too(
    seconds: float,
) -> None:
    system = system_with()
    await handled(system, await late(system, seconds=seconds), 5)
    assert system.words().count("progress") == 1
    assert system.states()[0] == "Processed"
    assert system.order().steps[0].epoch == 1


async def test_a_superseded_request_reads_its_order_and_its_reply_and_is_dropped() -> None:
    system = system_with()
    old = await late(system, seconds=0)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"
    operations: list[str] = []
    system.store.plan = lambda operation, _key: operations.append(operation)
    message_count = system.bus.meter.messages
    await system.hand(old)
    assert operations == ["load", "load", "recorded"]
    assert system.bus.meter.messages == message_count
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do"]


async def test_one_of_a_cancelled_order_is_given_no_time() -> None:
    system = system_with()
    old = await late(system, seconds=0)
    await system.hand(command("cancel", system.order().seq))
    messages = system.bus.messages(QUEUES.scheduler)
    await system.hand(old)
    assert system.agents["stock"].calls == []
    assert system.bus.messages(QUEUES.scheduler) == messages


async def test_one_whose_step_waits_for_a_callback_is_given_no_time() -> None:
    system = system_with()
    system.agents["stock"].then(AwaitCallback(timedelta(hours=3)))
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = await system.step(STOCK)
    await system.drain()
    await system.later(3600)
    await system.hand(message)
    assert len(system.agents["stock"].calls) == 1
    assert system.bus.messages(QUEUES.scheduler) == []


async def test_one_that_goes_to_the_end_of_a_long_queue_asks_for_that_wait_too() -> None:
    """Otherwise its time would be over again when it comes to the front, and so on for ever."""
    system = system_with()
    message = await late(system, seconds=0)
    at = system.clock.now() - timedelta(minutes=5)
    await system.run(system.actors["stock"].handle(delivery(message, enqueued_at=at)))
    await system.step(QUEUES.scheduler)
    until = system.order().steps[0].complete_by
    assert until is not None
    assert until - system.clock.now() >= timedelta(minutes=5) + ALLOWED
    await system.later(300)
    await system.drain()
    assert system.state() == "Processed"
    call = system.agents["stock"].calls[0][1]
    assert call.complete_by == system.clock.now() + ALLOWED  # a call has no more than that


async def test_a_request_that_came_late_and_could_not_call_replies_that_it_waited() -> None:
    system = system_with(limit=1)
    now = system.clock.now()
    assert await system.store.acquire_lease("slot|stock|0", "another", now + 10 * ALLOWED, now)
    await handled(system, await late(system, seconds=0), 60)
    assert system.words()[-1] == "waiting: no call could begin"
    assert system.order().failure_count == 0


async def test_a_call_cut_off_for_lack_of_time_is_not_a_failure_of_its_service() -> None:
    system = system_with()
    system.agents["stock"].then(*(hangs for _ in range(10)))
    for number in range(5):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
    await system.later(25)
    stock = system.actors["stock"]
    requests = [system.bus.take(STOCK) for _ in range(5)]
    await system.run(
        asyncio.gather(
            *(
                stock.handle(delivery(m, count=count, properties={CALL_STATE: "waiting"}))
                for count, m in enumerate(requests, start=1)
                if m is not None
            )
        )
    )  # they had waited for a slot, and have what is left of their time
    assert len(system.agents["stock"].calls) == 5
    assert (await breaker_of(system.store)).state is BreakerState.CLOSED


async def test_a_service_that_hangs_for_all_the_time_allowed_opens_its_breaker() -> None:
    system = system_with()
    system.agents["stock"].then(*(hangs for _ in range(10)))
    for number in range(3):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
        message = system.bus.take(STOCK)
        assert message is not None
        await system.run(system.actors["stock"].handle(delivery(message)))
    assert (await breaker_of(system.store)).state is BreakerState.OPEN


async def test_a_probe_cut_off_because_its_time_was_nearly_up_leaves_the_probe_to_the_next() -> (
    None
):
    system = system_with()
    system.agents["stock"].then(hangs)
    await system.submit()
    await system.step(QUEUES.scheduler)
    await cut_off(system, seconds=24)
    await system.later(24)
    message = system.bus.take(STOCK)
    assert message is not None
    request = delivery(message, properties={CALL_STATE: "waiting"})
    await system.run(system.actors["stock"].handle(request))
    assert len(system.agents["stock"].calls) == 1
    breaker = await breaker_of(system.store)
    assert (breaker.state, breaker.rounds) == (BreakerState.OPEN, 1)
    assert rules.wait_of(breaker, "the next", system.clock.now()) is None
