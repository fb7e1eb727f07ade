"""Which follower gets a notification, and what becomes of its message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sas.client.inbox import (
    DELIVERIES_SPARED,
    FOREIGN_WAIT_S,
    ORDERS_MAX,
    OWN_WAIT_S,
    Fate,
    Follower,
    Inbox,
    Unsettled,
)
from sas.codec.external import Notification
from tests.client_link_kit import notification


def event(order_id: str, notice: str, **members: Any) -> Notification:
    subject = members.pop("subject", order_id)
    return msgspec.structs.replace(notification(order_id, notice, **members), subject=subject)


class Desk:
    """An inbox and a count of the messages that came."""

    def __init__(self) -> None:
        self.inbox: Inbox[str] = Inbox()
        self.count = 0

    def come(self, order_id: str, notice: str = "received", **members: Any) -> Unsettled[str]:
        self.count += 1
        number, before = members.pop("number", self.count), members.pop("before", 0)
        lock_s, now = members.pop("lock_s", 60.0), members.pop("now", 0.0)
        self.inbox.arrived(
            number,
            f"m{self.count}",
            event(order_id, notice, **members),
            now=now,
            lock_s=lock_s,
            delivery_count=before,
        )
        return self.inbox.unsettled[number]

    def read(self, follower: Follower[str]) -> list[str]:
        """Read everything to the end, as a loop does."""
        ids = []
        while follower.unread:
            arrival = follower.unread.popleft()
            ids.append(arrival.event.id)
            self.inbox.done(follower, arrival)
        return ids


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_follower_gets_its_orders_whether_they_come_before_or_after_it(desk: Desk) -> None:
    desk.come("A")
    follower = desk.inbox.join(["A"])
    desk.come("A", "completed")
    desk.come("B", "completed")
    assert desk.read(follower) == ["A/received", "A/completed"]
    assert desk.inbox.unfollowed() == 3  # two of them are handed out and are completed next


def test_a_follower_that_has_failed_gets_nothing_more(desk: Desk) -> None:
    """Its unread messages have gone back to the queue, and somebody else may have them."""
    follower = desk.inbox.join(["A"])
    desk.come("A")
    desk.inbox.fail(RuntimeError("the link has ended"))
    assert desk.read(follower) == []


def test_messages_without_a_follower_go_back_together_before_a_lock_ends(
    desk: Desk,
) -> None:
    desk.inbox.submitted("OWN", None)
    arrival, foreign = desk.come("OWN"), desk.come("X")
    assert desk.inbox.to_give_back(FOREIGN_WAIT_S - 0.1) == []
    assert desk.inbox.to_give_back(FOREIGN_WAIT_S) == [arrival, foreign]
    desk.inbox.drop(foreign)
    assert desk.inbox.to_give_back(FOREIGN_WAIT_S) == []
    assert desk.inbox.to_give_back(OWN_WAIT_S) == [arrival]
    short = desk.come("Y", lock_s=2.0)
    assert desk.inbox.fate(short, 1.0) is Fate.GIVE_BACK


def test_a_message_that_was_delivered_often_keeps_its_lock(desk: Desk) -> None:
    arrival = desk.come("X", before=DELIVERIES_SPARED)
    assert desk.inbox.fate(arrival, 1e6) is Fate.RENEW
    assert desk.inbox.to_give_back(1e6) == []


@pytest.mark.parametrize("end", ["completed", "undone"])
def test_what_is_older_than_an_end_that_was_handed_out_is_completed_unread(
    desk: Desk, end: str
) -> None:
    follower = desk.inbox.join(["A"])
    desk.come("A", end, seq=7)
    desk.read(follower)
    desk.inbox.leave(follower)
    late, repeat = desk.come("A", "step-completed", seq=5), desk.come("A", end, seq=7)
    newer, other = desk.come("A", "failed", seq=8), desk.come("B", "completed", seq=5)
    unnumbered = desk.come("A", "rejected")  # of another submission of this id
    fates = [desk.inbox.fate(arrival, 0) for arrival in (late, repeat, newer, other, unnumbered)]
    assert fates == [Fate.COMPLETE] * 2 + [Fate.WAIT] * 3
    desk.inbox.submitted("A", None)  # again: its answers are news
    assert desk.inbox.fate(late, 0) is Fate.WAIT


def test_an_order_that_waits_for_an_operator_may_go_on_so_nothing_of_it_is_late(
    desk: Desk,
) -> None:
    follower = desk.inbox.join(["A"])
    desk.come("A", "failed", seq=7, awaits="operator")
    desk.read(follower)
    desk.inbox.leave(follower)
    assert desk.inbox.fate(desk.come("A", "step-completed", seq=5), 0) is Fate.WAIT


@pytest.mark.parametrize("other", ["basket-8", None])
def test_another_applications_order_with_the_same_id_is_not_taken_for_ones_own(
    desk: Desk, other: str | None
) -> None:
    desk.inbox.submitted("A", "basket-7")
    follower, everyone = desk.inbox.join(["A"]), desk.inbox.join(None)
    desk.come("A", "completed", correlation_id=other)
    assert desk.read(follower) == []
    desk.come("A", "rejected", correlation_id="basket-7")
    assert desk.read(follower) == ["A/rejected"]
    assert desk.read(everyone) == ["A/completed", "A/rejected"]


def test_an_order_submitted_without_a_correlation_id_is_notified_without_one(desk: Desk) -> None:
    desk.inbox.submitted("A", None)
    follower = desk.inbox.join(["A"])
    desk.come("A", "completed", correlation_id="theirs")
    desk.come("A", "received")
    assert desk.read(follower) == ["A/received"]


def test_the_answer_to_a_repeat_has_the_correlation_id_of_the_first_submission(
    desk: Desk,
) -> None:
    desk.inbox.submitted("A", "second-try")
    follower = desk.inbox.join(["A"])
    desk.come("A", "completed", correlation_id="first-try")
    assert desk.read(follower) == []
    desk.come("A", "received", correlation_id="first-try", duplicate=True)
    assert set(desk.read(follower)) == {"A/received", "A/completed"}


def test_an_order_that_was_submitted_twice_is_followed_under_both_correlation_ids(
    desk: Desk,
) -> None:
    desk.inbox.submitted("A", "first-try")
    desk.inbox.submitted("A", "second-try")
    follower = desk.inbox.join(["A"])
    desk.come("A", "received", correlation_id="first-try")
    desk.come("A", "completed", correlation_id="second-try")
    assert desk.read(follower) == ["A/received", "A/completed"]


def test_a_message_whose_lock_was_lost_is_handed_out_by_its_next_delivery_alone(
    desk: Desk,
) -> None:
    followers = [desk.inbox.join(["A"]), desk.inbox.join(None)]
    desk.inbox.drop(desk.come("A"))
    desk.come("A")
    assert [desk.read(follower) for follower in followers] == [["A/received"]] * 2


def test_of_an_order_that_another_process_submitted_the_order_id_alone_counts(desk: Desk) -> None:
    follower = desk.inbox.join(["A"])
    desk.come("A", "received", correlation_id="whatever")
    desk.come("A", "step-completed", subject=msgspec.UNSET)
    desk.come("A", "completed", subject="B")
    assert desk.read(follower) == ["A/received", "A/step-completed"]


def test_a_client_remembers_a_bounded_number_of_orders(desk: Desk) -> None:
    for number in [*range(ORDERS_MAX), 0, ORDERS_MAX]:
        desk.inbox.submitted(f"A-{number}", "mine")
    assert len(desk.inbox._submitted) == ORDERS_MAX
    assert "A-0" in desk.inbox._submitted, "it is among the latest"
