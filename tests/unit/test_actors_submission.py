"""Submission: what comes on the ``orders`` queue, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sas.domain.change import Change, Trigger, change_of, rejection
from sas.domain.ids import cause_of
from sas.domain.messages import AlertKind
from sas.engine.delivery import Delivery
from sas.engine.external import QUEUE_PAUSE
from sas.engine.transition import ContentionError
from sas.features.incidents.board import RESPONSE_QUEUES_MAX, active_incidents, name_of
from sas.ports import BusUnavailableError, Message
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, SHOP, Kit, delivery, kit, letter, order, received


async def test_a_valid_order_is_written_and_notified_as_received_and_a_scheduler_is_woken() -> None:
    system = kit()
    await system.submit()
    assert system.state() == "Pending"
    assert system.states() == ["Pending", "Pending"]
    assert system.words() == ["submitted"]
    (event,) = system.events()
    assert system.notices() == ["received"]
    assert event.data.order_id == "O-1"
    assert event.correlationid == event.data.correlation_id == "c-O-1"
    assert not event.data.duplicate
    assert system.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert system.ids(SHOP) == ["O-1/1/1"]
    assert system.rejected() == []
    assert system.alerts() == []


async def test_an_order_keeps_what_was_ordered_byte_for_byte() -> None:
    system = kit()
    body = (
        b'{"order_id":"O-1","workflow":"chain","reply_queue":"responses-shop",'
        b'"order":{"z" : 1.10, "a":"\\u00e9\xc3\xa9"}}'
    )
    await system.submit(body)
    assert system.order().details.payload == '{"z" : 1.10, "a":"\\u00e9é"}'


async def test_the_same_order_again_changes_nothing_and_gets_a_notification() -> None:
    system = kit()
    await system.submit()
    before = system.order()
    await system.submit(order(correlation_id="c-again"), "m-2")
    assert system.order() == before
    assert system.words() == ["submitted"]
    assert len(system.ids(QUEUES.scheduler)) == 1
    notification = system.events()[1]
    assert system.notices() == ["received", "received"]
    assert notification.data.duplicate
    assert notification.data.correlation_id == "c-again"
    assert (notification.data.workflow, notification.data.version) == ("chain", 1)
    assert notification.data.state == "Pending"
    assert system.rejected() == []


async def test_a_duplicate_whose_json_is_spelt_differently_is_the_same_order() -> None:
    system = kit()
    await system.submit(order(order={"a": 1, "b": [True, None]}))
    await system.submit(order(order={"b": [True, None], "a": 1}), "m-2")
    assert system.events()[1].data.duplicate
    assert system.rejected() == []


async def test_the_notification_of_a_duplicate_names_the_state_of_the_finished_order() -> None:
    system = kit()
    await system.submit()
    await system.drain()
    await system.submit(message_id="m-2")
    assert system.state() == "Processed"
    notification = system.events()[-1]
    assert notification.data.duplicate
    assert (notification.data.state, notification.data.seq) == ("Processed", system.order().seq)


async def test_the_notification_of_each_submission_has_an_id_of_its_own() -> None:
    """The same submission has the same one, so that its copy is dropped."""
    system = kit()
    for message_id in ("m-1", "m-2", "m-2", "m-3"):
        await system.submit(message_id=message_id)
    first, second, copy, third = system.ids(SHOP)
    assert second == copy
    assert len({first, second, third}) == 3


@pytest.mark.parametrize(
    "other", [{"order": {"lines": [9]}}, {"workflow": "care"}, {"reply_queue": "responses-other"}]
)
async def test_the_same_id_with_other_content_is_a_conflict_and_the_first_goes_on(
    other: dict[str, Any],
) -> None:
    system = kit()
    system.bus.declare("responses-other")
    await system.submit()
    before = system.order()
    body = order(**other)
    await system.submit(body, "m-2")
    assert system.order() == before
    (rejection,) = system.rejected()
    assert rejection.reason == "order-id-taken"
    assert rejection.body.encode() == body
    assert rejection.order_id == "O-1"
    assert [alert.kind for alert in system.alerts()] == ["rejected"]
    queue = str(other.get("reply_queue", SHOP))
    notification = system.events(queue)[-1]
    assert notification.type == "sas.order.rejected.v1"
    assert notification.data.error is not None
    assert notification.data.error.code == "order-id-taken"
    await system.drain()
    assert system.state() == "Processed"


async def test_two_submissions_of_one_order_at_once_write_it_once() -> None:
    host_1 = kit()
    host_2 = kit(beside=host_1, instance="host-2")
    await host_1.run(
        asyncio.gather(
            host_1.submitter.handle(received(QUEUES.orders, "m-1", order())),
            host_2.submitter.handle(received(QUEUES.orders, "m-2", order())),
        )
    )
    assert host_1.words() == ["submitted"]
    assert sorted(event.data.duplicate for event in host_1.events()) == [False, True]


@pytest.mark.parametrize("sent_before_the_crash", [0, 1])
async def test_redelivery_after_a_crash_between_commit_and_send_sends_the_same_ids(
    sent_before_the_crash: int,
) -> None:
    whole_system = kit()
    await whole_system.submit()
    system = kit()
    system.bus.plan = _dies_after(sent_before_the_crash)
    with pytest.raises(_Died):
        await system.submit()
    assert system.words() == ["submitted"]
    system.bus.plan = lambda _message: None
    await system.submit()
    for queue in (QUEUES.scheduler, SHOP):
        assert set(system.ids(queue)) == set(whole_system.ids(queue))
    assert system.words() == ["submitted"]
    assert not any(event.data.duplicate for event in system.events())


async def test_redelivery_after_everything_was_sent_repeats_and_decides_nothing_new() -> None:
    system = kit()
    await system.submit()
    before = system.order()
    await system.submit()
    assert system.order() == before
    assert system.ids(QUEUES.scheduler) == ["O-1/1/0"] * 2
    assert system.ids(SHOP) == ["O-1/1/1"] * 2


async def test_the_bus_being_down_for_the_wake_lets_the_message_come_again() -> None:
    system = kit()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError) as outage:
        await system.submit()
    assert system.notices() == ["received"]  # nobody waits for the scheduler's queue
    copy = Delivery(
        body=order(), message_id="m-1", queue=QUEUES.orders, properties=outage.value.put_back_with
    )
    await system.run(system.submitter.handle(copy))
    assert system.ids(QUEUES.scheduler) == ["O-1/1/0"]
    assert system.notices() == ["received"]


async def letters_are_handled(system: Kit) -> None:
    for _ in system.bus.messages(QUEUES.dead_letters):
        message = system.bus.take(QUEUES.dead_letters)
        assert message is not None
        handler = system.dead_letters.handle
        await system.run(system.receiver.receive(handler, delivery(message)))


async def test_a_missing_reply_queue_is_one_incident_until_it_exists_and_orders_go_on() -> None:
    system = kit()
    for number in range(3):
        await system.submit(order(f"O-{number}", reply_queue="responses-nobody"), f"m-{number}")
    await system.drain()
    await letters_are_handled(system)
    assert {system.state(f"O-{number}") for number in range(3)} == {"Processed"}
    assert (system.rejected(), system.outs()) == ([], 0)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("undeliverable", "queue responses-nobody")
    assert alert.text.startswith(
        "Queue “responses-nobody” refuses notifications: “there is no queue 'responses-nobody'”. "
    )
    system.bus.declare("responses-nobody")
    system.bus.plan = lambda message: (
        BusFault.UNAVAILABLE if message.queue == "responses-nobody" else None
    )
    await system.submit(order("O-5", reply_queue="responses-nobody"), "m-5")
    assert [alert.kind for alert in system.alerts()] == ["undeliverable"], "it took nothing yet"
    system.bus.plan = lambda _message: None
    await system.later(QUEUE_PAUSE.total_seconds())
    system.store.fail_next("read_shared", StoreFault.UNAVAILABLE)  # the incident cannot end
    await system.submit(order("O-3", reply_queue="responses-nobody"), "m-3")
    assert [alert.kind for alert in system.alerts()] == ["undeliverable"]
    await system.submit(order("O-4", reply_queue="responses-nobody"), "m-4")
    assert [alert.kind for alert in system.alerts()] == ["undeliverable", "cleared"]
    assert system.notices("responses-nobody") == ["received", "received"]


async def test_applications_that_name_many_missing_queues_share_an_incident_past_a_bound() -> None:
    system = kit()
    for number in range(RESPONSE_QUEUES_MAX + 20):
        reply_queue = f"responses-{number}"
        await system.submit(order(f"O-{number}", reply_queue=reply_queue), f"m-{number}")
    await letters_are_handled(system)
    scopes = [alert.scope for alert in system.alerts()]
    assert len(scopes) == RESPONSE_QUEUES_MAX + 1
    assert scopes[-1] == "other response queues"
    await system.later(61)
    await system.submit(order("O-7-again", reply_queue="responses-7"), "m-again")
    await letters_are_handled(system)
    name = name_of(AlertKind.UNDELIVERABLE, "queue responses-7")
    shared = await active_incidents(system.store).read(name)
    assert shared is not None
    assert shared.value is not None
    assert shared.value.times == 2, "it keeps an incident of its own"


async def test_a_full_reply_queue_delays_the_notification_and_never_the_order() -> None:
    system = kit()
    system.bus.declare(SHOP, length_max=0)
    await system.submit()
    await system.drain()
    assert system.state() == "Processed"
    system.bus.queues[SHOP].length_max = None
    await system.later(31)
    await system.sweep()
    assert sorted(system.notices()) == ["completed", "received", "step-completed", "step-completed"]
    assert system.outs() == 0


async def test_a_submission_given_up_while_its_handler_writes_loses() -> None:
    system = kit()
    once = iter([True])

    async def give_up_first(*_about: str) -> None:
        if next(once, False):
            await system.dead_letters.handle(letter(order(), QUEUES.orders))

    system.store.pause = give_up_first
    await system.submit()
    assert system.state() == "Rejected"
    assert system.ids(QUEUES.scheduler) == []


async def test_the_check_of_the_business_rejects_with_its_own_sentence() -> None:
    def check(_payload: bytes) -> None:
        raise ValueError("lines[0] has no quantity: give one")

    system = kit(chain=check)
    await system.submit()
    assert system.store.orders == {}
    (rejection,) = system.rejected()
    assert rejection.reason == "invalid-order"
    assert rejection.description == "lines[0] has no quantity: give one"
    (event,) = system.events()
    assert event.data.error is not None
    assert event.data.error.message == "lines[0] has no quantity: give one"
    assert event.data.state == "Rejected"


@pytest.mark.parametrize(
    ("changes", "reason", "has_notification"),
    [
        ({"workflow": "nothing"}, "unknown-workflow", True),
        ({"workflow_version": 7}, "unknown-workflow", True),
        ({"reply_queue": "scheduler"}, "forbidden-reply-queue", False),
        ({"reply_queue": "responses-a/$deadletterqueue"}, "forbidden-reply-queue", False),
        ({"reply_queue": None}, "invalid", False),
        ({"order_id": None}, "invalid", True),
        ({"order_id": "a/b"}, "invalid-order-id", True),
        ({"order": [1]}, "invalid", True),
        ({"more": 1}, "invalid", True),
    ],
)
async def test_an_unusable_message_is_kept_with_an_alert_and_a_notification_where_possible(
    changes: dict[str, Any], reason: str, *, has_notification: bool
) -> None:
    system = kit()
    body = order(**changes)
    await system.submit(body)
    assert system.store.orders == {}
    (rejection,) = system.rejected()
    assert rejection.reason == reason
    assert rejection.description
    assert rejection.body.encode() == body
    assert rejection.source_queue == QUEUES.orders
    assert rejection.message_id == "m-1"
    (alert,) = system.alerts()
    assert alert.kind == "rejected"
    assert rejection.description in alert.text
    assert system.notices() == (["rejected"] if has_notification else [])
    assert system.ids(QUEUES.scheduler) == []


async def test_a_rejection_repeated_has_the_same_ids() -> None:
    system = kit()
    body = order(workflow="nothing")
    for _ in range(2):
        await system.submit(body)
    for queue in (QUEUES.rejected, SHOP):
        first, second = system.ids(queue)
        assert first == second
    assert len(system.alerts()) == 1


@pytest.mark.parametrize("nth", range(3))
async def test_a_rejection_cut_off_by_a_crash_is_finished_by_the_redelivery(nth: int) -> None:
    system = kit()
    system.bus.plan = _dies_after(nth)
    body = order(workflow="nothing")
    with pytest.raises(_Died):
        await system.submit(body)
    system.bus.plan = lambda _message: None
    await system.submit(body)
    for queue in (QUEUES.rejected, QUEUES.alerts, SHOP):
        assert len(set(system.ids(queue))) == 1


async def test_a_rejection_is_kept_though_its_sender_has_no_queue() -> None:
    system = kit()
    await system.submit(order(workflow="nothing", reply_queue="responses-nobody"))
    await letters_are_handled(system)
    assert [rejection.reason for rejection in system.rejected()] == ["unknown-workflow"]
    assert [alert.kind for alert in system.alerts()] == ["rejected", "undeliverable"]


async def test_while_rivals_win_every_commit_the_message_comes_again() -> None:
    system = kit()
    await system.submit()
    place = _rejected_place(system)
    system.store.orders.clear()
    await system.run(system.store.commit(place))
    system.store.fail_next("commit", *[StoreFault.CONFLICT] * 20)
    with pytest.raises(ContentionError):
        await system.submit(message_id="m-2")
    assert system.state() == "Rejected"


def _rejected_place(system: Kit) -> Change:
    details = system.order().details
    trigger = Trigger(by="test", cause=cause_of(QUEUES.orders, "m-0"))
    decision = rejection(details)
    return change_of(None, decision, trigger, commit_id="x", now=START)


class _Died(BaseException):
    """The process ended here."""


def _dies_after(count: int) -> Callable[[Message], BusFault | None]:
    countdown = [count]

    def plan(_message: Message) -> BusFault | None:
        if countdown[0] == 0:
            raise _Died
        countdown[0] -= 1
        return None

    return plan
