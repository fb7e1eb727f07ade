"""An incident sends one alert: real functions, over the real table and queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.domain.submit import submit
from sas.features.incidents import board
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from tests.business import workflows
from tests.contract import cases
from tests.functions_rig import (
    EVERY_SECOND,
    SHOP,
    WHOLESALE,
    Rig,
    northwind,
    rig,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]

ORDERS = 12
QUEUE = f"queue {WHOLESALE}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def waiting(system: Rig, order_id: str, version: int, since: datetime) -> None:
    """Store an order that was submitted long ago, and whose first step no scheduler claimed."""
    rules = workflows().rules("order", 1)
    details = cases.details_of(order_id, payload=json.dumps(northwind()))
    details = replace(details, version=version, reply_queue=SHOP, submitted_at=since)
    decision = submit(details, rules)
    await system.store.commit(cases.changed(None, decision, cases.fresh("orders:envelope")))


async def all_have(system: Rig, word: str, *order_ids: str) -> None:
    async def have() -> bool:
        return all([word in await system.words(order_id) for order_id in order_ids])

    await until(have, f"{word!r} in every journal")


async def active(system: Rig) -> list[ActiveIncident | None]:
    return [incident.value for incident in (await active_incidents(system.store).all()).values()]


async def test_orders_that_no_scheduler_picks_up_give_one_alert_and_then_go_on(system: Rig) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=25)
    names = [f"C-{number}" for number in range(ORDERS)]
    for name in names:
        await waiting(system, name, 1, long_ago)
    async with system.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        await all_have(system, "woken again", *names)
    (alert,) = await system.alerts()
    assert (alert.kind, alert.scope) == ("not-picked-up", "ordinary orders")
    (incident,) = await active(system)
    assert incident is not None
    assert (incident.alerts_sent, incident.since) == (1, long_ago)
    async with system.host():
        for name in names:
            await system.ends(name, "Processed")
        await system.quiet()
    assert len(await system.alerts()) == 1


async def test_an_application_that_never_reads_gives_one_alert_and_rejects_nothing(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(await system.alerts())
    names = [f"U-{number}" for number in range(ORDERS)]
    monkeypatch.setattr(board, "NOTED_EVERY", timedelta(seconds=1))
    ttl_s = system.broker.namespace.queue(WHOLESALE).properties.default_ttl_s
    system.broker.update_queue(WHOLESALE, default_ttl_s=1.0)

    async def all_counted() -> bool:
        counts = [value.times for value in await active(system) if value and value.scope == QUEUE]
        return bool(counts) and counts[0] >= 2 * ORDERS

    async with system.host(SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        for name in names:
            await system.submit(name, reply_queue=WHOLESALE)
        for name in names:
            await system.ends(name, "Processed")
        await until(all_counted, "every notification counted")
        await system.quiet()
    system.broker.update_queue(WHOLESALE, default_ttl_s=ttl_s)
    assert await system.rejected() == []
    (alert,) = (await system.alerts())[before:]
    assert (alert.kind, alert.scope) == ("undeliverable", QUEUE)
