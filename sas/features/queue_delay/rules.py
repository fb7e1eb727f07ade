"""How far a queue is behind: the age of what its readers take up. Load alone must fail no step.

A request that lay in a long queue until its CompleteBy looks, from the supervisor, like one whose
agent is dead. Counting that would have a burst of orders undo healthy ones, and each reset puts
one more request into the same queue. So the lag is given on top of the time allowed, and while a
system is behind an expiry says nothing of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NONE = timedelta(0)


LATE = timedelta(seconds=2)
"""A message taken up within this time is not late: clocks are apart, and senders batch."""


FRESH = timedelta(seconds=30)
"""How long a lag that was seen holds where nobody says anything newer."""


SLACK_TIMES = 3
"""A queue that grows is longer for what is put into it now than for what is taken out."""


SLACK_MAX = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class QueueDelay:
    """A message was taken up ``delay`` after it was sent, at this moment."""

    delay: timedelta
    at: datetime


def longest(lags: Iterable[QueueDelay], now: datetime) -> timedelta:
    """Return the longest of the lags that are fresh."""
    return max((one.delay for one in lags if now - one.at <= FRESH), default=NONE)


def grace(lag: timedelta) -> timedelta:
    """Return how much time a request is given for lying in its queue."""
    return min(SLACK_TIMES * lag, SLACK_MAX)
