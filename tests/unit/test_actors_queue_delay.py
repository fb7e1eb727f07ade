"""Before a timeout counts, the supervisor looks into the queues of that step, and only of that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.messages import JournalWord
from sas.domain.order import Direction, Dispatched, StepRecord
from sas.domain.queues import lane
from sas.features.callbacks.codec import CallbackKeys
from sas.features.queue_delay import excuses
from sas.ports import AwaitCallback, BusUnavailableError, Call, Message, Peeked, RefusedError
from tests.unit.actors_kit import (
    ALLOWED,
    QUEUES,
    Kit,
    called_back,
    command,
    done,
    kit,
    order,
)

STOCK, PAYMENT = QUEUES.agent("stock"), QUEUES.agent("payment")
WAITS, RESET = {"waits in its queue": 1}, {"step reset": 1}
AWAY = {"its queue is away": 1}


async def expired(*, taken: bool, urgent: bool = False) -> Kit:
    """Return an order whose first step is past its CompleteBy; was its request taken?"""
    made = kit()
    await made.hand(Message(lane(QUEUES.orders, urgent=urgent), "m-1", order()))
    await made.step(lane(QUEUES.scheduler, urgent=urgent))
    if taken:
        made.agents_die()
    await made.later(ALLOWED.total_seconds())
    return made


def step(made: Kit, number: int = 0) -> StepRecord:
    found: StepRecord = made.order().steps[number]
    return found


def out(made: Kit) -> Dispatched:
    turn = step(made).turn
    assert isinstance(turn, Dispatched)
    return turn


def break_queue(made: Kit, *names: str) -> None:
    """Let queues be away, as disabled ones are; no name brings all of them back."""
    peek = type(made.bus).peek

    async def away(queue: str, limit: int) -> list[Peeked]:
        if queue in names:
            raise BusUnavailableError(f"queue {queue} is disabled")
        return await peek(made.bus, queue, limit)

    made.bus.peek = away  # type: ignore[method-assign]


async def test_a_step_whose_request_was_taken_is_counted() -> None:
    made = await expired(taken=True)
    assert await made.sweep() == RESET
    assert step(made).failure_count == 1


async def test_a_request_that_only_a_newer_version_understands_waits_too() -> None:
    made = await expired(taken=False)
    request = made.bus.take(STOCK)
    assert request is not None
    newer = request.body.replace(b'"format":1', b'"format":2')
    made.bus._enqueue(Message(STOCK, request.message_id, newer))
    assert await made.sweep() == WAITS
    assert (step(made).failure_count, step(made).epoch) == (0, 1)


async def test_a_step_whose_request_waits_is_neither_counted_nor_asked_for_again() -> None:
    made = await expired(taken=False)
    assert await made.sweep() == WAITS
    assert (step(made).failure_count, step(made).epoch) == (0, 1)
    assert out(made).complete_by == made.clock.now() + ALLOWED
    assert len(made.requests("stock")) == 1
    assert made.bus.messages(QUEUES.scheduler) == []
    await made.drain()
    assert made.state() == "Processed"


async def test_an_urgent_order_waits_in_its_own_lane() -> None:
    made = await expired(taken=False, urgent=True)
    assert await made.sweep() == WAITS
    while made.bus.take(lane(STOCK, urgent=True)):
        pass
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == RESET


@pytest.mark.parametrize(
    "message",
    [done(), done(step=1), command("cancel", 2)],
    ids=["its reply", "the reply that led to its request", "a command"],
)
async def test_any_message_of_its_order_that_waits_excuses_it(message: Message) -> None:
    made = await expired(taken=True)
    await made.bus.send([message])
    assert await made.sweep() == WAITS


@pytest.mark.parametrize(
    "message",
    [
        done("O-2"),
        command("cancel", 2, order_id="O-2"),
        Message(STOCK, "x", b"{}"),
        Message(QUEUES.replies, "x", b"not JSON"),
    ],
    ids=["another order's reply", "another order's command", "no request", "no reply"],
)
async def test_no_other_message_does(message: Message) -> None:
    made = await expired(taken=True)
    await made.bus.send([message])
    assert await made.sweep() == RESET


async def test_a_message_that_only_a_newer_version_understands_excuses_its_order_alone() -> None:
    made = await expired(taken=True)
    body = b'{"kind":"x","format":9,"order_id":"O-2"}'
    await made.bus.send([replace(done("O-2"), body=body)])
    await made.bus.send(
        [replace(done(), body=b'{"kind":"x","format":9,"order_id":"O-1","step":[]}')]
    )
    assert await made.sweep() == RESET
    made = await expired(taken=True)
    await made.bus.send(
        [replace(done(), body=b'{"kind":"x","format":9,"order_id":"O-1","more":{}}')]
    )
    assert await made.sweep() == WAITS


async def test_a_request_of_an_older_epoch_or_of_another_step_excuses_nothing() -> None:
    made = await expired(taken=True)
    await made.sweep()
    await made.step(QUEUES.scheduler)
    (first,) = made.bus.messages(STOCK)
    made.agents_die()
    await made.bus.send([Message(STOCK, "old", first.body.replace(b'"epoch":2', b'"epoch":1'))])
    await made.bus.send([Message(STOCK, "other", first.body.replace(b'"step":0', b'"step":1'))])
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == {"step failed, undo decided": 1}


async def test_a_callback_of_its_order_that_waits_excuses_it() -> None:
    made = kit()
    tokens: list[str] = []

    async def awaited(call: Call) -> AwaitCallback:
        tokens.append(call.callback(ALLOWED * 2).token)
        return AwaitCallback(ALLOWED)

    made.agents["stock"].then(awaited)
    await made.submit()
    await made.drain()
    await made.bus.send([called_back(tokens[0])])
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == WAITS
    await made.drain()
    assert made.state() == "Processed"


async def test_the_queue_of_callbacks_that_is_away_excuses_a_step_that_awaits_one() -> None:
    made = kit()
    made.agents["stock"].then(AwaitCallback(ALLOWED * 2))
    await made.submit()
    await made.drain()
    await made.later(ALLOWED.total_seconds() * 2)
    break_queue(made, QUEUES.callbacks)
    assert await made.sweep() == AWAY
    break_queue(made)
    await made.later(ALLOWED.total_seconds() * 2)
    assert await made.sweep() == RESET


async def test_without_callbacks_their_queue_is_not_read_and_excuses_no_undo() -> None:
    made = kit(callback_keys=CallbackKeys())
    await made.submit()
    await made.drain()
    await made.hand(command("undo", made.order().seq))
    await made.step(QUEUES.scheduler)
    while made.bus.take(QUEUES.agent("payment")):
        """Its agent dies."""
    break_queue(made, QUEUES.callbacks)
    await made.later(31)
    await made.sweep()
    assert step(made, 1).failure_count == 1


async def test_a_look_that_is_scheduled_for_much_later_does_not_wait() -> None:
    made = await expired(taken=False)
    request = made.bus.take(STOCK)
    assert request is not None
    later = Message(
        STOCK, "look/1", request.body, scheduled_at=made.clock.now() + timedelta(hours=1)
    )
    await made.bus.send([later])
    assert await made.sweep() == RESET


async def test_a_queue_that_is_never_read_excuses_ten_times_and_then_it_counts() -> None:
    made = await expired(taken=False)
    for times in range(1, 11):
        assert await made.sweep() == WAITS
        assert out(made).excused == times
        await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == RESET
    assert step(made).failure_count == 1


async def test_a_queue_that_moves_excuses_however_long_it_is() -> None:
    made = await expired(taken=False)
    await made.sweep()
    for number in range(40):
        await made.bus.send([Message(STOCK, f"another/{number}", b"{}")])
        wait = out(made).complete_by - made.clock.now()
        await made.later(wait.total_seconds())
        assert await made.sweep() == WAITS
        del made.bus.queues[STOCK].waiting[1:]  # another order's is taken
        await made.later(1)
    assert out(made).excused <= 3
    assert step(made).failure_count == 0


async def test_a_queue_that_is_away_excuses_without_limit() -> None:
    made = await expired(taken=True)
    break_queue(made, STOCK)
    for _ in range(30):
        assert await made.sweep() == AWAY
        wait = out(made).complete_by - made.clock.now()
        await made.later(wait.total_seconds())
    assert (step(made).failure_count, out(made).excused) == (0, 0)
    break_queue(made)
    assert await made.sweep() == RESET


@pytest.mark.parametrize("queue", [QUEUES.scheduler, QUEUES.replies])
async def test_so_does_a_queue_where_its_reply_may_wait(queue: str) -> None:
    made = await expired(taken=True)
    break_queue(made, queue)
    assert await made.sweep() == AWAY


@pytest.mark.parametrize(
    "queue",
    [
        *(PAYMENT, lane(STOCK, urgent=True), lane(QUEUES.replies, urgent=True)),
        *(QUEUES.orders, QUEUES.callbacks),
    ],
)
async def test_a_queue_of_other_steps_excuses_nothing(queue: str) -> None:
    made = await expired(taken=True)
    break_queue(made, queue)
    assert await made.sweep() == RESET


async def test_a_request_that_was_not_received_is_not_excused_by_another_queue_that_moves() -> None:
    made = await expired(taken=False)
    for number in range(11):
        await made.bus.send([done(step=1, id=f"r-{number}")])
        assert await made.sweep() == WAITS if number < 10 else RESET
        assert made.bus.take(QUEUES.replies) is not None
        await made.later(ALLOWED.total_seconds())


async def test_a_request_behind_the_messages_that_were_read_is_excused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(excuses, "SCAN_MAX", 5)
    made = await expired(taken=True)
    old = [Message(STOCK, f"m-{number}", b"{}") for number in range(6)]
    await made.bus.send(old[:4])
    assert await made.sweep() == RESET  # all of the queue was read

    made = await expired(taken=True)
    made.clock.set(made.clock.now() - ALLOWED)
    await made.bus.send(old)
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == WAITS


async def test_a_request_behind_many_large_messages_is_excused_ten_times() -> None:
    """Reading all of them would take longer than the adapter waits: what follows is unknown."""
    made = await expired(taken=True)
    made.clock.set(made.clock.now() - ALLOWED)
    await made.bus.send([Message(STOCK, f"m-{number}", b"x" * 160_000) for number in range(30)])
    await made.later(ALLOWED.total_seconds())
    for _ in range(10):
        assert await made.sweep() == WAITS
        await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == RESET


async def test_a_sweep_reads_each_queue_once() -> None:
    made = kit()
    for number in range(20):
        await made.submit(order(f"O-{number}"), f"m-{number}")
        await made.step(QUEUES.scheduler)
    await made.later(ALLOWED.total_seconds())
    read: list[str] = []
    peek = made.bus.peek

    async def counted(queue: str, limit: int) -> list[Peeked]:
        read.append(queue)
        return await peek(queue, limit)

    made.bus.peek = counted  # type: ignore[method-assign]
    assert await made.sweep() == {"waits in its queue": 20}
    assert read == [STOCK]
    await made.later(ALLOWED.total_seconds())
    made.agents_die()
    assert await made.sweep() == {"step reset": 20}
    assert sorted(read[1:]) == sorted([STOCK, QUEUES.scheduler, QUEUES.replies, QUEUES.callbacks])


async def test_a_request_that_waits_for_a_minute_is_reported_and_so_is_its_end() -> None:
    made = await expired(taken=False)
    await made.sweep()
    assert made.alerts() == []
    for _ in range(8):
        await made.later(10)
        await made.sweep()
    (alert,) = made.alerts()
    assert (alert.kind, alert.scope) == ("queue-delay", f"queue {STOCK}")
    assert f"Messages wait 60 s in queue {STOCK} before they are received." in alert.text
    for _ in range(40):
        await made.drain()
        await made.later(30)
        await made.sweep()
    assert [one.kind for one in made.alerts()] == ["queue-delay", "cleared"]


async def test_a_queue_that_is_away_for_a_minute_is_reported_to_the_operator() -> None:
    made = await expired(taken=False)
    break_queue(made, STOCK)
    await made.sweep()
    assert made.alerts() == []
    for _ in range(10):
        await made.later(10)
        await made.sweep()
    (alert,) = made.alerts()
    assert (alert.kind, alert.scope) == ("queue-delay", f"queue {STOCK}")
    assert f"Queue {STOCK} cannot be read." in alert.text


async def test_an_alert_that_cannot_be_sent_changes_no_decision() -> None:
    made = await expired(taken=False)
    await made.later(100)
    made.bus.queues[QUEUES.alerts].length_max = 0
    assert await made.sweep() == WAITS


async def test_an_undo_is_looked_for_at_the_agent_that_undoes_it() -> None:
    made = kit()
    made.agents["payment"].then(RefusedError("declined", "no"))
    await made.submit()
    while not (made.requests("stock") and made.requests("stock")[0].direction == "undo"):
        for queue in (QUEUES.scheduler, QUEUES.replies, PAYMENT, STOCK):
            undoing = queue == STOCK and made.order().steps[0].direction is Direction.UNDO
            if made.bus.messages(queue) and not undoing:
                await made.step(queue)
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == WAITS
    assert made.words()[-1] is JournalWord.WAITS_IN_QUEUE
    made.agents_die()
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == {"undo reset": 1}


async def test_a_request_behind_many_that_were_put_back_is_excused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(excuses, "SCAN_MAX", 5)
    made = await expired(taken=True)
    put_back = b'{"kind":"wake","format":1,"id":"x","order_id":"O-9"}'
    properties = {"sas_put_back": "1"}
    await made.bus.send(
        [Message(STOCK, f"m-{number}", put_back, properties=properties) for number in range(6)]
    )
    for _ in range(20):
        assert set(await made.sweep()) <= {"its queue is away"}
        await made.later(ALLOWED.total_seconds())
