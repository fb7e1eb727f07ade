"""Agents record queue delay; the scheduler adds grace; the supervisor counts no failure."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sas.domain.queues import lane
from sas.features.queue_delay.delays import queue_delays
from sas.features.queue_delay.rules import QueueDelay
from sas.simulation.store import StoreFault
from tests.unit.actors_kit import ALLOWED, QUEUES, SHOP, Kit, delivery, kit, received

STOCK, REPLIES = QUEUES.agent("stock"), QUEUES.replies


async def late(made: Kit, queue: str, seconds: float, count: int | None = 1) -> None:
    """Take up a message of a queue so many seconds after it was queued."""
    at = made.clock.now() - timedelta(seconds=seconds)
    message = received(queue, "m", b"{}", enqueued_at=at, count=count)
    await made.run(made.context.grace.record(message))


async def noted(made: Kit, queue: str) -> QueueDelay | None:
    found = await queue_delays(made.store).read(queue)
    return found.value if found else None


async def given(made: Kit, queue: str = QUEUES.scheduler) -> timedelta:
    """Claim the order; return how much time its first request has."""
    await made.step(queue)
    found: datetime | None = made.order().steps[0].complete_by
    assert found is not None
    return found - made.clock.now()


async def test_a_late_message_is_noted_with_how_late_it_is() -> None:
    made = kit()
    await late(made, STOCK, 12)
    assert await noted(made, STOCK) == QueueDelay(timedelta(seconds=12), made.clock.now())


@pytest.mark.parametrize(("seconds", "count"), [(1.9, 1), (600, 2), (600, 5)])
async def test_neither_a_message_in_time_nor_one_that_comes_again_says_anything(
    seconds: float, count: int
) -> None:
    made = kit()
    await late(made, STOCK, seconds, count)
    assert await noted(made, STOCK) is None


async def test_a_message_without_a_time_says_nothing() -> None:
    made = kit()
    await made.run(made.context.grace.record(received(STOCK, "m", b"{}")))
    assert await noted(made, STOCK) is None


async def test_an_instance_notes_a_queue_s_lag_every_few_seconds_at_most() -> None:
    made = kit()
    await late(made, STOCK, 12)
    for _ in range(29):
        await made.later(0.1)
        await late(made, STOCK, 50)
    assert await noted(made, STOCK) == QueueDelay(
        timedelta(seconds=12), made.clock.now() - timedelta(seconds=2.9)
    )
    await made.later(0.2)
    await late(made, STOCK, 50)
    assert await noted(made, STOCK) == QueueDelay(timedelta(seconds=50), made.clock.now())


async def test_what_a_rival_has_just_said_is_not_said_again_unless_it_is_far_more() -> None:
    made = kit()
    rival = kit(beside=made, instance="host-2")
    await late(made, STOCK, 12)
    await late(rival, STOCK, 20)
    assert await noted(made, STOCK) == QueueDelay(timedelta(seconds=12), made.clock.now())
    other = kit(beside=made, instance="host-3")
    await late(other, STOCK, 40)
    assert await noted(made, STOCK) == QueueDelay(timedelta(seconds=40), made.clock.now())


@pytest.mark.parametrize("operation", ["read_shared", "write_shared"])
async def test_where_the_store_is_away_the_work_goes_on_and_nothing_is_noted(
    operation: str,
) -> None:
    made = kit()
    made.store.fail_next(operation, StoreFault.UNAVAILABLE)
    await late(made, STOCK, 12)
    assert await noted(made, STOCK) is None


async def test_a_request_to_a_long_queue_is_given_more_time() -> None:
    made = kit()
    await made.submit()
    await late(made, STOCK, 12)
    assert await given(made) == ALLOWED + timedelta(seconds=36)


async def test_so_is_every_request_while_replies_lie_long() -> None:
    made = kit()
    await made.submit()
    await late(made, STOCK, 12)
    await late(made, REPLIES, 8)
    assert await given(made) == ALLOWED + timedelta(seconds=60)


async def test_the_queues_of_urgent_orders_are_others() -> None:
    made = kit()
    await made.submit()
    await late(made, lane(STOCK, urgent=True), 12)
    await late(made, lane(REPLIES, urgent=True), 12)
    assert await given(made) == ALLOWED


async def test_a_lag_that_nobody_repeats_is_forgotten() -> None:
    made = kit()
    await late(made, STOCK, 12)
    await made.submit()
    await made.later(31)
    assert await given(made) == ALLOWED


async def test_lags_that_cannot_be_read_keep_nobody_from_claiming() -> None:
    made = kit()
    await made.submit()
    await late(made, STOCK, 12)
    made.store.fail_next("shared_values", StoreFault.UNAVAILABLE)
    assert await given(made) == ALLOWED


async def test_the_supervisor_counts_no_failure_during_a_long_queue_delay() -> None:
    made = kit()
    await made.submit()
    await made.step(QUEUES.scheduler)
    for _ in range(5):
        while made.bus.take(STOCK):
            pass
        await made.later(300)
        await late(made, REPLIES, 20)
        assert await made.sweep() == {"reset, not counted": 1}
        await made.step(QUEUES.scheduler)
    assert made.order().steps[0].failure_count == 0
    await made.drain()
    assert made.state() == "Processed"


async def test_an_agent_that_is_dead_makes_no_lag_and_its_step_is_counted() -> None:
    made = kit()
    await made.submit()
    await made.step(QUEUES.scheduler)
    await made.later(31)
    assert await made.sweep() == {"step reset": 1}
    assert made.order().steps[0].failure_count == 1


async def test_the_operator_is_told_of_a_queue_delay_of_a_minute_and_of_its_end() -> None:
    made = kit(duplicate_window=timedelta(minutes=10))
    await late(made, STOCK, 59)
    await made.sweep()
    assert made.alerts() == []
    for _ in range(20):
        await made.later(30)
        await late(made, STOCK, 75)
        await made.sweep()
    (alert,) = made.alerts()
    assert (alert.kind, alert.scope) == ("queue-delay", f"queue {STOCK}")
    assert f"Messages wait 75 s in queue {STOCK} before they are received." in alert.text
    for _ in range(20):
        await made.later(30)
        await made.sweep()
    assert [one.kind for one in made.alerts()] == ["queue-delay", "cleared"]


async def test_agents_and_the_scheduler_say_how_late_what_they_take_up_is() -> None:
    made = kit()
    await made.submit()
    await made.step(QUEUES.scheduler)
    at = made.clock.now() - timedelta(seconds=9)
    request = made.bus.take(STOCK)
    assert request is not None
    agent, scheduler = made.actors["stock"], made.scheduler
    await made.run(agent.handle(delivery(request, enqueued_at=at)))
    reply = made.bus.take(REPLIES)
    assert reply is not None
    await made.run(scheduler.handle_reply(delivery(reply, enqueued_at=at)))
    assert await noted(made, STOCK) == await noted(made, REPLIES) is not None
    await made.drain()
    assert made.told(SHOP)[-1] == "completed"
