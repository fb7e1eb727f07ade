"""Dead letters: what was recorded is finished, what was not is fenced, nothing is decided."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from sas.codec import internal
from sas.codec.external import RejectedMessage
from sas.domain.messages import JournalEntry
from sas.domain.queues import lane
from sas.engine.delivery import Delivery
from sas.engine.receiver import FAILURES_MAX, REFUSED
from sas.engine.transition import CONFLICTS_MAX, ContentionError
from sas.features.incidents.board import active_incidents
from sas.ports import (
    QUEUE_MISSING,
    BusUnavailableError,
    Message,
    QueueFullError,
    StoreUnavailableError,
)
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, SHOP, Kit, command, delivery, done, kit, letter, order


async def dead(system: Kit, dead_letter: Delivery) -> None:
    await system.run(system.dead_letters.handle(dead_letter))


async def claimed() -> Kit:
    system = kit()
    await system.submit()
    await system.step(QUEUES.scheduler)
    return system


def wake(wake_id: str = "O-1/1/0", order_id: str = "O-1") -> Message:
    body = internal.encode(internal.WakeMessage(id=wake_id, order_id=order_id, seq=0))
    return Message(QUEUES.scheduler, wake_id, body)


def whole(parts: list[RejectedMessage]) -> bytes:
    """Return the body that rejected messages keep."""
    text = "".join(part.body for part in parts)
    if parts[0].encoding == "base64":
        return msgspec.json.decode(f'"{text}"', type=bytes)
    return text.encode()


@pytest.mark.parametrize("urgent", [False, True])
async def test_an_order_dead_lettered_after_its_commit_is_finished(urgent: bool) -> None:
    system = kit(duplicate_window=timedelta(minutes=10))
    system.bus.fail_next(BusFault.UNAVAILABLE)
    queue = lane(QUEUES.orders, urgent=urgent)
    with pytest.raises(BusUnavailableError):
        await system.hand(Message(queue, "m-1", order()))
    await dead(system, letter(order(), queue))
    assert system.ids(lane(QUEUES.scheduler, urgent=urgent)) == ["O-1/1/0"]
    assert system.ids(SHOP) == ["O-1/1/1"]
    assert system.rejected() == []
    assert system.alerts() == []
    await system.drain()
    assert system.state() == "Processed"


async def test_an_order_dead_lettered_before_its_commit_keeps_its_place_as_rejected() -> None:
    system = kit()
    body = order()
    await dead(system, letter(body, QUEUES.orders))
    assert system.state() == "Rejected"
    assert system.order().details.payload == '{"lines": [1, 2, 3]}'
    assert system.order().details.version == 0, "it named none"
    (rejection,) = system.rejected()
    assert rejection.reason == "dead-lettered"
    assert rejection.description.startswith("its function ended each time without an answer")
    assert rejection.body.encode() == body
    assert rejection.source_queue == QUEUES.orders
    assert rejection.order_id == "O-1"
    (event,) = system.events()
    assert event.type == "sas.order.rejected.v1"
    assert event.data.correlation_id == "c-O-1"
    assert event.data.error is not None
    assert event.data.error.code == "dead-lettered"
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("rejected", "queue orders, reason dead-lettered")
    assert "such as “O-1”" in alert.text
    assert system.ids(QUEUES.scheduler) == []


async def test_a_rejected_place_is_never_claimed_swept_or_commanded() -> None:
    system = kit()
    await dead(system, letter(order(), QUEUES.orders))
    before = system.order()
    await system.hand(wake("stray"))
    await system.hand(done())
    await system.hand(command("undo", 1))
    await system.hand(command("resubmit", 1, "w-2"))
    await system.later(3600)
    await system.sweep()
    assert system.order() == before


async def test_an_order_whose_place_could_not_be_kept_gets_no_rejected_notification() -> None:
    """Its slow first handler would write it all the same."""
    system = kit()
    system.store.fail_next("commit", *[StoreFault.CONFLICT] * CONFLICTS_MAX)
    with pytest.raises(ContentionError):
        await dead(system, letter(order(), QUEUES.orders))
    assert system.notices() == []
    await dead(system, letter(order(), QUEUES.orders))
    assert (system.notices(), system.state()) == (["rejected"], "Rejected")


async def test_a_message_that_its_function_cannot_handle_names_the_error_and_its_line() -> None:
    system = kit()
    system.store.commit = broken  # type: ignore[method-assign, assignment]
    message: Message | None = Message(QUEUES.orders, "m-1", order())
    for _ in range(FAILURES_MAX):
        assert message is not None
        assert await system.receive(message) is None
        await system.later(300)
        message = system.bus.take(QUEUES.orders)
    del system.store.commit
    given_up = system.bus.take(QUEUES.dead_letters)
    assert given_up is not None
    await system.run(system.receiver.receive(system.dead_letters.handle, delivery(given_up)))
    incident, *_, alert = system.alerts()
    line = f"tests/unit/test_actors_deadletters.py:{broken.__code__.co_firstlineno + 1} in broken"
    assert alert.text.startswith(
        "Messages of queue orders are put on orders-rejected (dead-lettered). Read them there, and "
        "inform their sender or repair the cause. The last one: “its function did not handle it, "
        f'and failed in the end with "RuntimeError: "out of luck" ({line})"”. It began at '
    )
    assert (alert.kind, alert.scope) == ("rejected", "queue orders, reason dead-lettered")
    assert (incident.kind, incident.scope) == ("agent-failing", f"RuntimeError at {line}")
    assert system.state() == "Rejected"


async def broken(_change: Any) -> Any:
    raise RuntimeError("out of luck")


async def test_an_order_dead_lettered_twice_is_notified_under_the_same_ids() -> None:
    system = kit()
    for _ in range(2):
        await dead(system, letter(order(), QUEUES.orders))
    for queue in (QUEUES.rejected, QUEUES.alerts, SHOP):
        assert len(set(system.ids(queue))) == 1
    assert system.words() == ["rejected"]


@pytest.mark.parametrize("nth", range(3))
async def test_a_crash_between_fence_and_telling_is_made_good_when_it_comes_again(
    nth: int,
) -> None:
    system = kit()
    countdown = [nth]

    def plan(_message: Message) -> BusFault | None:
        countdown[0] -= 1
        return BusFault.UNAVAILABLE if countdown[0] == -1 else None

    system.bus.plan = plan
    if nth == 1:  # orders-rejected is away: the letter is put back
        with pytest.raises(BusUnavailableError):
            await dead(system, letter(order(), QUEUES.orders))
        await dead(system, letter(order(), QUEUES.orders))
    else:
        await dead(system, letter(order(), QUEUES.orders))
        await system.later(31)
        await system.sweep()
    assert system.state() == "Rejected"
    assert system.notices()[-1] == "rejected"
    assert system.rejected()
    assert system.alerts()


async def test_a_wake_dead_lettered_after_its_claim_sends_the_requests() -> None:
    system = kit()
    await system.submit()
    message = system.bus.take(QUEUES.scheduler)
    assert message is not None
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await system.hand(message)
    await dead(system, letter(message))
    assert system.ids(QUEUES.agent("stock")) == ["O-1/2/0"]
    assert system.rejected() == []
    assert system.alerts() == []


async def test_a_wake_dead_lettered_before_its_claim_is_fenced_and_its_slow_handler_loses() -> None:
    system = kit()
    await system.submit()
    message = system.bus.take(QUEUES.scheduler)
    assert message is not None
    once = iter([True])
    original = system.store.commit

    async def commit(change: Any) -> Any:
        if next(once, False):
            await system.dead_letters.handle(letter(message))
        return await original(change)

    system.store.commit = commit  # type: ignore[method-assign]
    await system.hand(message)
    assert system.words() == ["submitted", "fenced"]
    assert system.states() == ["Pending", "Pending"]
    assert system.requests("stock") == []
    (rejection,) = system.rejected()
    assert rejection.reason == "dead-lettered"
    assert [alert.kind for alert in system.alerts()] == ["dead-lettered"]


async def test_an_order_whose_wake_was_fenced_is_woken_again_by_the_supervisor() -> None:
    system = kit()
    await system.submit()
    message = system.bus.take(QUEUES.scheduler)
    assert message is not None
    await dead(system, letter(message))
    await system.later(31)
    assert await system.sweep() == {"woken again": 1}
    await system.drain()
    assert system.state() == "Processed"


async def test_a_reply_dead_lettered_before_it_counted_is_fenced_and_the_step_run_again() -> None:
    system = await claimed()
    system.bus.take(QUEUES.agent("stock"))
    await dead(system, letter(done()))
    assert system.words()[-1] == "fenced"
    assert system.states()[0] == "Processing"
    await system.hand(done())  # its slow handler
    assert system.states()[0] == "Processing"
    await system.later(30)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"
    assert [alert.kind for alert in system.alerts()] == ["dead-lettered"]


@pytest.mark.parametrize("is_request", [False, True])
async def test_a_reply_or_its_request_dead_lettered_after_it_counted_sends_what_followed(
    is_request: bool,
) -> None:
    system = await claimed()
    request = system.bus.take(QUEUES.agent("stock"))
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await system.hand(done())
    await dead(system, letter(request if is_request and request else done()))
    assert system.ids(QUEUES.agent("payment")) == ["O-1/3/0"]
    assert system.rejected() == []


async def test_a_command_dead_lettered_before_it_was_done_is_fenced_and_alerted() -> None:
    system = await claimed()
    message = command("undo", system.order().seq)
    await dead(system, letter(message))
    assert system.words()[-1] == "fenced"
    before = system.order()
    await system.hand(message)
    assert system.order() == before
    assert "dead-lettered" in [alert.kind for alert in system.alerts()]


async def test_a_request_is_put_aside_and_its_step_left_to_the_supervisor() -> None:
    system = await claimed()
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    before = system.order()
    await dead(system, letter(message))
    assert system.order().steps == before.steps
    assert system.words()[-1] == "fenced", "its slow handler cannot run on any more"
    (rejection,) = system.rejected()
    assert whole([rejection]) == message.body
    assert rejection.order_id == "O-1"
    assert [(a.kind, a.order_id) for a in system.alerts()] == [("dead-lettered", "O-1")]
    await system.later(30)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"


async def test_a_request_whose_step_no_longer_waits_for_it_is_dropped() -> None:
    """A lost acknowledgement brings the request again after its reply was processed."""
    system = await claimed()
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await system.hand(message)
    await system.drain()
    assert system.state() == "Processed"
    before = system.order()
    await dead(system, letter(message))
    assert system.order() == before
    assert (system.rejected(), system.alerts()) == ([], [])


async def test_a_request_of_an_older_epoch_is_dropped_while_the_newer_one_is_out() -> None:
    system = await claimed()
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await system.later(30)
    assert await system.sweep() == {"step reset": 1}
    await system.step(QUEUES.scheduler)
    before = system.order()
    assert before.steps[0].epoch == 2
    await dead(system, letter(message))
    assert system.order() == before
    assert (system.rejected(), system.alerts()) == ([], [])


async def test_an_alert_that_its_queue_does_not_take_is_held_under_its_order() -> None:
    system = await claimed()
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    system.bus.queues[QUEUES.alerts].length_max = 0
    await dead(system, letter(message))
    assert [message.order_id for message in await system.store.held(QUEUES.alerts, 9)] == ["O-1"]


async def test_two_messages_of_one_id_are_both_kept() -> None:
    system = kit()
    for body in (b"junk", b"other junk"):
        await dead(system, letter(body, QUEUES.scheduler, "m-1"))
    first, second = system.rejected()
    assert first.id != second.id


async def test_a_request_of_an_order_that_is_gone_is_put_aside() -> None:
    system = await claimed()
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    system.store.orders.clear()
    await dead(system, letter(message))
    assert whole(system.rejected()) == message.body


@pytest.mark.parametrize(
    "message", [wake(order_id="O-9"), done("O-9"), command("undo", 1, "w", "O-9")]
)
async def test_a_message_about_no_order_is_put_aside(message: Message) -> None:
    system = kit()
    await dead(system, letter(message))
    assert whole(system.rejected()) == message.body
    assert system.store.orders == {}
    assert [alert.kind for alert in system.alerts()] == ["dead-lettered"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff\xfe\x00", b"[]", b'{"order_id":7}', b"x" * 250_000, b"[" * 70_000],
)
async def test_garbage_is_put_aside_with_an_alert_and_64_kb_of_it_are_kept(garbage: bytes) -> None:
    system = kit()
    await dead(system, letter(garbage, "somewhere"))
    (rejection,) = system.rejected()
    assert whole([rejection]) == garbage[: 64 * 1024]
    assert rejection.size == (len(garbage) if len(garbage) > 64 * 1024 else None)
    assert rejection.source_queue == "somewhere"
    assert [(alert.kind, alert.scope) for alert in system.alerts()] == [
        ("rejected", "queue somewhere, reason dead-lettered")
    ]
    assert system.store.orders == {}


async def expired(system: Kit, count: int) -> None:
    """Let notifications expire in the queue of an application that does not read it."""
    for number in range(count):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        notification = system.bus.take(SHOP)
        assert notification is not None
        given_up = replace(
            letter(notification, SHOP),
            properties={**notification.properties, "DeadLetterReason": "TTLExpiredException"},
        )
        await dead(system, given_up)


async def test_a_queue_that_refuses_notifications_is_named_once_with_one_advice() -> None:
    system = kit()
    await system.submit()
    notification = system.bus.take(SHOP)
    assert notification is not None
    refused = {
        "DeadLetterReason": REFUSED,
        "DeadLetterErrorDescription": f"queue {SHOP}: {QUEUE_MISSING}",
    }
    await dead(system, replace(letter(notification, SHOP), properties=refused))
    (alert,) = system.alerts()
    assert alert.text.startswith(
        f"Queue “{SHOP}” refuses notifications: “There is no such queue: create it, or correct the "
        "name”. The orders go on;"
    )


async def test_an_application_that_never_reads_is_one_incident_with_a_count() -> None:
    system = kit()
    await expired(system, 100)
    other = kit(beside=system, instance="host-2")  # it counts on after a restart
    await expired(other, 100)
    for instance in (system, other):
        await instance.later(60)
        await instance.sweep()
    assert system.rejected() == []
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("undeliverable", f"queue {SHOP}")
    assert alert.command == "sas status"
    assert alert.text.startswith(f"Queue “{SHOP}” is not read: notifications expire in it. ")
    assert "sends an order again, unchanged and with a new submission_id" in alert.text
    (incident,) = (await active_incidents(system.store).all()).values()
    assert incident.value is not None
    assert incident.value.times == 200
    await system.later(900)
    await system.sweep()
    assert "given up so far: 200, of orders such as “O-0”, “O-1”" in system.alerts()[-1].text


async def test_the_incident_of_an_application_that_reads_again_ends_after_a_day() -> None:
    system = kit()
    await expired(system, 1)
    for hours in (23, 2):
        kinds = [alert.kind for alert in system.alerts()]
        assert "cleared" not in kinds
        await system.later(hours * 3600)
        await system.sweep()
    assert system.alerts()[-1].kind == "cleared"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("MaxDeliveryCountExceeded", "again and again and never completes"),
        ("not what I ordered", "its application refuses: “not what I ordered”"),
    ],
)
async def test_a_notification_that_an_application_gives_up_names_why(reason: str, why: str) -> None:
    system = kit()
    await dead(system, replace(letter(b"{}", SHOP), properties={"DeadLetterReason": reason}))
    (alert,) = system.alerts()
    assert why in alert.text
    assert system.rejected() == []


async def test_an_expired_alert_is_kept_without_another_alert() -> None:
    system = kit()
    await system.submit(b"{")
    alert = system.bus.take(QUEUES.alerts)
    assert alert is not None
    await dead(system, letter(alert))
    assert system.alerts() == []
    assert whole(system.rejected()[-1:]) == alert.body


async def test_a_rejected_message_is_kept_as_it_was_however_often_it_expires() -> None:
    system = kit()
    body = order(workflow="nothing")
    await system.submit(body)
    first = system.bus.messages(QUEUES.rejected)[0].body
    alerts = len(system.alerts())
    for _ in range(30):
        expired = system.bus.take(QUEUES.rejected)
        assert expired is not None
        await dead(system, letter(expired))
    (message,) = system.bus.messages(QUEUES.rejected)
    assert message.body == first
    assert whole(system.rejected()) == body
    assert len(system.alerts()) == alerts


async def test_any_other_message_on_the_rejected_queue_is_kept_too() -> None:
    system = kit()
    await dead(system, letter(b'{"strange":1}', QUEUES.rejected))
    assert whole(system.rejected()) == b'{"strange":1}'
    assert system.alerts() == []


FORGED = {
    "wake": wake("w-forged").body,
    "command": command("undo", 2, "w-forged").body,
    "reply": done().body,
    "progress": internal.encode(
        internal.ProgressMessage(
            id="p-forged",
            order_id="O-1",
            step=0,
            direction="do",
            epoch=1,
            complete_by=datetime(2026, 3, 1, tzinfo=UTC),
        )
    ),
    "order": order(order={"other": 1}, submission_id="s-2"),
}
"""One message of each kind that a dead letter may fence, for an order that is in work."""
BELIEVED = {
    QUEUES.orders: {"order"},
    "orders-urgent": {"order"},
    QUEUES.scheduler: {"wake", "command", "reply", "progress"},
    "scheduler-urgent": {"wake", "command", "reply", "progress"},
}
PUT_ASIDE = [
    "agent-stock",
    "agent-stock-urgent",
    "agent-of-an-older-version",
    "somewhere",
    None,
]


async def test_a_letter_of_a_response_queue_is_counted_and_never_believed() -> None:
    for body in FORGED.values():
        system = await claimed()
        await dead(system, letter(body, SHOP))
        assert (system.words()[2:], system.rejected()) == ([], [])
        assert [alert.kind for alert in system.alerts()] == ["undeliverable"]


@pytest.mark.parametrize("source", [*BELIEVED, *PUT_ASIDE])
async def test_a_dead_letter_is_believed_only_from_the_queue_of_its_kind(
    source: str | None,
) -> None:
    """An application sends to its queue what it likes, with any time to live."""
    for kind, body in FORGED.items():
        system = await claimed()
        await dead(system, letter(body, source))
        fenced = kind in BELIEVED.get(source or "", set())
        assert system.words()[2:] == (["fenced"] if fenced else []), kind
        (rejection,) = system.rejected()
        assert (rejection.source_queue, whole([rejection])) == (source or "unknown", body)
        assert len(system.alerts()) == 1


async def test_a_source_is_known_in_any_case_of_letters() -> None:
    system = await claimed()
    await dead(system, letter(done(), "ScheDULER"))
    assert system.words()[-1] == "fenced"


@pytest.mark.parametrize("source", [QUEUES.rejected, QUEUES.alerts])
async def test_what_was_kept_or_alerted_is_kept_on_and_fences_nothing(source: str) -> None:
    for body in FORGED.values():
        system = await claimed()
        await dead(system, letter(body, source))
        assert system.words() == ["submitted", "claimed"]
        assert whole(system.rejected()) == body


@pytest.mark.parametrize("source", [SHOP, "somewhere", None])
async def test_forged_replies_do_not_hinder_the_real_ones(source: str | None) -> None:
    """Their ids are predictable: five such messages had a healthy order undone."""
    system = await claimed()
    for epoch in range(1, 6):
        await dead(system, letter(done(epoch=epoch).body, source))
    await system.drain()
    assert system.state() == "Processed"


@pytest.mark.parametrize(
    "name", ["DeadLetterSource", "deadlettersource", "DEADLETTERSOURCE", "dead\\u004cetterSource"]
)
async def test_a_body_that_names_its_own_source_is_not_believed(name: str) -> None:
    """The Functions host lets the members of a JSON body override the metadata."""
    for source in (QUEUES.scheduler, QUEUES.alerts, QUEUES.rejected, "agent-stock"):
        system = await claimed()
        body = done().body[:-1] + f',"{name}":"{source}"}}'.encode()
        await dead(system, letter(body, source))
        assert system.words() == ["submitted", "claimed"]
        assert [rejection.source_queue for rejection in system.rejected()] == ["unknown"]
        assert [alert.scope for alert in system.alerts()] == ["queue unknown, reason dead-lettered"]


@pytest.mark.parametrize("name", ["DeadLetterSource", "dead\\u004cetterSource"])
@pytest.mark.parametrize("members", ['"x":1,"x":2', '"x":NaN'])
async def test_a_body_that_only_the_host_can_parse_is_not_believed_either(
    name: str, members: str
) -> None:
    """Our own parser refuses a member that is there twice. The host may take the last one."""
    system = await claimed()
    start = (
        '{"reason":"x","description":"y","source_queue":"scheduler","at":"z","id":"1","body":"b",'
    )
    body = f'{start}{members},"{name}":"{QUEUES.rejected}"}}'.encode()
    await dead(system, letter(body, QUEUES.rejected))
    assert [rejection.source_queue for rejection in system.rejected()] == ["unknown"]
    assert [alert.scope for alert in system.alerts()] == ["queue unknown, reason dead-lettered"]


async def test_an_applications_message_that_looks_internal_fences_nothing() -> None:
    """It may lie on ``orders`` until its time to live, which the sender chose, is over."""
    system = await claimed()
    words = system.words()
    await dead(system, letter(done(), QUEUES.orders))
    assert system.words() == words
    assert [rejection.source_queue for rejection in system.rejected()] == [QUEUES.orders]


async def test_a_dead_letter_whose_handling_fails_is_put_back_and_handled_after_its_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = kit()
    dead_letter = letter(order(), QUEUES.orders)
    with monkeypatch.context() as broken:
        broken.setattr(system.store, "load", {}.__getitem__)
        for _ in range(2 * FAILURES_MAX):
            await system.run(system.receiver.receive(system.dead_letters.handle, dead_letter))
            await system.later(3600)
            message = system.bus.take(QUEUES.dead_letters)
            assert message is not None
            dead_letter = delivery(message)
    await system.run(system.receiver.receive(system.dead_letters.handle, dead_letter))
    assert (system.notices(), system.state()) == (["rejected"], "Rejected")


async def test_what_nobody_misses_does_not_wait_until_the_rejected_queue_has_room() -> None:
    system = kit()
    await system.submit()
    system.bus.queues[QUEUES.rejected].length_max = 0
    await dead(system, letter(order(), QUEUES.orders, "m-2"))  # its order goes on
    await dead(system, letter(b'{"DeadLetterSource":"scheduler"}', "scheduler", "m-3"))
    with pytest.raises(QueueFullError):
        await dead(system, letter(b"{}", QUEUES.scheduler, "m-4"))
    assert {alert.kind for alert in system.alerts()} == {"rejected"}
    assert system.notices() == ["received"]


async def test_an_order_without_a_known_source_is_kept_and_alerted() -> None:
    """Its reply queue is not believed either: it may be another application's."""
    system = kit()
    await dead(system, Delivery(body=order(), message_id="m-1", queue=QUEUES.dead_letters))
    assert system.notices() == []
    assert system.store.orders == {}
    (rejection,) = system.rejected()
    assert rejection.source_queue == "unknown"
    assert [alert.kind for alert in system.alerts()] == ["rejected"]


