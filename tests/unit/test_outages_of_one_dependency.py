"""One dependency is away at a time: nothing is lost, rejected or sent twice, no delivery used up.

The whole platform with its outages is in tests/simulation. Here each place is shown by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sas.engine.delivery import EXTERNAL_SENT
from sas.engine.receiver import TIMES, Receiver
from sas.ports import AgentCall, Message, StillRunning, TransientError
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    HOLDING,
    QUEUES,
    SHOP,
    Kit,
    called_back,
    command,
    delivery,
    done,
    kit,
    order,
)
from tests.unit.callbacks_kit import awaiting, post

STOCK, PAYMENT = QUEUES.agent("stock"), QUEUES.agent("payment")
WINDOW = timedelta(minutes=10)
FUNCTION = timedelta(minutes=9)


def break_queues(system: Kit, *queues: str) -> None:
    """Let every send to these queues fail; to none: the outage is over."""
    system.bus.plan = lambda message: BusFault.UNAVAILABLE if message.queue in queues else None


async def receive(system: Kit, message: Message, count: int = 1) -> object:
    """Receive one message as function_app does. A redelivery does not run on: it sends."""
    handlers: dict[str, Callable[..., Awaitable[object]]] = {
        QUEUES.orders: system.submitter.handle,
        QUEUES.scheduler: system.scheduler.handle,
        STOCK: system.actors["stock"].handle,
    }
    receiver = Receiver(
        bus=system.bus,
        clock=system.clock,
        function_time=FUNCTION,
        external=system.context.external,
        report_mismatch=system.context.report_mismatch,
        incidents=system.context.incidents,
        run_on=system.context.run_on,
        dead_letters="dead-letters",
        reject=AsyncMock(),
    )
    arrival = delivery(message, count=count)
    return await system.run(receiver.receive(handlers[message.queue], arrival))


async def again(system: Kit, queue: str, seconds: float = 31) -> Message:
    """Return the message that was put back on a queue, once its time has come."""
    await system.later(seconds)
    message = system.bus.take(queue)
    assert message is not None
    return message


@pytest.mark.parametrize("forbids", [False, True], ids=["away", "without a right to send"])
async def test_an_application_hears_of_its_order_once_while_the_schedulers_queue_is_away(
    *, forbids: bool
) -> None:
    system = kit(duplicate_window=WINDOW)
    if forbids:
        system.bus.queues[QUEUES.scheduler].forbids = True
    else:
        break_queues(system, QUEUES.scheduler)
    message = Message(QUEUES.orders, "m-1", order())
    for _ in range(60):  # half an hour: longer than duplicate detection remembers
        await receive(system, message, count=2)
        message = await again(system, QUEUES.orders)
        assert message.properties[EXTERNAL_SENT] == "yes"
        assert system.notices() == ["received"]
    break_queues(system)
    system.bus.queues[QUEUES.scheduler].forbids = False
    await receive(system, message)
    assert system.notices() == ["received"]
    await system.drain()
    assert system.state() == "Processed"


@pytest.mark.parametrize("answer", ["reply", "callback", "command"])
async def test_an_answer_whose_next_request_cannot_be_sent_is_recorded_and_told_once(
    answer: str,
) -> None:
    system, callback = await awaiting(duplicate_window=WINDOW)
    break_queues(system, PAYMENT)
    match answer:
        case "reply":
            message = done()
        case "callback":
            message = called_back(callback.token)
        case _:
            message = command("callback", system.order().seq)
    for _ in range(25):  # longer than duplicate detection remembers
        await receive(system, message)
        assert system.states()[:2] == ["Processed", "Processing"]
        assert system.notices().count("step-completed") == 1
        message = await again(system, QUEUES.scheduler)
    break_queues(system)
    await receive(system, message)
    assert len(system.requests("payment")) == 1
    assert len(system.words()) == 4


async def test_while_the_table_is_away_an_order_is_put_back_and_not_rejected() -> None:
    system = kit()
    system.store.plan = lambda _what, _key: StoreFault.UNAVAILABLE
    message = Message(QUEUES.orders, "m-1", order())
    for times in range(1, 200):
        assert await receive(system, message) is None
        message = await again(system, QUEUES.orders)
        assert message.properties[TIMES] == str(times)
    system.store.plan = lambda _what, _key: None
    await receive(system, message)
    assert system.notices() == ["received"]
    assert (system.rejected(), system.alerts()) == ([], [])


async def test_a_full_response_queue_delays_the_rejection_of_an_order_and_nothing_else() -> None:
    system = kit()
    break_queues(system, SHOP)
    await receive(system, Message(QUEUES.orders, "m-1", order(workflow="unheard-of")))
    assert len(system.rejected()) == len(system.alerts()) == 1
    for _ in range(40):
        await system.later(31)
        await system.sweep()
    break_queues(system)
    await system.later(31)
    await system.sweep()
    assert system.notices() == ["rejected"]
    assert len(system.rejected()) == 1
    assert [alert.kind for alert in system.alerts()] == ["rejected", "undeliverable"]
    assert system.outs() == 0


async def requested(system: Kit) -> Message:
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    return message


async def test_a_request_whose_reply_cannot_be_sent_is_called_again_with_the_same_key() -> None:
    system = kit()
    message = await requested(system)
    system.context.run_on.handlers = {}
    break_queues(system, QUEUES.scheduler)
    assert await receive(system, message) is None
    copy = await again(system, STOCK, 2)
    assert copy.properties["sas_call_state"] == "goes-on"
    break_queues(system)
    await receive(system, copy)
    keys = [call.key for _, call in system.agents["stock"].calls]
    assert keys == ["O-1/reserve"] * 2
    await system.drain()
    assert system.state() == "Processed"


async def test_a_reply_that_may_not_be_sent_burns_no_delivery() -> None:
    """A right that a role assignment has not spread yet looks like one that never comes."""
    system = kit()
    message = await requested(system)
    queue = system.bus.queues.pop(QUEUES.scheduler)
    assert await receive(system, message, count=2) is None
    system.bus.queues[QUEUES.scheduler] = queue
    await receive(system, await again(system, STOCK, 2))
    await system.drain()
    assert system.state() == "Processed"


def long(message: Message, system: Kit, hours: float) -> Message:
    """Return a request whose step may take this long."""
    import msgspec  # noqa: PLC0415

    from sas.codec import internal  # noqa: PLC0415
    from sas.codec.internal import RequestMessage  # noqa: PLC0415

    request = internal.decode(message.body, RequestMessage)
    until = system.clock.now() + timedelta(hours=hours)
    body = msgspec.structs.replace(request, complete_by=until, time_allowed=hours * 3600)
    return replace(message, body=internal.encode(body), time_to_live=None)


async def test_a_call_that_outlasts_its_function_is_cut_off_and_made_again() -> None:
    system = kit()
    message = long(await requested(system), system, 1)

    async def hangs(_call: AgentCall) -> Any:
        await system.clock.sleep(3600)

    system.agents["stock"].then(hangs)
    start = system.clock.now()
    assert await receive(system, message) is None
    assert system.clock.now() - start == FUNCTION
    copy = await again(system, STOCK, 2)
    await receive(system, copy)
    assert [call.key for _, call in system.agents["stock"].calls] == ["O-1/reserve"] * 2
    assert system.words().count("step processed") == 1
    assert len(system.requests("payment")) == 1


async def test_retries_that_outlast_the_function_are_put_back() -> None:
    system = kit()
    message = long(await requested(system), system, 1)
    system.agents["stock"].then(*(TransientError("down") for _ in range(10_000)))
    start = system.clock.now()
    assert await receive(system, message) is None
    assert system.clock.now() - start <= FUNCTION
    assert len(system.bus.queues[STOCK].waiting) == 1


@pytest.mark.parametrize("behaviour", [StillRunning(timedelta(minutes=1)), {"a": 1}])
async def test_no_answer_of_an_agent_is_lost_while_the_replies_queue_is_away(
    behaviour: Any,
) -> None:
    system = kit()
    message = await requested(system)
    system.agents["stock"].then(behaviour, behaviour)
    break_queues(system, QUEUES.scheduler)
    await receive(system, message, count=2)
    assert any(entry.message.properties.get(TIMES) for entry in system.bus.queues[STOCK].waiting)


async def test_an_application_that_sets_our_properties_changes_nothing_but_its_own_order() -> None:
    """A sender can set any property of its message, also those of a message that was put back."""
    system = kit(duplicate_window=WINDOW)
    forged = {
        **dict.fromkeys((EXTERNAL_SENT, "sas_call_state", "sas_first_id", "sas_left_since"), "yes"),
        TIMES: "7",
        "sas_dead_letter_source": QUEUES.scheduler,
        "sas_first_at": "yesterday",
    }
    await receive(system, Message(QUEUES.orders, "m-1", order(), properties=forged))
    assert system.notices() == ["received"]
    await system.drain()
    assert system.state() == "Processed"
    assert (system.rejected(), system.alerts()) == ([], [])


async def test_a_request_that_comes_late_asks_for_time_though_its_time_has_no_zone() -> None:
    """azure-functions gives the enqueued time in UTC, without a time zone."""
    system = kit()
    message = await requested(system)
    local_time = system.clock.now().replace(tzinfo=None)
    await system.later(40)
    receiver = Receiver(
        bus=system.bus,
        clock=system.clock,
        function_time=FUNCTION,
        external=system.context.external,
        report_mismatch=system.context.report_mismatch,
        incidents=system.context.incidents,
        run_on=system.context.run_on,
        dead_letters="dead-letters",
        reject=AsyncMock(),
    )
    arrival = delivery(message, enqueued_at=local_time)
    await system.run(receiver.receive(system.actors["stock"].handle, arrival))
    assert len(system.bus.messages(QUEUES.scheduler)) == 1
    assert system.agents["stock"].calls == []


@pytest.mark.parametrize("outage", ["callbacks", "table"])
async def test_a_callback_that_came_in_time_counts_however_long_an_outage_delays_it(
    outage: str,
) -> None:
    system, callback = await awaiting(HOLDING)
    await system.later(3600 - 60)  # a minute before its token expires
    if outage == "callbacks":
        system.bus.cut(QUEUES.scheduler)
        assert (await post(system, callback.token)).status == 202
    else:  # the message waits in its queue, because no function can handle it
        await system.bus.send([called_back(callback.token)])
        system.store.partitions_away = system.store.partitions
    await system.later(300)
    system.bus.mend(QUEUES.scheduler)
    system.store.partitions_away = frozenset()
    await system.sweep()
    await system.later(31)
    await system.sweep()
    await system.drain()
    assert system.rejected() == []
    assert system.state() == "Processed"
