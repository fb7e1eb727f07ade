"""For each verb: wrong state, order gone, no right, lost race. One clear sentence, nothing changed.

The command and the desk are held to the same table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.messages import Verb
from sas.operate.errors import UNAVAILABLE
from sas.ports import (
    AwaitCallback,
    Message,
    RefusedError,
    StoreUnavailableError,
    UndeliverableError,
)
from tests.integration.desk_kit import Browser, desk_of
from tests.unit import actors_kit
from tests.unit.actors_kit import Kit, fail, kit, submit
from tests.unit.cli_kit import Night, store_away

VERBS = [verb.value for verb in Verb]
DAY = timedelta(days=1)
DECLINED = RefusedError("card-declined", "the card was declined")
WRONG = {
    "resubmit": "DONE",
    "skip": "DONE",
    "acknowledge": "DONE",
    "undo": "UNDONE",
    "cancel": "UNDONE",
    "callback": "DONE",
}
"""An order whose state does not allow the verb."""
RIGHT_ORDER = dict.fromkeys(VERBS, "STUCK") | {"callback": "WAITS", "cancel": "WAITS"}
"""An order whose state allows the verb."""
WITH = {"callback": ("--answer", "{}")}
"""What the verb is given to change an order."""
TYPED = [verb for verb in VERBS if verb != "acknowledge"]
"""The acts that have a verb of their own; ``sas undo`` cancels an order under way."""
RIGHT = "you need the role Azure Service Bus Data Sender on it"


async def bob(system: Kit, verb: Verb, order_id: str) -> None:
    """Let another operator be faster."""
    command = actors_kit.command(verb.value, system.order(order_id).seq, f"w-{order_id}", order_id)
    await system.hand(replace(command, body=command.body.replace(b'"by":"ann"', b'"by":"bob"')))
    await system.drain()


async def bob_undoes(system: Kit, order_id: str) -> None:
    await bob(system, Verb.UNDO, order_id)


async def bob_looks(system: Kit, order_id: str) -> None:
    await bob(system, Verb.ACKNOWLEDGE, order_id)


FASTER: Mapping[str, Callable[[Kit, str], Awaitable[None]]] = {
    **dict.fromkeys(VERBS, bob_looks),
    "callback": bob_undoes,
    "cancel": bob_undoes,  # a cancel is right however far the order has come, but not after its end
}


def words(system: Kit) -> dict[str, list[str]]:
    return {order_id: system.words(order_id) for order_id in system.store.orders}


# -- The command ------------------------------------------------------------------------------


def typed(verb: str, order_id: str, *options: str) -> tuple[str, ...]:
    """Return how an act is typed."""
    if verb == "acknowledge":
        return "show", order_id, "--acknowledge"
    name = "undo" if verb == "cancel" else verb
    return name, order_id, "--yes", *WITH.get(verb, ()), *options


@pytest.fixture
def operator(night: Night) -> Night:
    night.fail("STUCK", DECLINED)
    night.submit("DONE")
    night.submit("UNDONE")
    night.play(bob_undoes(night.system, "UNDONE"))
    night.awaits("WAITS")
    return night


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_for_an_order_in_the_wrong_state(operator: Night, verb: str) -> None:
    before = words(operator.system)
    order_id = WRONG[verb]
    state = operator.system.state(order_id)
    output = operator.sas(*typed(verb, order_id))
    output.refused(1, f" of order {order_id} is not possible", state)
    assert (words(operator.system), operator.sent_messages, output.out) == (before, [], "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_for_an_order_that_is_gone(operator: Night, verb: str) -> None:
    output = operator.sas(*typed(verb, "GONE"))
    output.refused(1, "there is no order 'GONE' here: check the id")
    assert operator.sent_messages == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_without_the_right_to_send(
    operator: Night, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async def refused(messages: list[Message]) -> None:
        raise UndeliverableError(f"queue scheduler: {RIGHT}.", messages[0])

    monkeypatch.setattr(operator, "send", refused)
    before = words(operator.system)
    operator.sas(*typed(verb, RIGHT_ORDER[verb])).refused(UNAVAILABLE, RIGHT)
    assert words(operator.system) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_without_the_right_to_read(
    operator: Night, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    store_away(monkeypatch)
    operator.sas(*typed(verb, RIGHT_ORDER[verb])).refused(UNAVAILABLE, "you have no right")
    assert operator.sent_messages == []


@pytest.mark.parametrize("verb", TYPED)
def test_a_command_that_lost_a_race(operator: Night, verb: str) -> None:
    system = operator.system
    order_id = RIGHT_ORDER[verb]
    operator.before_send = lambda: FASTER[verb](system, order_id)
    output = operator.sas(*typed(verb, order_id, "--wait", "5"))
    output.refused(1, "not carried out: ")
    assert not any(entry.by == "operator ann" for entry in system.journal(order_id))


@pytest.mark.parametrize("verb", TYPED)
def test_a_command_with_a_seq_that_is_old(operator: Night, verb: str) -> None:
    order_id = RIGHT_ORDER[verb]
    seq = operator.system.order(order_id).seq
    operator.play(bob_undoes(operator.system, order_id))
    before = words(operator.system)
    output = operator.sas(*typed(verb, order_id, "--seq", str(seq)))
    output.refused(1, f"nothing was sent: you saw seq {seq}, but the order is at seq ")
    assert (words(operator.system), operator.sent_messages) == (before, [])


# -- The desk ---------------------------------------------------------------------------------


async def broken() -> Kit:
    system = kit(actors_kit.CARE)
    await fail(
        system, "STUCK", agent="payment", code=DECLINED.code, message="the card was declined"
    )
    await submit(system, "DONE")
    await submit(system, "UNDONE")
    await bob_undoes(system, "UNDONE")
    system.agents["stock"].then(AwaitCallback(DAY))
    await submit(system, "WAITS")
    return system


async def asked(browser: Browser, verb: str, order_id: str, seq: int) -> tuple[int, str]:
    return await browser.post(f"order?id={order_id}", verb=verb, seq=str(seq))


@pytest.mark.parametrize("verb", VERBS)
async def test_a_form_for_an_order_in_the_wrong_state(verb: str) -> None:
    system = await broken()
    before, order_id = words(system), WRONG[verb]
    async with desk_of(system) as browser:
        status, page = await asked(browser, verb, order_id, system.order(order_id).seq)
        assert status == 409
        assert "Nothing was sent: " in page
        assert f"verb-{verb}" not in await browser.get(f"order?id={order_id}")
        assert (words(system), browser.line.sent) == (before, [])


@pytest.mark.parametrize("verb", VERBS)
async def test_a_form_for_an_order_that_is_gone(verb: str) -> None:
    system = await broken()
    async with desk_of(system) as browser:
        status, page = await asked(browser, verb, "GONE", 1)
        assert status == 404
        assert "There is no order 'GONE' here: check the id" in page
        assert browser.line.sent == []


@pytest.mark.parametrize("verb", VERBS)
async def test_a_form_without_the_right_to_send(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    async def refused(messages: list[Message]) -> None:
        raise UndeliverableError(f"queue scheduler: {RIGHT}.", messages[0])

    system = await broken()
    before, order_id = words(system), RIGHT_ORDER[verb]
    async with desk_of(system) as browser:
        monkeypatch.setattr(browser.line, "send", refused)
        status, page = await asked(browser, verb, order_id, system.order(order_id).seq)
        assert status == 409
        assert RIGHT in page
        assert words(system) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_form_without_the_right_to_read(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    system = await broken()
    async with desk_of(system) as browser:

        async def refused(order_id: str) -> None:
            raise StoreUnavailableError("the table: you have no right to read it.")

        monkeypatch.setattr(system.store, "load", refused)
        status, page = await asked(browser, verb, "STUCK", 1)
        assert status == 503
        assert "you have no right to read it" in page
        assert browser.line.sent == []


@pytest.mark.parametrize("verb", VERBS)
async def test_a_form_that_lost_a_race(verb: str) -> None:
    system = await broken()
    order_id = RIGHT_ORDER[verb]
    seq = system.order(order_id).seq
    async with desk_of(system) as browser:
        await FASTER[verb](system, order_id)
        before = words(system)
        status, page = await asked(browser, verb, order_id, seq)
        assert status == 409
        assert "Nothing was sent: " in page
        if verb != "cancel":
            assert f"you saw seq {seq}, but the order is at seq " in page
        assert (words(system), browser.line.sent) == (before, [])
