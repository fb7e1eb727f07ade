"""A step that could not begin has not failed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from sas.actors.agent import RetryPolicy
from sas.domain.messages import Outcome
from sas.domain.workflow import OnFailure, Step, Workflow
from sas.engine.in_flight import CALL_STATE
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import AwaitCallback, Call, Message, TransientError
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    UNDO,
    Kit,
    agent_actor,
    breaker_of,
    command,
    delivery,
    keep_breaker,
    kit,
    order,
)

POLICY = BreakerPolicy(
    failures_max=3, open_for=timedelta(seconds=20), open_for_max=timedelta(seconds=20)
)
RETRY = RetryPolicy(0.2, 1.0)
STOCK = QUEUES.agent("stock")
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


def made_with(*workflows: Workflow, limit: int = 0) -> Kit:
    """Return a system whose agents have breakers, and a limit."""
    made = kit(*workflows)
    for name, agent in made.agents.items():
        made.actors[name] = agent_actor(
            made.context, name, agent, policy=RETRY, circuit=POLICY, limit=limit
        )
    return made


async def cut_off(made: Kit, *, seconds: float) -> None:
    """Open the breaker of stock for so long."""
    until = made.clock.now() + timedelta(seconds=seconds)
    opened = Breaker(
        state=BreakerState.OPEN,
        since=made.clock.now(),
        until=until,
        prober=None,
        rounds=1,
        why="down",
    )
    await keep_breaker(made.store, opened)


async def pass_time(made: Kit, seconds: int) -> None:
    """Let time pass, the supervisor sweep every ten seconds, and messages be handled."""
    for _ in range(seconds // 10):
        await made.later(10)
        await made.sweep()
        await made.drain()


@pytest.mark.long
async def test_an_order_waits_for_a_service_that_is_down_for_hours_and_is_processed_then() -> None:
    made = made_with()
    await cut_off(made, seconds=2 * 3600)
    await made.submit()
    await made.drain()
    await pass_time(made, 7100)
    assert made.agents["stock"].calls == []
    assert made.order().failure_count == 0
    assert {"waiting: no call could begin", "released"} <= set(made.words())
    assert [one.kind for one in made.alerts()].count("waiting") == 3  # after 0, 15, 75 minutes
    await pass_time(made, 300)
    assert made.state() == "Processed"
    assert "step reset" not in made.words()


async def test_an_undo_is_not_given_up_while_its_service_is_not_even_called() -> None:
    made = made_with()
    await made.submit()
    await made.step(QUEUES.scheduler)
    await made.step(STOCK)
    await made.step(QUEUES.replies)
    await cut_off(made, seconds=1800)
    made.bus.take(QUEUES.agent("payment"))
    await made.later(1)
    await made.hand(command("undo", made.order().seq))
    await made.drain()
    await pass_time(made, 1700)
    assert made.state() == "Compensating"
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do"]
    await pass_time(made, 300)
    assert made.state() == "Compensated"
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do", "undo"]


async def test_a_failure_is_counted_where_a_call_went_out_before_the_breaker_opened() -> None:
    made = made_with()
    made.agents["stock"].then(*(TransientError("down") for _ in range(POLICY.failures_max)))
    await made.submit()
    await made.step(QUEUES.scheduler)
    await made.step(STOCK)
    await cut_off(made, seconds=3600)
    (waiting,) = made.bus.queues[STOCK].waiting
    made.bus.queues[STOCK].waiting.clear()
    await made.later(20)
    stock = made.actors["stock"]
    back = waiting.message
    handled = stock.handle(delivery(back, count=1))
    assert await made.run(handled) is None
    await made.later(11)
    await made.sweep()
    assert made.order().failure_count == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_only_the_first_delivery_of_a_request_may_reply_that_it_waited(count: int) -> None:
    made = made_with()
    await cut_off(made, seconds=3600)
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    stock = made.actors["stock"]
    reply = await made.run(stock.handle(delivery(message, count=count)))
    assert (reply.outcome if reply else None) == (Outcome.WAITED if count == 1 else None)


async def test_a_request_that_finds_no_slot_in_all_its_time_counts_no_failure() -> None:
    made = made_with(limit=1)
    now = made.clock.now()
    assert await made.store.acquire_lease("slot|stock|0", "x", now + timedelta(hours=1), now)
    await made.submit()
    await made.drain()
    await pass_time(made, 600)
    assert (made.order().failure_count, made.state()) == (0, "Processing")
    assert await made.store.acquire_lease("slot|stock|0", "x", now, now)
    await pass_time(made, 100)
    assert made.state() == "Processed"


async def test_a_step_whose_agents_are_all_busy_asks_one_after_the_other_and_fills_no_journal() -> (
    None
):
    made = made_with(BOTH, limit=1)
    now = made.clock.now()
    for name in ("stock", "payment"):
        assert await made.store.acquire_lease(f"slot|{name}|0", "x", now + 40 * ALLOWED, now)
    await made.submit(order(workflow="both"))
    await made.drain()
    await pass_time(made, 600)
    assert made.order().failure_count == 0
    assert len(made.journal()) < 6 * 600 / ALLOWED.total_seconds()
    assert await made.store.acquire_lease("slot|stock|0", "x", now, now)
    await pass_time(made, 60)
    assert made.states() == ["Processed"]
    assert {call.key for _, call in made.agents["stock"].calls} == {"O-1/reserve"}


async def test_no_call_goes_out_where_the_breaker_opened_while_a_request_waited_for_a_slot() -> (
    None
):
    made = made_with(limit=1)
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    now = made.clock.now()
    assert await made.store.acquire_lease("slot|stock|0", "x", now + timedelta(seconds=3), now)
    handling = asyncio.ensure_future(made.actors["stock"].handle(delivery(message)))
    await made.later(1.5)
    await cut_off(made, seconds=20)
    assert await made.run(handling) is None
    assert made.agents["stock"].calls == []
    now = made.clock.now()
    assert await made.store.acquire_lease("slot|stock|0", "another", now + ALLOWED, now)


async def hangs(call: Call) -> Any:
    await asyncio.Event().wait()


async def late(made: Kit, *, seconds: float) -> Message:
    """Return a request that was taken from its queue so many seconds before its CompleteBy."""
    await made.submit()
    await made.step(QUEUES.scheduler)
    await made.later(ALLOWED.total_seconds() - seconds)
    message = made.bus.take(STOCK)
    assert message is not None
    return message


async def handled(made: Kit, message: Message, seconds: int) -> None:
    """Run an agent on a request and take its replies, second by second."""
    stock = made.actors["stock"]
    tasks = [asyncio.ensure_future(stock.handle(delivery(message, count=1)))]
    for _ in range(seconds):
        await made.later(1)
        while (said := made.bus.take(QUEUES.replies)) is not None:
            await made.scheduler.handle_reply(delivery(said))
        while (again := made.bus.take(STOCK)) is not None:
            tasks.append(asyncio.ensure_future(stock.handle(delivery(again, count=1))))
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize("seconds", [15, 8])
async def test_a_request_received_late_is_given_the_time_allowed_from_then_on(
    seconds: float,
) -> None:
    made = made_with()

    async def slow(call: Call) -> Any:
        await made.clock.sleep(20)
        return {}

    made.agents["stock"].then(slow)
    await handled(made, await late(made, seconds=seconds), 30)
    assert made.states()[0] == "Processed"
    assert (len(made.agents["stock"].calls), made.order().steps[0].failure_count) == (1, 0)


async def test_a_request_received_late_is_given_time_once_and_not_for_ever() -> None:
    made = made_with()
    made.agents["stock"].then(*(TransientError("busy", answered=True) for _ in range(500)))
    await handled(made, await late(made, seconds=8), 60)
    assert made.words().count("progress") == 1
    await made.sweep()
    assert made.order().failure_count == 1


async def test_one_that_has_time_enough_asks_for_none() -> None:
    made = made_with()
    await handled(made, await late(made, seconds=21), 3)
    assert "progress" not in made.words()
    assert made.states()[0] == "Processed"


@pytest.mark.parametrize("seconds", [4, 0, -3600])
async def test_one_that_is_received_at_its_complete_by_or_hours_later_is_given_time_too(
    seconds: float,
) -> None:
    made = made_with()
    await handled(made, await late(made, seconds=seconds), 5)
    assert made.words().count("progress") == 1
    assert made.states()[0] == "Processed"
    assert made.order().steps[0].epoch == 1


async def test_a_superseded_request_reads_the_order_once_and_is_dropped() -> None:
    made = made_with()
    old = await late(made, seconds=0)
    await made.sweep()
    await made.drain()
    assert made.state() == "Processed"
    asked: list[str] = []
    made.store.plan = lambda operation, _key: asked.append(operation)
    sent = made.bus.meter.messages
    await made.hand(old)
    assert (asked, made.bus.meter.messages) == (["load"], sent)
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do"]


async def test_one_of_a_cancelled_order_is_given_no_time() -> None:
    made = made_with()
    old = await late(made, seconds=0)
    await made.hand(command("cancel", made.order().seq))
    await made.hand(old)
    assert made.agents["stock"].calls == []
    assert made.bus.messages(QUEUES.replies) == []


async def test_one_whose_step_waits_for_a_callback_is_given_no_time() -> None:
    made = made_with()
    made.agents["stock"].then(AwaitCallback(timedelta(hours=3)))
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = await made.step(STOCK)
    await made.drain()
    await made.later(3600)
    await made.hand(message)
    assert len(made.agents["stock"].calls) == 1
    assert made.bus.messages(QUEUES.replies) == []


async def test_one_that_goes_to_the_end_of_a_long_queue_asks_for_that_wait_too() -> None:
    """Otherwise its time would be over again when it comes to the front, and so on for ever."""
    made = made_with()
    message = await late(made, seconds=0)
    at = made.clock.now() - timedelta(minutes=5)
    await made.run(made.actors["stock"].handle(delivery(message, enqueued_at=at)))
    await made.step(QUEUES.replies)
    until = made.order().steps[0].complete_by
    assert until is not None
    assert until - made.clock.now() >= timedelta(minutes=5) + ALLOWED
    await made.later(300)
    await made.drain()
    assert made.state() == "Processed"
    call = made.agents["stock"].calls[0][1]
    assert call.complete_by == made.clock.now() + ALLOWED  # a call has no more than that


async def test_a_request_that_came_late_and_could_not_call_replies_that_it_waited() -> None:
    made = made_with(limit=1)
    now = made.clock.now()
    assert await made.store.acquire_lease("slot|stock|0", "another", now + 10 * ALLOWED, now)
    await handled(made, await late(made, seconds=0), 60)
    assert made.words()[-1] == "waiting: no call could begin"
    assert made.order().failure_count == 0


async def test_a_call_cut_off_for_lack_of_time_is_not_a_failure_of_its_service() -> None:
    made = made_with()
    made.agents["stock"].then(*(hangs for _ in range(10)))
    for number in range(5):
        await made.submit(order(f"O-{number}"), f"m-{number}")
        await made.step(QUEUES.scheduler)
    await made.later(25)
    stock = made.actors["stock"]
    requests = [made.bus.take(STOCK) for _ in range(5)]
    await made.run(
        asyncio.gather(
            *(
                stock.handle(delivery(m, properties={CALL_STATE: "waiting"}))
                for m in requests
                if m is not None
            )
        )
    )  # they had waited for a slot, and have what is left of their time
    assert len(made.agents["stock"].calls) == 5
    assert (await breaker_of(made.store)).state is BreakerState.CLOSED


async def test_a_service_that_hangs_for_all_the_time_allowed_opens_its_breaker() -> None:
    made = made_with()
    made.agents["stock"].then(*(hangs for _ in range(10)))
    for number in range(3):
        await made.submit(order(f"O-{number}"), f"m-{number}")
        await made.step(QUEUES.scheduler)
        message = made.bus.take(STOCK)
        assert message is not None
        await made.run(made.actors["stock"].handle(delivery(message)))
    assert (await breaker_of(made.store)).state is BreakerState.OPEN


async def test_a_probe_cut_off_because_its_time_was_nearly_up_leaves_the_probe_to_the_next() -> (
    None
):
    made = made_with()
    made.agents["stock"].then(hangs)
    await made.submit()
    await made.step(QUEUES.scheduler)
    await cut_off(made, seconds=24)
    await made.later(24)
    message = made.bus.take(STOCK)
    assert message is not None
    await made.run(made.actors["stock"].handle(delivery(message)))
    found = await breaker_of(made.store)
    assert (found.state, found.rounds) == (BreakerState.OPEN, 1)
    assert rules.wait_of(found, "the next", made.clock.now()) is None
