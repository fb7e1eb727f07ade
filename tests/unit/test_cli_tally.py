from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sas.adapters.endpoints import Endpoint
from sas.cli import submission
from sas.cli.arguments import Connection
from sas.cli.reading import InputItem
from sas.cli.submission import REMEMBERED_MAX, SubmissionTracker, SubmitOptions, submit_and_follow
from sas.client import FollowError, NewOrder, OrdersClient
from sas.codec.external import Notification, NotificationData
from sas.domain.queues import Queues
from sas.operate.errors import ServiceUnavailableError

_NUMBER = iter(range(10**9))


def notification(
    order_id: str, notice: str, *, own_id: str | None = None, **data: Any
) -> Notification:
    return Notification(
        id=own_id or f"{order_id}/{next(_NUMBER)}",
        source="/sas",
        type=f"sas.order.{notice}.v1",
        subject=order_id,
        time="2026-03-01T12:00:00.000000Z",
        data=NotificationData(order_id=order_id, **({"state": "Processing"} | data)),
    )


def expecting(*order_ids: str) -> SubmissionTracker:
    tally = SubmissionTracker(submitted=len(order_ids))
    for order_id in order_ids:
        tally.expect(order_id)
    tally.sending_ended()
    return tally


@pytest.mark.parametrize(
    ("notice", "data", "counted"),
    [
        ("completed", {}, "completed"),
        ("undone", {}, "undone"),
        ("rejected", {}, "rejected"),
        ("failed", {"awaits": "operator"}, "failed"),
        ("received", {"duplicate": True, "state": "Processed"}, "completed"),
        ("received", {"duplicate": True, "state": "Compensated"}, "undone"),
        ("received", {"duplicate": True, "state": "Error"}, "failed"),
        ("received", {"duplicate": True, "state": "Rejected"}, "rejected"),
    ],
)
def test_each_end_of_an_order_is_counted_as_what_it_is(
    notice: str, data: dict[str, Any], counted: str
) -> None:
    tally = expecting("A", "B")
    assert tally.note(notification("A", notice, **data))
    assert (tally.ends[counted], tally.ends.total(), tally.finished) == (1, 1, False)
    tally.note(notification("B", "completed"))
    assert tally.finished
    assert tally.went_well is (counted == "completed")


@pytest.mark.parametrize(
    ("notice", "data"),
    [
        ("received", {}),
        ("step-completed", {"step": "ship"}),
        ("failed", {"awaits": "undo"}),
        ("received", {"duplicate": True, "state": "Processing"}),
        ("greeting", {}),
    ],
)
def test_a_notification_that_is_not_an_end_leaves_the_order_waiting(
    notice: str, data: dict[str, Any]
) -> None:
    tally = expecting("A")
    assert tally.note(notification("A", notice, **data))
    assert (tally.ends.total(), tally.finished, tally.went_well) == (0, False, False)
    assert tally.counts()["unfinished"] == 1


def test_a_notification_delivered_twice_is_counted_once() -> None:
    tally = expecting("A", "B")
    assert tally.note(notification("A", "completed", own_id="x"))
    assert not tally.note(notification("A", "completed", own_id="x"))
    assert tally.counts() == {
        "submitted": 2, "completed": 1, "failed": 0, "undone": 0, "rejected": 0, "unfinished": 1,
    }  # fmt: skip


def test_orders_of_others_are_counted_apart() -> None:
    tally = expecting("A")
    tally.note(notification("Z", "failed", awaits="operator"))
    tally.note(notification("A", "completed"))
    assert tally.went_well
    assert tally.counts()["of_other_orders"] == 1


def test_notifications_after_an_orders_end_belong_to_that_order() -> None:
    """A step that ran beside the failed one is notified after the end of the order."""
    tally = expecting("A", "B")
    tally.note(notification("A", "failed", awaits="operator"))
    assert tally.note(notification("A", "step-completed", step="pay"))
    assert "of_other_orders" not in tally.counts()


