"""Queue delay, pure: the age of messages when they are received. Load alone must fail no step.

To the supervisor, a request that lay in a long queue until its CompleteBy looks like one whose
agent is dead. If that counted, a burst of orders would undo healthy ones, and each reset would put
one more request into the same queue. So requests get the delay on top of their time allowed, and
while queues are late an expiry says nothing about a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NONE = timedelta(0)


LATE = timedelta(seconds=2)
"""A message received within this time is not late: clocks differ, and senders batch."""


FRESH = timedelta(seconds=30)
"""A noted delay holds this long if no newer one is noted."""


GRACE_TIMES = 3
"""A growing queue delays what is sent into it now more than what is received from it now."""


GRACE_MAX = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class QueueDelay:
    """At this moment a message was received, ``delay`` after it was sent."""

    delay: timedelta
    at: datetime


def longest(delays: Iterable[QueueDelay], now: datetime) -> timedelta:
    """Return the longest of the delays that are fresh."""
    return max((one.delay for one in delays if now - one.at <= FRESH), default=NONE)


def grace(delay: timedelta) -> timedelta:
    """Return how much more time a request gets, for a delay of its queue."""
    return min(GRACE_TIMES * delay, GRACE_MAX)
