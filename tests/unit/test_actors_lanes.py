"""Urgent orders: a lane of queues of their own, from the order to its last reply."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.queues import lane
from sas.ports import AgentCall, AwaitCallback, StillRunning
from tests.unit.actors_kit import QUEUES, Kit, called_back, kit, letter, order, received

URGENT = tuple(name for name in QUEUES.on_the_way(["stock", "payment"]) if name.endswith("-urgent"))
ORDINARY = tuple(name.removesuffix("-urgent") for name in URGENT)


async def submit(system: Kit, order_id: str = "U-1") -> None:
    await system.run(
        system.submitter.handle(
            received(QUEUES.orders, f"m-{order_id}", order(order_id), urgent=True)
        )
    )


def waiting_counts(system: Kit) -> dict[str, int]:
    """Return how many messages wait in each queue that holds any."""
    return {
        name: len(messages) for name in system.bus.queues if (messages := system.bus.messages(name))
    }


async def test_everything_that_follows_from_an_urgent_order_stays_in_its_lane() -> None:
    system = kit()
    system.agents["stock"].then(StillRunning(timedelta(seconds=20)), {"by": "a later look"})
    await submit(system)
    queues: set[str] = set()
    for _ in range(99):
        waiting = [name for name in waiting_counts(system) if name in {*URGENT, *ORDINARY}]
        if not waiting and system.state("U-1") == "Processed":
            break
        if not waiting:
            await system.later(20)
            continue
        queues.update(waiting)
        await system.step(waiting[0])
    assert system.state("U-1") == "Processed"
    assert queues == set(URGENT) - {lane(QUEUES.orders, urgent=True)}


async def test_a_callback_of_an_urgent_order_takes_its_lane_and_waits_in_it() -> None:
    system = kit()
    time_allowed = timedelta(minutes=5)
    tokens: list[str] = []

    async def awaited(call: AgentCall) -> AwaitCallback:
        tokens.append(call.callback(time_allowed).token)
        return AwaitCallback(time_allowed)

    system.agents["stock"].then(awaited)
    await submit(system)
    await system.step(lane(QUEUES.scheduler, urgent=True))
    await system.step(QUEUES.agent("stock", urgent=True))
    assert system.bus.take(lane(QUEUES.scheduler, urgent=True)) is not None  # no time is given
    await system.later(31)
    await system.sweep()  # between two attempts
    await system.hand(called_back(tokens[0]))
    answer = await system.run(system.callbacks.answer(tokens[0], None, b'{"outcome": "done"}'))
    assert (answer.status, answer.code) == (202, "accepted")
    waiting = system.bus.queues[lane(QUEUES.scheduler, urgent=True)].waiting
    assert sum(b'"kind":"callback"' in queued.message.body for queued in waiting) == 2
    assert not system.bus.queues[QUEUES.scheduler].waiting


async def test_an_urgent_order_is_not_behind_any_number_of_others() -> None:
    system = kit()
    for number in range(20):
        await system.submit(order(f"O-{number}"), f"m-{number}")
    await submit(system)
    for queue in URGENT * 3:
        if system.bus.messages(queue):
            await system.step(queue)
    assert system.state("U-1") == "Processed"
    assert system.state("O-0") == "Pending"


async def test_the_supervisor_wakes_an_urgent_order_in_its_lane() -> None:
    system = kit()
    await submit(system)
    assert system.bus.take(lane(QUEUES.scheduler, urgent=True)) is not None
    await system.later(31)
    await system.sweep()
    assert waiting_counts(system)[lane(QUEUES.scheduler, urgent=True)] == 1
    assert QUEUES.scheduler not in waiting_counts(system)


async def test_the_same_order_by_both_lanes_is_one_order() -> None:
    system = kit()
    await system.submit(order("U-1"), "m-a")
    await system.run(
        system.submitter.handle(received(QUEUES.orders, "m-b", order("U-1"), urgent=True))
    )
    assert not system.order("U-1").details.urgent
    assert system.notices() == ["received", "received"]
    assert system.events()[1].data.duplicate


async def test_a_refused_urgent_order_names_the_queue_it_came_by() -> None:
    system = kit()
    await system.run(system.submitter.handle(received(QUEUES.orders, "m-1", b"{", urgent=True)))
    assert system.rejected()[0].source_queue == "orders-urgent"


async def test_a_dead_letter_of_the_urgent_lane_is_known_for_an_order() -> None:
    system = kit()
    dead = letter(order("U-1"), "orders-urgent")
    await system.run(system.dead_letters.handle(dead))
    assert system.state("U-1") == "Rejected"
    assert system.notices() == ["rejected"]


async def test_a_dead_reply_of_the_urgent_lane_is_finished_not_decided() -> None:
    system = kit()
    await submit(system)
    await system.step(lane(QUEUES.scheduler, urgent=True))
    await system.step(QUEUES.agent("stock", urgent=True))
    reply = system.bus.take(lane(QUEUES.scheduler, urgent=True))
    assert reply is not None
    await system.hand(reply)
    count = waiting_counts(system)[QUEUES.agent("payment", urgent=True)]
    await system.run(system.dead_letters.handle(letter(reply)))
    assert waiting_counts(system)[QUEUES.agent("payment", urgent=True)] == count + 1
    assert system.rejected() == []
