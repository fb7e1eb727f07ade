"""A rejected message, or a dead letter, is sent again from the desk by the rules of the command."""

from __future__ import annotations

import re
from html import unescape

import pytest

from sas.domain.queues import DEAD_LETTER_SUBQUEUE
from sas.ports import Message, UndeliverableError
from tests.integration.desk_kit import Browser, desk_of, words
from tests.unit.actors_kit import CARE, QUEUES, Kit, kit, order, submit

REJECTED, ORDERS = QUEUES.rejected, QUEUES.orders
DEAD = ORDERS + DEAD_LETTER_SUBQUEUE
WHY = {"DeadLetterReason": "TTLExpired"}


async def poison(made: Kit, browser: Browser) -> str:
    """Let an order be rejected; return the id of the message that is kept."""
    await made.submit(order("BAD-1", workflow="nosuch"), "m-1")
    await made.later(120)
    taken = made.bus.take(REJECTED)
    assert taken is not None
    browser.line.put(REJECTED, taken.body, taken.message_id)
    await browser.desk.inboxes.look()
    return taken.message_id


def form(queue: str, message_id: str, target: str = ORDERS) -> dict[str, str]:
    return {"queue": queue, "id": message_id, "target": target}


async def test_the_page_says_first_what_it_will_do_and_sends_nothing() -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        await poison(made, browser)
        inbox = await browser.get("/inbox/rejected")
        (address,) = re.findall(r'href="(/inbox/rejected/resend[^"]+)"', inbox)
        said = await browser.look(unescape(address))
        assert "unknown-workflow" in said
        assert f"It would be sent to {ORDERS} again under a new id, then removed" in said
        assert browser.line.sent == []
        assert len(browser.line.lying[REJECTED]) == 1


async def test_a_rejected_message_is_sent_again_once_and_removed() -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        kept = await poison(made, browser)
        browser.line.runs = False
        status, said = await browser.post("/inbox/rejected/resend", **form(REJECTED, kept))
        assert status == 303
        said = words(await browser.get(said))  # loaded again and again, it sends nothing
        assert f"Sent to {ORDERS}, and removed from {REJECTED}." in said
        (sent,) = browser.line.sent
        assert (sent.queue, browser.line.lying[REJECTED]) == (ORDERS, [])
        assert b"BAD-1" in sent.body
        status, said = await browser.post("/inbox/rejected/resend", **form(REJECTED, kept))
        assert (status, "is not in that queue" in said) == (404, True)
        assert len(browser.line.sent) == 1


async def test_what_somebody_else_took_meanwhile_is_not_sent() -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        kept = await poison(made, browser)
        browser.line.lying[REJECTED] = []
        status, said = await browser.post("/inbox/rejected/resend", **form(REJECTED, kept))
        assert (status, browser.line.sent) == (404, [])
        assert "There is no " in said


async def test_a_form_that_names_another_target_sends_nothing() -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        kept = await poison(made, browser)
        asked = form(REJECTED, kept, "scheduler")
        status, said = await browser.post("/inbox/rejected/resend", **asked)
        assert (status, browser.line.sent) == (404, [])
        assert f"Nothing was sent: it would go to {ORDERS} now" in said


async def test_without_the_right_to_send_the_message_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kit(CARE)

    async def refused(messages: list[Message]) -> None:
        raise UndeliverableError("queue orders: you need the role.", messages[0])

    async with desk_of(made) as browser:
        kept = await poison(made, browser)
        monkeypatch.setattr(browser.line, "send", refused)
        status, said = await browser.post("/inbox/rejected/resend", **form(REJECTED, kept))
        assert (status, len(browser.line.lying[REJECTED])) == (404, 1)
        assert "Nothing was sent: queue orders: you need the role." in said


async def test_a_form_of_another_site_sends_nothing() -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        kept = await poison(made, browser)
        for headers, token in (({"Origin": "http://evil.example"}, {}), ({}, {"token": "x"})):
            own = {"Origin": browser.origin} | headers
            asked = form(REJECTED, kept) | token
            status, _ = await browser.post_with(own, "/inbox/rejected/resend", **asked)
            assert (status, browser.line.sent) == (403, [])


async def test_a_dead_letter_is_sent_again_only_if_that_is_safe() -> None:
    made = kit(CARE)
    await submit(made, "DONE")
    async with desk_of(made) as browser:
        browser.line.runs = False
        for name in ("DONE", "NEW"):
            browser.line.put(DEAD, order(name, workflow="care"), f"again-{name}", **WHY)
        await browser.desk.inboxes.look()
        said = await browser.get(
            f"/inbox/dead-letters/resend?queue={DEAD}&id=again-DONE", status=404
        )
        assert "DONE stays: already done" in said
        asked = form(DEAD, "again-DONE")
        status, said = await browser.post("/inbox/dead-letters/resend", **asked)
        assert (status, "already done" in said, browser.line.sent) == (404, True, [])
        status, said = await browser.post("/inbox/dead-letters/resend", **form(DEAD, "again-NEW"))
        assert (status, [one.queue for one in browser.line.sent]) == (303, [ORDERS])
        assert [one.message_id for one in browser.line.lying[DEAD]] == ["again-DONE"]


@pytest.mark.parametrize(
    ("name", "queue"),
    [("alerts", QUEUES.alerts), ("rejected", QUEUES.scheduler), ("nosuch", REJECTED)],
)
async def test_only_messages_of_the_two_inboxes_are_sent_again(name: str, queue: str) -> None:
    made = kit(CARE)
    async with desk_of(made) as browser:
        browser.line.put(queue, b"{}", "m-1")
        await browser.desk.inboxes.look()
        status, _ = await browser.post(f"/inbox/{name}/resend", **form(queue, "m-1"))
        assert (status, browser.line.sent) == (404, [])
