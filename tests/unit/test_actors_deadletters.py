"""Dead letters: what was recorded is finished, what was not is fenced, nothing is decided."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from sas.codec import internal
from sas.codec.external import RejectedMessage
from sas.engine.delivery import Delivery
from sas.engine.receiver import GivenUpError
from sas.engine.transition import CONFLICTS_MAX, ContentionError
from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, SHOP, Kit, command, delivery, done, kit, letter, order


async def dead(made: Kit, what: Delivery) -> None:
    await made.run(made.dead_letters.handle(what))


async def claimed() -> Kit:
    made = kit()
    await made.submit()
    await made.step(QUEUES.scheduler)
    return made


def wake(wake_id: str = "O-1/1/0", order_id: str = "O-1") -> Message:
    body = internal.encode(internal.WakeMessage(id=wake_id, order_id=order_id, seq=0))
    return Message(QUEUES.scheduler, wake_id, body)


def whole(parts: list[RejectedMessage]) -> bytes:
    """Return the body that rejected messages keep."""
    text = "".join(part.body for part in parts)
    if parts[0].encoding == "base64":
        return msgspec.json.decode(f'"{text}"', type=bytes)
    return text.encode()


async def test_an_order_dead_lettered_after_its_commit_is_finished() -> None:
    made = kit(duplicate_window=timedelta(minutes=10))
    made.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await made.submit()
    await dead(made, letter(order(), QUEUES.orders))
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert made.ids(SHOP) == ["O-1/1/1"]
    assert made.rejected() == []
    assert made.alerts() == []
    await made.drain()
    assert made.state() == "Processed"


async def test_an_order_dead_lettered_before_its_commit_keeps_its_place_as_rejected() -> None:
    made = kit()
    body = order()
    await dead(made, letter(body, QUEUES.orders))
    assert made.state() == "Rejected"
    assert made.order().details.payload == '{"lines": [1, 2, 3]}'
    (kept,) = made.rejected()
    assert kept.reason == "dead-lettered"
    assert "MaxDeliveryCountExceeded" in kept.description
    assert kept.body.encode() == body
    assert kept.source_queue == QUEUES.orders
    assert kept.order_id == "O-1"
    (event,) = made.events()
    assert event.type == "sas.order.rejected.v1"
    assert event.data.correlation_id == "c-O-1"
    assert event.data.error is not None
    assert event.data.error.code == "dead-lettered"
    assert [(a.kind, a.order_id) for a in made.alerts()] == [("rejected", "O-1")]
    assert made.ids(QUEUES.scheduler) == []


async def test_a_rejected_place_is_never_claimed_swept_or_commanded() -> None:
    made = kit()
    await dead(made, letter(order(), QUEUES.orders))
    before = made.order()
    await made.hand(wake("stray"))
    await made.hand(done())
    await made.hand(command("undo", 1))
    await made.hand(command("resubmit", 1, "w-2"))
    await made.later(3600)
    await made.sweep()
    assert made.order() == before


async def test_an_order_whose_place_could_not_be_kept_gets_no_rejected_notification() -> None:
    """Its slow first handler would write it all the same."""
    made = kit()
    made.store.fail_next("commit", *[StoreFault.CONFLICT] * CONFLICTS_MAX)
    with pytest.raises(ContentionError):
        await dead(made, letter(order(), QUEUES.orders))
    assert made.told() == []
    await dead(made, letter(order(), QUEUES.orders))
    assert (made.told(), made.state()) == (["rejected"], "Rejected")


async def test_an_order_dead_lettered_twice_is_notified_under_the_same_ids() -> None:
    made = kit()
    for _ in range(2):
        await dead(made, letter(order(), QUEUES.orders))
    for queue in (QUEUES.rejected, QUEUES.alerts, SHOP):
        assert len(set(made.ids(queue))) == 1
    assert made.words() == ["rejected"]


@pytest.mark.parametrize("nth", range(3))
async def test_a_crash_between_fence_and_telling_is_made_good_when_it_comes_again(
    nth: int,
) -> None:
    made = kit()
    left = [nth]

    def plan(_message: Message) -> BusFault | None:
        left[0] -= 1
        return BusFault.UNAVAILABLE if left[0] == -1 else None

    made.bus.plan = plan
    if nth == 0:  # without a copy on orders-rejected nobody is told
        with pytest.raises(BusUnavailableError):
            await dead(made, letter(order(), QUEUES.orders))
        await dead(made, letter(order(), QUEUES.orders))
    else:
        await dead(made, letter(order(), QUEUES.orders))
        await made.later(31)
        await made.sweep()
    assert made.state() == "Rejected"
    assert made.told()[-1] == "rejected"
    assert made.rejected()
    assert made.alerts()


async def test_another_submission_of_a_written_order_is_fenced_and_put_aside() -> None:
    made = kit()
    await made.submit()
    other = order(order={"other": 1})
    await dead(made, letter(other, QUEUES.orders, "m-2"))
    assert made.words() == ["submitted", "fenced"]
    assert made.order().details.payload == '{"lines": [1, 2, 3]}'
    assert whole(made.rejected()) == other
    await made.drain()
    assert made.state() == "Processed"


async def test_a_duplicate_given_up_is_not_reported_as_the_end_of_the_order_that_goes_on() -> None:
    """The order runs: `rejected`, which applications read as its end, would be wrong."""
    made = kit()
    await made.submit()
    await dead(made, letter(order(), QUEUES.orders, "m-2"))
    await made.drain()
    assert made.state() == "Processed"
    assert "rejected" not in made.told()
    assert whole(made.rejected()) == order()
    assert made.alerts()


async def test_a_wake_dead_lettered_after_its_claim_sends_the_requests() -> None:
    made = kit()
    await made.submit()
    message = made.bus.take(QUEUES.scheduler)
    assert message is not None
    made.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await made.hand(message)
    await dead(made, letter(message))
    assert made.ids(QUEUES.agent("stock")) == ["O-1/2/0"]
    assert made.rejected() == []
    assert made.alerts() == []


async def test_a_wake_dead_lettered_before_its_claim_is_fenced_and_its_slow_handler_loses() -> None:
    made = kit()
    await made.submit()
    message = made.bus.take(QUEUES.scheduler)
    assert message is not None
    once = iter([True])
    real = made.store.commit

    async def commit(change: Any) -> Any:
        if next(once, False):
            await made.dead_letters.handle(letter(message))
        return await real(change)

    made.store.commit = commit  # type: ignore[method-assign]
    await made.hand(message)
    assert made.words() == ["submitted", "fenced"]
    assert made.states() == ["Pending", "Pending"]
    assert made.requests("stock") == []
    (kept,) = made.rejected()
    assert kept.reason == "dead-lettered"
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


async def test_an_order_whose_wake_was_fenced_is_woken_again_by_the_supervisor() -> None:
    made = kit()
    await made.submit()
    message = made.bus.take(QUEUES.scheduler)
    assert message is not None
    await dead(made, letter(message))
    await made.later(31)
    assert await made.sweep() == {"woken again": 1}
    await made.drain()
    assert made.state() == "Processed"


async def test_a_reply_dead_lettered_before_it_counted_is_fenced_and_the_step_run_again() -> None:
    made = await claimed()
    made.bus.take(QUEUES.agent("stock"))
    await dead(made, letter(done()))
    assert made.words()[-1] == "fenced"
    assert made.states()[0] == "Processing"
    await made.hand(done())  # its slow handler
    assert made.states()[0] == "Processing"
    await made.later(30)
    await made.sweep()
    await made.drain()
    assert made.state() == "Processed"
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


async def test_a_reply_dead_lettered_after_it_counted_sends_what_followed() -> None:
    made = await claimed()
    made.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await made.hand(done())
    await dead(made, letter(done()))
    assert made.ids(QUEUES.agent("payment")) == ["O-1/3/0"]
    assert made.rejected() == []


async def test_a_command_dead_lettered_before_it_was_done_is_fenced_and_alerted() -> None:
    made = await claimed()
    message = command("undo", made.order().seq)
    await dead(made, letter(message))
    assert made.words()[-1] == "fenced"
    before = made.order()
    await made.hand(message)
    assert made.order() == before
    assert "dead-lettered" in [alert.kind for alert in made.alerts()]


async def test_a_request_is_put_aside_and_its_step_left_to_the_supervisor() -> None:
    made = await claimed()
    message = made.bus.take(QUEUES.agent("stock"))
    assert message is not None
    before = made.order()
    await dead(made, letter(message))
    assert made.order() == before
    (kept,) = made.rejected()
    assert whole([kept]) == message.body
    assert kept.order_id == "O-1"
    assert [(a.kind, a.order_id) for a in made.alerts()] == [("dead-lettered", "O-1")]
    await made.later(30)
    await made.sweep()
    await made.drain()
    assert made.state() == "Processed"


async def test_a_request_whose_step_no_longer_waits_for_it_is_dropped() -> None:
    """A lost acknowledgement brings the request again after its reply was processed."""
    made = await claimed()
    message = made.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await made.hand(message)
    await made.drain()
    assert made.state() == "Processed"
    before = made.order()
    await dead(made, letter(message))
    assert made.order() == before
    assert (made.rejected(), made.alerts()) == ([], [])


async def test_a_request_of_an_order_that_is_gone_is_put_aside() -> None:
    made = await claimed()
    message = made.bus.take(QUEUES.agent("stock"))
    assert message is not None
    made.store.orders.clear()
    await dead(made, letter(message))
    assert whole(made.rejected()) == message.body


@pytest.mark.parametrize(
    "what", [wake(order_id="O-9"), done("O-9"), command("undo", 1, "w", "O-9")]
)
async def test_a_message_about_no_order_is_put_aside(what: Message) -> None:
    made = kit()
    await dead(made, letter(what))
    assert whole(made.rejected()) == what.body
    assert made.store.orders == {}
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff\xfe\x00", b"{", b"[]", b"null", b'{"order_id":7}', b"x" * 250_000, b"[" * 70_000],
)
async def test_garbage_is_put_aside_whole_with_an_alert(garbage: bytes) -> None:
    made = kit()
    await dead(made, letter(garbage, "somewhere"))
    parts = made.rejected()
    assert whole(parts) == garbage
    assert [part.part for part in parts] == list(range(1, len(parts) + 1))
    assert {part.source_queue for part in parts} == {"somewhere"}
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]
    assert made.store.orders == {}


async def test_an_expired_notification_is_put_aside_with_an_alert() -> None:
    made = kit()
    await made.submit()
    told = made.bus.take(SHOP)
    assert told is not None
    await dead(made, letter(told, SHOP))
    (kept,) = made.rejected()
    assert whole([kept]) == told.body
    assert kept.source_queue == SHOP
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


async def test_an_expired_alert_is_kept_without_another_alert() -> None:
    made = kit()
    await made.submit(b"{")
    alert = made.bus.take(QUEUES.alerts)
    assert alert is not None
    await dead(made, letter(alert))
    assert made.alerts() == []
    assert whole(made.rejected()[-1:]) == alert.body


async def test_a_rejected_message_is_kept_as_it_was_however_often_it_expires() -> None:
    made = kit()
    body = order(workflow="nothing")
    await made.submit(body)
    first = made.bus.messages(QUEUES.rejected)[0].body
    alerts = len(made.alerts())
    for _ in range(30):
        expired = made.bus.take(QUEUES.rejected)
        assert expired is not None
        await dead(made, letter(expired))
    (message,) = made.bus.messages(QUEUES.rejected)
    assert message.body == first
    assert whole(made.rejected()) == body
    assert len(made.alerts()) == alerts


async def test_any_other_message_on_the_rejected_queue_is_kept_too() -> None:
    made = kit()
    await dead(made, letter(b'{"strange":1}', QUEUES.rejected))
    assert whole(made.rejected()) == b'{"strange":1}'
    assert made.alerts() == []


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
    QUEUES.scheduler: {"wake", "command"},
    "scheduler-urgent": {"wake", "command"},
    QUEUES.replies: {"reply", "progress"},
    "agent-replies-urgent": {"reply", "progress"},
}
PUT_ASIDE = [
    "agent-stock",
    "agent-stock-urgent",
    "agent-of-an-older-version",
    QUEUES.callbacks,
    "callbacks-urgent",
    SHOP,
    "somewhere",
    None,
]


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("source", [*BELIEVED, *PUT_ASIDE])
async def test_a_dead_letter_is_believed_only_from_the_queue_of_its_kind(
    source: str | None, kind: str
) -> None:
    """An application sends to its queue what it likes, with any time to live."""
    made = await claimed()
    await dead(made, letter(FORGED[kind], source))
    fenced = kind in BELIEVED.get(source or "", set())
    assert made.words()[2:] == (["fenced"] if fenced else [])
    assert whole(made.rejected()) == FORGED[kind]
    assert [kept.source_queue for kept in made.rejected()] == [source or "unknown"]
    assert len(made.alerts()) == 1


async def test_a_source_is_known_in_any_case_of_letters() -> None:
    made = await claimed()
    await dead(made, letter(done(), "Agent-REPLIES"))
    assert made.words()[-1] == "fenced"


@pytest.mark.parametrize("source", [QUEUES.rejected, QUEUES.alerts])
@pytest.mark.parametrize("kind", FORGED)
async def test_what_was_kept_or_alerted_is_kept_on_and_fences_nothing(
    source: str, kind: str
) -> None:
    made = await claimed()
    await dead(made, letter(FORGED[kind], source))
    assert made.words() == ["submitted", "claimed"]
    assert whole(made.rejected()) == FORGED[kind]


@pytest.mark.parametrize("source", [QUEUES.callbacks, SHOP, "somewhere", None])
async def test_forged_replies_do_not_hinder_the_real_ones(source: str | None) -> None:
    """Their ids are predictable: five such messages had a healthy order undone."""
    made = await claimed()
    for epoch in range(1, 6):
        await dead(made, letter(done(epoch=epoch).body, source))
    await made.drain()
    assert made.state() == "Processed"


@pytest.mark.parametrize(
    "name", ["DeadLetterSource", "deadlettersource", "DEADLETTERSOURCE", "dead\\u004cetterSource"]
)
@pytest.mark.parametrize("source", [QUEUES.replies, QUEUES.alerts, QUEUES.rejected, "agent-stock"])
async def test_a_body_that_names_its_own_source_is_not_believed(name: str, source: str) -> None:
    """The Functions host lets the members of a JSON body override the metadata."""
    made = await claimed()
    body = done().body[:-1] + f',"{name}":"{source}"}}'.encode()
    await dead(made, letter(body, source))
    assert made.words() == ["submitted", "claimed"]
    assert [kept.source_queue for kept in made.rejected()] == ["unknown"]
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


@pytest.mark.parametrize("name", ["DeadLetterSource", "dead\\u004cetterSource"])
@pytest.mark.parametrize("twice", ['"x":1,"x":2', '"x":NaN'])
async def test_a_body_that_only_the_host_can_parse_is_not_believed_either(
    name: str, twice: str
) -> None:
    """Our own parser refuses a member that is there twice. The host may take the last one."""
    made = await claimed()
    kept = (
        '{"reason":"x","description":"y","source_queue":"scheduler","at":"z","id":"1","body":"b",'
    )
    body = f'{kept}{twice},"{name}":"{QUEUES.rejected}"}}'.encode()
    await dead(made, letter(body, QUEUES.rejected))
    assert [one.source_queue for one in made.rejected()] == ["unknown"]
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


async def test_an_applications_message_that_looks_internal_fences_nothing() -> None:
    """It may lie on ``orders`` until its time to live, which the sender chose, is over."""
    made = await claimed()
    words = made.words()
    await dead(made, letter(done(), QUEUES.orders))
    assert made.words() == words
    assert [kept.source_queue for kept in made.rejected()] == [QUEUES.orders]


async def test_what_dead_letters_gave_up_is_put_back_while_its_cause_lasts_and_handled_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = kit()
    letters = made.dead_letters
    given_up = letter(order(), QUEUES.orders)
    with monkeypatch.context() as broken:
        broken.setattr(made.store, "load", {}.__getitem__)
        with pytest.raises(GivenUpError, match="KeyError"):
            await made.run(letters.handle_given_up(given_up))
    await made.run(letters.handle_given_up(given_up))
    assert (made.told(), made.state()) == (["rejected"], "Rejected")


async def test_an_outage_is_not_a_failure_of_a_message_that_was_given_up() -> None:
    made = kit()
    made.store.fail_next("load", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await made.run(made.dead_letters.handle_given_up(letter(order(), QUEUES.orders)))


async def test_an_order_without_a_known_source_is_kept_and_alerted() -> None:
    """Its reply queue is not believed either: it may be another application's."""
    made = kit()
    await dead(made, Delivery(body=order(), message_id="m-1", queue=QUEUES.dead_letters))
    assert made.told() == []
    assert made.store.orders == {}
    (kept,) = made.rejected()
    assert kept.source_queue == "unknown"
    assert [alert.kind for alert in made.alerts()] == ["dead-lettered"]


