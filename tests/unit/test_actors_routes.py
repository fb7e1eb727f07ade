"""Steps with several agents, through the actors, their queues and circuit breakers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.actors.scheduler import Scheduler
from sas.domain.workflow import NO_TIME, OnFailure, Step, Workflow, Workflows
from sas.engine.retry import RetryPolicy
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.guard import OpenCircuits
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy
from sas.features.routing import Routing
from sas.ports import (
    AgentCall,
    AwaitCallback,
    RefusedError,
    StillRunning,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    UNDO,
    Kit,
    agent_actor,
    called_back,
    command,
    delivery,
    done,
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
def system() -> Kit:
    """A system whose agents have breakers."""
    system = kit(EITHER)
    for name, agent in system.agents.items():
        retry = RetryPolicy(0.2, 1.0)
        system.actors[name] = agent_actor(system.context, name, agent, policy=retry, circuit=POLICY)
    return system


async def cut_off(system: Kit, agent: str, policy: BreakerPolicy = POLICY) -> None:
    """Open an agent's breaker, as another instance would."""
    opened = rules.opened(Breaker(), policy, system.clock.now(), "down")
    await keep_breaker(system.store, opened, agent)


def keys(system: Kit, agent: str) -> list[tuple[str, str]]:
    return [(verb, call.key) for verb, call in system.agents[agent].calls]


async def test_a_request_goes_to_the_preferred_agent_while_its_breaker_is_closed(
    system: Kit,
) -> None:
    await system.submit(ORDER)
    await system.drain()
    assert system.state() == "Processed"
    assert keys(system, "stock") == [("do", "O-1/pay"), ("do", "O-1/ship")]
    assert keys(system, "payment") == []


async def test_while_its_breaker_is_open_the_next_agent_is_asked_under_the_same_key(
    system: Kit,
) -> None:
    await cut_off(system, "stock")
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    assert len(system.requests("payment")) == 1
    await system.step(QUEUES.agent("payment"))
    assert keys(system, "payment") == [("do", "O-1/pay")]
    assert system.requests("stock") == []
    await system.step(QUEUES.scheduler)
    assert system.journal()[-1].by == "agent payment"


