"""Each function on its own, through the real SDKs: what it takes, writes and sends."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage

from devstack.servicebus import EntityStatus
from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.actors.dead_letters import DeadLetters
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.engine.delivery import Delivery
from tests.functions_rig import (
    SHOP,
    WHOLESALE,
    WORKED,
    Rig,
    body_of,
    northwind,
    order,
    rig,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def test_an_order_walks_from_function_to_function(
    system: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It meets its submission and its agents. The scheduler's work runs on within them."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="sas")
    async with system.host("submission"):
        await system.submit("W-1")
        await system.holds("agent-inventory", 1)
        await system.holds(SHOP, 1)
        await system.quiet_queue("orders")
    assert await system.words("W-1") == ["submitted", "claimed"]
    assert await system.kinds("W-1") == ["received"]
    await first_step_is_claimed(system, "W-1")

    async with system.host("agent_inventory"):
        await system.holds("agent-payment", 1)
        await system.quiet_queue("agent-inventory")
    (effect,) = system.remote.ledger("stock")["effects"]
    assert (effect["order_id"], effect["key"]) == ("W-1", "W-1/reserve-stock")
    assert (await system.order("W-1")).steps[0].process_state.value == "Processed"
    assert await system.kinds("W-1") == ["received"]

    async with system.host("agent_payment", "agent_shipping"):
        assert await system.ends("W-1", "Processed") == "Processed"
        await system.quiet()  # no function of the scheduler's queue listens
    await is_completed(system, "W-1")
    has_no_key_and_no_content(system, caplog)


async def test_an_order_whose_messages_are_redelivered_walks_through_every_queue(
    system: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Its wake and its reply travel. The functions of their queues handle them."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="sas")
    await system.submit("W-2")
    await system.abandon("orders")
    async with system.host("submission"):
        await system.holds("scheduler", 1)
        await system.quiet_queue("orders")
    assert await system.words("W-2") == ["submitted"]
    assert await system.kinds("W-2") == ["received"]

    async with system.host("scheduler"):
        await system.holds("agent-inventory", 1)
        await system.quiet_queue("scheduler")
    await first_step_is_claimed(system, "W-2")

    await system.abandon("agent-inventory")
    async with system.host("agent_inventory"):
        await system.holds("scheduler", 1)
        await system.quiet_queue("agent-inventory")
    (effect,) = [e for e in system.remote.ledger("stock")["effects"] if e["order_id"] == "W-2"]
    assert effect["key"] == "W-2/reserve-stock"
    assert (await system.order("W-2")).steps[0].process_state.value == "Processing"

    async with system.host("scheduler"):
        await system.holds("agent-payment", 1)
        await system.quiet_queue("scheduler")
    assert (await system.order("W-2")).steps[0].process_state.value == "Processed"
    assert await system.kinds("W-2") == ["received"]

    async with system.host(
        "agent_payment", "agent_shipping", "scheduler", "submission", "deadletters"
    ):
        assert await system.ends("W-2", "Processed") == "Processed"
        await system.quiet()
    await is_completed(system, "W-2")
    has_no_key_and_no_content(system, caplog)


async def first_step_is_claimed(system: Rig, order_id: str) -> None:
    walked = await system.order(order_id)
    states = [step.process_state.value for step in walked.steps]
    assert states == ["Processing", "Pending", "Pending"]
    assert str(walked.locked_by).startswith("rig:")


async def is_completed(system: Rig, order_id: str) -> None:
    assert await system.kinds(order_id) == ["received", "completed"]
    assert await system.rejected() == []
    assert await system.alerts() == []


def has_no_key_and_no_content(system: Rig, caplog: pytest.LogCaptureFixture) -> None:
    parts = system.azurite.connection_string.split(";")
    key = max((part.partition("=")[2] for part in parts), key=len)
    address = northwind()["ship_to"]["address"]
    assert caplog.records
    for record in caplog.records:
        assert key not in record.getMessage()
        assert address not in record.getMessage()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def given_up(system: Rig) -> Rig:
    """Messages dead-lettered from every kind of queue, then only the dead letters' function.

    D-1: an order before its commit, and its slow handler afterwards. D-2: an order after its
    commit, its wake never sent. D-3: a wake. D-4: a notification that expired. The orders D-2 and
    D-3 are delivered twice, so their wakes travel.
    """
    await system.submit("D-3")
    await system.abandon("orders")
    async with system.host("submission"):
        await system.holds("scheduler", 1)
        await system.submit("D-4", reply_queue=WHOLESALE)
        await system.holds(WHOLESALE, 1)
        await system.quiet_queue("orders")
    system.broker.update_queue("scheduler", status=EntityStatus.DISABLED)
    await system.send("orders", ServiceBusMessage(order("D-2"), message_id="d-2"))
    await system.abandon("orders")
    async with system.host("submission"):
        await until(lambda: _exists(system, "D-2"), "the order is written")
    system.broker.update_queue("scheduler", status=EntityStatus.ACTIVE)
    system.broker.expire_locks("orders")
    await system.give_up("orders", reason="MaxDeliveryCountExceeded")
    await system.send("orders", ServiceBusMessage(order("D-1"), message_id="d-1"))
    await system.give_up("orders", reason="TooHard", error_description="five times")
    await system.give_up("scheduler", reason="MaxDeliveryCountExceeded")
    await system.give_up(WHOLESALE, reason="TTLExpiredException")
    async with system.host("submission", "deadletters"):
        await system.quiet_queue("dead-letters")
        await system.send("orders", ServiceBusMessage(order("D-1"), message_id="d-1"))
        await system.quiet_queue("orders")
    return system


async def test_an_order_dead_lettered_before_its_commit_is_rejected_and_notified(
    given_up: Rig,
) -> None:
    assert await given_up.state("D-1") == "Rejected"
    (rejected,) = [rejected for rejected in await given_up.rejected() if rejected.order_id == "D-1"]
    assert rejected.reason == "dead-lettered"
    assert rejected.source_queue == "orders"
    assert "TooHard: five times" in rejected.description
    assert rejected.body.encode() == order("D-1")
    (alert,) = [alert for alert in await given_up.alerts() if alert.kind == "rejected"]
    assert "such as “D-1”" in alert.text


async def test_a_slow_handler_of_an_order_given_up_does_not_write_it(given_up: Rig) -> None:
    assert await given_up.words("D-1") == ["rejected"]
    assert await given_up.kinds("D-1") == ["rejected"]


async def test_an_order_dead_lettered_after_its_commit_is_finished(given_up: Rig) -> None:
    assert await given_up.words("D-2") == ["submitted"]
    assert await given_up.kinds("D-2") == ["received"]
    assert [rejected for rejected in await given_up.rejected() if rejected.order_id == "D-2"] == []
    assert await given_up.alerts("D-2") == []


async def test_a_wake_given_up_is_fenced_and_alerted(given_up: Rig) -> None:
    assert await given_up.words("D-3") == ["submitted", "fenced"]
    assert [alert.kind for alert in await given_up.alerts("D-3")] == ["dead-lettered"]
    (rejected,) = [rejected for rejected in await given_up.rejected() if rejected.order_id == "D-3"]
    assert rejected.source_queue == "scheduler"


async def test_an_expired_notification_is_counted_and_not_kept(given_up: Rig) -> None:
    assert WHOLESALE not in {rejected.source_queue for rejected in await given_up.rejected()}
    (alert,) = [alert for alert in await given_up.alerts() if alert.kind == "undeliverable"]
    assert alert.scope == f"queue {WHOLESALE}"
    assert "Notifications given up so far: 1, of orders such as “D-4”." in alert.text


async def test_orders_whose_messages_were_given_up_come_to_an_end(given_up: Rig) -> None:
    command = CommandMessage(id="w-d3", order_id="D-3", verb="undo", seq=2, by="ann")
    async with given_up.host():
        message = ServiceBusMessage(internal.encode(command), message_id="w-d3")
        await given_up.send("scheduler", message)
        await given_up.submit("D-1")  # once more
        await given_up.ends("D-1", "Processed")
        await given_up.ends("D-2", "Processed")
        await given_up.ends("D-3", "Compensated")
        await given_up.ends("D-4", "Processed")
        await given_up.quiet()
    assert (await given_up.kinds("D-1"))[:2] == ["rejected", "received"]
    assert await given_up.kinds("D-3") == ["received", "undone"]


async def test_an_expired_rejected_message_stays_as_it_was(system: Rig) -> None:
    async with system.host("submission", "deadletters"):
        await system.send("orders", ServiceBusMessage(b"{", message_id="d-5"))
        await system.holds("orders-rejected", 1)
        first = body_of(await system.give_up("orders-rejected", reason="TTLExpiredException"))
        await system.holds("orders-rejected", 1)
        second = body_of(await system.give_up("orders-rejected", reason="TTLExpiredException"))
        await system.holds("orders-rejected", 1)
        await system.quiet()
    third = body_of((await system.receive("orders-rejected"))[-1])
    assert first == second == third
    assert json.loads(third)["body"] == "{"
    await system.receive("operator-alerts")


async def test_poison_in_an_internal_queue_is_put_aside_with_an_alert(system: Rig) -> None:
    queues = {queue for queue in WORKED if not queue.startswith(("orders", "dead-letters"))}
    poison = [b"", b"\xff", b"{}", b'{"kind":"wake","id":"1","order_id":"a/b"}']
    before = (len(await system.rejected()), len(await system.alerts()))
    async with system.host():
        for queue in queues:
            for number, body in enumerate(poison):
                own_id = f"poison {number} of {queue}"
                await system.send(queue, ServiceBusMessage(body, message_id=own_id))
        await system.quiet()
    rejected = (await system.rejected())[before[0] :]
    expected = ["", "/w==", "{}", '{"kind":"wake","id":"1","order_id":"a/b"}']
    pairs = sorted((message.source_queue, message.body) for message in rejected)
    assert pairs == sorted((queue, body) for queue in queues for body in expected)
    alerts = (await system.alerts())[before[1] :]
    assert len(alerts) == len(rejected)
    assert {alert.kind for alert in alerts} == {"rejected"}


async def test_what_dead_letters_gave_up_is_handled_with_its_source_once_its_cause_is_gone(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = "dead-letters/$DeadLetterQueue"
    await system.receive("operator-alerts")
    await system.send("orders", ServiceBusMessage(order("D-6"), message_id="d-6"))
    await system.give_up("orders", reason="TooHard")
    await system.give_up("dead-letters", reason="TooHard")  # as if it had killed its process
    attempts = 0
    handle = DeadLetters._handle

    async def with_a_bug(self: DeadLetters, delivery: Delivery) -> None:
        nonlocal attempts
        attempts += 1
        assert delivery.queue == "dead-letters"
        if attempts == 1:
            raise RuntimeError("a bug that a new deploy removes")
        await handle(self, delivery)

    monkeypatch.setattr(DeadLetters, "_handle", with_a_bug)

    async with system.host("deadletters", "deadletters_end"):
        await until(lambda: _empty(system, end), "an empty subqueue")
        await system.quiet_queue("dead-letters")
    rejected = [message for message in await system.rejected() if message.order_id == "D-6"]
    assert [(message.reason, message.source_queue) for message in rejected] == [
        ("dead-lettered", "orders")
    ]
    assert await system.kinds("D-6") == ["rejected"]


async def _empty(system: Rig, path: str) -> bool:
    return not system.broker.namespace.find(path).messages


async def _exists(system: Rig, order_id: str) -> bool:
    return await system.state(order_id) is not None
