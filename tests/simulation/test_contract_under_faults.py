"""What a whole system sends, under faults and for bad orders, keeps to the published schemas."""

from __future__ import annotations

import json

from sas.codec.external import event_type
from sas.domain.messages import Notice
from sas.ports import Message
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES, REPLIES_TO
from tests.simulation.system import System, build
from tests.unit.codec_cases import BAD
from tests.unit.contract_files import closed, errors

SCHEMAS = {
    REPLIES_TO: closed("notification.schema.json"),
    QUEUES.alerts: closed("alert.schema.json"),
    QUEUES.rejected: closed("rejected-message.schema.json"),
}


def sent_by(system: System) -> dict[str, list[Message]]:
    return {name: system.bus.messages(name) for name in SCHEMAS}


def check_all(messages_by_queue: dict[str, list[Message]]) -> set[str]:
    """Check every message against the contract; return the kinds there were."""
    kinds: set[str] = set()
    for queue, messages in messages_by_queue.items():
        for message in messages:
            value = json.loads(message.body)
            assert errors(SCHEMAS[queue], value) == [], message.body
            kinds.add(value.get("type") or value.get("kind") or "kept")
            if queue == REPLIES_TO:
                assert message.content_type == "application/cloudevents+json"
                assert message.message_id == value["id"]
                assert message.correlation_id == value.get("correlationid")
    return kinds


async def test_what_a_system_full_of_faults_sends_keeps_to_the_contract() -> None:
    kinds: set[str] = set()
    for seed in range(8):
        faults = Faults(
            crash=0.12,
            lock_lost=0.05,
            store_lost_answer=0.02,
            bus_down=0.02,
            transient=0.2,
            hangs=0.3,
            refused=0.25,
            undo_refused=0.4,
        )
        system = build(seed, faults)
        for number in range(4):
            system.submit(f"O-{number} ü", "order" if number % 2 else "order-with-care")
        try:
            await system.world.run(system.at_rest)
        finally:
            await system.close()
        kinds |= check_all(sent_by(system))
    assert kinds >= {event_type(n) for n in Notice if n is not Notice.REJECTED}
    assert kinds >= {"step-failed", "undo-failed"}


async def test_notifications_of_bad_orders_follow_the_contract() -> None:
    system = build(1, Faults())
    # The bus refuses what is too large.
    bad = [(body, reason) for body, reason in BAD.values() if reason != "too-large"]
    for number, (body, _) in enumerate(bad):
        system.bus._enqueue(Message(QUEUES.orders, f"m-{number}", body))
    try:
        await system.world.run(lambda: not system.bus.messages(QUEUES.orders))
    finally:
        await system.close()
    messages_by_queue = sent_by(system)
    assert check_all(messages_by_queue) == {"sas.order.rejected.v1", "rejected", "kept"}
    assert len(messages_by_queue[QUEUES.alerts]) == len({reason for _, reason in bad})
    assert len(messages_by_queue[QUEUES.rejected]) == len(bad)
