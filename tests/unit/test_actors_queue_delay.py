"""Before a timeout counts, the supervisor looks into the queues of that step, and only of that."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.order import Dispatched, StepRecord
from sas.domain.queues import Queues, lane
from sas.engine.run_on import CALLS_MAX
from sas.ports import BusUnavailableError, Message, Peeked, RefusedError
from sas.testing.world import CrashError
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    Kit,
    command,
    done,
    kit,
    order,
)

STOCK, PAYMENT = QUEUES.agent("stock"), QUEUES.agent("payment")
WAITS, RESET = {"waits in its queue": 1}, {"step reset": 1}
AWAY = {"its queue is away": 1}
MINUTE = timedelta(minutes=1)
BOUND = replace(QUEUES, applications=("web",))


async def expired(
    *,
    is_taken: bool,
    urgent: bool = False,
    queue_delay: timedelta = 5 * MINUTE,
    queues: Queues = QUEUES,
) -> Kit:
    """Return an order whose first step is past its CompleteBy; was its request taken?"""
    system = kit(queue_delay=queue_delay, queues=queues)
    await system.hand(Message(lane(QUEUES.orders, urgent=urgent), "m-1", order()))
    await system.step(lane(QUEUES.scheduler, urgent=urgent))
    if is_taken:
        system.agents_die()
    await system.later(ALLOWED.total_seconds())
    return system


def step(system: Kit, number: int = 0) -> StepRecord:
    record: StepRecord = system.order().steps[number]
    return record


def out(system: Kit) -> Dispatched:
    turn = step(system).turn
    assert isinstance(turn, Dispatched)
    return turn


def wake_of(order_id: str, queue: str, filler: bytes = b"") -> Message:
    """Return a message that belongs to an order, and waits in a queue."""
    body = b'{"kind":"wake","format":1,"id":"x","order_id":"%s"}' % order_id.encode()
    return Message(queue, f"wake/{order_id}", body + filler)


def break_queue(system: Kit, *names: str) -> None:
    """Let queues be away, as disabled ones are; no name brings all of them back."""
    peek = type(system.bus).peek

    async def away(queue: str, limit: int, after: int = 0) -> list[Peeked]:
        if queue in names:
            raise BusUnavailableError(f"queue {queue} is disabled")
        return await peek(system.bus, queue, limit, after)

    system.bus.peek = away  # type: ignore[method-assign]


async def test_a_step_whose_request_was_taken_is_counted() -> None:
    system = await expired(is_taken=True)
    assert await system.sweep() == RESET
    assert step(system).failure_count == 1


async def test_a_step_whose_request_waits_is_neither_counted_nor_asked_for_again() -> None:
    system = await expired(is_taken=False)
    assert await system.sweep() == WAITS
    assert (step(system).failure_count, step(system).epoch) == (0, 1)
    assert out(system).complete_by == system.clock.now() + ALLOWED
    assert len(system.requests("stock")) == 1
    assert system.bus.messages(QUEUES.scheduler) == []
    await system.drain()
    assert system.state() == "Processed"


async def test_what_was_read_for_a_step_does_not_count_after_the_step_got_more_time() -> None:
    """A slow read: by its end another sweep had excused the step, and that time was over too."""
    system = await expired(is_taken=False)
    other = kit(beside=system, instance="host-2")
    peek = system.bus.peek

    async def slow(queue: str, limit: int, after: int = 0) -> list[Peeked]:
        system.bus.peek = peek  # type: ignore[method-assign]
        await other.supervisor.sweep()
        await system.clock.sleep(ALLOWED.total_seconds() + 1)
        return []

    system.bus.peek = slow  # type: ignore[method-assign]
    system.supervisor._lease_ends_at = system.clock.now() + MINUTE  # it does not know the other
    assert await system.sweep() == {}
    assert step(system).failure_count == 0
    assert await system.sweep() == WAITS


async def test_an_urgent_order_waits_in_its_own_lane() -> None:
    system = await expired(is_taken=False, urgent=True)
    assert await system.sweep() == WAITS
    while system.bus.take(lane(STOCK, urgent=True)):
        pass
    await system.later(ALLOWED.total_seconds())
    await system.bus.send([Message(lane(QUEUES.orders, urgent=True), "m-1", order())])
    assert await system.sweep() == WAITS
    assert system.bus.take(lane(QUEUES.orders, urgent=True)) is not None
    await system.later(ALLOWED.total_seconds())
    assert await system.sweep() == RESET


@pytest.mark.parametrize(
    "message",
    [done(), done(step=1), command("cancel", 2)],
    ids=["its reply", "the reply that led to its request", "a command"],
)
async def test_any_message_of_its_order_that_waits_excuses_it(message: Message) -> None:
    system = await expired(is_taken=True)
    await system.bus.send([message])
    assert await system.sweep() == WAITS


@pytest.mark.parametrize(
    "message",
    [
        done("O-2"),
        command("cancel", 2, order_id="O-2"),
        Message(STOCK, "x", b"{}"),
        Message(QUEUES.scheduler, "x", b"not JSON"),
    ],
    ids=["another order's reply", "another order's command", "no request", "no reply"],
)
async def test_no_other_message_does(message: Message) -> None:
    system = await expired(is_taken=True)
    await system.bus.send([message])
    assert await system.sweep() == RESET


async def test_a_message_that_only_a_newer_version_understands_excuses_its_order_alone() -> None:
    system = await expired(is_taken=True)
    body = b'{"kind":"x","format":9,"order_id":"O-2"}'
    await system.bus.send([replace(done("O-2"), body=body)])
    await system.bus.send(
        [replace(done(), body=b'{"kind":"x","format":9,"order_id":"O-1","step":[]}')]
    )
    assert await system.sweep() == RESET
    system = await expired(is_taken=True)
    await system.bus.send(
        [replace(done(), body=b'{"kind":"x","format":9,"order_id":"O-1","more":{}}')]
    )
    assert await system.sweep() == WAITS


async def test_a_queue_that_is_never_read_excuses_ten_times_and_then_it_counts() -> None:
    system = await expired(is_taken=False)
    for times in range(1, 11):
        assert await system.sweep() == WAITS
        assert out(system).excused == times
        await system.later(ALLOWED.total_seconds())
    assert await system.sweep() == RESET
    assert step(system).failure_count == 1


def much_later(system: Kit, queue: str) -> list[Message]:
    """Return messages that fill what one peek reads, and come in a month."""
    at = system.clock.now() + timedelta(days=30)
    message = replace(wake_of("O-9", queue, b" " * 160_000), scheduled_at=at)
    return [replace(message, message_id=f"later/{n}") for n in range(30)]


async def test_what_comes_much_later_excuses_one_timeout_until_the_next_read_begins_behind_it() -> (
    None
):
    system = await expired(is_taken=True)
    await system.bus.send(much_later(system, STOCK))
    await system.bus.send([wake_of("O-2", STOCK)])
    assert await system.sweep() == WAITS
    await system.later(ALLOWED.total_seconds())
    assert await system.sweep() == RESET


async def test_a_queue_of_orders_excuses_ten_times_whatever_a_sender_writes() -> None:
    """Any application can name another's order, and set what only the system sets."""
    system = await expired(is_taken=True)
    put_back = {"sas_put_back": "1"}
    claim = Message(QUEUES.orders, "m-2", order(), properties=put_back)
    later = system.clock.now() + timedelta(days=30_000)
    await system.bus.send([claim, replace(claim, message_id="m-3", scheduled_at=later)])
    for number in range(10):
        await system.bus.send([Message(QUEUES.orders, f"o-{number}", order(f"O-{number + 2}"))])
        assert await system.sweep() == WAITS
        del system.bus.queues[QUEUES.orders].waiting[2:]  # another order is taken
        await system.later(ALLOWED.total_seconds())
    assert await system.sweep() == RESET


