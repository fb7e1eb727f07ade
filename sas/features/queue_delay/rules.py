"""Queue delay, pure: the age of messages when they are received. Load alone must fail no step.

To the supervisor, a request that waited in a long queue until its CompleteBy looks like one whose
agent crashed. If that counted, a burst of orders would undo healthy ones, and each reset would add
one more request to the same queue. So requests get a grace on top of their time allowed, and a
timeout that queue delay may explain is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.domain.workflow import NO_TIME

LATE = timedelta(seconds=2)
"""A shorter delay is ignored: clocks differ, and senders batch."""
FRESH = timedelta(seconds=30)
"""A recorded delay counts this long if no newer one is recorded."""
GRACE_TIMES = 3
"""In a growing queue, a message sent now waits longer than the one received now has waited."""
GRACE_MAX = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class QueueDelay:
    """A message was received ``at`` this time, ``delay`` after it was sent."""

    delay: timedelta
    at: datetime


def longest(delays: Iterable[QueueDelay], now: datetime) -> timedelta:
    """Return the longest of the delays that are fresh."""
    return max((one.delay for one in delays if now - one.at <= FRESH), default=NO_TIME)


def grace(delay: timedelta) -> timedelta:
    """Return the grace of a request, for a delay of its queue."""
    return min(GRACE_TIMES * delay, GRACE_MAX)
