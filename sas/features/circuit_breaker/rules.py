"""Circuit breaker, pure: one circuit for each agent. It is closed, open or half-open.

After Nygard, "Release It!": consecutive failures open the circuit. While it is open, no call goes
out. After a pause one request at a time is the probe, and its success closes the circuit. A failed
probe may be the fault of its order. So other orders probe before that order does again, and the
pause grows only when the probe of another order fails too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from sas.domain.texts import shortened

RECHECK = timedelta(seconds=3)
"""How long others wait for a probe before they look again."""


class BreakerState(Enum):
    """Whether calls go out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """``failures_max`` consecutive failures in one instance open the circuit for ``open_for``.

    Error answers count once for each order. The time doubles after every failed probe, up to
    ``open_for_max``, but not if the same order probed before. A probe without a result is given up
    after ``probe_for``. With ``failures_max`` 0 the circuit never opens.
    """

    failures_max: int = 10
    open_for: timedelta = timedelta(seconds=15)
    open_for_max: timedelta = timedelta(seconds=30)
    probe_for: timedelta = timedelta(seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The state of a circuit, as all instances share it.

    ``until`` is when a probe may go out (OPEN) or is given up (HALF_OPEN). ``prober`` is the id of
    the request that probes (HALF_OPEN). ``rounds`` counts openings since the circuit was closed.
    ``why`` is for people: the failure that opened it, and not a later one of a probe. ``suspect``
    is the order whose probe failed last: the failure may be its own.
    """

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    until: datetime | None = None
    prober: str | None = None
    rounds: int = 0
    why: str = ""
    suspect: str | None = None


def wait_of(
    breaker: Breaker, request: str, now: datetime, order_id: str | None = None
) -> datetime | None:
    """Return the time until which a request must wait; None if it may go out now.

    If the circuit is not closed, the request must become the probe before it goes out. The suspect
    waits a little longer, so that another order probes.
    """
    if breaker.state is BreakerState.CLOSED or breaker.until is None:
        return None
    until = breaker.until
    if breaker.state is BreakerState.OPEN and order_id is not None and order_id == breaker.suspect:
        until += RECHECK
    if until <= now:
        return None
    if breaker.state is BreakerState.OPEN:
        return until
    return None if breaker.prober == request else min(breaker.until, now + RECHECK)


def probe(breaker: Breaker, request: str, policy: BreakerPolicy, now: datetime) -> Breaker:
    """Return the circuit half-open, with this request as its probe."""
    until = now + policy.probe_for
    return replace(breaker, state=BreakerState.HALF_OPEN, until=until, prober=request)


def opened(
    breaker: Breaker, policy: BreakerPolicy, now: datetime, why: str, suspect: str | None = None
) -> Breaker:
    """Return the circuit open, longer each time until a probe succeeds.

    ``suspect`` is the order whose probe failed. If it was the suspect before, its second failure
    shows nothing new about the service, and the time does not grow.
    """
    again = suspect is not None and suspect == breaker.suspect
    rounds = breaker.rounds if again else breaker.rounds + 1
    seconds = policy.open_for.total_seconds() * 2.0 ** min(rounds - 1, 30)
    rest = timedelta(seconds=min(seconds, policy.open_for_max.total_seconds()))
    since = breaker.since if breaker.rounds else now
    return Breaker(
        state=BreakerState.OPEN,
        since=since,
        until=now + rest,
        prober=None,
        rounds=rounds,
        why=breaker.why if breaker.rounds else shortened(why, 500),
        suspect=suspect,
    )


def given_up(breaker: Breaker, now: datetime) -> Breaker:
    """Return the circuit after a probe without a result: another request may probe at once."""
    return replace(breaker, state=BreakerState.OPEN, until=now, prober=None)


def closed(now: datetime) -> Breaker:
    """Return a closed circuit."""
    return Breaker(since=now)
