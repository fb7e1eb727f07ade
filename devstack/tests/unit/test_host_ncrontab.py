from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.functions.schedules import Schedule, parse_timespan

NOON = datetime(2026, 3, 14, 12, 0, 0, tzinfo=UTC)  # a Saturday


def after(text: str, moment: datetime = NOON) -> str:
    occurrence = Schedule.parse(text).next_after(moment)
    return occurrence.strftime("%Y-%m-%d %H:%M:%S") if occurrence else "never"


def test_the_next_occurrence_is_right_by_the_calendar() -> None:
    for text, expected in (
        ("*/5 * * * * *", "2026-03-14 12:00:05"),
        ("0 */5 * * * *", "2026-03-14 12:05:00"),
        ("*/5 * * * *", "2026-03-14 12:05:00"),
        ("0 30 9 * * *", "2026-03-15 09:30:00"),
        ("0 0 9-17 * * MON-FRI", "2026-03-16 09:00:00"),
        ("0 0 0 1 jan *", "2027-01-01 00:00:00"),
        ("0 0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 0 0 * * 7", "2026-03-15 00:00:00"),
        ("0 0 0 * * Sunday", "2026-03-15 00:00:00"),
        ("10,50 1/20 * * * *", "2026-03-14 12:01:10"),
        ("0 0 0 13 * 5", "2026-11-13 00:00:00"),
    ):
        assert after(text) == expected


def test_a_wrong_schedule_is_refused_with_a_sentence() -> None:
    for text, sentence in (
        ("* * *", "needs six fields"),
        ("every 5 s", "needs six fields"),
        ("60 * * * * *", "60 is not a valid second"),
        ("* * 24 * * *", "24 is not a valid hour"),
        ("* * * 0 * *", "0 is not a valid day of the month"),
        ("* * * * 13 *", "13 is not a valid month"),
        ("* * * * * 8", "8 is not a valid day of the week"),
        ("*/0 * * * * *", "The step 0 in the second"),
        ("30-10 * * * * *", "ends before it begins"),
        ("x * * * * *", "'x' is not a valid second"),
        ("1- * * * * *", "'1-' is not a valid second"),
        ("0 0 0 31 2 *", "never occurs"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Schedule.parse(text)


def test_an_occurrence_is_never_the_moment_itself() -> None:
    assert after("0 0 12 * * *") == "2026-03-15 12:00:00"
    assert after("0 0 12 * * *", NOON - timedelta(microseconds=1)) == "2026-03-14 12:00:00"


numbers = st.integers(0, 59)


@given(
    second=numbers,
    minute=numbers,
    hour=st.integers(0, 23),
    start=st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)),  # noqa: DTZ001
)
def test_a_daily_schedule_comes_within_a_day_and_at_its_time(
    second: int, minute: int, hour: int, start: datetime
) -> None:
    occurrence = Schedule.parse(f"{second} {minute} {hour} * * *").next_after(start)
    assert occurrence is not None
    assert timedelta(0) < occurrence - start <= timedelta(days=1)
    assert (occurrence.hour, occurrence.minute, occurrence.second) == (hour, minute, second)


def test_timespans_are_read_as_dotnet_writes_them() -> None:
    for text, seconds in (
        ("00:05:00", 300),
        ("1.00:00:01", 86401),
        ("00:00:00.5", 0.5),
        ("23:59:59", 86399),
    ):
        assert parse_timespan(text).total_seconds() == seconds


def test_an_invalid_timespan_is_refused() -> None:
    for text in ("5", "24:00:00", "00:60:00", "00:00:60", "1:2:3:4", "-00:01:00"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_timespan(text)