async def test_the_queue_of_a_bound_application_excuses_no_order_of_others() -> None:
    system = await expired(is_taken=True, queues=BOUND)
    system.bus.declare(BOUND.orders_of("web"))
    await system.bus.send([Message(BOUND.orders_of("web"), "m-1", order())])
    assert await system.sweep() == RESET


@pytest.mark.parametrize(
    "queue",
    [
        *(PAYMENT, QUEUES.orders),
        *(lane(queue, urgent=True) for queue in (STOCK, QUEUES.scheduler)),
    ],
)
async def test_a_queue_of_other_steps_excuses_nothing(queue: str) -> None:
    system = await expired(is_taken=True)
    break_queue(system, queue)
    assert await system.sweep() == RESET


@pytest.mark.parametrize("body", [b"x" * 160_000, b""], ids=["bodies", "properties"])
async def test_a_request_behind_many_large_messages_is_excused_ten_times(body: bytes) -> None:
    """Reading all of them would take longer than the adapter waits: what follows is unknown."""
    system = await behind_many(STOCK, body, {} if body else {"x": "y" * 160_000})
    for _ in range(10):
        assert await system.sweep() == WAITS
        await system.later(ALLOWED.total_seconds())
    assert await system.sweep() == RESET


async def test_a_long_queue_of_orders_excuses_no_order_whose_step_has_begun() -> None:
    system = await behind_many(QUEUES.orders, b"x" * 160_000, {})
    assert await system.sweep() == RESET


