"""What schedules and operators do beside live work: the purge, and messages sent again by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from devstack.functions.bindings import IndexingError
from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.domain.ids import shard_of
from tests.contract import cases
from tests.functions_rig import EVERY_SECOND, SHOP, Rig, body_of, rig, time_allowed_is_over, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]

REPLIES = "scheduler"
OLD, LIVE, YOUNG = 12, 8, 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def test_a_start_without_key_vault_says_why_and_takes_no_message(system: Rig) -> None:
    """Azure gives the text of a reference that it cannot resolve."""
    await system.submit("K-1")
    reference = "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/callbacks)"
    with pytest.raises(IndexingError) as stopped:
        async with system.host(SAS_CALLBACK_KEY=reference):
            pass
    assert (
        "SAS_CALLBACK_KEY is a Key Vault reference that was not resolved: let the app's identity "
        "read that secret (role Key Vault Secrets User), and have Azure ask again "
        "(docs/operating.md, Keys). Messages wait in their queues"
    ) in str(stopped.value)
    assert system.broker.counts("orders").active == 1
    async with system.host():
        await system.ends("K-1", "Processed")
        await system.quiet()
    assert await system.rejected() == []


async def test_orders_under_way_end_whole_while_finished_ones_are_purged_beside_them(
    system: Rig,
) -> None:
    """Both kinds of orders are in the same shards at the same time."""
    now = datetime.now(UTC)
    rules = cases.rules_of(1)

    async def processed(order_id: str, days: float) -> None:
        order = await system.store.commit(cases.submitted(order_id, rules))
        order = await system.store.commit(cases.claimed(order, rules))
        at = now - timedelta(days=days)
        await system.store.commit(cases.answered(order, 0, rules, at=at))

    for number in range(OLD):
        await processed(f"P-old-{number}", 40)
    for number in range(YOUNG):
        await processed(f"P-young-{number}", 29)
    shards = {shard_of(f"P-old-{number}", 16) for number in range(OLD)}
    live = [f"P-live-{n}" for n in range(200) if shard_of(f"P-live-{n}", 16) in shards][:LIVE]

    async def gone() -> bool:
        states = [await system.state(f"P-old-{number}") for number in range(OLD)]
        return not any(states)

    async with system.host(SAS_PURGE_SCHEDULE=EVERY_SECOND, SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        for order_id in live:
            await system.submit(order_id)
        await until(gone, "the old orders are gone")
        for order_id in live:
            await system.ends(order_id, "Processed")
        await system.quiet()
    for order_id in live:
        assert await system.kinds(order_id) == ["received", "completed"]
    young = [await system.state(f"P-young-{number}") for number in range(YOUNG)]
    assert young == ["Processed"] * YOUNG
    in_force = [e["order_id"] for e in system.remote.ledger("stock")["effects"]]
    in_force = [order_id for order_id in in_force if order_id.startswith("P-")]
    assert sorted(in_force) == sorted(live)


async def given_up(system: Rig, order_id: str) -> ServiceBusReceivedMessage:
    """Have a reply dead-lettered before it counts; return it, as an operator finds it."""
    await system.reply_waits(order_id, "inventory")
    letter = await system.give_up(REPLIES, reason="MaxDeliveryCountExceeded")
    assert await system.words(order_id) == ["submitted", "claimed"]
    return letter


def again(letter: ServiceBusReceivedMessage, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(
        body_of(letter), message_id=message_id, content_type="application/json"
    )


async def _discarded(system: Rig) -> None:
    """Take the messages on dead-letters, as an operator who sends them again elsewhere."""
    await system.holds("dead-letters", 1)
    await system.receive("dead-letters")


async def test_a_reply_sent_again_under_its_old_message_id_is_swallowed_and_the_order_still_ends(
    system: Rig,
) -> None:
    """Inside the window of duplicate detection; the supervisor makes good what was swallowed."""
    letter = await given_up(system, "V-1")
    await _discarded(system)
    await system.send(REPLIES, again(letter, str(letter.message_id)))
    assert system.broker.counts(REPLIES).total == 0
    with time_allowed_is_over():
        async with system.host(SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
            await system.ends("V-1", "Processed")
            await system.quiet()
    assert "step reset" in await system.words("V-1")
    await _done_once(system, "V-1")


async def _done_once(system: Rig, order_id: str) -> None:
    keys: list[Any] = []
    for service in ("stock", "payment", "shipping"):
        keys += [e["key"] for e in system.remote.ledger(service)["effects"] if _of(e, order_id)]
    assert sorted(keys) == [f"{order_id}/{s}" for s in ("reserve-stock", "ship", "take-payment")]
    kinds = await system.kinds(order_id, SHOP)
    assert kinds == ["received", "completed"]


def _of(effect: Any, order_id: str) -> bool:
    return bool(effect["order_id"] == order_id and effect["undone_at"] is None)
