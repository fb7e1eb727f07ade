"""What is submitted, what can go wrong, and when an order has come to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sas.codec.outward import Notification, event_type
from sas.domain.messages import Notice
from sas.domain.order import OrderState

_ENDS = frozenset(event_type(n) for n in (Notice.COMPLETED, Notice.UNDONE, Notice.REJECTED))
_ENDED = frozenset(
    state.value
    for state in (
        OrderState.PROCESSED,
        OrderState.COMPENSATED,
        OrderState.REJECTED,
        OrderState.ERROR,
    )
)


class InvalidOrderError(ValueError):
    """An order would be rejected as it stands. Those before it were sent, none after it.

    ``index`` is its place (from 0) among the orders of the call.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


class SubmitError(Exception):
    """Service Bus did not take an order. Submitting it again is safe: repeats are recognised."""


class FollowError(Exception):
    """The response queue cannot be read. Nothing is lost: what it holds waits there."""


@dataclass(frozen=True, slots=True)
class NewOrder:
    """One order to submit.

    ``order`` is the business's content, JSON-able or JSON already (``msgspec.Raw``).
    ``submission_id`` makes a repeated submission recognisable; give the same one when you
    try again, or leave it out and a new one is made.
    """

    order_id: str
    order: Mapping[str, Any] | msgspec.Raw
    workflow: str = "order"
    correlation_id: str | None = None
    submission_id: str | None = None
    workflow_version: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What names a submission afterwards."""

    order_id: str
    submission_id: str


def is_end(told: Notification) -> bool:
    """Return whether a notification is an order's last, unless an operator takes a hand.

    The answer to a repeated submission is one if the order had come to its end before.
    """
    if told.type in _ENDS:
        return True
    if told.type == event_type(Notice.FAILED):
        return told.data.awaits == "operator"
    return told.data.duplicate and told.data.state in _ENDED
