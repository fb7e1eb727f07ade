"""Some malformed messages of the fuzz, sent to the real host over the broker and Azurite."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage

from lab.fuzz.messages import READERS
from lab.fuzz.run import Fuzz
from sas.codec.external import RejectedMessage, rejected_body
from sas.codec.strict import MalformedError
from sas.domain.queues import lane
from sas.testing.platform import QUEUES
from tests.business import AGENTS
from tests.functions_rig import Rig, rig, until
from tests.integration.broker_sdk_kit import short_pauses

__all__ = ["short_pauses"]  # fixtures of every test here
SENT = 300
OF_AGENT = QUEUES.agent("stock"), QUEUES.agent(AGENTS[0])


@pytest.fixture
def messages() -> list[tuple[str, str, bytes]]:
    """Return malformed messages of the fuzz: queue, MessageId and body."""
    fuzz, malformed = Fuzz(3), list[tuple[str, str, bytes]]()
    number = 0
    while len(malformed) < SENT:
        number += 1
        door, parts = fuzz.drawn(number)
        queue = str(parts.get("queue", ""))
        kind = queue.removesuffix("-urgent")
        if door != f"queue {kind}" or kind not in READERS:
            continue
        try:
            READERS[kind](parts["body"])
        except MalformedError:
            queue = lane(kind.replace(*OF_AGENT), urgent=queue.endswith("-urgent"))
            malformed.append((queue, f"fuzz-{number}", parts["body"]))
        except Exception:  # noqa: BLE001, S112  it is not malformed: another version wrote it
            continue
    return malformed


@pytest.mark.long
async def test_malformed_messages_are_kept_whole_and_an_order_beside_them_completes(
    messages: list[tuple[str, str, bytes]], short_pauses: None
) -> None:
    assert {queue.removesuffix("-urgent") for queue, _, _ in messages} >= {
        "orders",
        "scheduler",
        OF_AGENT[1],
    }
    async with rig(SAS_CALLBACK_KEY="4Fh29sKx81LmQz70TbVw65RnYc38JdGp") as system, system.host():
        for queue, message_id, body in messages:
            await system.send(queue, ServiceBusMessage(body, message_id=message_id))
        await system.submit("GOOD")
        await system.ends("GOOD", "Processed")
        await until(lambda: _all_there(system, messages), "every message on the rejected queue")
        await system.quiet()
        by_id = await _rejected(system)
        for queue, message_id, body in messages:
            assert rejected_body(by_id[message_id]) == body
            assert by_id[message_id][0].source_queue == queue
        alerts = await system.alerts()
        ids = "".join(alert.id for alert in alerts)
        internal = [parts[0] for parts in by_id.values() if parts[0].source_queue[:6] != "orders"]
        assert all(part.id.rpartition("/")[0] in ids for part in internal)
        assert any((alert.scope or "").startswith("queue orders, reason ") for alert in alerts)


async def _all_there(system: Rig, messages: list[tuple[str, str, bytes]]) -> bool:
    return {message_id for _, message_id, _ in messages} <= (await _rejected(system)).keys()


async def _rejected(system: Rig) -> dict[str, list[RejectedMessage]]:
    parts_of: dict[str, list[RejectedMessage]] = {}
    for part in await system.rejected():
        parts_of.setdefault(part.message_id or "", []).append(part)
    return parts_of
