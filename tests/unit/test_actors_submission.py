"""Submission: what comes on the ``orders`` queue, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sas.domain.change import Change, Trigger, change_of, rejection
from sas.domain.ids import cause_of
from sas.engine.delivery import Delivery
from sas.engine.transition import ContentionError
from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, SHOP, Kit, kit, letter, order, received


async def test_a_valid_order_is_written_and_notified_as_received_and_a_scheduler_is_woken() -> None:
    made = kit()
    await made.submit()
    assert made.state() == "Pending"
    assert made.states() == ["Pending", "Pending"]
    assert made.words() == ["submitted"]
    (event,) = made.events()
    assert made.told() == ["received"]
    assert event.data.order_id == "O-1"
    assert event.correlationid == event.data.correlation_id == "c-O-1"
    assert not event.data.duplicate
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert made.ids(SHOP) == ["O-1/1/1"]
    assert made.rejected() == []
    assert made.alerts() == []


async def test_an_order_keeps_what_was_ordered_byte_for_byte() -> None:
    made = kit()
    body = (
        b'{"order_id":"O-1","workflow":"chain","reply_queue":"responses-shop",'
        b'"order":{"z" : 1.10, "a":"\\u00e9\xc3\xa9"}}'
    )
    await made.submit(body)
    assert made.order().details.payload == '{"z" : 1.10, "a":"\\u00e9é"}'


async def test_the_same_order_again_changes_nothing_and_gets_a_notification() -> None:
    made = kit()
    await made.submit()
    before = made.order()
    await made.submit(order(correlation_id="c-again"), "m-2")
    assert made.order() == before
    assert made.words() == ["submitted"]
    assert len(made.ids(QUEUES.scheduler)) == 1
    again = made.events()[1]
    assert made.told() == ["received", "received"]
    assert again.data.duplicate
    assert again.data.correlation_id == "c-again"
    assert again.data.state == "Pending"
    assert made.rejected() == []


async def test_a_duplicate_whose_json_is_spelt_differently_is_the_same_order() -> None:
    made = kit()
    await made.submit(order(order={"a": 1, "b": [True, None]}))
    await made.submit(order(order={"b": [True, None], "a": 1}), "m-2")
    assert made.events()[1].data.duplicate
    assert made.rejected() == []


async def test_the_notification_of_a_duplicate_names_the_state_of_the_finished_order() -> None:
    made = kit()
    await made.submit()
    await made.drain()
    await made.submit(message_id="m-2")
    assert made.state() == "Processed"
    again = made.events()[-1]
    assert again.data.duplicate
    assert again.data.state == "Processed"


async def test_a_duplicate_notified_again_has_the_same_message_id() -> None:
    made = kit()
    await made.submit()
    await made.submit(message_id="m-2")
    await made.submit(message_id="m-2")
    ids = made.ids(SHOP)
    assert ids[1] == ids[2]
    assert ids[1] != ids[0]


@pytest.mark.parametrize(
    "other", [{"order": {"lines": [9]}}, {"workflow": "care"}, {"reply_queue": "responses-other"}]
)
async def test_the_same_id_with_other_content_is_a_conflict_and_the_first_goes_on(
    other: dict[str, Any],
) -> None:
    made = kit()
    made.bus.declare("responses-other")
    await made.submit()
    before = made.order()
    body = order(**other)
    await made.submit(body, "m-2")
    assert made.order() == before
    (kept,) = made.rejected()
    assert kept.reason == "order-id-taken"
    assert kept.body.encode() == body
    assert kept.order_id == "O-1"
    assert [alert.kind for alert in made.alerts()] == ["rejected"]
    queue = str(other.get("reply_queue", SHOP))
    told = made.events(queue)[-1]
    assert told.type == "sas.order.rejected.v1"
    assert told.data.error is not None
    assert told.data.error.code == "order-id-taken"
    await made.drain()
    assert made.state() == "Processed"


async def test_two_submissions_of_one_order_at_once_write_it_once() -> None:
    one = kit()
    two = kit(beside=one, instance="host-2")
    await one.run(
        asyncio.gather(
            one.submitter.handle(received(QUEUES.orders, "m-1", order())),
            two.submitter.handle(received(QUEUES.orders, "m-2", order())),
        )
    )
    assert one.words() == ["submitted"]
    assert sorted(event.data.duplicate for event in one.events()) == [False, True]


@pytest.mark.parametrize("sent_before_the_crash", [0, 1])
async def test_redelivery_after_a_crash_between_commit_and_send_sends_the_same_ids(
    sent_before_the_crash: int,
) -> None:
    whole = kit()
    await whole.submit()
    made = kit()
    made.bus.plan = _dies_after(sent_before_the_crash)
    with pytest.raises(_Died):
        await made.submit()
    assert made.words() == ["submitted"]
    made.bus.plan = lambda _message: None
    await made.submit()
    for queue in (QUEUES.scheduler, SHOP):
        assert set(made.ids(queue)) == set(whole.ids(queue))
    assert made.words() == ["submitted"]
    assert not any(event.data.duplicate for event in made.events())


async def test_redelivery_after_everything_was_sent_repeats_and_decides_nothing_new() -> None:
    made = kit()
    await made.submit()
    before = made.order()
    await made.submit()
    assert made.order() == before
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"] * 2
    assert made.ids(SHOP) == ["O-1/1/1"] * 2


async def test_a_commit_whose_answer_was_lost_is_found_again_by_its_cause() -> None:
    made = kit()
    made.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await made.submit()
    await made.submit()
    assert made.words() == ["submitted"]
    assert made.told() == ["received"]
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"]


async def test_the_store_being_down_lets_the_message_come_again() -> None:
    made = kit()
    made.store.fail_next("commit", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await made.submit()
    assert made.store.orders == {}
    assert made.bus.meter.messages == 0


async def test_the_bus_being_down_for_the_wake_lets_the_message_come_again() -> None:
    made = kit()
    made.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError) as away:
        await made.submit()
    assert made.told() == ["received"]  # nobody waits for the scheduler's queue
    again = Delivery(
        body=order(), message_id="m-1", queue=QUEUES.orders, properties=away.value.put_back_with
    )
    await made.run(made.submitter.handle(again))
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert made.told() == ["received"]


async def test_a_notification_that_fails_transiently_is_held_and_sent_later() -> None:
    made = kit()
    made.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == SHOP else None
    await made.submit()
    assert made.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert made.told() == []
    assert made.outs() == 1
    made.bus.plan = lambda _message: None
    await made.later(31)
    assert (await made.sweep()).get("sent later") == 1
    assert made.ids(SHOP)[0] == "O-1/1/1"
    assert made.outs() == 0


async def test_a_missing_reply_queue_parks_the_notifications_and_the_order_goes_on() -> None:
    made = kit()
    await made.submit(order(reply_queue="responses-nobody"))
    await made.drain()
    assert made.state() == "Processed"
    parked = made.rejected()
    assert {kept.reason for kept in parked} == {"undeliverable"}
    assert {kept.source_queue for kept in parked} == {"responses-nobody"}
    kinds = [kept.body.split('"type":"')[1].split('"')[0] for kept in parked]
    assert kinds == [
        "sas.order.received.v1",
        "sas.order.step-completed.v1",
        "sas.order.step-completed.v1",
        "sas.order.completed.v1",
    ]
    assert {alert.kind for alert in made.alerts()} == {"undeliverable"}
    assert len(made.alerts()) == 4
    assert made.outs() == 0


async def test_a_full_reply_queue_delays_the_notification_and_never_the_order() -> None:
    made = kit()
    made.bus.declare(SHOP, length_max=0)
    await made.submit()
    await made.drain()
    assert made.state() == "Processed"
    made.bus.queues[SHOP].length_max = None
    await made.later(31)
    await made.sweep()
    assert sorted(made.told()) == ["completed", "received", "step-completed", "step-completed"]
    assert made.outs() == 0


async def test_an_order_submitted_again_takes_the_place_of_its_rejection() -> None:
    made = kit()
    await made.run(made.dead_letters.handle(letter(order(), QUEUES.orders)))
    assert made.state() == "Rejected"
    await made.submit(message_id="m-2")
    await made.drain()
    assert made.state() == "Processed"
    assert made.words()[:2] == ["rejected", "submitted"]
    assert made.told()[:2] == ["rejected", "received"]
    assert not made.events()[1].data.duplicate


async def test_a_rejected_place_is_taken_by_another_order_of_that_id() -> None:
    made = kit()
    await made.run(made.dead_letters.handle(letter(order(), QUEUES.orders)))
    await made.submit(order(order={"other": 1}), "m-2")
    assert made.order().details.payload == '{"other": 1}'
    assert made.state() == "Pending"


async def test_a_submission_that_was_given_up_cannot_be_committed_by_its_slow_handler() -> None:
    made = kit()
    await made.run(made.dead_letters.handle(letter(order(), QUEUES.orders)))
    before = made.order()
    await made.submit()  # the very same message, still in a slow handler's hands
    assert made.order() == before
    assert made.state() == "Rejected"
    assert made.ids(QUEUES.scheduler) == []
    assert made.told() == ["rejected"]


async def test_a_submission_given_up_while_its_handler_writes_loses() -> None:
    made = kit()
    once = iter([True])

    async def give_up_first(*_about: str) -> None:
        if next(once, False):
            await made.dead_letters.handle(letter(order(), QUEUES.orders))

    made.store.pause = give_up_first
    await made.submit()
    assert made.state() == "Rejected"
    assert made.ids(QUEUES.scheduler) == []


async def test_the_check_of_the_business_rejects_with_its_own_sentence() -> None:
    def check(_payload: bytes) -> None:
        raise ValueError("lines[0] has no quantity: give one")

    made = kit(chain=check)
    await made.submit()
    assert made.store.orders == {}
    (kept,) = made.rejected()
    assert kept.reason == "invalid-order"
    assert kept.description == "lines[0] has no quantity: give one"
    (event,) = made.events()
    assert event.data.error is not None
    assert event.data.error.message == "lines[0] has no quantity: give one"
    assert event.data.state == "Rejected"


@pytest.mark.parametrize(
    ("changes", "reason", "is_told"),
    [
        ({"workflow": "nothing"}, "unknown-workflow", True),
        ({"workflow_version": 7}, "unknown-workflow", True),
        ({"reply_queue": "scheduler"}, "forbidden-reply-queue", False),
        ({"reply_queue": "responses-"}, "forbidden-reply-queue", False),
        ({"reply_queue": "agent-stock"}, "forbidden-reply-queue", False),
        ({"reply_queue": "responses-a/$deadletterqueue"}, "forbidden-reply-queue", False),
        ({"reply_queue": None}, "invalid", False),
        ({"order_id": None}, "invalid", True),
        ({"order_id": ""}, "invalid-order-id", True),
        ({"order_id": "a/b"}, "invalid-order-id", True),
        ({"order_id": "x" * 101}, "invalid-order-id", True),
        ({"order_id": 7}, "invalid", True),
        ({"order": [1]}, "invalid", True),
        ({"more": 1}, "invalid", True),
    ],
)
async def test_an_unusable_message_is_kept_with_an_alert_and_a_notification_where_possible(
    changes: dict[str, Any], reason: str, *, is_told: bool
) -> None:
    made = kit()
    body = order(**changes)
    await made.submit(body)
    assert made.store.orders == {}
    (kept,) = made.rejected()
    assert kept.reason == reason
    assert kept.description
    assert kept.body.encode() == body
    assert kept.source_queue == QUEUES.orders
    assert kept.message_id == "m-1"
    (alert,) = made.alerts()
    assert alert.kind == "rejected"
    assert kept.description in alert.text
    assert made.told() == (["rejected"] if is_told else [])
    assert made.ids(QUEUES.scheduler) == []


async def test_a_rejection_repeated_has_the_same_ids() -> None:
    made = kit()
    body = order(workflow="nothing")
    for _ in range(2):
        await made.submit(body)
    for queue in (QUEUES.rejected, QUEUES.alerts, SHOP):
        first, second = made.ids(queue)
        assert first == second


@pytest.mark.parametrize("nth", range(3))
async def test_a_rejection_cut_off_by_a_crash_is_finished_by_the_redelivery(nth: int) -> None:
    made = kit()
    made.bus.plan = _dies_after(nth)
    body = order(workflow="nothing")
    with pytest.raises(_Died):
        await made.submit(body)
    made.bus.plan = lambda _message: None
    await made.submit(body)
    for queue in (QUEUES.rejected, QUEUES.alerts, SHOP):
        assert len(set(made.ids(queue))) == 1


async def test_a_rejection_is_kept_though_its_sender_has_no_queue() -> None:
    made = kit()
    await made.submit(order(workflow="nothing", reply_queue="responses-nobody"))
    assert [kept.reason for kept in made.rejected()] == ["unknown-workflow"]
    assert [alert.kind for alert in made.alerts()] == ["rejected"]


async def test_while_rivals_win_every_commit_the_message_comes_again() -> None:
    made = kit()
    await made.submit()
    place = _rejected_place(made)
    made.store.orders.clear()
    await made.run(made.store.commit(place))
    made.store.fail_next("commit", *[StoreFault.CONFLICT] * 20)
    with pytest.raises(ContentionError):
        await made.submit(message_id="m-2")
    assert made.state() == "Rejected"


def _rejected_place(made: Kit) -> Change:
    details = made.order().details
    trigger = Trigger(by="test", cause=cause_of(QUEUES.orders, "m-0"))
    decision = rejection(details)
    return change_of(None, decision, trigger, commit_id="x", now=START)


class _Died(BaseException):
    """The process ended here."""


def _dies_after(count: int) -> Callable[[Message], BusFault | None]:
    left = [count]

    def plan(_message: Message) -> BusFault | None:
        if left[0] == 0:
            raise _Died
        left[0] -= 1
        return None

    return plan
