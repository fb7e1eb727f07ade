"""Words of applications, agents and services are marked in alerts, and stay in their marks."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.messages import AlertKind
from sas.domain.texts import is_visible
from sas.engine.delivery import BUG, LEFT_SINCE
from sas.engine.receiver import REFUSED
from sas.features.incidents.rules import ActiveIncident, alert_text
from sas.operate.why import story
from sas.ports import HeldError, Message, RefusedError, TransientError
from tests.unit.actors_kit import ALLOWED, SHOP, Kit, kit, letter, order
from tests.unit.cli_kit import Night
from tests.unit.domain_cases import T0

HOSTILE = "no”. All is repaired.\n\u202e Remove the order"


def ours(text: str) -> str:
    """Return a text without what is marked in it."""
    assert is_visible(text)
    return re.sub("“[^”]*”", "", text)


async def alerts(system: Kit, workflow: str) -> list[str]:
    """Return the texts of all alerts of an order whose time passes."""
    await system.submit(order(workflow=workflow))
    for _ in range(40):
        await system.drain()
        await system.later(ALLOWED.total_seconds() / 4)
        await system.sweep()
    return [alert.text for alert in system.alerts()]


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no”. Repaired", HOSTILE),
        TransientError(HOSTILE),
        TransientError("no", kind=HOSTILE),
        HeldError(HOSTILE),
        ValueError(HOSTILE),
    ],
)
async def test_the_words_of_an_agent_stay_between_marks_in_an_alert(error: Exception) -> None:
    system = kit()
    system.agents["stock"].then(*[error] * 100)
    texts = await alerts(system, "care")
    assert any("repaired" in text for text in texts)
    assert not any("repaired" in ours(text) for text in texts)


async def test_the_words_of_an_agent_stay_between_marks_in_why_an_order_is_undone() -> None:
    system = kit()
    system.agents["payment"].then(RefusedError("no”. Repaired", HOSTILE * 20))
    await alerts(system, "chain")
    because = system.order().undone_because
    assert because is not None
    assert because.startswith("pay failed: “")
    assert because.endswith("…”")
    assert "epaired" not in ours(because)


async def test_the_words_of_an_agent_stay_between_marks_in_the_story_of_an_order() -> None:
    system = kit()
    system.agents["stock"].then(RefusedError("no", HOSTILE))
    await system.submit(order(workflow="care"))
    await system.drain()
    text = story(system.order(), system.journal())
    assert text.startswith("It stopped at reserve: “")
    assert "repaired" not in ours(text)


@pytest.mark.parametrize("reason", [HOSTILE * 20, REFUSED])
async def test_why_an_application_refuses_a_notification_stays_between_marks(reason: str) -> None:
    """Whoever receives from a queue chooses both texts of what it dead-letters."""
    system = kit()
    await system.submit()
    notification = system.bus.take(SHOP)
    assert notification is not None
    properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": HOSTILE * 20}
    await system.run(
        system.dead_letters.handle(replace(letter(notification, SHOP), properties=properties))
    )
    (alert,) = system.alerts()
    assert "repaired" in alert.text
    assert "repaired" not in ours(alert.text)


def test_order_ids_stay_between_marks_in_an_alert() -> None:
    active = ActiveIncident(
        kind=AlertKind.NOT_RUNNABLE,
        scope="a",
        text="It stops.",
        since=T0,
        last_seen=T0,
        until=T0 + timedelta(hours=1),
        orders=("O-1, all is repaired", "O-2"),
    )
    assert "repaired" in alert_text(active, T0)
    assert "repaired" not in ours(alert_text(active, T0))


@pytest.mark.parametrize("name", [BUG, LEFT_SINCE])
def test_what_an_application_forged_on_a_waiting_order_stays_between_marks(
    night: Night, name: str
) -> None:
    properties = {name: HOSTILE if name == BUG else "2026-01-01T00:00:00.000000Z"}
    message = Message("orders", "m-A", order("A", workflow=HOSTILE), properties=properties)
    night.play(night.system.bus.send([message]))
    text = night.sas("show", "A").out
    assert "repaired" in text
    assert "repaired" not in ours(" ".join(text.split()))


@pytest.mark.parametrize("command", ["status", "messages", "messages list orders", "show A"])
def test_why_a_message_was_refused_and_what_is_in_it_stay_between_marks(
    night: Night, command: str
) -> None:
    night.play(night.system.submit(order("A", **{HOSTILE: 1})))
    night.put("orders", HOSTILE.encode())
    text = night.sas(*command.split()).out
    assert "repaired" in text
    assert "repaired" not in ours(" ".join(text.split()))


@pytest.mark.parametrize(
    "command",
    ["messages", "list --state rejected", "messages remove ID"],
)
def test_an_id_that_is_a_sentence_stays_between_marks(night: Night, command: str) -> None:
    order_id = "All is repaired. Remove it"
    night.play(night.system.submit(order(order_id, workflow=HOSTILE)))
    words = [order_id if word == "ID" else word for word in command.split()]
    answer = night.sas(*words, *(["--dry-run"] if "remove" in words else []))
    assert order_id in answer.out
    assert "repaired" not in ours(" ".join(answer.out.split()))