async def test_the_circuits_of_all_alternatives_of_all_steps_are_read(system: Kit) -> None:
    pay, ship = EITHER.steps
    steps = (replace(pay, alternatives=("payment", "bank")), replace(ship, alternatives=("post",)))
    workflow = replace(EITHER, steps=steps)
    routing = Routing(Workflows([workflow]), OpenCircuits(system.store, system.clock))
    for agent in ("bank", "post"):
        await cut_off(system, agent)
    system.store.fail_next("read_shared", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await routing.refresh()
    await routing.refresh()
    assert routing.of(workflow, system.clock.now()).unavailable == {(0, 2), (1, 1)}


async def test_the_alert_of_a_step_names_the_agent_that_was_asked(system: Kit) -> None:
    await cut_off(system, "stock")
    await system.submit(ORDER)
    system.agents["payment"].then({}, RefusedError("used", "the ticket is used"))
    await system.drain()
    await system.later(16)
    system.agents["stock"].then(RefusedError("none", "none left"))
    await system.drain()
    assert [(alert.kind, alert.agent) for alert in system.alerts()] == [("undo-failed", "payment")]


async def test_a_request_whose_breaker_closes_before_complete_by_waits_for_it(system: Kit) -> None:
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    await cut_off(system, "stock")
    await system.step(QUEUES.agent("stock"))
    assert (keys(system, "stock"), system.bus.messages(QUEUES.scheduler)) == ([], [])
    await system.later(16)
    await system.step(QUEUES.agent("stock"))
    assert keys(system, "stock") == [("do", "O-1/pay")]


async def test_where_the_breaker_opens_past_complete_by_the_step_rests_and_stays_there(
    system: Kit,
) -> None:
    long = BreakerPolicy(failures_max=3, open_for=2 * ALLOWED)
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    until = system.order().steps[0].complete_by
    await cut_off(system, "stock", long)
    await system.step(QUEUES.agent("stock"))
    await system.step(QUEUES.scheduler)
    step = system.order().steps[0]
    assert (step.process_state.value, step.resting, step.complete_by) == ("Pending", True, until)
    assert (keys(system, "stock"), step.failure_count) == ([], 0)
    await system.later(ALLOWED.total_seconds() + 1)
    await system.sweep()
    await system.step(QUEUES.scheduler)
    assert (len(system.requests("stock")), system.requests("payment")) == (1, [])


async def test_the_probe_of_a_breaker_waits_for_a_slot(system: Kit) -> None:
    retry = RetryPolicy(0.2, 1.0)
    stock = agent_actor(
        system.context, "stock", system.agents["stock"], policy=retry, circuit=POLICY, limit=1
    )
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    await cut_off(system, "stock", BreakerPolicy(failures_max=3, open_for=timedelta(seconds=8)))
    await system.later(8)
    now = system.clock.now()
    assert await system.store.acquire_lease("slot|stock|0", "another", now + 2 * ALLOWED, now)
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await system.run(stock.handle(delivery(message, count=1)))
    assert system.bus.messages(QUEUES.scheduler) == []
    (waiting,) = system.bus.queues[QUEUES.agent("stock")].waiting
    assert await system.store.acquire_lease("slot|stock|0", "another", now, now)
    await system.later(4)
    request = waiting.message
    await system.run(stock.handle(delivery(request, count=1)))
    assert keys(system, "stock") == [("do", "O-1/pay")]
    assert len(system.bus.messages(QUEUES.scheduler)) == 1


async def test_a_step_that_goes_on_is_not_interrupted_by_a_message_that_comes_late(
    system: Kit,
) -> None:
    system.agents["stock"].then(*[StillRunning(timedelta(hours=2))] * 2)
    await system.submit(ORDER)
    wake = await system.step(QUEUES.scheduler)
    await system.drain()
    granted = system.order()
    await system.later(3600)
    await system.hand(wake)  # sent again by hand, say
    await system.step(QUEUES.agent("stock"))  # the copy comes past its CompleteBy: one more look
    assert len(set(keys(system, "stock"))) == 1
    for _ in system.bus.messages(QUEUES.scheduler):
        await system.step(QUEUES.scheduler)
    assert system.order() == granted


async def test_a_request_is_called_under_one_key_at_every_delivery(system: Kit) -> None:
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    stock = system.actors["stock"]
    for count in (1, 2):
        await system.run(stock.handle(delivery(message, count=count)))
    assert keys(system, "stock") == [("do", "O-1/pay")] * 2


async def test_an_agent_that_called_before_the_breaker_opened_does_not_reply_that_it_waited(
    system: Kit,
) -> None:
    system.agents["stock"].then(*(TransientError("down") for _ in range(POLICY.failures_max)))
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    assert len(keys(system, "stock")) == POLICY.failures_max
    assert system.bus.messages(QUEUES.scheduler) == []


async def test_what_timed_out_at_one_agent_is_tried_again_and_undone_there(system: Kit) -> None:
    await cut_off(system, "stock")
    await system.submit(ORDER)
    await system.step(QUEUES.scheduler)
    system.bus.take(QUEUES.agent("payment"))  # it is lost, or called for and never answered
    await keep_breaker(system.store, rules.closed(system.clock.now()))
    await cut_off(system, "payment")
    await system.later(31)
    await system.sweep()
    await system.step(QUEUES.scheduler)
    system.agents["payment"].then(RefusedError("declined", "no cover"))
    await system.drain()
    assert system.state() == "Compensated"
    assert keys(system, "payment") == [("do", "O-1/pay"), ("undo", "O-1/pay")]
    assert keys(system, "stock") == []


async def test_breakers_are_read_only_where_there_is_a_choice_and_once_a_second_at_most(
    system: Kit,
) -> None:
    read: list[str] = []

    def note(operation: str, key: str) -> None:
        if operation == "read_shared" and key.startswith("breaker|"):
            read.append(key)

    system.store.plan = note
    scheduler = Scheduler(system.context, system.business, system.callbacks.act, NO_TIME)
    await system.submit(ORDER)
    wake = system.bus.messages(QUEUES.scheduler)[0]
    for _ in range(3):
        await system.run(scheduler.handle(delivery(wake)))
    assert read == ["breaker|payment", "breaker|stock"]
    plain_system = kit()
    plain_system.store.plan = note
    await plain_system.submit()
    await plain_system.step(QUEUES.scheduler)
    assert len(read) == 2


@pytest.mark.parametrize("answer", ["reply", "callback", "command"])
async def test_after_an_answer_the_next_step_goes_to_an_agent_that_is_to_be_had(
    answer: str,
) -> None:
    first = Step("reserve", agent="stock", time_allowed=ALLOWED, undo=UNDO)
    last = Step("pay", agent="stock", time_allowed=ALLOWED, undo=UNDO, alternatives=("payment",))
    system = kit(Workflow("chain", version=1, steps=(first, last)))
    tokens: list[str] = []

    async def ask(call: AgentCall) -> AwaitCallback:
        tokens.append(call.callback(timedelta(hours=1)).token)
        return AwaitCallback(timedelta(hours=1))

    await system.submit()
    await system.step(QUEUES.scheduler)
    if answer != "reply":
        system.agents["stock"].then(ask)
        await system.drain()
    await cut_off(system, "stock")
    await system.later(2)  # circuits are read once a second at most
    match answer:
        case "reply":
            await system.hand(done())
        case "callback":
            await system.hand(called_back(tokens[0]))
        case _:
            await system.hand(command("callback", system.order().seq))
    assert system.order().steps[1].call.route == 1
    assert len(system.requests("payment")) == 1
