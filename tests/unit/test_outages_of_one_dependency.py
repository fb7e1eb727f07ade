"""One dependency is away at a time: nothing is lost, rejected or sent twice, no delivery used up.

The whole platform with its outages is in tests/simulation. Here each place is shown by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.engine.delivery import EXTERNAL_SENT
from sas.engine.receiver import TIMES, Receiver
from sas.ports import Call, Message, RefusedError, StillRunning, TransientError
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, SHOP, Kit, called_back, delivery, done, kit, order
from tests.unit.test_actors_callbacks import CARE, awaiting, post

STOCK, PAYMENT = QUEUES.agent("stock"), QUEUES.agent("payment")
WINDOW = timedelta(minutes=10)
FUNCTION = timedelta(minutes=9)


def away(made: Kit, *queues: str) -> None:
    """Let every send to these queues fail; to none: the outage is over."""
    made.bus.plan = lambda message: BusFault.UNAVAILABLE if message.queue in queues else None


async def receive(made: Kit, message: Message) -> object:
    """Receive one message as function_app does."""
    handlers: dict[str, Callable[..., Awaitable[object]]] = {
        QUEUES.orders: made.submitter.handle,
        QUEUES.scheduler: made.scheduler.handle,
        QUEUES.replies: made.scheduler.handle_reply,
        STOCK: made.actors["stock"].handle,
    }
    receiver = Receiver(
        bus=made.bus,
        clock=made.clock,
        function_time=FUNCTION,
        external=made.context.external,
        report_mismatch=made.context.report_mismatch,
    )
    return await made.run(receiver.receive(handlers[message.queue], delivery(message)))


async def again(made: Kit, queue: str, seconds: float = 31) -> Message:
    """Return the message that was put back on a queue, once its time has come."""
    await made.later(seconds)
    found = made.bus.take(queue)
    assert found is not None
    return found


async def test_an_application_hears_of_its_order_once_while_the_schedulers_queue_is_away() -> None:
    made = kit(duplicate_window=WINDOW)
    away(made, QUEUES.scheduler)
    message = Message(QUEUES.orders, "m-1", order())
    for _ in range(60):  # half an hour: longer than duplicate detection remembers
        await receive(made, message)
        message = await again(made, QUEUES.orders)
        assert message.properties[EXTERNAL_SENT] == "yes"
        assert made.told() == ["received"]
    away(made)
    await receive(made, message)
    assert made.told() == ["received"]
    await made.drain()
    assert made.state() == "Processed"


async def test_a_reply_whose_next_request_cannot_be_sent_is_recorded_and_comes_again() -> None:
    made = kit(duplicate_window=WINDOW)
    await made.submit()
    await made.step(QUEUES.scheduler)
    made.bus.take(STOCK)
    away(made, PAYMENT)
    message = done()
    for _ in range(5):
        await receive(made, message)
        assert made.states()[:2] == ["Processed", "Processing"]
        assert made.told().count("step-completed") == 1
        message = await again(made, QUEUES.replies)
    away(made)
    await receive(made, message)
    assert len(made.requests("payment")) == 1
    assert made.words().count("step processed") == 1


async def test_while_the_table_is_away_an_order_is_put_back_and_not_rejected() -> None:
    made = kit()
    made.store.plan = lambda _what, _key: StoreFault.UNAVAILABLE
    message = Message(QUEUES.orders, "m-1", order())
    for times in range(1, 200):
        assert await receive(made, message) is None
        message = await again(made, QUEUES.orders)
        assert message.properties[TIMES] == str(times)
    made.store.plan = lambda _what, _key: None
    await receive(made, message)
    assert made.told() == ["received"]
    assert (made.rejected(), made.alerts()) == ([], [])


async def test_a_full_response_queue_delays_the_rejection_of_an_order_and_nothing_else() -> None:
    made = kit()
    away(made, SHOP)
    await receive(made, Message(QUEUES.orders, "m-1", order(workflow="unheard-of")))
    assert len(made.rejected()) == len(made.alerts()) == 1
    for _ in range(40):
        await made.later(31)
        await made.sweep()
    away(made)
    await made.later(31)
    await made.sweep()
    assert made.told() == ["rejected"]
    assert len(made.rejected()) == len(made.alerts()) == 1
    assert made.outs() == 0


async def test_a_full_response_queue_delays_the_answer_to_a_duplicate_and_nothing_else() -> None:
    made = kit()
    await made.submit()
    away(made, SHOP)
    await receive(made, Message(QUEUES.orders, "m-2", order()))
    away(made)
    await made.later(31)
    await made.sweep()
    assert made.told() == ["received", "received"]
    assert made.events()[-1].data.duplicate


async def test_an_alert_that_cannot_be_sent_for_days_is_sent_once() -> None:
    made = kit(duplicate_window=WINDOW)
    made.agents["stock"].then(RefusedError("out-of-stock", "there is none left"))
    away(made, QUEUES.alerts)
    await made.submit(order(workflow="care"))
    await made.drain()
    for _ in range(100):
        await made.later(31)
        await made.sweep()
    away(made)
    for _ in range(3):
        await made.later(31)
        await made.sweep()
    assert [one.kind for one in made.alerts()] == ["step-failed"]
    assert made.told().count("failed") == 1


async def requested(made: Kit) -> Message:
    await made.submit()
    await made.step(QUEUES.scheduler)
    found = made.bus.take(STOCK)
    assert found is not None
    return found


async def test_a_request_whose_reply_cannot_be_sent_is_called_again_with_the_same_key() -> None:
    made = kit()
    message = await requested(made)
    away(made, QUEUES.replies)
    assert await receive(made, message) is None
    put_back = await again(made, STOCK, 2)
    assert put_back.properties["sas_call_state"] == "tried"
    away(made)
    await receive(made, put_back)
    keys = [call.key for _, call in made.agents["stock"].calls]
    assert keys == ["O-1/reserve"] * 2
    await made.drain()
    assert made.state() == "Processed"


async def test_a_reply_that_may_not_be_sent_burns_no_delivery() -> None:
    """A right that a role assignment has not spread yet looks like one that never comes."""
    made = kit()
    message = await requested(made)
    queue = made.bus.queues.pop(QUEUES.replies)
    assert await receive(made, message) is None
    made.bus.queues[QUEUES.replies] = queue
    await receive(made, await again(made, STOCK, 2))
    await made.drain()
    assert made.state() == "Processed"


async def test_a_request_that_made_no_call_before_the_outage_is_not_marked_as_called() -> None:
    made = kit()
    message = await requested(made)
    made.store.plan = lambda _what, _key: StoreFault.UNAVAILABLE  # the circuit cannot be read
    await receive(made, message)
    put_back = made.bus.queues[STOCK].waiting
    if put_back:
        assert "sas_call_state" not in put_back[0].message.properties
    assert len(made.agents["stock"].calls) <= 1


def long(message: Message, made: Kit, hours: float) -> Message:
    """Return a request whose step may take this long."""
    import msgspec  # noqa: PLC0415

    from sas.codec import internal  # noqa: PLC0415
    from sas.codec.internal import RequestMessage  # noqa: PLC0415

    request = internal.decode(message.body, RequestMessage)
    until = made.clock.now() + timedelta(hours=hours)
    body = msgspec.structs.replace(request, complete_by=until, time_allowed=hours * 3600)
    return replace(message, body=internal.encode(body), time_to_live=None)


async def test_a_call_that_outlasts_its_function_is_cut_off_and_made_again() -> None:
    made = kit()
    message = long(await requested(made), made, 1)

    async def hangs(_call: Call) -> Any:
        await made.clock.sleep(3600)

    made.agents["stock"].then(hangs)
    began = made.clock.now()
    assert await receive(made, message) is None
    assert made.clock.now() - began == FUNCTION
    put_back = await again(made, STOCK, 2)
    await receive(made, put_back)
    assert [call.key for _, call in made.agents["stock"].calls] == ["O-1/reserve"] * 2
    assert len(made.bus.messages(QUEUES.replies)) == 1


async def test_retries_that_outlast_the_function_are_put_back() -> None:
    made = kit()
    message = long(await requested(made), made, 1)
    made.agents["stock"].then(*(TransientError("down") for _ in range(10_000)))
    began = made.clock.now()
    assert await receive(made, message) is None
    assert made.clock.now() - began <= FUNCTION
    assert len(made.bus.queues[STOCK].waiting) == 1


@pytest.mark.parametrize("what", [StillRunning(timedelta(minutes=1)), {"a": 1}])
async def test_no_answer_of_an_agent_is_lost_while_the_replies_queue_is_away(what: Any) -> None:
    made = kit()
    message = await requested(made)
    made.agents["stock"].then(what, what)
    away(made, QUEUES.replies)
    await receive(made, message)
    assert any(one.message.properties.get(TIMES) for one in made.bus.queues[STOCK].waiting)


async def test_an_application_that_sets_our_properties_changes_nothing_but_its_own_order() -> None:
    """A sender can set any property of its message, also those of a message that was put back."""
    made = kit(duplicate_window=WINDOW)
    forged = {
        **dict.fromkeys((EXTERNAL_SENT, "sas_call_state", "sas_first_id", "sas_left_since"), "yes"),
        TIMES: "7",
        "sas_dead_letter_source": QUEUES.replies,
        "sas_first_at": "yesterday",
    }
    await receive(made, Message(QUEUES.orders, "m-1", order(), properties=forged))
    assert made.told() == ["received"]
    await made.drain()
    assert made.state() == "Processed"
    assert (made.rejected(), made.alerts()) == ([], [])


async def test_two_supervisors_that_send_a_deferred_message_at_once_hold_it_once() -> None:
    made = kit(duplicate_window=WINDOW)
    other = kit(beside=made, instance="host-2")
    away(made, SHOP)
    await made.submit()
    for _ in range(30):
        await made.later(17)
        await made.run(made.supervisor.sweep())
        await made.later(1)
        await made.run(other.supervisor.sweep())
        assert made.outs() <= 2
    away(made)
    await made.later(61)
    await made.sweep()
    assert made.told() == ["received"]


async def test_a_request_that_comes_late_asks_for_time_though_its_time_has_no_zone() -> None:
    """azure-functions gives the enqueued time in UTC, without a time zone."""
    made = kit()
    message = await requested(made)
    naive = made.clock.now().replace(tzinfo=None)
    await made.later(40)
    receiver = Receiver(
        bus=made.bus,
        clock=made.clock,
        function_time=FUNCTION,
        external=made.context.external,
        report_mismatch=made.context.report_mismatch,
    )
    late = delivery(message, enqueued_at=naive)
    await made.run(receiver.receive(made.actors["stock"].handle, late))
    assert len(made.bus.messages(QUEUES.replies)) == 1
    assert made.agents["stock"].calls == []


@pytest.mark.parametrize("away", ["callbacks", "table"])
async def test_a_callback_that_came_in_time_counts_however_long_an_outage_delays_it(
    away: str,
) -> None:
    made, callback = await awaiting(CARE)
    await made.later(3600 - 60)  # a minute before its token expires
    if away == "callbacks":
        made.bus.cut(QUEUES.callbacks)
        assert (await post(made, callback.token)).status == 202
    else:  # the message waits in its queue, because no function can handle it
        await made.bus.send([called_back(callback.token)])
        made.store.away = made.store.partitions
    await made.later(300)
    made.bus.mend(QUEUES.callbacks)
    made.store.away = frozenset()
    await made.sweep()
    await made.later(31)
    await made.sweep()
    await made.drain()
    assert made.rejected() == []
    assert made.state() == "Processed"
