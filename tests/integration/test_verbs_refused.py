"""Each form of the desk where it is not possible: one clear sentence, and nothing is changed.

The wrong state, an order that is gone, no right, a lost race. ``tests/unit/test_cli_act.py`` holds
the command to the same.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.messages import Verb
from sas.ports import AwaitCallback, Message, StoreUnavailableError, UndeliverableError
from tests.integration.desk_kit import Browser, desk_of
from tests.unit import actors_kit
from tests.unit.actors_kit import Kit, fail, kit, submit

VERBS = [verb.value for verb in Verb]
WRONG = dict.fromkeys(VERBS, "DONE") | {"undo": "UNDONE", "cancel": "UNDONE"}
"""An order whose state does not allow the verb."""
RIGHT_ORDER = dict.fromkeys(VERBS, "STUCK") | {"callback": "WAITS", "cancel": "WAITS"}
"""An order whose state allows the verb."""
RIGHT = "you need the role Azure Service Bus Data Sender on it"


async def bob(system: Kit, verb: str, order_id: str) -> None:
    """Let another operator be faster."""
    command = actors_kit.command(verb, system.order(order_id).seq, f"w-{order_id}", order_id)
    await system.hand(replace(command, body=command.body.replace(b'"by":"ann"', b'"by":"bob"')))
    await system.drain()


def words(system: Kit) -> dict[str, list[str]]:
    return {order_id: system.words(order_id) for order_id in system.store.orders}


async def broken() -> Kit:
    system = kit(actors_kit.CARE)
    await fail(system, "STUCK", agent="payment", code="card-declined", message="it was declined")
    await submit(system, "DONE")
    await submit(system, "UNDONE")
    await bob(system, "undo", "UNDONE")
    system.agents["stock"].then(AwaitCallback(timedelta(days=1)))
    await submit(system, "WAITS")
    return system


async def asked(browser: Browser, verb: str, order_id: str, seq: int) -> tuple[int, str]:
    return await browser.post(f"order?id={order_id}", verb=verb, seq=str(seq))


async def test_a_form_for_an_order_that_is_gone_or_in_the_wrong_state_changes_nothing() -> None:
    system = await broken()
    before = words(system)
    async with desk_of(system) as browser:
        for verb, order_id in WRONG.items():
            status, page = await asked(browser, verb, order_id, system.order(order_id).seq)
            assert (status, "Nothing was sent: " in page) == (409, True), verb
            assert f"verb-{verb}" not in await browser.get(f"order?id={order_id}")
            status, page = await asked(browser, verb, "GONE", 1)
            assert status == 404, verb
            assert "There is no order 'GONE' here: check the id" in page
        assert (words(system), browser.line.sent_messages) == (before, [])


async def test_a_form_without_a_right_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def may_not_send(messages: list[Message]) -> None:
        raise UndeliverableError(f"queue scheduler: {RIGHT}.", messages[0])

    async def may_not_read(order_id: str) -> None:
        raise StoreUnavailableError("the table: you have no right to read it.")

    system = await broken()
    before = words(system)
    async with desk_of(system) as browser:
        with monkeypatch.context() as patch:
            patch.setattr(browser.line, "send", may_not_send)
            for verb, order_id in RIGHT_ORDER.items():
                status, page = await asked(browser, verb, order_id, system.order(order_id).seq)
                assert (status, RIGHT in page) == (409, True), verb
        monkeypatch.setattr(system.store, "load", may_not_read)
        for verb, order_id in RIGHT_ORDER.items():
            status, page = await asked(browser, verb, order_id, 1)
            assert (status, "you have no right to read it" in page) == (503, True), verb
        assert (words(system), browser.line.sent_messages) == (before, [])


async def test_a_form_that_lost_a_race_changes_nothing() -> None:
    """A cancel is right however far the order has come, but not after its end."""
    system = await broken()
    seqs = {order_id: system.order(order_id).seq for order_id in ("STUCK", "WAITS")}
    await bob(system, "acknowledge", "STUCK")
    await bob(system, "undo", "WAITS")
    before = words(system)
    async with desk_of(system) as browser:
        for verb, order_id in RIGHT_ORDER.items():
            status, page = await asked(browser, verb, order_id, seqs[order_id])
            assert (status, "Nothing was sent: " in page) == (409, True), verb
            saw = f"you saw seq {seqs[order_id]}, but the order is at seq "
            assert (saw in page) == (verb != "cancel"), verb
        assert (words(system), browser.line.sent_messages) == (before, [])
