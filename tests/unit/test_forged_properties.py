"""A sender sets the properties that only this system should set: it harms nobody but itself."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.ids import key_time
from sas.engine.delivery import (
    AGAIN,
    BUG,
    DEPLOY_WAIT,
    EXTERNAL_SENT,
    FIRST_ID,
    LEFT_SINCE,
    ORDER_ID,
)
from sas.engine.in_flight import AGENT_FAILURES, CALL_STATE
from sas.engine.receiver import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    FAILURES,
    FIRST_AT,
    PROPERTIES,
    SOURCE,
    TIMES,
)
from sas.ports import Message
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import CHAIN, QUEUES, Kit, kit, order

LONG_AGO = key_time(START - timedelta(days=400))
FORGED = {
    TIMES: ["99999999", "-1"],
    FAILURES: ["6", "99999999"],
    FIRST_AT: [LONG_AGO, "9999"],
    FIRST_ID: ["h-1", "O-2/1/0"],
    SOURCE: ["scheduler", "orders-rejected", "responses-other"],
    ORDER_ID: ["H-1"],
    LEFT_SINCE: [LONG_AGO, "9999-12-31T23:59:59.999999Z"],
    EXTERNAL_SENT: ["yes"],
    AGAIN: ["yes"],
    CALL_STATE: ["tried", "goes-on"],
    AGENT_FAILURES: ["99999999"],
    BUG: ["the check of saga chain fails"],
    DEAD_LETTER_REASON: ["FunctionFailed"],
    DEAD_LETTER_DESCRIPTION: ["call 555"],
    "traceparent": ["00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"],
    "tracestate": ["a=b"],
}
ALL = [
    *({name: value} for name, values in FORGED.items() for value in values),
    {name: values[0] for name, values in FORGED.items()},
    {name: values[-1] for name, values in FORGED.items()},
]


def forged(number: int, body: bytes | None = None) -> Message:
    """Return an order message with forged properties."""
    body = order(f"O-{number}") if body is None else body
    return Message(QUEUES.orders, f"m-{number}", body, properties=ALL[number])


async def passes(system: Kit, seconds: int) -> None:
    """Let all messages be handled for so long."""
    for _ in range(seconds // 10):
        for _ in range(len(system.bus.messages(QUEUES.orders))):
            message = system.bus.take(QUEUES.orders)
            assert message is not None
            await system.receive(message)
        await system.drain()
        await system.sweep()
        await system.later(10)


def told(system: Kit) -> tuple[int, list[str], int]:
    """Return how many orders ended, and what the operator has to see."""
    ended = [order_id for order_id in system.store.orders if system.state(order_id) == "Processed"]
    return len(ended), [alert.kind for alert in system.alerts()], len(system.rejected())


def test_each_property_that_is_read_is_forged_here() -> None:
    assert set(FORGED) == set(PROPERTIES)


async def test_an_order_with_forged_properties_is_worked_on_as_any_other() -> None:
    system = kit(CHAIN)
    for number in range(len(ALL)):
        await system.receive(forged(number))
    await system.receive(Message(QUEUES.orders, "h-1", order("H-1")))
    await passes(system, 30)
    assert told(system) == (len(ALL) + 1, [], 0)
    notices = [event.subject for event in system.events()]
    assert {notices.count(f"O-{number}") for number in range(len(ALL))} == {notices.count("H-1")}


async def test_forged_properties_keep_neither_their_own_order_nor_another_from_an_outages_end() -> (
    None
):
    system = kit(CHAIN)
    system.store.plan = lambda _operation, _key: StoreFault.UNAVAILABLE
    for number in range(len(ALL)):
        await system.receive(forged(number))
    await system.receive(Message(QUEUES.orders, "h-1", order("H-1")))
    system.store.plan = lambda _operation, _key: None
    await passes(system, 60)
    assert told(system) == (len(ALL) + 1, [], 0)


async def test_a_forged_age_raises_no_alert_of_a_wrong_deploy() -> None:
    """An unknown workflow waits a minute for another version, which is no incident."""
    system = kit(CHAIN, deploy_wait=DEPLOY_WAIT)
    for number in range(len(ALL)):
        await system.receive(forged(number, order(f"O-{number}", workflow="nobody")))
    await passes(system, 120)
    assert {alert.kind for alert in system.alerts()} == {"rejected"}
    assert len(system.rejected()) == len(ALL)


async def test_a_forged_bug_does_not_end_the_incident_of_a_failing_check() -> None:
    """An application cleared the alert of all, with an order that the check takes."""

    def check(content: bytes) -> None:
        if b"poison" in content:
            raise KeyError("a bug")

    system = kit(CHAIN, chain=check)
    await system.receive(Message(QUEUES.orders, "h-1", order("H-1", order={"note": "poison"})))
    await system.receive(Message(QUEUES.orders, "m-1", order(), properties={BUG: "forged"}))
    assert system.state() == "Processing"
    assert [alert.kind for alert in system.alerts()] == ["agent-failing"]
