"""Bad input on the real ``orders`` queue: kept whole, its sender notified, an alert, nothing lost.

All of it is sent first, together with a good order; then each is looked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.codec.external import (
    KEPT_BYTES_MAX,
    AlertMessage,
    Notification,
    RejectedMessage,
    rejected_body,
)
from sas.config import Config, read_config
from tests.functions_rig import SHOP, Rig, northwind, order, rig, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """One bad message: its body, the reason of its rejection, whether its sender is notified."""

    body: bytes
    reason: str
    is_notified: bool = False
    says: str = ""
    order_id: str | None = None


def notified(order_id: str, reason: str, says: str = "", **changes: Any) -> Bad:
    return Bad(
        body=order(order_id, **changes),
        reason=reason,
        is_notified=True,
        says=says,
        order_id=order_id,
    )


def with_text(order_id: str, old: bytes, new: bytes) -> bytes:
    body = order(order_id)
    assert old in body
    return body.replace(old, new)


def price(order_id: str, value: Any) -> bytes:
    content = json.loads(json.dumps(northwind()))
    content["lines"][0]["unit_price"] = value
    return order(order_id, order=content)


DEEP = b"[" * 33 + b"]" * 33
BAD: dict[str, Bad] = {
    "no bytes at all": Bad(body=b"", reason="not-json"),
    "not JSON": Bad(body=b"order 7, please", reason="not-json"),
    "two documents": Bad(body=order("B-two") * 2, reason="not-json"),
    "UTF-16": Bad(body=order("B-utf16").decode().encode("utf-16"), reason="not-utf-8"),
    "a list of orders": Bad(body=b"[" + order("B-list") + b"]", reason="invalid"),
    "an order_id that is a number": Bad(
        body=order("x", order_id=7), reason="invalid", is_notified=True
    ),
    "an order that is a list": notified("B-wrong-order", "invalid", "order", order=[1]),
    "an unknown member": notified("B-unknown", "invalid", "colour", colour="red"),
    "a member of Service Bus metadata": notified("B-meta", "invalid", "MessageId", MessageId="m"),
    "an unknown member of the order": notified(
        "B-inner", "invalid-order", "gift", order={**northwind(), "gift": True}
    ),
    "no order_id": Bad(
        body=order("x", order_id=None), reason="invalid", is_notified=True, says="order_id"
    ),
    "an order_id with a slash": notified("B/1", "invalid-order-id", "'/'"),
    "an order_id with a line feed": notified("B\n1", "invalid-order-id", correlation_id="c"),
    "an order_id with half a character": Bad(
        body=with_text("B-half-character", b"B-half-character", b"B\\ud800"),
        reason="not-unicode",
        is_notified=True,
    ),
    "an order_id of 10,000 characters": Bad(
        body=order("B" * 10_000, correlation_id="c"), reason="invalid-order-id", is_notified=True
    ),
    "an unknown workflow": notified("B-flow", "unknown-workflow", "'nothing'", workflow="nothing"),
    "an unknown version": notified("B-99", "unknown-workflow", "99", workflow_version=99),
    "300 KB": notified("B-300", "too-large", "258,048", order={"text": "x" * 300_000}),
    "one byte too many": Bad(
        body=order(
            "B-byte", order={"t": "x" * (258_048 - len(order("B-byte", order={"t": ""})) + 1)}
        ),
        reason="too-large",
        is_notified=True,
    ),
    "nesting 100,000 deep": Bad(body=b"[" * 100_000, reason="too-deep"),
    "NaN": Bad(
        body=order("B-nan").replace(b'"freight": 32.38', b'"freight": NaN'),
        reason="not-finite",
        is_notified=True,
    ),
    "NaN as a text": Bad(body=price("B-nan-text", "NaN"), reason="invalid-order", is_notified=True),
    "a key twice": Bad(
        body=with_text("B-twice", b'"order": {', b'"order_id": "other", "order": {'),
        reason="duplicate-key",
        is_notified=True,
        says="order_id",
    ),
    "an internal reply queue": Bad(
        body=order("B-aim", reply_queue="scheduler"),
        reason="forbidden-reply-queue",
        says="responses-",
    ),
    "a reply queue with a path": Bad(
        body=order("B-path", reply_queue="responses-web-shop/$deadletterqueue"),
        reason="forbidden-reply-queue",
    ),
    "no reply queue": Bad(
        body=order("B-silent", reply_queue=None), reason="invalid", says="reply_queue"
    ),
    "a reply queue that does not exist, and an unknown workflow": Bad(
        body=order("B-nobody", reply_queue="responses-nobody", workflow="nothing"),
        reason="unknown-workflow",
    ),
    "an internal message": Bad(
        body=b'{"kind":"wake","format":1,"id":"1","order_id":"B-wake"}', reason="invalid"
    ),
}


@dataclass(kw_only=True)
class Outcome:
    """Where everything had gone when the queues were quiet again."""

    rig: Rig
    rejected: list[RejectedMessage]
    alerts: list[AlertMessage]
    notifications: list[Notification]

    def of(self, name: str) -> list[RejectedMessage]:
        return [each for each in self.rejected if each.message_id == message_id(name)]


def message_id(name: str) -> str:
    return f"bad: {name}"[:128]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcome() -> AsyncIterator[Outcome]:
    def impatient() -> Config:
        return replace(read_config(), deploy_wait=timedelta(seconds=1))

    async with rig() as system:
        system.broker.update_queue("orders", max_message_kilobytes=1024)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sas.bootstrap.read_config", impatient)
            async with system.host():
                await _send_all(system)
        events = [await system.notifications(bad.order_id or "") for bad in BAD.values()]
        everything = [e for some in events for e in some] + await system.notifications("GOOD")
        yield Outcome(
            rig=system,
            rejected=await system.rejected(),
            alerts=await system.alerts(),
            notifications=everything,
        )


async def _send_all(system: Rig) -> None:
    for name, bad in BAD.items():
        await system.send("orders", ServiceBusMessage(bad.body, message_id=message_id(name)))
    await system.submit("GOOD")
    await system.submit("NOBODY", reply_queue="responses-nobody")
    await system.ends("GOOD", "Processed")
    await system.ends("NOBODY", "Processed")
    await until(lambda: _all_rejected(system), "all bad input rejected")
    await system.quiet()


async def _all_rejected(system: Rig) -> bool:
    return {message_id(name) for name in BAD} <= {
        rejected.message_id for rejected in await system.rejected()
    }


async def test_bad_input_is_kept_with_reason_and_description(outcome: Outcome) -> None:
    for name, bad in BAD.items():
        (rejected,) = outcome.of(name)
        assert rejected.reason == bad.reason, name
        assert rejected.description
        assert rejected.source_queue == "orders"
        assert bad.says in rejected.description, name
        start = rejected_body([rejected])
        assert bad.body.startswith(start), name
        if len(bad.body) > KEPT_BYTES_MAX:
            assert len(start) > KEPT_BYTES_MAX - 4
            digest = hashlib.sha256(bad.body).hexdigest()
            assert (rejected.size, rejected.sha256) == (len(bad.body), digest), name
        else:
            assert start == bad.body, name


async def test_bad_input_of_one_reason_raises_one_alert(outcome: Outcome) -> None:
    scopes = [alert.scope for alert in outcome.alerts if alert.kind == "rejected"]
    assert sorted(map(str, scopes)) == sorted(
        {f"queue orders, reason {bad.reason}" for bad in BAD.values()}
    )


async def test_the_application_is_notified_if_the_message_names_its_queue(
    outcome: Outcome,
) -> None:
    messages = await outcome.rig.receive(SHOP)
    for name, bad in BAD.items():
        rejected = outcome.of(name)[0]
        notification_id = rejected.id.rpartition("/")[0] + "/notification"
        events = [json.loads(b"".join(m.body)) for m in messages if m.message_id == notification_id]
        assert len(events) == bad.is_notified, name
        for event in events:
            assert event["type"] == "sas.order.rejected.v1"
            assert event["data"]["state"] == "Rejected"
            error = {"code": bad.reason, "message": rejected.description}
            assert event["data"]["error"] == error, name


async def test_nothing_is_lost_and_nothing_is_dead_lettered(outcome: Outcome) -> None:
    system = outcome.rig
    assert system.broker.counts("orders").total == 0
    assert system.broker.counts("dead-letters").total == 0
    system.nothing_lost()


async def test_bad_input_writes_no_order(outcome: Outcome) -> None:
    ids = {bad.order_id for bad in BAD.values() if bad.order_id}
    usable = {
        order_id
        for order_id in ids
        if len(order_id) <= 100 and not set("/\\#?|\x07\n") & set(order_id)
    }
    assert len(usable) > 6
    for order_id in usable | {"B-wake", "B-nobody", "B-nan", "B-byte", "other"}:
        assert await outcome.rig.state(order_id) is None, order_id


async def test_an_order_beside_bad_input_is_processed(outcome: Outcome) -> None:
    assert await outcome.rig.kinds("GOOD") == ["received", "completed"]


async def test_orders_whose_reply_queue_is_missing_go_on_under_one_incident(
    outcome: Outcome,
) -> None:
    assert [message for message in outcome.rejected if message.order_id == "NOBODY"] == []
    assert await outcome.rig.state("NOBODY") == "Processed"
    incidents = [alert for alert in outcome.alerts if alert.kind == "undeliverable"]
    assert [alert.scope for alert in incidents] == ["queue responses-nobody"]


async def test_what_is_larger_than_the_queue_takes_is_refused_to_its_sender(
    outcome: Outcome,
) -> None:
    system = outcome.rig
    system.broker.update_queue("orders", max_message_kilobytes=256)
    async with system.client.get_queue_sender("orders") as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
    assert system.broker.counts("orders").total == 0
