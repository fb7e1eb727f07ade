"""Urgent orders: a lane of queues of their own, from the order to its last reply."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.queues import lane
from sas.ports import AwaitCallback, Call
from tests.unit.actors_kit import QUEUES, Kit, called_back, kit, letter, order, received

URGENT = tuple(name for name in QUEUES.on_the_way(["stock", "payment"]) if name.endswith("-urgent"))
ORDINARY = tuple(name.removesuffix("-urgent") for name in URGENT)


async def submit(made: Kit, order_id: str = "U-1") -> None:
    await made.run(
        made.submitter.handle(
            received(QUEUES.orders, f"m-{order_id}", order(order_id), urgent=True)
        )
    )


def seen(made: Kit) -> dict[str, int]:
    """Return which queues hold anything."""
    return {name: len(found) for name in made.bus.queues if (found := made.bus.messages(name))}


async def test_everything_that_follows_from_an_urgent_order_stays_in_its_lane() -> None:
    made = kit()
    await submit(made)
    passed: set[str] = set()
    while waiting := [name for name in seen(made) if name in {*URGENT, *ORDINARY}]:
        passed.update(waiting)
        await made.step(waiting[0])
    assert made.state("U-1") == "Processed"
    assert passed == set(URGENT) - {lane(q, urgent=True) for q in (QUEUES.orders, QUEUES.callbacks)}


async def test_a_callback_of_an_urgent_order_takes_its_lane_and_waits_in_it() -> None:
    made = kit()
    within = timedelta(minutes=5)
    tokens: list[str] = []

    async def awaited(call: Call) -> AwaitCallback:
        tokens.append(call.callback(within).token)
        return AwaitCallback(within)

    made.agents["stock"].then(awaited)
    await submit(made)
    await made.step(lane(QUEUES.scheduler, urgent=True))
    await made.step(QUEUES.agent("stock", urgent=True))
    assert made.bus.take(lane(QUEUES.replies, urgent=True)) is not None  # lost: no time is given
    await made.later(31)
    await made.sweep()  # between two attempts
    await made.hand(called_back(tokens[0]))
    answer = await made.run(made.callbacks.answer(tokens[0], None, b'{"outcome": "done"}'))
    assert (answer.status, answer.code) == (202, "accepted")
    waiting = made.bus.queues[lane(QUEUES.callbacks, urgent=True)].waiting
    assert len(waiting) == 2
    assert not made.bus.queues[QUEUES.callbacks].waiting


async def test_an_urgent_order_is_not_behind_any_number_of_others() -> None:
    made = kit()
    for number in range(20):
        await made.submit(order(f"O-{number}"), f"m-{number}")
    await submit(made)
    for queue in URGENT * 3:
        if made.bus.messages(queue):
            await made.step(queue)
    assert made.state("U-1") == "Processed"
    assert made.state("O-0") == "Pending"


async def test_the_supervisor_wakes_an_urgent_order_in_its_lane() -> None:
    made = kit()
    await submit(made)
    assert made.bus.take(lane(QUEUES.scheduler, urgent=True)) is not None
    await made.later(31)
    await made.sweep()
    assert seen(made)[lane(QUEUES.scheduler, urgent=True)] == 1
    assert QUEUES.scheduler not in seen(made)


async def test_the_same_order_by_both_lanes_is_one_order() -> None:
    made = kit()
    await made.submit(order("U-1"), "m-a")
    await made.run(made.submitter.handle(received(QUEUES.orders, "m-b", order("U-1"), urgent=True)))
    assert not made.order("U-1").details.urgent
    assert made.told() == ["received", "received"]
    assert made.events()[1].data.duplicate


async def test_a_refused_urgent_order_names_the_queue_it_came_by() -> None:
    made = kit()
    await made.run(made.submitter.handle(received(QUEUES.orders, "m-1", b"{", urgent=True)))
    assert made.rejected()[0].source_queue == "orders-urgent"


async def test_a_dead_letter_of_the_urgent_lane_is_known_for_an_order() -> None:
    made = kit()
    dead = letter(order("U-1"), "orders-urgent")
    await made.run(made.dead_letters.handle(dead))
    assert made.state("U-1") == "Rejected"
    assert made.told() == ["rejected"]


async def test_a_dead_reply_of_the_urgent_lane_is_finished_not_decided() -> None:
    made = kit()
    await submit(made)
    await made.step(lane(QUEUES.scheduler, urgent=True))
    await made.step(QUEUES.agent("stock", urgent=True))
    reply = made.bus.take(lane(QUEUES.replies, urgent=True))
    assert reply is not None
    await made.hand(reply)
    sent = seen(made)[QUEUES.agent("payment", urgent=True)]
    await made.run(made.dead_letters.handle(letter(reply)))
    assert seen(made)[QUEUES.agent("payment", urgent=True)] == sent + 1
    assert made.rejected() == []
