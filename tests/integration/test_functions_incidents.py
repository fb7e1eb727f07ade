"""An incident sends one alert: real functions, over the real table and queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from sas.domain.submit import submit
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from tests.business import workflows
from tests.contract import cases
from tests.functions_rig import EVERY_SECOND, SHOP, Rig, northwind, rig, time_allowed_is_over, until
from tests.integration.broker_sdk_kit import short_pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # a fixture of every test here

ORDERS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def waiting(made: Rig, order_id: str, version: int, since: datetime) -> None:
    """Store an order that was submitted long ago, and whose first step no scheduler claimed."""
    rules = workflows().rules("order", 1)
    details = cases.details_of(order_id, payload=json.dumps(northwind()))
    details = replace(details, version=version, reply_queue=SHOP, submitted_at=since)
    decision = submit(details, rules)
    await made.store.commit(cases.changed(None, decision, cases.fresh("orders:envelope")))


async def all_have(made: Rig, what: str, *order_ids: str) -> None:
    async def have() -> bool:
        return all([what in await made.words(order_id) for order_id in order_ids])

    await until(have, f"{what!r} in every journal")


async def active(made: Rig) -> list[ActiveIncident | None]:
    return [one.value for one in (await active_incidents(made.store).all()).values()]


async def test_orders_that_no_scheduler_picks_up_give_one_alert_and_then_go_on(made: Rig) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=25)
    names = [f"C-{number}" for number in range(ORDERS)]
    for name in names:
        await waiting(made, name, 1, long_ago)
    async with made.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        await all_have(made, "woken again", *names)
    (alert,) = await made.alerts()
    assert (alert.kind, alert.scope) == ("not-picked-up", "ordinary orders")
    (incident,) = await active(made)
    assert incident is not None
    assert (incident.alerts_sent, incident.since) == (1, long_ago)
    async with made.host():
        for name in names:
            await made.ends(name, "Processed")
        await made.quiet()
    assert len(await made.alerts()) == 1


async def test_orders_of_a_version_that_is_not_deployed_give_one_alert(made: Rig) -> None:
    before = len(await made.alerts())
    long_ago = datetime.now(UTC) - timedelta(minutes=25)
    names = [f"V-{number}" for number in range(ORDERS)]
    for name in names:
        await waiting(made, name, 7, long_ago)
    async with made.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        await all_have(made, "postponed", *names)
    (alert,) = (await made.alerts())[before:]
    assert (alert.kind, alert.scope) == ("not-runnable", "order version 7")
    assert "workflow 'order' has no version 7: known are 1. Deploy that version" in alert.text


async def test_a_reply_that_waits_past_its_complete_by_excuses_its_step(made: Rig) -> None:
    async with made.host("submission", "scheduler", "agent_inventory"):
        await made.submit("L-1")
        await until(lambda: _waits(made), "the first reply waits")
    with time_allowed_is_over():
        async with made.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
            await all_have(made, "waits in its queue", "L-1")
    async with made.host():
        await made.ends("L-1", "Processed")
        await made.quiet()
    steps = (await made.order("L-1")).steps
    assert [(step.epoch, step.failure_count) for step in steps] == [(1, 0)] * 3


async def _waits(made: Rig) -> bool:
    return made.broker.counts("agent-replies").active > 0
