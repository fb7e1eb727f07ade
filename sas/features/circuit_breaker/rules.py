"""Circuit breaker, pure: one circuit for each agent. It is closed, open or half-open.

After Nygard, "Release It!": consecutive failures open the circuit. While it is open, no call goes
out. After a pause one request at a time is the probe, and its success closes the circuit.
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
    """``failures_max`` consecutive failures in one instance open the circuit for ``open_for``.

    The time doubles after every failed probe, up to ``open_for_max``. A probe without a result
    is given up after ``probe_for``. With ``failures_max`` 0 the circuit never opens.
    """

    failures_max: int = 10
    open_for: timedelta = timedelta(seconds=15)
    open_for_max: timedelta = timedelta(minutes=5)
    probe_for: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of a circuit, as all instances share it.

    ``until`` is when a probe may go out (OPEN) or is given up (HALF_OPEN). ``prober`` is the id of
    the request that probes. ``rounds`` counts openings since the circuit was closed. ``why`` is for
    people.
    """

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    until: datetime | None = None
    prober: str | None = None
    rounds: int = 0
    why: str = ""


def wait_of(breaker: Breaker, request: str, now: datetime) -> datetime | None:
    """Return the time until which a request must wait; None if it may go out now.

    If the circuit is not closed, the request must become the probe before it goes out.
    """
    if breaker.state is BreakerState.CLOSED or breaker.until is None:
        return None
    if breaker.until <= now:
        return None
    if breaker.state is BreakerState.OPEN:
        return breaker.until
    return None if breaker.prober == request else min(breaker.until, now + RECHECK)


def probe(breaker: Breaker, request: str, policy: BreakerPolicy, now: datetime) -> Breaker:
    """Return the circuit half-open, with this request as its probe."""
    until = now + policy.probe_for
    return replace(breaker, state=BreakerState.HALF_OPEN, until=until, prober=request)


def opened(breaker: Breaker, policy: BreakerPolicy, now: datetime, why: str) -> Breaker:
    """Return the circuit open, longer each time until a probe succeeds."""
    seconds = policy.open_for.total_seconds() * 2.0 ** min(breaker.rounds, 30)
    rest = timedelta(seconds=min(seconds, policy.open_for_max.total_seconds()))
    since = breaker.since if breaker.rounds else now
    return Breaker(BreakerState.OPEN, since, now + rest, None, breaker.rounds + 1, why[:500])


def given_up(breaker: Breaker, now: datetime) -> Breaker:
    """Return the circuit after a probe without a result: another request may probe at once."""
    return replace(breaker, state=BreakerState.OPEN, until=now, prober=None)


def closed(now: datetime) -> Breaker:
    """Return a closed circuit."""
    return Breaker(since=now)
