"""While a deploy goes on, an older instance leaves a newer workflow's orders to newer instances."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn
from unittest.mock import AsyncMock

import pytest

from sas.actors.supervisor import LEASE_TIME
from sas.bootstrap import Application, assemble
from sas.codec import internal
from sas.codec.internal import WakeMessage
from sas.domain.change import OtherDue
from sas.domain.expire import DEPLOY_TIME
from sas.domain.workflow import NO_TIME, Workflow, Workflows
from sas.engine.delivery import DEPLOY_WAIT, LEFT_SINCE, Delivery
from sas.engine.receiver import DELAY_MAX_S, Receiver, delay_s
from sas.engine.transition import ApplyResult
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import (
    FORMAT,
    Message,
    OtherVersionError,
    StoreMismatchError,
    StoreUnavailableError,
)
from sas.testing.settings import settings
from tests.unit.actors_kit import (
    CARE,
    CHAIN,
    KEYS,
    QUEUES,
    Kit,
    command,
    delivery,
    done,
    kit,
    letter,
    order,
)

NEWER = replace(CHAIN, version=2)


def sides(deploy_wait: timedelta = NO_TIME) -> tuple[Kit, Kit]:
    """Return an older instance, and a newer one with one more version of a workflow."""
    newer = kit(CHAIN, NEWER, CARE, instance="newer")
    return kit(CHAIN, CARE, instance="older", beside=newer, deploy_wait=deploy_wait), newer


async def receive(system: Kit, message: Message) -> object:
    """Hand a message over as the Functions host does: through the receiver."""
    arrival = delivery(message)
    return await receive_as(system, message.queue, arrival)


async def receive_as(system: Kit, queue: str, arrival: Delivery) -> object:
    handlers: dict[str, Callable[[Delivery], Awaitable[object]]] = {
        QUEUES.orders: system.submitter.handle,
        QUEUES.scheduler: system.scheduler.handle,
        QUEUES.agent("stock"): system.actors["stock"].handle,
        QUEUES.dead_letters: system.dead_letters.handle,
    }
    receiver = Receiver(
        bus=system.bus,
        clock=system.clock,
        function_time=timedelta(minutes=9),
        external=system.context.external,
        report_mismatch=system.context.report_mismatch,
        incidents=system.context.incidents,
        run_on=system.context.run_on,
        dead_letters="dead-letters",
        reject=AsyncMock(),
    )
    return await system.run(receiver.receive(handlers[queue], arrival))


async def comes_again(system: Kit, queue: str, seconds: float = 1.0) -> Message:
    await system.later(seconds)
    message = system.bus.take(queue)
    assert message is not None
    return message


async def test_a_wake_and_a_reply_that_an_older_instance_takes_come_again_after_a_second() -> None:
    older, newer = sides()
    await newer.submit(order(workflow_version=2))
    wake = newer.bus.take(QUEUES.scheduler)
    assert wake is not None
    assert await receive(older, wake) is None
    assert newer.states() == ["Pending", "Pending"]
    await receive(newer, await comes_again(newer, QUEUES.scheduler))
    assert newer.states()[0] == "Processing"
    assert await receive(older, done()) is None
    await receive(newer, await comes_again(newer, QUEUES.scheduler))
    assert newer.states()[0] == "Processed"
    await newer.drain()
    assert newer.state() == "Processed"
    assert newer.alerts() == []
    assert newer.rejected() == []


NEWER_BODY = json.dumps({"format": FORMAT + 1, "kind": "greeting", "newly": {}}).encode()
INTERNAL = (QUEUES.scheduler, QUEUES.agent("stock"))


@pytest.mark.parametrize("dead", [False, True], ids=["", "dead letter"])
@pytest.mark.parametrize("queue", INTERNAL)
async def test_a_message_of_a_newer_format_is_put_back_by_its_actor(queue: str, dead: bool) -> None:
    system = kit(CHAIN, CARE)
    message = Message(queue, "m-1", NEWER_BODY)
    source = QUEUES.dead_letters if dead else queue
    for _ in range(12):
        assert (
            await receive_as(system, source, letter(message) if dead else delivery(message)) is None
        )
        copy = await comes_again(system, source, DELAY_MAX_S)
        assert copy.body == NEWER_BODY
    assert (system.rejected(), system.alerts(), system.store.orders) == ([], [], {})


async def test_an_order_of_a_newer_format_is_left_alone_and_reported_if_that_lasts() -> None:
    system = kit(CHAIN, CARE, duplicate_window=timedelta(minutes=10))
    await system.submit(order())
    await system.step(QUEUES.scheduler)
    before = system.order()
    system.store.formats["O-1"] = FORMAT + 1
    system.context.kept_orders.forget("O-1")
    assert await receive(system, done()) is None
    await system.later(31)
    report = await system.run(system.supervisor.sweep())
    assert (report.done, report.failed, report.left_to_others, system.alerts()) == ({}, 0, 1, [])
    for _ in range(20):
        await system.later(61)
        await system.sweep()
    assert system.order() == before
    assert {(alert.kind, alert.scope) for alert in system.alerts()} == {
        ("not-runnable", "newer format")
    }
    assert "deploy it again" in system.alerts()[0].text
    del system.store.formats["O-1"]
    await receive(system, await comes_again(system, QUEUES.scheduler))
    assert system.states()[0] == "Processed"


@pytest.mark.parametrize(("number", "left_count"), [(FORMAT, 0), (FORMAT + 1, 1)])
async def test_a_due_row_of_an_unknown_kind_is_left_with_its_order_or_is_broken(
    number: int, left_count: int
) -> None:
    system = kit(CHAIN, CARE)
    await system.submit(order())
    system.store.formats["O-1"] = number
    for kind in ("newly", "newest"):
        row = OtherDue(system.clock.now(), "O-1", f"due|{kind}|O-1")
        system.store._due[system.store.shards[0]][kind] = row
    report = await system.run(system.supervisor.sweep())
    assert (report.left_to_others, report.failed) == (2 * left_count, 2 - 2 * left_count)
    assert [alert.kind for alert in system.alerts()] == ["unreadable"] * (1 - left_count)


@pytest.mark.parametrize("end", ["Processed", "Compensated", "Rejected"])
async def test_late_messages_of_an_order_that_is_over_need_no_workflow(end: str) -> None:
    older, newer = sides()
    submission = order(workflow_version=2)
    if end == "Rejected":
        await newer.run(newer.dead_letters.handle(letter(submission, QUEUES.orders)))
    else:
        await newer.submit(submission)
    await newer.drain()
    if end == "Compensated":
        await newer.hand(command("undo", newer.order().seq))
        await newer.drain()
    assert newer.state() == end
    wake = internal.encode(WakeMessage(id="O-1/9/wake", order_id="O-1", seq=9))
    for late in (Message(QUEUES.scheduler, "w-9", wake), done(epoch=9)):
        assert await receive(older, late) is ApplyResult.NOTHING
    assert newer.bus.messages(QUEUES.scheduler) == []


def test_what_waits_for_a_deploy_comes_again_soon_after_it() -> None:
    longest = OtherVersionError("").delay_max_s
    assert delay_s(0, longest) <= 1.0
    assert delay_s(12, longest) <= DELAY_MAX_S


async def test_an_order_of_a_newer_version_is_left_to_a_newer_instance() -> None:
    older, newer = sides(deploy_wait=DEPLOY_WAIT)
    body = order(workflow_version=2)
    assert await receive(older, Message(QUEUES.orders, "m-1", body)) is None
    assert newer.store.orders == {}
    await receive(newer, await comes_again(newer, QUEUES.orders))
    assert newer.order().details.version == 2
    assert newer.notices() == ["received"]
    assert newer.rejected() == []


async def test_an_order_of_a_workflow_that_nobody_has_is_rejected_after_about_a_minute() -> None:
    older, _ = sides(deploy_wait=DEPLOY_WAIT)
    start = older.clock.now()
    await receive(older, Message(QUEUES.orders, "m-1", order(workflow="nothing")))
    for _ in range(200):
        assert older.alerts() == []
        await older.later(0.5)
        for message in older.taken(QUEUES.orders):
            await receive(older, message)
        if older.rejected():
            break
    waited = older.clock.now() - start
    assert DEPLOY_WAIT <= waited <= DEPLOY_WAIT + timedelta(seconds=12)
    (rejection,) = older.rejected()
    assert (rejection.reason, rejection.message_id) == ("unknown-workflow", "m-1")
    assert older.notices() == ["rejected"]


@pytest.mark.parametrize("since", ["tomorrow", "2999-01-01T00:00:00.000000Z", ""])
async def test_a_sender_cannot_make_its_order_wait_for_ever(since: str) -> None:
    older, _ = sides(deploy_wait=DEPLOY_WAIT)
    message = Message(
        QUEUES.orders, "m-1", order(workflow="nothing"), properties={LEFT_SINCE: since}
    )
    for _ in range(100):
        if await receive(older, message) is None and older.rejected():
            break
        message = await comes_again(older, QUEUES.orders, 20)
    assert [rejection.reason for rejection in older.rejected()] == ["unknown-workflow"]


async def test_a_command_is_left_to_a_newer_instance_and_refused_if_there_is_none() -> None:
    older, newer = sides(deploy_wait=DEPLOY_WAIT)
    await newer.submit(order(workflow_version=2))
    seq = newer.order().seq
    assert await receive(older, command("cancel", seq)) is None
    again = await comes_again(newer, QUEUES.scheduler)
    if again.message_id.startswith("O-1"):  # the order's wake
        again = await comes_again(newer, QUEUES.scheduler)
    await receive(newer, again)
    assert newer.words()[-1] == "cancelled"
    await older.later(DEPLOY_WAIT.total_seconds())
    late_command = command("cancel", newer.order().seq, "w-2")
    assert await receive(older, late_command) is None
    for _ in range(20):
        await older.later(12)
        for message in older.taken(QUEUES.scheduler):
            await receive(older, message)
    refused = [alert for alert in older.alerts() if alert.kind == "command-refused"]
    assert "deploy it again as it was" in refused[0].text


async def test_an_agent_calls_nothing_for_a_workflow_that_its_instance_lacks() -> None:
    newer = kit(CHAIN, replace(CHAIN, name="another"), CARE, instance="newer")
    older = kit(CHAIN, CARE, instance="older", beside=newer)
    await newer.submit(order(workflow="another"))
    await newer.step(QUEUES.scheduler)
    request = newer.bus.take(QUEUES.agent("stock"))
    assert request is not None
    assert await receive(older, request) is None
    assert newer.agents["stock"].calls == []
    await newer.later(1)
    await newer.drain()
    assert newer.state() == "Processed"


def redeployed(system: Kit, *workflows: Workflow) -> Application:
    """Return what a start with these workflows makes over the same table and bus."""
    business = replace(system.business, workflows=Workflows(workflows))
    config = settings("redeployed", circuit=BreakerPolicy(failures_max=0), callback_keys=KEYS)
    return assemble(
        system.store, system.bus, clock=system.clock, business=business, settings=config
    )


async def test_a_workflow_redefined_under_its_version_puts_messages_back_with_one_alert() -> None:
    system = kit(duplicate_window=timedelta(minutes=10))
    original = redeployed(system, CHAIN, CARE)
    order_message = Message(QUEUES.orders, "m-1", order())
    arrival = delivery(order_message, count=2)  # a redelivery does not run on: its wake travels
    await system.run(original.receiver.receive(original.submitter.handle, arrival))
    wake = system.bus.take(QUEUES.scheduler)
    assert wake is not None
    redefined = redeployed(system, replace(CHAIN, steps=CHAIN.steps[:1]), CARE)
    for _ in range(40):
        assert (
            await system.run(redefined.receiver.receive(redefined.scheduler.handle, delivery(wake)))
            is None
        )
        await system.run(redefined.supervisor.sweep())
        wake = await comes_again(system, QUEUES.scheduler, DELAY_MAX_S)
    (alert, later) = system.alerts()
    assert (alert.kind, alert.scope) == ("not-runnable", "workflow chain 1")
    assert "give the new definition a version of its own" in alert.text
    assert (later.scope, later.id) == (alert.scope, alert.id[:-1] + "2")
    await system.run(original.receiver.receive(original.scheduler.handle, delivery(wake)))
    await system.drain()
    assert system.state() == "Processed"
    assert system.rejected() == []


async def test_a_wrong_number_of_shards_puts_messages_back_with_one_alert_a_day() -> None:
    system = kit(duplicate_window=timedelta(days=7))
    app = redeployed(system, CHAIN, CARE)
    begin = system.store._begin

    async def refuse(*_args: object) -> NoReturn:
        raise StoreMismatchError("the table was created with 16 shards", "number of shards")

    system.store._begin = refuse  # type: ignore[method-assign,assignment]
    message = Message(QUEUES.orders, "m-1", order())
    for _ in range(40):
        assert (
            await system.run(app.receiver.receive(app.submitter.handle, delivery(message))) is None
        )
        with pytest.raises(StoreUnavailableError):
            await system.run(app.supervisor.sweep())
        message = await comes_again(system, QUEUES.orders, DELAY_MAX_S)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("not-runnable", "number of shards")
    assert "put back" in alert.text
    await system.later(timedelta(days=1).total_seconds())
    await system.run(app.receiver.receive(app.submitter.handle, delivery(message)))
    message = await comes_again(system, QUEUES.orders, DELAY_MAX_S)
    assert [alert.kind for alert in system.alerts()] == ["not-runnable"] * 2
    system.store._begin = begin  # type: ignore[method-assign]
    await system.run(app.receiver.receive(app.submitter.handle, delivery(message)))
    await system.drain()
    assert system.state() == "Processed"


async def test_a_queue_that_is_not_created_yet_puts_messages_back_and_is_reported_once() -> None:
    system = kit(duplicate_window=timedelta(days=7))
    app = redeployed(system, CHAIN, CARE)
    queue = system.bus.queues.pop(QUEUES.agent("stock"))
    await system.submit(order())
    wake = system.bus.take(QUEUES.scheduler)
    assert wake is not None
    for _ in range(20):
        assert await system.run(app.receiver.receive(app.scheduler.handle, delivery(wake))) is None
        await system.run(app.supervisor.sweep())
        wake = await comes_again(system, QUEUES.scheduler, DELAY_MAX_S)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("queue-delay", f"queue {queue.name}")
    assert "put back" in alert.text
    assert [step.failure_count for step in system.order().steps] == [0, 0]
    system.bus.queues[queue.name] = queue
    await system.run(app.receiver.receive(app.scheduler.handle, delivery(wake)))
    await system.drain()
    assert system.state() == "Processed"
    assert system.rejected() == []


async def expired() -> tuple[Kit, Kit]:
    """Return both sides; a step of a newer version has passed its CompleteBy."""
    older, newer = sides()
    await newer.submit(order(workflow_version=2))
    await newer.step(QUEUES.scheduler)
    newer.bus.take(QUEUES.agent("stock"))
    await newer.later(31)
    return older, newer


async def test_a_supervisor_leaves_a_due_row_to_a_newer_instance() -> None:
    older, newer = await expired()
    before = newer.order()
    report = await older.run(older.supervisor.sweep())
    assert (report.done, report.failed, report.left_to_others) == ({}, 0, 1)
    assert newer.order() == before
    await newer.later(LEASE_TIME.total_seconds())
    assert await newer.sweep() == {"step reset": 1}
    assert newer.alerts() == []


async def test_a_lone_supervisor_that_left_a_due_row_sweeps_at_every_firing() -> None:
    older, _ = await expired()
    leads = []
    for _ in range(4):
        leads.append((await older.run(older.supervisor.sweep())).led)
        await older.later(10)
    assert leads == [True] * 4


async def test_a_version_that_is_missing_for_longer_than_a_deploy_takes_is_an_incident() -> None:
    older, newer = await expired()
    looked = 0
    load = newer.store.load
    waited = timedelta()

    async def counted(order_id: str) -> object:
        nonlocal looked
        looked += 1
        return await load(order_id)

    newer.store.load = counted  # type: ignore[method-assign,assignment]
    for _ in range(99):
        await older.sweep()
        await older.later(10)
        waited += timedelta(seconds=10)
        if newer.alerts():
            break
    assert DEPLOY_TIME <= waited <= 2 * DEPLOY_TIME
    assert [alert.kind for alert in newer.alerts()] == ["not-runnable"]
    assert newer.words()[-1] == "postponed"
    assert looked <= 12, "the pauses grow"
