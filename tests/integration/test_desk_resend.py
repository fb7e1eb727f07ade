"""A rejected message, or a dead letter, is sent again from the desk by the rules of the command."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urlencode

import pytest

from sas.operate.messages import path_of
from sas.ports import Message, UndeliverableError
from tests.integration.desk_kit import IDS, Browser, desk_of
from tests.unit.actors_kit import CARE, QUEUES, Kit, kit, order, submit

REJECTED, ORDERS = QUEUES.rejected, QUEUES.orders
PLACE = f"{ORDERS}/dlq"
WHY = {"DeadLetterReason": "TTLExpired"}


async def rejected_order(system: Kit) -> Message:
    """Let an order be rejected; return the message that is kept."""
    await system.submit(order("BAD-1", workflow="nosuch"), "m-1")
    await system.later(120)
    rejected = system.bus.take(REJECTED)
    assert rejected is not None
    return rejected


async def poison(system: Kit, browser: Browser) -> str:
    """Let an order be rejected; return the id of the message that lies in the inbox."""
    rejected = await rejected_order(system)
    browser.line.put(REJECTED, rejected.body, message_id=rejected.message_id)
    await browser.desk.inboxes.look()
    return rejected.message_id


def link_to(name: str, queue: str, message_id: str) -> str:
    return "resend?" + urlencode({"name": name, "queue": queue, "id": message_id})


async def test_a_rejected_message_is_sent_again_once_after_the_page_said_so() -> None:
    system = kit(CARE)
    async with desk_of(system) as browser:
        message_id = await poison(system, browser)
        inbox = await browser.get("inbox?name=rejected")
        (address,) = re.findall(r'href="(resend[^"]+)"', inbox)
        assert unescape(address) == link_to("rejected", REJECTED, message_id)
        page = await browser.look(unescape(address))
        assert "unknown-workflow" in page
        assert f"It would be sent to {ORDERS} again under a new id, then removed" in page
        assert (browser.line.sent_messages, len(browser.line.lying[REJECTED])) == ([], 1)
        browser.line.runs = False
        status, page = await browser.post(unescape(address), target=ORDERS)
        assert (status, browser.line.lying[REJECTED]) == (200, [])
        assert f"Sent to {ORDERS}, and removed from {REJECTED}." in page
        (message,) = browser.line.sent_messages
        assert message.queue == ORDERS
        status, page = await browser.post(unescape(address), target=ORDERS)
        assert (status, "is not in that queue" in page) == (404, True)
        assert len(browser.line.sent_messages) == 1


async def test_a_message_of_any_id_is_sent_again_by_its_link_and_form() -> None:
    system = kit(CARE)
    body = (await rejected_order(system)).body
    async with desk_of(system) as browser:
        browser.line.runs = False
        for message_id in IDS:
            browser.line.put(REJECTED, body, message_id=message_id)
            await browser.desk.inboxes.look()
            inbox = await browser.get("inbox?name=rejected")
            (link,) = re.findall(r'href="(resend[^"]+)"', inbox)
            page = await browser.get(unescape(link))
            (action,) = re.findall(r'method="post" action="([^"]+)"', page)
            status, _ = await browser.post(unescape(action), target=ORDERS)
            assert (status, browser.line.lying[REJECTED]) == (200, []), message_id


async def test_a_message_stays_if_its_form_has_another_target_or_there_is_no_right_to_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = kit(CARE)

    async def refused(messages: list[Message]) -> None:
        raise UndeliverableError("queue orders: you need the role.", messages[0])

    async with desk_of(system) as browser:
        link = link_to("rejected", REJECTED, await poison(system, browser))
        status, page = await browser.post(link, target="scheduler")
        assert (status, browser.line.sent_messages) == (404, [])
        assert f"Nothing was sent: it would go to {ORDERS} now" in page
        monkeypatch.setattr(browser.line, "send", refused)
        status, page = await browser.post(link, target=ORDERS)
        assert (status, len(browser.line.lying[REJECTED])) == (404, 1)
        assert "Nothing was sent: queue orders: you need the role." in page


async def test_a_dead_letter_is_sent_again_only_if_that_is_safe() -> None:
    system = kit(CARE)
    await submit(system, "DONE")
    async with desk_of(system) as browser:
        browser.line.runs = False
        for name in ("DONE", "NEW"):
            browser.line.put(
                path_of(PLACE),
                order(name, workflow="care"),
                message_id=f"again-{name}",
                properties=WHY,
            )
        await browser.desk.inboxes.look()
        link = link_to("dead-letters", PLACE, "again-DONE")
        status, page = await browser.post(link, target=ORDERS)
        assert (status, "already done" in page, browser.line.sent_messages) == (404, True, [])
        link = link_to("dead-letters", PLACE, "again-NEW")
        status, page = await browser.post(link, target=ORDERS)
        assert (status, [message.queue for message in browser.line.sent_messages]) == (
            200,
            [ORDERS],
        )
        assert [letter.message_id for letter in browser.line.lying[path_of(PLACE)]] == [
            "again-DONE"
        ]


async def test_only_messages_of_the_two_inboxes_are_sent_again() -> None:
    async with desk_of(kit(CARE)) as browser:
        for queue in (QUEUES.alerts, QUEUES.scheduler, REJECTED):
            browser.line.put(queue, b"{}", message_id="m-1")
        await browser.desk.inboxes.look()
        for name, queue in {
            "alerts": QUEUES.alerts,
            "rejected": QUEUES.scheduler,
            "nosuch": REJECTED,
        }.items():
            status, _ = await browser.post(link_to(name, queue, "m-1"), target=ORDERS)
            assert (status, browser.line.sent_messages) == (404, [])
