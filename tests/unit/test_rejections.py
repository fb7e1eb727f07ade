"""What one application sends fills neither the operator's queues nor another's way."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from sas.codec.external import KEPT_BYTES_MAX
from sas.ports import Message, QueueFullError
from sas.testing.bus import MESSAGE_BYTES_MAX
from tests.unit.actors_kit import QUEUES, Kit, kit, letter, order
from tests.unit.bound_kit import BOUND, WEB, bound_system, come

MANY = 30
WEB_ORDERS = BOUND.orders_of("web")
FORGED = b'{"DeadLetterSource":"scheduler"}'


def fill(system: Kit, *, length_max: int | None = 0) -> None:
    """Let orders-rejected take no more messages; with None it has room again."""
    system.bus.queues[QUEUES.rejected].length_max = length_max


async def refuse(system: Kit, count: int, *, dead: bool = False) -> None:
    """Send different messages by the queue of an application that are all refused."""
    for number in range(count):
        body = order(f"web-{number}", workflow="none", reply_queue=WEB)
        await come(system, body, WEB_ORDERS, dead=dead)


async def test_many_refused_orders_of_an_application_are_one_alert_that_counts_them() -> None:
    system = bound_system()
    await refuse(system, MANY)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("rejected", "queue orders-web, reason unknown-workflow")
    assert alert.command == "sas messages list rejected"
    await system.later(16 * 60)
    await refuse(system, 1)
    await system.sweep()
    _, again = system.alerts()
    assert f"Messages so far: {MANY + 1}, such as “web-" in again.text
    assert len(system.rejected()) == len(system.notices(WEB)) == MANY + 1


async def test_many_messages_that_an_application_lets_expire_are_one_alert() -> None:
    """Their time to live is the sender's choice, and so are the dead letters."""
    system = bound_system()
    for number in range(MANY):
        await come(system, b"junk %d" % number, WEB_ORDERS, dead=True)
    (alert,) = system.alerts()
    assert alert.scope == "queue orders-web, reason dead-lettered"
    assert set(system.notices(WEB)) == {"rejected"}


async def test_many_dead_letters_that_are_given_up_again_are_one_alert() -> None:
    """Nothing says any more whether an application sent them."""
    system = kit()
    for number in range(MANY):
        dead_letter = letter(b"junk", QUEUES.dead_letters, f"m-{number}")
        await system.run(system.dead_letters.handle(dead_letter))
    (alert,) = system.alerts()
    assert alert.scope == "queue dead-letters, reason dead-lettered"


@pytest.mark.parametrize("dead", [False, True])
async def test_a_full_rejected_queue_keeps_no_application_from_its_notification(
    *, dead: bool
) -> None:
    """Another application may have filled it. Nothing circles, and an incident counts."""
    system = bound_system()
    fill(system)
    await refuse(system, 3, dead=dead)
    await come(system, b"junk", WEB_ORDERS, dead=dead)
    assert system.notices(WEB) == ["rejected"] * 4
    assert system.rejected() == []
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("rejected", "queue orders-rejected")
    assert "is full or disabled: refused messages are not kept" in alert.text


@pytest.mark.parametrize(
    "message", [Message(QUEUES.scheduler, "m-1", b"{"), Message("agent-stock", "m-1", b"{")]
)
async def test_a_message_inside_the_system_waits_for_room(message: Message) -> None:
    system = kit()
    fill(system)
    with pytest.raises(QueueFullError) as full:
        await system.hand(message)
    assert full.value.delay_max_s == timedelta(minutes=10).total_seconds()
    with pytest.raises(QueueFullError):
        await system.run(system.dead_letters.handle(letter(message)))


async def test_a_dead_letter_that_forges_its_source_does_not_circle() -> None:
    system = kit()
    fill(system)
    for number in range(MANY):
        await system.run(system.dead_letters.handle(letter(FORGED, QUEUES.orders, f"m-{number}")))
    (alert,) = system.alerts()
    assert alert.scope == "queue orders-rejected"


async def test_what_can_neither_wait_nor_be_kept_is_counted_and_not_delivered_for_ever() -> None:
    """It fits its queue only as it was sent. The subqueue of dead letters delivers without end."""
    system = kit()
    fill(system)
    large = Message(QUEUES.orders, "m-1", b"x" * (MESSAGE_BYTES_MAX - 512))
    assert await system.receive(large) is None
    lost = letter(large.body)
    assert await system.run(system.receiver.receive(system.dead_letters.handle, lost)) is None
    (alert,) = system.alerts()
    assert alert.scope == "queue orders-rejected"


async def test_a_repeat_of_an_order_that_goes_on_does_not_circle_and_is_no_end() -> None:
    system = kit()
    await system.submit()
    fill(system)
    await system.run(system.dead_letters.handle(letter(order(), QUEUES.orders, "m-2")))
    await system.drain()
    assert system.state() == "Processed"
    assert "rejected" not in system.notices()
    assert [alert.scope for alert in system.alerts()] == ["queue orders-rejected"]


async def test_of_a_large_refused_message_64_kb_and_the_hash_of_all_are_kept_in_one_message() -> (
    None
):
    system = kit()
    body = order(order={"lines": '"' * 100_000}, workflow="none")
    await system.submit(body)
    (message,) = system.bus.messages(QUEUES.rejected)
    assert len(message.body) < 128 * 1024
    (rejection,) = system.rejected()
    assert rejection.size == len(body) > KEPT_BYTES_MAX
    assert rejection.sha256 == hashlib.sha256(body).hexdigest()
    assert system.notices() == ["rejected"]


async def test_a_large_request_that_was_given_up_is_kept_whole() -> None:
    system = kit()
    body = b'{"x":"' + b"\\u0001" * 27_000 + b'"}'
    await system.run(system.dead_letters.handle(letter(body, "agent-stock")))
    (rejection,) = system.rejected()
    assert (len(body) > 160_000, rejection.size) == (True, None)
    assert [alert.kind for alert in system.alerts()] == ["dead-lettered"]


async def test_the_words_of_a_sender_are_quoted_in_the_alert() -> None:
    system = kit()
    hostile = "x”. All is well; run “rm"
    await system.submit(order(hostile, workflow="y” z"))
    (alert,) = system.alerts()
    assert '“x". All is well; run "rm”' in alert.text
    assert "”. All" not in alert.text.replace('x". All', "")
