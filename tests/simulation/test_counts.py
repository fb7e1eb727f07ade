"""What an order, a sweep, an idle hour, a purge and each recovery ask of the platform, exactly.

The numbers are those of ``sas.cli.counts``, which ``sas cost`` reads. The whole system runs in
memory; ``tests/contract/test_meters.py`` holds its meters to the real ones, and
``tests/integration/test_counts_over_azurite.py`` counts over Azurite and the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from sas.cli import counts
from sas.cli.counts import AGENT, Count
from sas.codec import internal
from sas.config import read_config
from sas.domain.ids import shard_of
from sas.domain.order import OrderState
from sas.features.callbacks.codec import message_of, parse_body
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.ports import AwaitCallback, Callback, Message, RefusedError, StillRunning, TransientError
from sas.telemetry.usage import Usage
from sas.testing.store import StoreFault
from tests.simulation.counting_kit import QUEUES, SETTINGS, SHOP, KilledError, Spent, System
from tests.unit.actors_kit import keep_breaker

LAST = "agent-2"
TWO_SWEEPS = (counts.SWEEP, counts.SWEEP, counts.HEALTH_CHECK)
Course = Callable[[System], Awaitable[None]]


async def warm(*, apart: bool = False, steps: int = 3, others: tuple[str, ...] = ()) -> System:
    """Return a system that has looked up what each process looks up once."""
    made = System(apart=apart, steps=steps, others=others)
    await made.clock.run(made.submit("warm"))
    await made.clock.run(made.sweep())
    return made


def executed(spent: Spent) -> dict[str, int]:
    """Return the executions of each function; those of all agents as one."""
    made: Counter[str] = Counter()
    for function, count in spent.executions.items():
        made[AGENT if function.startswith("agent-") else function] += count
    return dict(made)


def is_count(spent: Spent, *parts: Count) -> None:
    """Assert that something asked for just these parts."""
    usage, executions = Usage(), Counter[str]()
    for part in parts:
        usage = usage + part.usage
        executions.update(part.executions)
    assert spent.usage == usage
    assert executed(spent) == dict(executions)


def ended(made: System, order_id: str = "O-1") -> OrderState:
    return made.store.orders[order_id].order.process_state


async def test_a_three_step_order_takes_five_requests_and_ten_messages() -> None:
    made = await warm()
    spent = await made.spent(made.submit("O-1"))
    is_count(spent, counts.ORDER)
    assert (spent.usage.requests, spent.usage.messages) == (5, 10)
    assert ended(made) is OrderState.PROCESSED


async def test_an_order_that_comes_alone_reads_the_circuit_of_each_agent_too() -> None:
    made = await warm()
    await made.clock.advance(5)
    spent = await made.spent(made.submit("O-1"))
    assert (spent.usage.requests, spent.usage.messages) == (5 + 3, 10)


@pytest.mark.parametrize("apart", [False, True])
async def test_each_further_step_takes_one_transaction_and_two_messages(apart: bool) -> None:
    step = counts.STEP_APART if apart else counts.STEP
    order = counts.ORDER_APART if apart else counts.ORDER
    for further in (1, 4):
        made = await warm(apart=apart, steps=3 + further)
        is_count(await made.spent(made.submit("O-1")), order, *[step] * further)


async def test_where_each_function_has_its_own_process_an_order_is_read_twice() -> None:
    """Flex Consumption scales each function alone. Each agent looks at its circuit once, too."""
    made = await warm(apart=True)
    is_count(await made.spent(made.submit("O-1")), counts.ORDER_APART)


async def test_a_sweep_that_finds_nothing_reads_each_shard_and_takes_its_lease() -> None:
    made = await warm()
    await made.clock.advance(10)
    is_count(await made.spent(made.sweep()), counts.SWEEP)
    await made.clock.advance(60)
    is_count(await made.spent(made.sweep()), counts.SWEEP, counts.HEALTH_CHECK)


async def test_an_hour_without_an_order_is_360_sweeps_and_60_health_checks() -> None:
    made = await warm()

    async def hour() -> None:
        for _ in range(360):
            await made.clock.sleep(10)
            await made.sweep()

    spent = await made.spent(hour())
    is_count(spent, counts.IDLE_HOUR)
    is_count(spent, *[counts.SWEEP] * 360, *[counts.HEALTH_CHECK] * 60)


@pytest.mark.parametrize("rows", [1, 10, 40])
async def test_a_sweep_costs_what_its_due_rows_cost(rows: int) -> None:
    made = await warm()
    made.silent = {"agent-0"}
    for number in range(rows):
        await made.clock.run(made.submit(f"D-{number}"))
    await made.clock.advance(31)
    spent = await made.spent(made.sweep())
    is_count(spent, counts.SWEEP, counts.QUEUE_LOOK, *[counts.DUE_ROW] * rows)


@pytest.mark.parametrize("orders", [0, 1, 50, 120])
async def test_a_purge_costs_what_it_removes(orders: int) -> None:
    made = System()
    for number in range(orders):
        await made.clock.run(made.submit(f"P-{number}"))
    await made.clock.advance(timedelta(days=31).total_seconds())
    spent = await made.spent(made.purge())
    shards = Counter(shard_of(f"P-{number}", 16) for number in range(orders)).values()
    parts = [counts.PURGE_ORDER] * orders
    parts += [counts.PURGE_BATCH] * sum(-(-count // 50) for count in shards)
    parts += [counts.PURGE_TOGETHER] * sum(-(-count // 6) for count in shards)
    is_count(spent, counts.PURGE_RUN, *parts)
    assert [one for one in made.store.orders if one.startswith("P-")] == []


async def retry(made: System) -> None:
    made.agents[LAST].then(TransientError("busy"))
    await made.submit("O-1")


async def after_its_time(made: System) -> None:
    await made.clock.sleep(31)
    await made.sweep()
    await made.work()


async def reset(made: System) -> None:
    made.silent = {LAST}
    await made.submit("O-1")
    made.silent = set()
    await after_its_time(made)


async def expired(made: System) -> None:
    made.silent = {LAST}
    await made.submit("O-1")
    await after_its_time(made)
    made.silent = set()
    await after_its_time(made)


async def crash(made: System) -> None:
    made.agents[LAST].then(KilledError())
    await made.submit("O-1")
    assert len(made.agents[LAST].calls) == 3  # with the first order's


async def lost_reply(made: System) -> None:
    made.before[LAST] = lambda: made.silent.add("replies")
    await made.submit("O-1")
    made.silent = set()
    await after_its_time(made)
    assert len(made.agents[LAST].calls) == 3


def again(function: str) -> Course:
    async def course(made: System) -> None:
        made.again = {function}
        await made.submit("O-1")
        assert not made.again

    return course


def dead(function: str) -> Course:
    async def course(made: System) -> None:
        if function == "replies":
            made.before[LAST] = lambda: made.given_up.add("replies")
        else:
            made.given_up = {function}
        await made.submit("O-1")
        assert made.executions["deadletters"] == 1
        assert len(made.bus.messages(QUEUES.alerts)) == 1
        await after_its_time(made)

    return course


async def undo(made: System) -> None:
    made.agents[LAST].then(RefusedError("sold-out", "none left"))
    await made.submit("O-1")


async def duplicate(made: System) -> None:
    await made.submit("O-1")
    await made.submit("O-1")


async def put_back(made: System) -> None:
    made.before["scheduler"] = lambda: made.store.fail_next("commit", StoreFault.UNAVAILABLE)
    await made.submit("O-1")
    await made.until_visible("scheduler")
    await made.work()


async def held(made: System) -> None:
    shop = made.bus.queues[SHOP]

    async def full(_: Any) -> Any:
        shop.refuses = True
        return {}

    made.agents[LAST].then(full)
    await made.submit("O-1")
    shop.refuses = False
    await made.clock.sleep(31)
    await made.sweep()
    assert len(made.bus.messages(SHOP)) == 4  # received and completed, of the first order too


async def callback(made: System) -> None:
    given: list[Callback] = []

    async def ask(call: Any) -> Any:
        given.append(call.callback(timedelta(hours=1)))
        return AwaitCallback(timedelta(hours=1))

    made.agents[LAST].then(ask)
    await made.submit("O-1")
    keys = read_config(SETTINGS).callback_keys
    token = given[0].token
    message = message_of(token, keys.read(token), parse_body(b'{"outcome": "done"}'))
    await made.bus.send([Message(QUEUES.callbacks, message.id, internal.encode(message))])
    await made.work()


async def long_step(made: System) -> None:
    made.agents[LAST].then(StillRunning(timedelta(minutes=1)))
    await made.submit("O-1")
    await made.until_visible(QUEUES.agent(LAST))
    await made.work()


async def claim_check(made: System) -> None:
    await made.submit("O-1", {"text": "x" * 100_000})


@pytest.mark.parametrize(
    ("name", "course", "beside", "end"),
    [
        ("retry", retry, (), OrderState.PROCESSED),
        ("reset", reset, (counts.SWEEP,), OrderState.PROCESSED),
        ("expired", expired, TWO_SWEEPS, OrderState.COMPENSATED),
        ("crash", crash, (), OrderState.PROCESSED),
        ("lost reply", lost_reply, (counts.SWEEP,), OrderState.PROCESSED),
        ("order again", again("submission"), (), OrderState.PROCESSED),
        ("wake again", again("scheduler"), (), OrderState.PROCESSED),
        ("request again", again(LAST), (), OrderState.PROCESSED),
        ("reply again", again("replies"), (), OrderState.PROCESSED),
        ("dead wake", dead("scheduler"), (counts.SWEEP,), OrderState.PROCESSED),
        ("dead request", dead(LAST), (counts.SWEEP,), OrderState.PROCESSED),
        ("dead reply", dead("replies"), (counts.SWEEP,), OrderState.PROCESSED),
        ("undo", undo, (), OrderState.COMPENSATED),
        ("duplicate", duplicate, (), OrderState.PROCESSED),
        ("put-back", put_back, (), OrderState.PROCESSED),
        ("held", held, (counts.SWEEP,), OrderState.PROCESSED),
        ("callback", callback, (), OrderState.PROCESSED),
        ("long step", long_step, (), OrderState.PROCESSED),
        ("claim check", claim_check, (), OrderState.PROCESSED),
    ],
)
async def test_a_recovery_adds_just_this_to_its_order(
    name: str, course: Course, beside: tuple[Count, ...], end: OrderState
) -> None:
    made = await warm()
    spent = await made.spent(course(made))
    is_count(spent, counts.ORDER, counts.RECOVERIES[name], *beside)
    assert ended(made) is end


async def test_an_order_that_becomes_a_dead_letter_costs_just_this() -> None:
    made = await warm()
    made.given_up = {"submission"}
    is_count(await made.spent(made.submit("O-1")), counts.RECOVERIES["dead order"])
    assert ended(made) is OrderState.REJECTED


async def circuit_is_open(made: System, seconds: int) -> None:
    now = made.clock.now()
    until = now + timedelta(seconds=seconds)
    await keep_breaker(made.store, Breaker(BreakerState.OPEN, now, until, None, 1, "down"), LAST)
    await made.clock.sleep(1)  # what an agent knows of its circuit is that old at most


async def test_an_order_that_meets_an_open_circuit_costs_just_this() -> None:
    made = await warm()
    await made.clock.run(circuit_is_open(made, 10))

    async def course() -> None:
        await made.submit("O-1")
        await made.until_visible(QUEUES.agent(LAST))
        await made.work()

    is_count(await made.spent(course()), counts.ORDER, counts.RECOVERIES["open circuit"])
    assert ended(made) is OrderState.PROCESSED


async def test_each_round_of_an_order_that_waits_for_an_open_circuit_costs_just_this() -> None:
    made = await warm()
    await made.clock.run(circuit_is_open(made, 86_400))
    await made.clock.run(made.submit("O-1"))
    before = made.store.orders["O-1"].order
    spent = await made.spent(after_its_time(made))
    is_count(spent, counts.RECOVERIES["wait round"], counts.SWEEP)
    after = made.store.orders["O-1"].order
    assert after.seq == before.seq + 3
    assert (after.failure_count, after.process_state) == (0, OrderState.PROCESSING)


async def test_an_order_whose_step_goes_to_another_agent_costs_just_this() -> None:
    made = await warm(others=("agent-other",))
    await made.clock.run(circuit_is_open(made, 10))
    spent = await made.spent(made.submit("O-1"))
    is_count(spent, counts.ORDER, counts.RECOVERIES["other agent"])
    assert ended(made) is OrderState.PROCESSED
    assert len(made.agents["agent-other"].calls) == 1


@pytest.mark.parametrize(
    ("verb", "name", "end"),
    [
        ("resubmit", "resubmit", OrderState.PROCESSED),
        ("skip", "skip", OrderState.PROCESSED),
        ("undo", "undo asked", OrderState.COMPENSATED),
        ("cancel", "undo asked", OrderState.COMPENSATED),
    ],
)
async def test_a_command_of_an_operator_costs_just_this(
    verb: str, name: str, end: OrderState
) -> None:
    made = await warm()
    made.agents[LAST].then(RefusedError("sold-out", "none left"))
    await made.clock.run(made.submit("O-1", name="order-with-care"))
    assert ended(made) is OrderState.ERROR
    is_count(await made.spent(made.command(verb, "O-1")), counts.RECOVERIES[name])
    assert ended(made) is end