def test_the_same_order_twice_is_one_end_and_one_repeat() -> None:
    tally = expecting("A", "A")
    tally.note(notification("A", "received"))
    tally.note(notification("A", "received", duplicate=True, state="Processing"))
    assert tally.waiting == {"A": 1}
    tally.note(notification("A", "completed"))
    assert tally.finished
    assert tally.went_well
    assert tally.counts()["repeated"] == 1


@pytest.mark.parametrize("state", ["Processing", "Processed"])
def test_a_repeat_may_be_answered_after_the_end_and_is_waited_for(state: str) -> None:
    tally = expecting("A", "A", "B")
    tally.note(notification("A", "completed"))
    assert tally.waiting == {"A": 1, "B": 1}
    tally.note(notification("A", "received", duplicate=True, state=state))
    assert (tally.ends["completed"], tally.repeated, tally.waiting) == (1, 1, {"B": 1})
    tally.note(notification("B", "received", duplicate=True, state="Processed"))
    assert (tally.ends["completed"], tally.repeated, tally.finished) == (2, 1, True)


def test_the_same_submission_twice_is_answered_by_the_same_event_again() -> None:
    tally = expecting("A", "A")
    assert tally.note(notification("A", "received", own_id="A/the-one"))
    assert not tally.note(notification("A", "received", own_id="A/the-one"))
    tally.note(notification("A", "completed"))
    assert (tally.ends["completed"], tally.repeated, tally.finished) == (1, 1, True)


def test_another_order_under_a_taken_id_is_rejected_and_the_first_goes_on() -> None:
    tally = expecting("A", "A")
    tally.note(notification("A", "rejected"))
    assert tally.waiting == {"A": 1}
    tally.note(notification("A", "completed"))
    assert (tally.ends["completed"], tally.ends["rejected"], tally.finished) == (1, 1, True)


def test_nothing_is_finished_while_orders_are_still_being_sent() -> None:
    tally = SubmissionTracker()
    finished = [tally.finished]
    tally.expect("A")
    tally.note(notification("A", "completed"))
    finished.append(tally.finished)
    tally.sending_ended()
    finished.append(tally.finished)
    assert finished == [False, False, True]


def test_an_order_that_was_not_sent_is_not_waited_for() -> None:
    tally = expecting("A")
    tally.forget("A")
    assert tally.finished
    assert tally.waiting == {}


def test_memory_holds_only_what_has_not_ended_and_a_bounded_past() -> None:
    tally = SubmissionTracker()
    for number in range(REMEMBERED_MAX + 500):
        tally.expect(f"A-{number}")
        tally.note(notification(f"A-{number}", "completed"))
    assert tally.waiting == {}
    assert len(tally._seen) == REMEMBERED_MAX
    assert len(tally._ended) == REMEMBERED_MAX


class LosesTheBus(OrdersClient):
    """A client that sends, and whose response queue cannot be read any longer after that."""

    async def submit_many(self, orders: Any, on_sent: Any = None) -> Any:
        on_sent(len(list(orders)))

    async def follow(
        self, order_ids: Any = None, *, until: Any = None, quiet_s: float | None = None
    ) -> AsyncGenerator[Notification]:
        yield notification("A-1", "received")
        until()
        raise FollowError("queue 'responses-me' cannot be read: check that the broker is up.")


async def test_a_bus_that_goes_away_while_orders_are_followed_is_what_the_advice_is_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submission, "OrdersClient", LosesTheBus)
    endpoint = Endpoint("Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=x")
    where = Connection(
        endpoint=endpoint, reply_queue="responses-me", queues=Queues(), order_bytes_max=1024
    )
    orders = iter([InputItem(1, NewOrder(order_id="A-1", order={}))])
    with pytest.raises(ServiceUnavailableError, match="are still processed: sas list shows them"):
        await submit_and_follow(
            SubmitOptions(
                connection=where, items=orders, follow=True, json=False, quiet_s=300.0, urgent=False
            )
        )
    streams = capsys.readouterr()
    assert "unfinished 1" in streams.out
    assert streams.err == ""
