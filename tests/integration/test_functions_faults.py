"""The whole app under one host while services, messages and connections fail."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from azure.servicebus.amqp import AmqpAnnotatedMessage

from devstack.tests.sdk_kit import SDK
from samples.remote_services import Faults
from tests.functions_rig import (
    EVERY_SECOND,
    SHOP,
    WORKED,
    Rig,
    order,
    rig,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *SDK]
SERVICES = ("stock", "payment", "shipping")
WHOLE = ["received", "completed"]


@pytest.fixture(autouse=True, scope="module")
def collect_all_leftovers() -> Iterator[None]:
    """Collect what the SDK left of connections that were cut, after all else was closed."""
    yield
    gc.collect()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Rig]:
    async with rig(
        SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND,
        TESTS_TIME_ALLOWED_SECONDS="8",
        TESTS_ATTEMPT_SECONDS="5",
    ) as system:
        for queue in (*WORKED, SHOP):  # what is lost with a connection comes again soon
            system.broker.update_queue(queue, lock_duration_s=5.0)
        async with system.host():
            yield system


@pytest_asyncio.fixture(loop_scope="module")
async def system(running: Rig) -> AsyncIterator[Rig]:
    """The same system; after each test nothing is lost, done twice or left under way."""
    yield running
    running.remote.set_faults(Faults())
    running.broker.clear_faults()
    await running.quiet()
    running.nothing_lost()
    for service in SERVICES:
        assert running.remote.ledger(service)["doubled"] == []


def in_force(system: Rig, order_id: str) -> list[str]:
    """Return the services where an effect of this order is in force."""
    return [
        service
        for service in SERVICES
        for effect in system.remote.ledger(service)["effects"]
        if effect["order_id"] == order_id and effect["undone_at"] is None
    ]


async def told_once(system: Rig, order_id: str, kinds: list[str], queue: str = SHOP) -> None:
    """Wait for these notifications; each comes under an id of its own, none twice."""

    async def all_there() -> bool:
        return len(await system.notifications(order_id, queue)) >= len(kinds)

    # One that failed for a while waits half a minute in an out row.
    await until(all_there, f"{len(kinds)} notifications of {order_id}")
    events = await system.notifications(order_id, queue)
    assert sorted(event.type for event in events) == sorted(f"sas.order.{k}.v1" for k in kinds)
    assert len({event.id for event in events}) == len(events)
    assert {event.correlationid for event in events} == {f"c-{order_id}"}


async def test_orders_are_processed_once_while_calls_fail_for_a_while(system: Rig) -> None:
    system.remote.set_faults(Faults(transient=0.6, max_transient_attempts=3, retry_after_seconds=0))
    names = [f"T-{number}" for number in range(6)]
    for name in names:
        await system.submit(name)
    for name in names:
        await system.ends(name, "Processed")
        assert in_force(system, name) == list(SERVICES)
        await told_once(system, name, WHOLE)


async def test_an_order_refused_for_good_is_undone_and_notified(system: Rig) -> None:
    system.remote.set_faults(Faults(permanent=1.0), "shipping")
    await system.submit("U-1")
    await system.ends("U-1", "Compensated")
    assert in_force(system, "U-1") == []
    await told_once(system, "U-1", ["received", "failed", "undone"])
    (failed,) = [e for e in await system.notifications("U-1") if e.type == "sas.order.failed.v1"]
    assert failed.data.step == "ship"
    assert failed.data.awaits == "undo"


async def test_a_step_past_its_complete_by_is_reset_and_done_once(system: Rig) -> None:
    system.remote.set_faults(Faults(slow=1.0, slow_seconds=12), "stock")
    await system.submit("L-1")
    await until(lambda: _has(system, "L-1", "step reset"), "the step is reset")
    system.remote.set_faults(Faults())
    await system.ends("L-1", "Processed")
    assert in_force(system, "L-1") == list(SERVICES)
    assert (await system.order("L-1")).steps[0].epoch >= 2
    await told_once(system, "L-1", WHOLE)


async def test_an_order_without_a_message_id_is_taken(system: Rig) -> None:
    await system.send("orders", AmqpAnnotatedMessage(data_body=[order("N-1")]))
    await system.ends("N-1", "Processed")
    await told_once(system, "N-1", WHOLE)


async def test_locks_lost_while_agents_work_do_nothing_twice(system: Rig) -> None:
    system.remote.set_faults(Faults(slow=1.0, slow_seconds=0.6))
    for number in range(3):
        await system.submit(f"E-{number}")
    for _ in range(3):  # a message is given up after its fifth delivery
        await asyncio.sleep(0.4)
        await until(lambda: _expired(system), "a lock of a message in work")
    system.remote.set_faults(Faults())
    for number in range(3):
        await system.ends(f"E-{number}", "Processed")
        assert in_force(system, f"E-{number}") == list(SERVICES)
        await told_once(system, f"E-{number}", WHOLE)


async def test_a_busy_bus_and_lost_acknowledgements_delay_and_never_double(system: Rig) -> None:
    for queue in ("scheduler", "agent-payment", SHOP):
        system.broker.arm("server-busy", queue, operation="send", count=1)
    system.broker.arm("lose-acknowledgement", "agent-inventory", operation="send")
    for number in range(3):
        await system.submit(f"B-{number}")
    for number in range(3):
        await system.ends(f"B-{number}", "Processed")
        assert in_force(system, f"B-{number}") == list(SERVICES)
        await told_once(system, f"B-{number}", WHOLE)


async def test_connections_cut_in_the_middle_are_opened_anew(system: Rig) -> None:
    for number in range(3):
        await system.submit(f"X-{number}")
    await asyncio.sleep(0.1)
    system.broker.drop_connections()
    for number in range(3):
        await system.ends(f"X-{number}", "Processed")
        assert in_force(system, f"X-{number}") == list(SERVICES)
        await told_once(system, f"X-{number}", WHOLE)


async def _expired(system: Rig) -> int:
    return sum(system.broker.expire_locks(queue) for queue in WORKED)


async def _has(system: Rig, order_id: str, word: str) -> bool:
    return word in await system.words(order_id)
