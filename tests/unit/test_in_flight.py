"""What a request that the receiver puts back says of its state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from sas.codec.internal import RequestMessage
from sas.domain.calls import CallEvent, CallState, after
from sas.engine.delivery import Delivery
from sas.engine.in_flight import AGENT_FAILURES, CALL_STATE, InFlightRequest, carrying
from sas.testing.clock import VirtualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = RequestMessage(
    id="O-1/2/0",
    order_id="O-1",
    step=0,
    step_name="reserve",
    workflow="order",
    direction="do",
    epoch=1,
    complete_by=NOW,
    idempotency_key="O-1/reserve",
    submission="s",
    seq=1,
    time_allowed=60.0,
    order=msgspec.Raw(b"{}"),
)
CALL = (CallEvent.CALLED, CallEvent.ENDED)


@pytest.mark.parametrize(
    ("carried", "events", "state"),
    [
        (CallState.QUEUED, (), CallState.QUEUED),
        (CallState.QUEUED, CALL, CallState.GOES_ON),
        (CallState.WAITING, (), CallState.WAITING),
        (CallState.WAITING, (CallEvent.TIME_OVER,), CallState.QUEUED),
        (CallState.TRIED, (), CallState.GOES_ON),
        (CallState.GOES_ON, CALL, CallState.GOES_ON),
    ],
    ids=lambda value: getattr(value, "value", "after"),
)
def test_a_request_that_is_put_back_after_an_outage_comes_again_in_the_state_of_the_table(
    carried: CallState, events: tuple[CallEvent, ...], state: CallState
) -> None:
    """The receiver adds the properties to those that the message brought."""
    brought = carrying(carried)
    delivery = Delivery(body=b"", message_id="m", queue="agent-stock", properties=brought)
    call = InFlightRequest(REQUEST, delivery, VirtualClock())
    for event in events:
        call.move(event)
    properties = brought | call.interrupt()
    again = InFlightRequest(
        REQUEST,
        Delivery(body=b"", message_id="m", queue="agent-stock", properties=properties),
        VirtualClock(),
    )
    assert again.carried is state
    assert (CALL_STATE in properties) is (carried is not CallState.QUEUED or state is not carried)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_every_redelivery_may_follow_a_call_and_what_comes_again_from_it_is_marked(
    count: int,
) -> None:
    delivery = Delivery(body=b"", message_id="m", queue="agent-stock", count=count)
    call = InFlightRequest(REQUEST, delivery, VirtualClock())
    assert call.state is after(CallState.QUEUED, CallEvent.REDELIVERED)
    again = replace(delivery, count=1, properties=call.coming_again(call.state))
    assert not again.is_first
    first = InFlightRequest(REQUEST, replace(delivery, count=1), VirtualClock())
    assert replace(delivery, count=1, properties=first.coming_again(first.state)).is_first


def test_a_moment_is_too_close_to_complete_by_from_five_seconds_before_it_on() -> None:
    delivery = Delivery(body=b"", message_id="m", queue="agent-stock")
    call = InFlightRequest(REQUEST, delivery, VirtualClock())
    assert call.is_close(NOW - timedelta(seconds=5))
    assert not call.is_close(NOW - timedelta(seconds=5.001))


def test_a_count_of_failures_that_no_agent_reaches_is_forged_and_counts_as_none() -> None:
    for digits, failures in (("7", 7), ("9" * 9, 0), ("-1", 0)):
        delivery = Delivery(
            body=b"", message_id="m", queue="agent-stock", properties={AGENT_FAILURES: digits}
        )
        assert InFlightRequest(REQUEST, delivery, VirtualClock()).failures == failures
