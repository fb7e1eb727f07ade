"""What is wrong with the system rather than with one order: told once, however many orders meet it.

A scheduler that is away is met by every order under way, again and again. Alerts of each would bury
the one thing that is wrong. So a condition stands: it is told when it begins, at growing
intervals while it lasts, and once when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

from sas.domain.change import Incident
from sas.domain.messages import AlertKind

NEXT_ALERT_AFTER = (
    timedelta(minutes=15),
    timedelta(hours=1),
    timedelta(hours=4),
    timedelta(days=1),
)
"""How long after an alert the next one of the same condition comes; the last one holds on."""


OVER_AFTER = timedelta(minutes=5)
"""How long after the moment at which orders that met it were to be looked at again a condition is
taken as over: time for a sweep, and for one that failed.
"""


ORDERS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Sightings:
    """What was seen of one condition since it was last noted: how often, by which orders (none
    where it was seen by itself).
    """

    condition: Incident
    times: int
    orders: tuple[str, ...]

    def and_then(self, later: Sightings) -> Sightings:
        """Return these and later ones of the same condition together."""
        both = replace(
            later.condition,
            since=min(self.condition.since, later.condition.since),
            until=max(self.condition.until, later.condition.until),
        )
        return Sightings(both, self.times + later.times, _some(self.orders, later.orders))


@dataclass(frozen=True, slots=True)
class ActiveIncident:
    """A condition as all instances share it. ``since`` is that of the order that met it first: all
    that is told of it is known by it.

    ``times`` and ``orders`` are of the time since it was last told; ``alerts_sent`` counts alerts.
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


def seen(active: ActiveIncident | None, found: Sightings, now: datetime) -> ActiveIncident:
    """Return a condition after it was seen (again); it begins anew where it was over."""
    what = found.condition
    if active is None or is_over(active, now):
        active = ActiveIncident(what.kind, what.scope, what.text, what.since, now, what.until)
    return replace(
        active,
        text=what.text,
        last_seen=now,
        until=max(active.until, what.until),
        times=active.times + found.times,
        orders=_some(active.orders, found.orders),
    )


def is_over(active: ActiveIncident, now: datetime) -> bool:
    """Return whether orders would have met it again by now if it still stood."""
    return now > active.until + OVER_AFTER


def next_alert_at(active: ActiveIncident) -> datetime:
    """Return when the next alert of a active condition is due."""
    if active.last_alert_at is None:
        return active.last_seen
    return (
        active.last_alert_at + NEXT_ALERT_AFTER[min(active.alerts_sent, len(NEXT_ALERT_AFTER)) - 1]
    )


def alert_sent(active: ActiveIncident, now: datetime) -> ActiveIncident:
    """Return a condition after an alert of it was sent."""
    return replace(
        active, alerts_sent=active.alerts_sent + 1, last_alert_at=now, times=0, orders=()
    )


def alert_text(active: ActiveIncident, now: datetime) -> str:
    """Return what an alert says of a condition that stands: what, since when, where, and when it
    is said again.
    """
    again = _minute(next_alert_at(alert_sent(active, now)))
    return (
        f"{active.text} It lasts since {_minute(active.since)}{_met_by(active)}. "
        f"While it lasts this is told again, at {again} next."
    )


def over_text(active: ActiveIncident) -> str:
    """Return what an alert says of a condition that is over."""
    return (
        f"Over: {active.kind.value}, {active.scope}. It lasted from {_minute(active.since)}, "
        f"and was last seen at {_minute(active.last_seen)}."
    )


def _met_by(active: ActiveIncident) -> str:
    if not active.orders:
        return ""
    named = ", ".join(active.orders)
    if not active.alerts_sent:
        return f", met by order {named} first"
    count = f"{active.times:,} times" if active.times > 1 else "once"
    return f", met {count} since this was last told, by orders such as {named}"


def _some(*orders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain(*orders)))[:ORDERS_NAMED_MAX]


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%MZ}"
