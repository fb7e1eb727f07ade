"""A circuit breaker per remote service: closed, open, half open; pure, shared through the store.

After Nygard, "Release It!": consecutive failures open it; open, no call is made; after a
while one probe at a time may try, and its success closes it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

RECHECK = timedelta(seconds=3)
"""How long others wait for a probe before they look again."""


class BreakerState(Enum):
    """Whether calls go out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """``failures_max`` consecutive failures (of one instance) open the breaker for ``open_for``,
    and twice as long after every failed probe, up to ``open_for_max``. A probe that says nothing
    for ``probe_for`` is given up. 0 failures switch it off.
    """

    failures_max: int = 10
    open_for: timedelta = timedelta(seconds=15)
    open_for_max: timedelta = timedelta(minutes=5)
    probe_for: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state that all instances share.

    ``until`` is when a probe may go out (OPEN), or is given up (HALF_OPEN); ``prober`` is the
    request that probes; ``rounds`` counts openings since it was closed; ``why`` is for people.
    """

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    until: datetime | None = None
    prober: str | None = None
    rounds: int = 0
    why: str = ""


def wait_of(breaker: Breaker, request: str, now: datetime) -> datetime | None:
    """Return until when a request must wait; None where it may go out now.

    Where it may go out although the breaker is not closed, ``probe`` must be won first.
    """
    if breaker.state is BreakerState.CLOSED or breaker.until is None:
        return None
    if breaker.until <= now:
        return None
    if breaker.state is BreakerState.OPEN:
        return breaker.until
    return None if breaker.prober == request else min(breaker.until, now + RECHECK)


def probe(breaker: Breaker, request: str, policy: BreakerPolicy, now: datetime) -> Breaker:
    """Return the breaker with this request as its probe."""
    return Breaker(
        BreakerState.HALF_OPEN,
        breaker.since,
        now + policy.probe_for,
        request,
        breaker.rounds,
        breaker.why,
    )


def opened(breaker: Breaker, policy: BreakerPolicy, now: datetime, why: str) -> Breaker:
    """Return the breaker opened, for longer every time until a probe succeeds."""
    seconds = policy.open_for.total_seconds() * 2.0 ** min(breaker.rounds, 30)
    rest = timedelta(seconds=min(seconds, policy.open_for_max.total_seconds()))
    since = breaker.since if breaker.rounds else now
    return Breaker(BreakerState.OPEN, since, now + rest, None, breaker.rounds + 1, why[:500])


def given_up(breaker: Breaker, now: datetime) -> Breaker:
    """Return the breaker whose probe found nothing out: another may probe at once."""
    return replace(breaker, state=BreakerState.OPEN, until=now, prober=None)


def closed(now: datetime) -> Breaker:
    """Return the breaker closed."""
    return Breaker(since=now)
