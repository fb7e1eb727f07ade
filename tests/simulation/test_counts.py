"""What an order, a recovery and an idle system ask of the platform, exactly.

The whole system runs in memory; ``tests/contract/test_meters.py`` holds its meters to the real
ones. docs/cost.md has the same counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from sas.domain.order import OrderState
from sas.ports import RefusedError
from sas.telemetry.usage import Usage
from sas.testing.world import CrashError
from tests.simulation.counts import LAST, QUEUES, Counts, System, warm

COUNTS: Mapping[str, Counts] = {
    "an order of three steps, in one process": (5, 6, 4),
    "an order of three steps of inline agents, in one process": (5, 3, 1),
    "an order of three steps": (11, 6, 4),
    "each further step": (3, 1, 1),
    "an order of three steps of inline agents": (8, 3, 1),
    "each further step of an inline agent": (2, 0, 0),
    "a sweep that finds nothing": (19, 0, 1),
    "the health check, once a minute": (2, 0, 0),
    "an agent dies: its step is reset": (6, 2, 1),
    "an inline agent dies with its process: the order is redelivered": (17, 3, 3),
    "three steps are undone": (3, 4, 3),
    "three steps of inline agents are undone": (3, 1, 0),
    "a purge that finds nothing": (34, 0, 1),
    "an order that a purge removes": (4, 0, 0),
}
ORDER_USAGE = Usage(transactions=5, sends=6, messages=6)
INLINE_USAGE = Usage(transactions=5, sends=3, messages=3)


def plus(*names: str) -> Counts:
    """Return the sum of these counts."""
    requests, messages, executions = zip(*(COUNTS[name] for name in names), strict=True)
    return sum(requests), sum(messages), sum(executions)


async def test_a_three_step_order_takes_five_requests_and_six_messages() -> None:
    """The order, two notifications, and a request to each agent."""
    system = await warm()
    before = system.used()
    assert (
        await system.counts(system.submit("O-1"))
        == COUNTS["an order of three steps, in one process"]
    )
    assert system.used() - before == ORDER_USAGE
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


async def test_where_all_agents_are_inline_it_takes_five_requests_and_three_messages() -> None:
    """The order and two notifications: one execution does all of its work."""
    system = await warm(inline=True)
    before = system.used()
    assert (
        await system.counts(system.submit("O-1"))
        == COUNTS["an order of three steps of inline agents, in one process"]
    )
    assert system.used() - before == INLINE_USAGE
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


@pytest.mark.parametrize("further", [0, 1, 4])
async def test_where_each_function_has_its_own_process_each_reads_the_order(further: int) -> None:
    """Flex Consumption scales each function alone. Each agent looks at its circuit once, too."""
    system = await warm(apart=True, steps=3 + further)
    steps = ["each further step"] * further
    assert await system.counts(system.submit("O-1")) == plus("an order of three steps", *steps)


@pytest.mark.parametrize("further", [0, 1, 4])
async def test_inline_agents_need_no_process_of_their_own_and_no_read(further: int) -> None:
    """The process of the orders does it all. Here too each agent looks at its circuit once."""
    system = await warm(apart=True, inline=True, steps=3 + further)
    steps = ["each further step of an inline agent"] * further
    counts = plus("an order of three steps of inline agents", *steps)
    assert await system.counts(system.submit("O-1")) == counts


async def test_a_sweep_that_finds_nothing_reads_each_shard_and_takes_its_lease() -> None:
    system = await warm()
    await system.clock.advance(10)
    assert await system.counts(system.sweep()) == plus("a sweep that finds nothing")
    await system.clock.advance(60)
    counts = plus("a sweep that finds nothing", "the health check, once a minute")
    assert await system.counts(system.sweep()) == counts


async def test_a_recovery_of_a_dead_agent_costs_just_this() -> None:
    system = await warm()

    async def course() -> None:
        system.silent = {QUEUES.agent(LAST)}
        await system.submit("O-1")
        system.silent = set()
        await system.clock.sleep(31)
        await system.sweep()
        await system.work()

    assert await system.counts(course()) == plus(
        "an order of three steps, in one process",
        "an agent dies: its step is reset",
        "a sweep that finds nothing",
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


async def test_a_recovery_of_a_process_that_died_in_an_inline_call_costs_just_this() -> None:
    """Its redelivery walks the journal, and sends the request. It notifies a second time."""
    system = await warm(inline=True)
    system.agents[LAST].then(CrashError())
    assert await system.counts(system.submit("O-1")) == plus(
        "an order of three steps of inline agents, in one process",
        "an inline agent dies with its process: the order is redelivered",
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.PROCESSED


@pytest.mark.parametrize(
    ("inline", "kind"), [(False, ""), (True, " of inline agents")], ids=["queued", "inline"]
)
async def test_an_undo_of_three_steps_costs_just_this(inline: bool, kind: str) -> None:
    system = await warm(inline=inline)
    system.agents[LAST].then(RefusedError("sold-out", "none left"))
    assert await system.counts(system.submit("O-1")) == plus(
        f"an order of three steps{kind}, in one process", f"three steps{kind} are undone"
    )
    assert system.store.orders["O-1"].order.process_state is OrderState.COMPENSATED


@pytest.mark.parametrize("orders", [0, 1])
async def test_a_purge_costs_what_it_removes(orders: int) -> None:
    system = System()
    for number in range(orders):
        await system.clock.run(system.submit(f"P-{number}"))
    await system.clock.advance(timedelta(days=31).total_seconds())
    removed = ["an order that a purge removes"] * orders
    assert await system.counts(system.purge()) == plus("a purge that finds nothing", *removed)
    assert not system.store.orders


def test_the_page_has_these_counts() -> None:
    page = Path(__file__).parents[2] / "docs" / "cost.md"
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", page.read_text(), re.MULTILINE)
    assert {name: tuple(map(int, counts)) for name, *counts in rows} == COUNTS