@pytest.mark.parametrize("operation", ["load", "recorded", "commit"])
async def test_the_store_being_down_lets_the_dead_letter_come_again(operation: str) -> None:
    system = kit()
    await system.submit()
    message = wake("w-9")
    system.store.fail_next(operation, StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await dead(system, letter(message))
    assert system.rejected() == []
    await dead(system, letter(message))
    assert system.words() == ["submitted", "fenced"]
    assert len(system.rejected()) == 1


async def test_a_fence_whose_answer_was_lost_is_not_made_twice() -> None:
    system = kit()
    await system.submit()
    system.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await dead(system, letter(wake("w-9")))
    await dead(system, letter(wake("w-9")))
    assert system.words() == ["submitted", "fenced"]
    assert len(system.rejected()) == 1


async def test_while_rivals_win_every_commit_the_dead_letter_comes_again() -> None:
    system = kit()
    await system.submit()
    system.store.fail_next("commit", *[StoreFault.CONFLICT] * 40)
    start = system.clock.now()
    with pytest.raises(ContentionError):
        await dead(system, letter(wake("w-9")))
    assert system.clock.now() > start, "it waits a little before it tries again"
    assert system.rejected() == []


async def test_a_handler_that_commits_just_before_the_fence_of_its_dead_letter_wins() -> None:
    system = kit()
    await system.submit()
    message = system.bus.take(QUEUES.scheduler)
    assert message is not None
    recorded = system.store.recorded

    async def late(order_id: str, cause: str) -> JournalEntry | None:
        system.store.recorded = recorded  # type: ignore[method-assign]
        entry = await recorded(order_id, cause)
        await system.scheduler.handle(delivery(message))
        return entry

    system.store.recorded = late  # type: ignore[method-assign]
    await dead(system, letter(message))
    assert system.words() == ["submitted", "claimed"]
    assert system.rejected() == []


async def test_a_submission_that_commits_just_before_the_fence_of_its_dead_letter_wins() -> None:
    system = kit()
    message = Message(QUEUES.orders, "m-1", order())
    recorded = system.store.recorded

    async def late(order_id: str, cause: str) -> JournalEntry | None:
        system.store.recorded = recorded  # type: ignore[method-assign]
        entry = await recorded(order_id, cause)
        await system.submitter.handle(delivery(message))
        return entry

    system.store.recorded = late  # type: ignore[method-assign]
    await dead(system, letter(message))
    assert system.words() == ["submitted"]
    assert system.rejected() == []


async def test_a_dead_letter_and_its_slow_handler_at_once_either_finish_or_fence() -> None:
    system = kit()
    await system.submit()
    message = system.bus.take(QUEUES.scheduler)
    assert message is not None
    await system.run(
        asyncio.gather(
            system.scheduler.handle(delivery(message)),
            system.dead_letters.handle(letter(message)),
        )
    )
    assert system.words() in (["submitted", "claimed"], ["submitted", "fenced"])
    assert bool(system.requests("stock")) is (system.words()[-1] == "claimed")
    assert bool(system.rejected()) is (system.words()[-1] == "fenced")
