"""Steps with several agents, through the actors, their queues and circuit breakers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sas.actors.agent import RetryPolicy
from sas.actors.scheduler import Scheduler
from sas.domain.workflow import NO_TIME, OnFailure, Step, Workflow
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy
from sas.ports import AwaitCallback, Call, RefusedError, StillRunning, TransientError
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    UNDO,
    Kit,
    agent_actor,
    called_back,
    delivery,
    keep_breaker,
    kit,
    order,
)

POLICY = BreakerPolicy(failures_max=3, open_for=timedelta(seconds=15))
EITHER = Workflow(
    "either",
    version=1,
    steps=(
        Step(
            "pay",
            agent="stock",
            time_allowed=ALLOWED,
            undo=UNDO,
            failures_max=1,
            alternatives=("payment",),
        ),
        Step("ship", agent="stock", time_allowed=ALLOWED, undo=UNDO, failures_max=1),
    ),
    on_failure=OnFailure.UNDO,
)
ORDER = order(workflow="either")


@pytest.fixture
def made() -> Kit:
    """A system whose agents have breakers."""
    found = kit(EITHER)
    for name, agent in found.agents.items():
        retry = RetryPolicy(0.2, 1.0)
        found.actors[name] = agent_actor(found.context, name, agent, policy=retry, circuit=POLICY)
    return found


async def cut_off(made: Kit, agent: str, policy: BreakerPolicy = POLICY) -> None:
    """Open an agent's breaker, as another instance would."""
    opened = rules.opened(Breaker(), policy, made.clock.now(), "down")
    await keep_breaker(made.store, opened, agent)


def keys(made: Kit, agent: str) -> list[tuple[str, str]]:
    return [(verb, call.key) for verb, call in made.agents[agent].calls]


async def test_a_request_goes_to_the_preferred_agent_while_its_breaker_is_closed(made: Kit) -> None:
    await made.submit(ORDER)
    await made.drain()
    assert made.state() == "Processed"
    assert keys(made, "stock") == [("do", "O-1/pay"), ("do", "O-1/ship")]
    assert keys(made, "payment") == []


async def test_while_its_breaker_is_open_the_next_agent_is_asked_under_the_same_key(
    made: Kit,
) -> None:
    await cut_off(made, "stock")
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    assert len(made.requests("payment")) == 1
    await made.step(QUEUES.agent("payment"))
    assert keys(made, "payment") == [("do", "O-1/pay")]
    assert made.requests("stock") == []


async def test_a_request_whose_breaker_closes_before_complete_by_waits_for_it(made: Kit) -> None:
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    await cut_off(made, "stock")
    await made.step(QUEUES.agent("stock"))
    assert (keys(made, "stock"), made.bus.messages(QUEUES.replies)) == ([], [])
    await made.later(16)
    await made.step(QUEUES.agent("stock"))
    assert keys(made, "stock") == [("do", "O-1/pay")]


async def test_where_the_breaker_opens_past_complete_by_the_step_rests_and_stays_there(
    made: Kit,
) -> None:
    long = BreakerPolicy(failures_max=3, open_for=2 * ALLOWED)
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    until = made.order().steps[0].complete_by
    await cut_off(made, "stock", long)
    await made.step(QUEUES.agent("stock"))
    await made.step(QUEUES.replies)
    step = made.order().steps[0]
    assert (step.process_state.value, step.resting, step.complete_by) == ("Pending", True, until)
    assert (keys(made, "stock"), step.failure_count) == ([], 0)
    await made.later(ALLOWED.total_seconds() + 1)
    await made.sweep()
    await made.step(QUEUES.scheduler)
    assert (len(made.requests("stock")), made.requests("payment")) == (1, [])


async def test_the_probe_of_a_breaker_waits_for_a_slot(made: Kit) -> None:
    retry = RetryPolicy(0.2, 1.0)
    stock = agent_actor(
        made.context, "stock", made.agents["stock"], policy=retry, circuit=POLICY, limit=1
    )
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    await cut_off(made, "stock", BreakerPolicy(failures_max=3, open_for=timedelta(seconds=8)))
    await made.later(8)
    now = made.clock.now()
    assert await made.store.acquire_lease("slot|stock|0", "another", now + 2 * ALLOWED, now)
    message = made.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await made.run(stock.handle(delivery(message, count=1)))
    assert made.bus.messages(QUEUES.replies) == []
    (waiting,) = made.bus.queues[QUEUES.agent("stock")].waiting
    assert await made.store.acquire_lease("slot|stock|0", "another", now, now)
    await made.later(4)
    again = waiting.message
    await made.run(stock.handle(delivery(again, count=1)))
    assert keys(made, "stock") == [("do", "O-1/pay")]
    assert len(made.bus.messages(QUEUES.replies)) == 1


