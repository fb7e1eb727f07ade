"""A running call sends heartbeats: it gets more time, few of them are sent on, and it is cut
off once the step is no longer its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from sas.actors.agent import AgentActor, RetryPolicy
from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.features.call_limit import lease_name
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.features.long_steps.rules import heartbeat_interval
from sas.ports import Call, Message, TransientError
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import ALLOWED, QUEUES, Kit, agent_actor, command, delivery, kit

STOCK = QUEUES.agent("stock")


def works(
    made: Kit, seconds: int, cut: list[float] | None = None, note: str = "at it"
) -> Callable[[Call], Awaitable[Any]]:
    """Return what works for so long, and says so every second; ``cut`` learns when it was cut."""

    async def work(call: Call) -> Any:
        try:
            for second in range(seconds):
                await call.heartbeat(f"{note}, {second} s")
                await made.clock.sleep(1)
        except asyncio.CancelledError:
            if cut is not None:
                cut.append((made.clock.now() - START).total_seconds())
            raise
        return {"worked": seconds}

    return work


async def requested() -> tuple[Kit, Message]:
    made = kit()
    await made.submit()
    await made.step(QUEUES.scheduler)
    message = made.bus.take(STOCK)
    assert message is not None
    return made, message


async def beside(
    made: Kit,
    message: Message,
    seconds: int,
    *,
    actor: AgentActor | None = None,
    heard: bool = True,
) -> list[Message]:
    """Run an agent on a request, and take its replies if ``heard``; return them.

    Time passes second by second.
    """
    working = actor or made.actors["stock"]
    task = asyncio.ensure_future(working.handle(delivery(message)))
    read: list[Message] = []
    for _ in range(seconds):
        await made.clock.advance(1)
        while heard and (said := made.bus.take(QUEUES.replies)) is not None:
            read.append(said)
            await made.scheduler.handle_reply(delivery(said))
        if task.done():
            break
    assert task.done()
    await task
    while heard and (said := made.bus.take(QUEUES.replies)) is not None:
        read.append(said)
        await made.scheduler.handle_reply(delivery(said))
    return read


async def test_a_call_longer_than_its_time_allowed_goes_on_while_it_sends_heartbeats() -> None:
    made, message = await requested()
    made.agents["stock"].then(works(made, 200))
    await beside(made, message, 220)
    assert made.states()[0] == "Processed"
    step = made.order().steps[0]
    assert (step.epoch, step.failure_count, step.note) == (1, 0, None)
    assert len(made.agents["stock"].calls) == 1
    assert await made.sweep() == {}


async def test_few_of_its_heartbeats_are_sent_and_the_journal_keeps_no_more() -> None:
    made, message = await requested()
    made.agents["stock"].then(works(made, 200))
    read = await beside(made, message, 220)
    said = made.words().count("progress")
    assert (
        200 / heartbeat_interval(ALLOWED).total_seconds() - 1
        <= said
        <= 200 / heartbeat_interval(ALLOWED).total_seconds()
    )
    assert len(read) == said + 1
    assert len({one.message_id for one in read}) == len(read)


async def test_the_note_of_a_heartbeat_becomes_the_steps_note() -> None:
    made, message = await requested()
    made.agents["stock"].then(works(made, 25))
    task = asyncio.ensure_future(made.actors["stock"].handle(delivery(message, message_id="m")))
    await made.clock.advance(12)
    for _ in range(2):
        await made.step(QUEUES.replies)
    assert made.order().steps[0].note == "at it, 10 s"
    assert made.order().steps[0].complete_by == START + timedelta(seconds=10) + ALLOWED
    await made.clock.advance(20)
    await task


async def test_without_an_accepted_heartbeat_it_is_cut_off_at_its_complete_by() -> None:
    made, message = await requested()
    cut: list[float] = []
    made.agents["stock"].then(works(made, 200, cut))
    await beside(made, message, 60, heard=False)
    assert cut == [ALLOWED.total_seconds()]
    sent = [
        internal.decode(m.body, internal.ProgressMessage) for m in made.bus.messages(QUEUES.replies)
    ]
    assert len(sent) == 3  # and no reply


async def test_once_the_step_is_no_longer_its_own_the_call_is_cut_off_and_silent() -> None:
    made, message = await requested()
    cut: list[float] = []
    made.agents["stock"].then(works(made, 200, cut))
    task = asyncio.ensure_future(made.actors["stock"].handle(delivery(message, message_id="m")))
    await made.clock.advance(5)
    undo = command("undo", made.order().seq)
    await made.scheduler.handle(delivery(undo))
    await made.clock.advance(20)
    assert task.done()
    assert await task is None
    assert cut == [10.0]
    replies = [m for m in made.bus.messages(QUEUES.replies) if b'"reply"' in m.body]
    assert replies == []


async def test_heartbeats_give_a_cancelled_step_no_more_time() -> None:
    made, message = await requested()
    cut: list[float] = []
    made.agents["stock"].then(works(made, 200, cut))
    cancel = command("cancel", made.order().seq)
    await made.scheduler.handle(delivery(cancel))
    await beside(made, message, 60)
    assert cut[0] <= ALLOWED.total_seconds()


@pytest.mark.parametrize("down", ["store", "bus", "right to send"])
async def test_a_heartbeat_that_cannot_be_passed_on_fails_no_call(down: str) -> None:
    made, message = await requested()
    made.agents["stock"].then(works(made, 50))
    if down == "store":
        made.store.fail_next("load", StoreFault.UNAVAILABLE)
    elif down == "bus":
        made.bus.fail_next(BusFault.UNAVAILABLE)
    else:
        replies = made.bus.queues[QUEUES.replies]
        replies.forbids = True
        made.clock.call_later(15, lambda: setattr(replies, "forbids", False))
    await beside(made, message, 70)
    assert made.states()[0] == "Processed"
    assert made.order().steps[0].epoch == 1


async def test_a_call_given_more_time_and_then_put_back_reads_what_it_was_given() -> None:
    made, message = await requested()

    async def fails_late(call: Call) -> Any:
        await works(made, 50)(call)
        raise TransientError("down")

    made.agents["stock"].then(fails_late)
    policy, breaker = RetryPolicy(0.2, 2.0), BreakerPolicy(1, timedelta(seconds=5))
    actor = agent_actor(made.context, "stock", made.agents["stock"], policy=policy, circuit=breaker)
    await beside(made, message, 70, actor=actor)
    granted = made.order().steps[0].complete_by
    assert granted is not None
    assert granted > START + ALLOWED
    (back,) = [queued.message for queued in made.bus.queues[STOCK].waiting]
    request = internal.decode(back.body, RequestMessage)
    assert (request.checks, request.complete_by) == (1, granted)
    await made.later(6)
    await beside(made, back, 5, actor=actor)
    assert made.states()[0] == "Processed"
    assert made.order().steps[0].epoch == 1


async def test_a_call_given_more_time_keeps_its_slot_for_as_long() -> None:
    made, message = await requested()
    made.agents["stock"].then(works(made, 100))
    policy = RetryPolicy(0.2, 2.0)
    actor = agent_actor(made.context, "stock", made.agents["stock"], policy=policy, limit=1)
    task = asyncio.ensure_future(actor.handle(delivery(message, message_id="m")))
    for _ in range(60):
        await made.clock.advance(1)
        while (said := made.bus.take(QUEUES.replies)) is not None:
            await made.scheduler.handle_reply(delivery(said))
    now = made.clock.now()
    assert not await made.store.acquire_lease(lease_name("stock", 0), "a rival", now, now)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_the_actor_a_heartbeat_is_nothing() -> None:
    await Call("O-1", "pay", "k", START, {}, {}).heartbeat("hello")