@pytest.mark.parametrize("operation", ["load", "recorded", "commit"])
async def test_the_store_being_down_lets_the_dead_letter_come_again(operation: str) -> None:
    made = kit()
    await made.submit()
    message = wake("w-9")
    made.store.fail_next(operation, StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await dead(made, letter(message))
    assert made.rejected() == []
    await dead(made, letter(message))
    assert made.words() == ["submitted", "fenced"]
    assert len(made.rejected()) == 1


async def test_a_fence_whose_answer_was_lost_is_not_made_twice() -> None:
    made = kit()
    await made.submit()
    made.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await dead(made, letter(wake("w-9")))
    await dead(made, letter(wake("w-9")))
    assert made.words() == ["submitted", "fenced"]
    assert len(made.rejected()) == 1


async def test_while_rivals_win_every_commit_the_dead_letter_comes_again() -> None:
    made = kit()
    await made.submit()
    made.store.fail_next("commit", *[StoreFault.CONFLICT] * 40)
    with pytest.raises(ContentionError):
        await dead(made, letter(wake("w-9")))
    assert made.rejected() == []


async def test_a_dead_letter_and_its_slow_handler_at_once_either_finish_or_fence() -> None:
    made = kit()
    await made.submit()
    message = made.bus.take(QUEUES.scheduler)
    assert message is not None
    await made.run(
        asyncio.gather(
            made.scheduler.handle(delivery(message)),
            made.dead_letters.handle(letter(message)),
        )
    )
    assert made.words() in (["submitted", "claimed"], ["submitted", "fenced"])
    assert bool(made.requests("stock")) is (made.words()[-1] == "claimed")
    assert bool(made.rejected()) is (made.words()[-1] == "fenced")
