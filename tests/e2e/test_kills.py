"""``kill -9`` of every process under load: each order ends whole, every application is notified.

``SAS_KILLS_SEED`` sets the moments, ``SAS_KILLS`` how many there are of each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from devstack.tests.sdk_kit import LEFTOVERS
from samples.remote_services import Faults, RemoteServices
from tests.e2e.kills_ends import Ends, ends
from tests.e2e.kills_rig import APART, TOGETHER, System, running, stack_of, system

KILLS = int(os.environ.get("SAS_KILLS", "2"))
SEED = int(os.environ.get("SAS_KILLS_SEED", "1"))
ORDERS = 14 * KILLS
FAULTS = Faults(seed=SEED, transient=0.1, permanent=0.03, latency=0.1, retry_after_seconds=0)
SLOW = Faults(
    seed=SEED, transient=0.05, permanent=0.03, slow=0.05, slow_seconds=3, latency=0.1,
    retry_after_seconds=0,
)  # fmt: skip
pytestmark = [pytest.mark.long, *LEFTOVERS, pytest.mark.usefixtures("collect_leftovers")]


async def under_load(deployment: System, kill: Callable[[], Awaitable[None]]) -> Ends:
    """Kill at random moments while orders come in; return what came of them."""
    loading = asyncio.create_task(deployment.load(ORDERS))
    try:
        for _ in range(KILLS):
            await deployment.pause(0.5, 3.0)
            await kill()
        await loading
        outcome = await ends(deployment)
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.rejected == []
    assert outcome.states.total() == ORDERS
    assert outcome.states["Processed"]
    assert len(set(deployment.killed)) == KILLS
    return outcome


async def test_every_order_ends_whole_while_the_host_with_everything_in_it_is_killed(
    tmp_path: Path,
) -> None:
    async with system(tmp_path, TOGETHER, FAULTS, SEED) as deployment:
        await under_load(deployment, lambda: deployment.kill_group("host", TOGETHER["host"]))


async def test_every_order_ends_whole_while_the_agents_are_killed_in_the_middle_of_calls(
    tmp_path: Path,
) -> None:
    async with system(tmp_path, APART, FAULTS, SEED) as deployment:
        await under_load(deployment, lambda: deployment.kill_group("agents", APART["agents"]))


async def test_every_order_ends_whole_while_scheduler_and_submission_are_killed(
    tmp_path: Path,
) -> None:
    async with system(tmp_path, APART, FAULTS, SEED) as deployment:
        await under_load(deployment, lambda: deployment.kill_group("core", APART["core"]))


async def test_every_order_ends_whole_while_the_supervisor_is_killed_with_work_to_do(
    tmp_path: Path,
) -> None:
    async with system(tmp_path, APART, SLOW, SEED, TESTS_TIME_ALLOWED_SECONDS="2") as deployment:
        outcome = await under_load(
            deployment, lambda: deployment.kill_group("supervisor", APART["supervisor"])
        )
    late = ("step reset", "waits in its queue")  # on a busy machine queues are long
    assert sum(outcome.transitions[word] for word in late) > 0


async def test_every_order_ends_whole_while_the_broker_is_killed(tmp_path: Path) -> None:
    async with system(tmp_path, APART, FAULTS, SEED) as deployment:
        await under_load(deployment, deployment.kill_broker)


async def test_every_order_ends_whole_while_azurite_is_killed(
    tmp_path: Path,
) -> None:
    async with system(tmp_path, APART, FAULTS, SEED) as deployment:
        await under_load(deployment, deployment.kill_azurite)


async def test_every_order_ends_whole_once_a_stack_that_was_killed_runs_again_on_its_data(
    tmp_path: Path,
) -> None:
    async with RemoteServices(FAULTS) as remote:
        async with running(stack_of(tmp_path, TOGETHER, remote), remote, SEED) as deployment:
            await deployment.load(ORDERS // 3)
            await deployment.kill_everything()
        async with running(stack_of(tmp_path, TOGETHER, remote), remote, SEED) as again:
            again.orders = deployment.orders
            outcome = await ends(again)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.rejected == []
    assert outcome.states.total() == ORDERS // 3