async def behind_many(queue: str, body: bytes, properties: dict[str, str]) -> Kit:
    """Return an order whose first step is past its CompleteBy, and a queue that was long before."""
    system = await expired(is_taken=True)
    system.clock.set(system.clock.now() - ALLOWED)
    for number in range(30):
        await system.bus.send([Message(queue, f"m-{number}", body, properties=properties)])
    await system.later(ALLOWED.total_seconds())
    return system


async def test_the_undo_that_runs_on_from_a_refused_request_is_excused_by_it() -> None:
    """The root is an older request of the same step."""
    system = kit(inline=["stock"])
    system.context.run_on.calls = CALLS_MAX  # so the request travels
    await system.receive(Message(QUEUES.orders, "m-1", order()))
    system.context.run_on.calls = 0
    system.agents["stock"].then(RefusedError("no", "no"), CrashError())
    with pytest.raises(CrashError):
        await system.receive(system.bus.messages(STOCK)[0])
    await system.later(ALLOWED.total_seconds())
    await system.sweep()
    assert (step(system).process_state.value, step(system).failure_count) == ("Compensating", 0)


async def test_a_sweep_reads_each_queue_once() -> None:
    system = kit()
    for number in range(20):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
    await system.later(ALLOWED.total_seconds())
    read: list[str] = []
    peek = system.bus.peek

    async def counted(queue: str, limit: int, after: int = 0) -> list[Peeked]:
        if limit > 1:  # else only its oldest message is measured
            read.append(queue)
        return await peek(queue, limit, after)

    system.bus.peek = counted  # type: ignore[method-assign]
    assert await system.sweep() == {"waits in its queue": 20}
    assert read == [STOCK]
    await system.later(ALLOWED.total_seconds())
    system.agents_die()
    assert await system.sweep() == {"step reset": 20}
    assert sorted(read[1:]) == sorted([STOCK, QUEUES.scheduler, QUEUES.orders])


@pytest.mark.parametrize("delay_s", [60, 300])
async def test_a_request_that_waits_for_as_long_as_the_setting_says_is_reported_and_so_is_its_end(
    delay_s: int,
) -> None:
    system = await expired(is_taken=False, queue_delay=timedelta(seconds=delay_s))
    for _ in range(delay_s // 10 - int(ALLOWED.total_seconds()) // 10 - 1):
        await system.sweep()
        await system.later(10)
    await system.sweep()
    assert system.alerts() == []
    for _ in range(4):
        await system.later(10)
        await system.sweep()
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("queue-delay", f"queue {STOCK}")
    waited = re.search(rf"Messages wait ([0-9]+) s in queue {STOCK} before they", alert.text)
    assert waited is not None
    assert delay_s <= int(waited[1]) <= delay_s + 40
    await system.drain()
    for _ in range(6):
        await system.later(10)
        await system.sweep()
    assert [alert.kind for alert in system.alerts()] == ["queue-delay", "cleared"]


async def test_queues_that_are_away_for_a_minute_are_reported_until_they_come_back() -> None:
    """Their steps are tried again less and less often, and meanwhile nothing is over."""
    system = await expired(is_taken=False)
    await system.hand(Message(lane(QUEUES.orders, urgent=True), "m-2", order("O-2")))
    await system.step(lane(QUEUES.scheduler, urgent=True))
    names = {STOCK, lane(STOCK, urgent=True)}
    break_queue(system, *names)
    await system.sweep()
    assert system.alerts() == []
    for _ in range(44):
        await system.later(60)
        await system.sweep()
    alerts = system.alerts()
    assert [alert.kind for alert in alerts] == ["queue-delay"] * 4
    assert {alert.scope for alert in alerts} == {f"queue {name}" for name in names}
    assert all("cannot be read." in alert.text for alert in alerts)
    break_queue(system)
    await system.drain()
    await system.later(60)
    await system.sweep()
    ended = [alert.scope for alert in system.alerts() if alert.kind == "cleared"]
    assert set(ended) == {f"queue {name}" for name in names}


async def test_an_alert_that_cannot_be_sent_changes_no_decision() -> None:
    system = await expired(is_taken=False)
    await system.later(100)
    system.bus.queues[QUEUES.alerts].length_max = 0
    assert await system.sweep() == WAITS
