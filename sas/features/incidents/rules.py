"""Incidents, pure: when operators are alerted of something wrong with the system.

If no scheduler runs, every order under way meets the same fault, again and again. One alert for
each order would hide the fault. So there is one alert when an incident begins, more at growing
intervals while it lasts, and one when it is over.

An incident ends when its cause is observed to be over, and the kind says how:

* ``breaker-open``: the circuit is closed.
* ``agent-failing``: a request, or an order, that had met the bug goes on.
* ``waiting``: a step that rested was called and answered, and no other one rests.
* ``queue-delay``: the sweep that reported it reads the queue, and nothing waits long in it.
* ``undeliverable``: a queue that refused an instance takes its message. Nothing shows that an
  application reads its queue again.

All others, and these where the observer died, end ``OVER_AFTER`` the time at which they should have
been seen again; ``agent-failing`` ends ``FAILING_OVER_AFTER`` it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.texts import quoted

NEXT_ALERT_AFTER = (
    timedelta(minutes=15),
    timedelta(hours=1),
    timedelta(hours=4),
    timedelta(days=1),
)
"""Pause between two alerts of one incident. The last one repeats."""
OVER_AFTER = timedelta(minutes=5)
"""An incident is over if it was not seen again this long after its ``until``: time for one sweep,
and for one that failed.
"""
FAILING_OVER_AFTER = timedelta(minutes=2)
"""The same for ``agent-failing``. It needs no sweep: each message that fails again reports it, and
that is written a minute later at most.
"""
ORDERS_NAMED_MAX = 5
_END_BY_THEMSELVES = {AlertKind.BREAKER_OPEN, AlertKind.WAITING, AlertKind.QUEUE_DELAY}
"""A service comes back, or a queue moves on. After the other kinds somebody must deploy or repair.
"""

_REPEATED_WHEN_SEEN = {AlertKind.AGENT_FAILING, AlertKind.REJECTED}


@dataclass(frozen=True, slots=True)
class Sightings:
    """What an instance saw of one incident since its last write: how often, and which orders.

    A health check names no order, and does not count.
    """

    incident: Incident
    times: int
    orders: tuple[str, ...]

    def and_then(self, later: Sightings) -> Sightings:
        """Return these and later ones of the same incident together."""
        merged = replace(
            later.incident,
            since=min(self.incident.since, later.incident.since),
            until=max(self.incident.until, later.incident.until),
        )
        return Sightings(merged, self.times + later.times, _some(self.orders, later.orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveIncident:
    """An incident as all instances share it. ``since`` is part of the ids of its alerts.

    ``times`` is how often orders met it since it began. ``orders`` names some of those since the
    last alert. ``alerts_sent`` counts alerts.
    """

    kind: AlertKind
    scope: str
    text: str
    since: datetime
    last_seen: datetime
    until: datetime
    times: int = 0
    orders: tuple[str, ...] = ()
    alerts_sent: int = 0
    last_alert_at: datetime | None = None
    workflow: str | None = None
    agent: str | None = None

    @property
    def needs_you(self) -> bool:
        """Whether it ends only after somebody acts."""
        return self.kind not in _END_BY_THEMSELVES


def seen(active: ActiveIncident | None, sightings: Sightings, now: datetime) -> ActiveIncident:
    """Return an incident after it was seen. None: it begins."""
    incident = sightings.incident
    if active is None:
        active = ActiveIncident(
            kind=incident.kind,
            scope=incident.scope,
            text=incident.text,
            since=incident.since,
            last_seen=now,
            until=incident.until,
        )
    return replace(
        active,
        text=incident.text,
        workflow=incident.workflow,
        agent=incident.agent,
        last_seen=now,
        until=max(active.until, incident.until),
        times=active.times + sightings.times,
        orders=_some(active.orders, sightings.orders),
    )


def is_over(active: ActiveIncident, now: datetime) -> bool:
    """Return whether an incident was not seen again for so long that it is over."""
    is_failing = active.kind is AlertKind.AGENT_FAILING
    return now > active.until + (FAILING_OVER_AFTER if is_failing else OVER_AFTER)


def rests(active: ActiveIncident, sightings: Sightings | None, now: datetime) -> bool:
    """Return whether a step of an incident still rests.

    If the first success ended it, an incident that only some of its orders meet would begin again
    with each of the others.
    """
    until = max(active.until, sightings.incident.until) if sightings else active.until
    return active.kind is AlertKind.WAITING and now < until


def explained_by(incident: Incident | ActiveIncident) -> tuple[AlertKind, str] | None:
    """Return the kind and scope of the incident that explains one if it is active.

    While the circuit of an agent is open, its steps rest for that reason.
    """
    if incident.kind is AlertKind.WAITING and incident.agent:
        return AlertKind.BREAKER_OPEN, f"agent {incident.agent}"
    return None


def behind(active: ActiveIncident, times: int, orders: tuple[str, ...]) -> Sightings:
    """Return what was seen of an active incident by orders that wait for its reason."""
    incident = Incident(
        kind=active.kind,
        scope=active.scope,
        text=active.text,
        since=active.since,
        until=active.until,
        workflow=active.workflow,
        agent=active.agent,
    )
    return Sightings(incident, times, orders)


def next_alert_at(active: ActiveIncident) -> datetime:
    """Return when the next alert of an active incident is due."""
    if active.last_alert_at is None:
        return active.last_seen
    pause = NEXT_ALERT_AFTER[min(active.alerts_sent, len(NEXT_ALERT_AFTER)) - 1]
    return active.last_alert_at + pause


def is_alert_due(active: ActiveIncident, now: datetime) -> bool:
    """Return whether an alert of an active incident must be sent now.

    The alerts of ``agent-failing`` and ``rejected`` are repeated by a new failure alone: without
    one, the bug may be mended.
    """
    next_at = next_alert_at(active)
    is_new = active.last_seen >= next_at or active.kind not in _REPEATED_WHEN_SEEN
    return is_new and next_at <= now


def alert_sent(active: ActiveIncident, now: datetime) -> ActiveIncident:
    """Return an incident after an alert of it was sent."""
    return replace(active, alerts_sent=active.alerts_sent + 1, last_alert_at=now, orders=())


def alert_text(active: ActiveIncident, now: datetime) -> str:
    """Return the text of an alert: what is wrong, since when, for which orders, what comes next."""
    again = _minute(next_alert_at(alert_sent(active, now)))
    return (
        f"{active.text} It began at {_minute(active.since)}{_seen_by(active)}. "
        f"While it lasts, the next alert comes at {again}."
    )


def over_text(active: ActiveIncident, why: str) -> str:
    """Return the text of the alert that an incident is over. ``why`` may say more."""
    return (
        f"Over: {active.kind.value}, {active.scope}. It began at {_minute(active.since)} "
        f"and was last seen at {_minute(active.last_seen)}.{why}"
    )


def _seen_by(active: ActiveIncident) -> str:
    if not active.orders:
        return ""
    named, count = ", ".join(map(quoted, active.orders)), f"{active.times:,}"
    if active.kind is AlertKind.REJECTED:
        return f". Messages so far: {count}, such as {named}"
    if active.kind is AlertKind.UNDELIVERABLE:
        return f". Notifications given up so far: {count}, of orders such as {named}"
    if active.kind is AlertKind.BREAKER_OPEN:
        return f". Waits behind it so far: {count}, of orders such as {named}"
    if not active.alerts_sent:
        return f", first seen by order {named}"
    return f", seen {count} times so far, by orders such as {named}"


def _some(*orders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain(*orders)))[:ORDERS_NAMED_MAX]


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%MZ}"
