"""A check with a bug: its orders wait, one alert tells of it, and a deploy mends everything."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sas.engine.delivery import BUG, DEPLOY_WAIT
from sas.ports import Message
from sas.testing.store import StoreFault
from tests.unit.actors_kit import CARE, CHAIN, QUEUES, Kit, kit, order

PAUSE_MAX_S = 300.0
SECRET = "cake of Ann"


def check(_content: bytes) -> None:
    """Check as an adopter does, with a bug."""
    raise KeyError(SECRET)


EXPLANATION = (
    f"KeyError: “'{SECRET}'” (tests/unit/test_failing_check.py:"
    f"{check.__code__.co_firstlineno + 2} in check)"
)


async def passes(system: Kit, seconds: float) -> None:
    for _ in range(int(seconds / 10)):
        await system.later(10)
        for _ in range(len(system.bus.messages(QUEUES.orders))):
            message = system.bus.take(QUEUES.orders)
            assert message is not None
            await system.receive(message)
        await system.drain()
        await system.sweep()


async def test_orders_wait_for_the_deploy_that_mends_the_check_and_one_alert_names_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    system = kit(chain=check)
    for number in range(3):
        await system.receive(Message(QUEUES.orders, f"m-{number}", order(f"O-{number}")))
    await passes(system, 300)
    assert (system.store.orders, system.rejected(), system.events()) == ({}, [], [])
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("agent-failing", "check of saga chain")
    assert alert.text.startswith(
        f"The check of saga chain fails: {EXPLANATION}. Deploy a mended version. "
    )
    assert [record for record in caplog.records if SECRET in record.getMessage()] == []
    assert [record for record in caplog.records if SECRET in str(record.exc_text)] == []
    mended = kit(CHAIN, instance="host-2", beside=system)
    await passes(mended, PAUSE_MAX_S)
    assert {mended.state(f"O-{number}") for number in range(3)} == {"Processed"}
    await passes(mended, 2 * PAUSE_MAX_S)
    assert [alert.kind for alert in mended.alerts()] == ["agent-failing", "cleared"]


async def test_an_alert_that_cannot_be_written_is_sent_by_the_next_delivery() -> None:
    system = kit(chain=check)
    system.store.fail_next("write_shared", *[StoreFault.UNAVAILABLE] * 2)
    await system.receive(Message(QUEUES.orders, "m-1", order()))
    assert system.alerts() == []
    await passes(system, 20)
    assert [alert.kind for alert in system.alerts()] == ["agent-failing"]
    await passes(system, 6 * PAUSE_MAX_S)  # it lasts through the longest pauses
    assert {alert.kind for alert in system.alerts()} == {"agent-failing"}


async def test_an_older_instance_beside_a_failing_check_does_not_reject_its_orders() -> None:
    system = kit(chain=check)
    older = kit(CARE, instance="older", beside=system, deploy_wait=DEPLOY_WAIT)
    message: Any = Message(QUEUES.orders, "m-1", order())
    for instance in (older, system) * 6:
        await instance.receive(message)
        await instance.later(PAUSE_MAX_S)
        message = instance.bus.take(QUEUES.orders)
    assert system.rejected() == []
    assert BUG in message.properties
