"""An incident sends one alert: real functions, over the real table and queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from sas.domain.submit import submit
from sas.features.incidents import board
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from sas.ports import AgentCall
from tests.business import PaymentAgent, workflows
from tests.contract import cases
from tests.functions_rig import (
    EVERY_SECOND,
    SHOP,
    WHOLESALE,
    Rig,
    northwind,
    rig,
    time_allowed_is_over,
    until,
)
from tests.integration.broker_sdk_kit import short_pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # a fixture of every test here

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


async def test_orders_of_a_version_that_is_not_deployed_give_one_alert(system: Rig) -> None:
    before = len(await system.alerts())
    long_ago = datetime.now(UTC) - timedelta(minutes=25)
    names = [f"V-{number}" for number in range(ORDERS)]
    for name in names:
        await waiting(system, name, 7, long_ago)
    async with system.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
        await all_have(system, "postponed", *names)
    (alert,) = (await system.alerts())[before:]
    assert (alert.kind, alert.scope) == ("not-runnable", "order version 7")
    assert "workflow 'order' has no version 7: known are 1. Deploy that version" in alert.text


async def test_orders_whose_agent_has_a_bug_go_on_after_the_deploy_that_mends_it(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(await system.alerts())
    names = [f"B-{number}" for number in range(ORDERS)]
    calls: Counter[str] = Counter()

    def body(_agent: PaymentAgent, call: AgentCall) -> dict[str, object]:
        calls[call.key] += 1
        return {"amount": call.order["amount"]}

    settings = {"SAS_SUPERVISOR_SCHEDULE": EVERY_SECOND, "TESTS_TIME_ALLOWED_SECONDS": "6"}

    async def failed_often() -> bool:
        return len(calls) == ORDERS and min(calls.values()) >= 4

    async with system.host(**settings):
        with monkeypatch.context() as deployed:
            deployed.setattr(PaymentAgent, "body", body)
            for name in names:
                await system.submit(name)
            await until(failed_often, "four calls of each order")
            (alert,) = (await system.alerts())[before:]
            (incident,) = [
                value for value in await active(system) if value and value.agent == "payment"
            ]
            error = (await system.order("B-0")).steps[1].last_error
        for name in names:
            await system.ends(name, "Processed")
        await system.quiet()
    assert (alert.kind, alert.scope) == ("agent-failing", "agent payment")
    line = f"tests/integration/test_functions_incidents.py:{body.__code__.co_firstlineno + 2}"
    assert f"fails: KeyError: “'amount'” ({line} in body). Deploy a mended version." in alert.text
    assert incident.alerts_sent == 1
    assert error is not None
    assert error.again_by is not None
    assert set(calls) == {f"{name}/take-payment" for name in names}
    for name in names:
        assert [step.failure_count for step in (await system.order(name)).steps] == [0, 0, 0]
        assert await system.kinds(name) == ["received", "completed"]
    assert [alert.kind for alert in (await system.alerts())[before + 1 :]] == ["cleared"]
    assert await system.rejected() == []


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


async def test_a_reply_that_waits_past_its_complete_by_excuses_its_step(system: Rig) -> None:
    await system.reply_waits("L-1", "inventory")
    with time_allowed_is_over():
        async with system.host("supervisor", SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
            await all_have(system, "waits in its queue", "L-1")
    async with system.host():
        await system.ends("L-1", "Processed")
        await system.quiet()
    steps = (await system.order("L-1")).steps
    assert [(step.epoch, step.failure_count) for step in steps] == [(1, 0)] * 3