async def test_a_step_that_goes_on_is_not_interrupted_by_a_message_that_comes_late(
    made: Kit,
) -> None:
    made.agents["stock"].then(*[StillRunning(timedelta(hours=2))] * 2)
    await made.submit(ORDER)
    wake = await made.step(QUEUES.scheduler)
    await made.drain()
    granted = made.order()
    await made.later(3600)
    await made.hand(wake)  # sent again by hand, say
    await made.step(QUEUES.agent("stock"))  # the copy comes past its CompleteBy: one more look
    assert len(set(keys(made, "stock"))) == 1
    while made.bus.messages(QUEUES.replies):
        await made.step(QUEUES.replies)
    assert made.order() == granted


async def test_a_request_is_called_under_one_key_at_every_delivery(made: Kit) -> None:
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    message = made.bus.take(QUEUES.agent("stock"))
    assert message is not None
    stock = made.actors["stock"]
    for count in (1, 2):
        await made.run(stock.handle(delivery(message, count=count)))
    assert keys(made, "stock") == [("do", "O-1/pay")] * 2


async def test_an_agent_that_called_before_the_breaker_opened_does_not_reply_that_it_waited(
    made: Kit,
) -> None:
    made.agents["stock"].then(*(TransientError("down") for _ in range(POLICY.failures_max)))
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    await made.step(QUEUES.agent("stock"))
    assert len(keys(made, "stock")) == POLICY.failures_max
    assert made.bus.messages(QUEUES.replies) == []


async def test_what_timed_out_at_one_agent_is_tried_again_and_undone_there(made: Kit) -> None:
    await cut_off(made, "stock")
    await made.submit(ORDER)
    await made.step(QUEUES.scheduler)
    made.bus.take(QUEUES.agent("payment"))  # it is lost, or called for and never answered
    await keep_breaker(made.store, rules.closed(made.clock.now()))
    await cut_off(made, "payment")
    await made.later(31)
    await made.sweep()
    await made.step(QUEUES.scheduler)
    made.agents["payment"].then(RefusedError("declined", "no cover"))
    await made.drain()
    assert made.state() == "Compensated"
    assert keys(made, "payment") == [("do", "O-1/pay"), ("undo", "O-1/pay")]
    assert keys(made, "stock") == []


async def test_breakers_are_read_only_where_there_is_a_choice_and_once_a_second_at_most(
    made: Kit,
) -> None:
    read: list[str] = []

    def note(operation: str, key: str) -> None:
        if operation == "read_shared" and key.startswith("breaker|"):
            read.append(key)

    made.store.plan = note
    scheduler = Scheduler(made.context, made.business, NO_TIME)
    await made.submit(ORDER)
    wake = made.bus.messages(QUEUES.scheduler)[0]
    for _ in range(3):
        await made.run(scheduler.handle(delivery(wake)))
    assert read == ["breaker|payment", "breaker|stock"]
    without = kit()
    without.store.plan = note
    await without.submit()
    await without.step(QUEUES.scheduler)
    assert len(read) == 2


async def test_after_a_callback_the_next_step_goes_to_an_agent_that_is_to_be_had() -> None:
    first = Step("reserve", agent="stock", time_allowed=ALLOWED, undo=UNDO)
    then = Step("pay", agent="stock", time_allowed=ALLOWED, undo=UNDO, alternatives=("payment",))
    made = kit(Workflow("chain", version=1, steps=(first, then)))
    tokens: list[str] = []

    async def ask(call: Call) -> AwaitCallback:
        tokens.append(call.callback(timedelta(hours=1)).token)
        return AwaitCallback(timedelta(hours=1))

    made.agents["stock"].then(ask)
    await made.submit()
    await made.drain()
    await cut_off(made, "stock")
    await made.later(2)  # circuits are read once a second at most
    await made.hand(called_back(tokens[0]))
    assert made.order().steps[1].call.route == 1
    assert len(made.requests("payment")) == 1
