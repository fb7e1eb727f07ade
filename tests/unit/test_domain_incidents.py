"""An incident sends alerts at its beginning, at growing intervals, and at its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.features.incidents import rules
from sas.features.incidents.board import name_of
from sas.features.incidents.rules import ActiveIncident, Sightings

T0 = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def sightings(
    *orders: str, since: datetime = T0, until: datetime = T0 + 10 * MINUTE, times: int = 0
) -> Sightings:
    incident = Incident(
        kind=AlertKind.NOT_PICKED_UP,
        scope="urgent orders",
        text="Nobody works.",
        since=since,
        until=until,
    )
    return Sightings(incident, times or len(orders), orders)


def begun() -> ActiveIncident:
    """Return an incident whose first alert was sent at T0."""
    return rules.alert_sent(rules.seen(None, sightings("A"), T0), T0)


def test_an_incident_that_lasts_is_reported_again_at_growing_intervals_and_then_daily() -> None:
    active, waits = begun(), []
    for _ in range(6):
        at = rules.next_alert_at(active)
        assert active.last_alert_at is not None
        waits.append((at - active.last_alert_at).total_seconds() / 60)
        active = rules.alert_sent(active, at)
    assert waits == [15, 60, 240, 1440, 1440, 1440]


def test_sightings_are_joined_as_if_seen_one_after_the_other() -> None:
    first, second = (
        sightings("A", "B", since=T0 - MINUTE),
        sightings("B", "C", until=T0 + 30 * MINUTE),
    )
    total = rules.seen(begun(), first.and_then(second), T0)
    one_by_one = rules.seen(rules.seen(begun(), first, T0), second, T0)
    assert total == one_by_one
    assert total.times == 5


@pytest.mark.parametrize(("minutes", "is_over"), [(10, False), (15, False), (15.01, True)])
def test_an_incident_is_over_some_time_after_its_orders_should_have_seen_it_again(
    minutes: float, is_over: bool
) -> None:
    assert rules.is_over(begun(), T0 + minutes * MINUTE) is is_over


def test_the_first_alert_says_what_since_when_by_whom_and_when_it_comes_again() -> None:
    active = rules.seen(None, sightings("A"), T0)
    assert rules.alert_text(active, T0) == (
        "Nobody works. It began at 2026-03-01 03:00Z, first seen by order “A”. "
        "While it lasts, the next alert comes at 2026-03-01 03:15Z."
    )


def test_later_alerts_say_how_often_the_incident_was_seen_so_far() -> None:
    active = rules.seen(begun(), sightings("B", "C", times=4012), T0 + MINUTE)
    text = rules.alert_text(active, T0 + 15 * MINUTE)
    assert "seen 4,013 times so far, by orders such as “B”, “C”." in text
    assert text.endswith("the next alert comes at 2026-03-01 04:15Z.")


def test_the_text_of_its_end_says_how_long_the_incident_lasted() -> None:
    active = rules.seen(begun(), sightings("B"), T0 + 7 * MINUTE)
    assert rules.over_text(active, "") == (
        "Over: not-picked-up, urgent orders. It began at 2026-03-01 03:00Z and was last "
        "seen at 2026-03-01 03:07Z."
    )


def test_the_shared_value_of_any_scope_has_a_name_that_tables_accept() -> None:
    name = name_of(AlertKind.UNREADABLE, "key a/b\\c#d?e%f+g\n'")
    assert name == "unreadable|key a_b_c_d_e_f_g__"
