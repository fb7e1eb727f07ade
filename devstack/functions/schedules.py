"""Schedules of timers: NCRONTAB, which is cron with seconds, and .NET time spans.

    {second} {minute} {hour} {day} {month} {day of week}

Five fields are cron without seconds, which the Functions host accepts too. If a schedule names a
day and a day of the week, both must match. (This is NCrontab's rule. In Unix cron one is enough.)
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from devstack.inputs import whole_number

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of the month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _DAYS),
)
_PART = re.compile(r"(?P<low>\*|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>\d+))?")
_TIMESPAN = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2}):(?P<seconds>\d{2})"
    r"(?:\.(?P<fraction>\d{1,7}))?"
)
# Eight years always contain a 29 February, even around the year 2100, which has none.
_HORIZON = timedelta(days=8 * 366)


@dataclass(frozen=True)
class Schedule:
    """The moments at which a timer fires."""

    text: str
    fields: tuple[frozenset[int], ...]
    """The allowed values of each of `_FIELDS`."""

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Read a schedule, or raise ValueError."""
        words = text.split()
        if len(words) == 5:
            words = ["0", *words]
        if len(words) != 6:
            raise ValueError(
                f"{text!r} is not an NCRONTAB schedule: it needs six fields, "
                "{second} {minute} {hour} {day} {month} {day of week}."
            )
        sets = [
            _field(word, name, low=low, high=high, names=names)
            for word, (name, low, high, names) in zip(words, _FIELDS, strict=True)
        ]
        schedule = cls(text, tuple(sets))
        if schedule.next_after(datetime(2024, 1, 1)) is None:  # noqa: DTZ001  # calendar only
            raise ValueError(f"{text!r} never occurs: no month has such a day.")
        return schedule

    def next_after(self, start: datetime) -> datetime | None:
        """The first occurrence after `start`, in its time zone; None if eight years have none."""
        seconds, minutes, hours, days, months, weekdays = self.fields
        moment = start.replace(microsecond=0) + timedelta(seconds=1)
        horizon = start + _HORIZON
        while moment < horizon:
            if moment.month not in months:
                year, month = (
                    (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
                )
                moment = moment.replace(year=year, month=month, day=1, hour=0, minute=0, second=0)
            elif moment.day not in days or moment.isoweekday() % 7 not in weekdays:
                moment = moment.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif moment.hour not in hours:
                moment = moment.replace(minute=0, second=0) + timedelta(hours=1)
            elif moment.minute not in minutes:
                moment = moment.replace(second=0) + timedelta(minutes=1)
            elif moment.second not in seconds:
                moment += timedelta(seconds=1)
            else:
                return moment
        return None


def _field(word: str, name: str, *, low: int, high: int, names: list[str]) -> frozenset[int]:
    values: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a valid {name}: write a number, a-b, *, or */n.")
        step = int(match["step"] or 1)
        if step < 1:
            raise ValueError(f"The step {step} in the {name} is too small: use 1 or more.")
        if match["low"] == "*":
            if match["high"]:
                raise ValueError(f"{part!r} is not a valid {name}: a range needs two numbers.")
            first, last = low, high
        else:
            first = _number(match["low"], name, low=low, high=high, names=names)
            last = high if match["step"] else first
            if match["high"]:
                last = _number(match["high"], name, low=low, high=high, names=names)
        if last < first:
            raise ValueError(f"The {name} {part!r} ends before it begins: write it as two parts.")
        values |= set(range(first, last + 1, step))
    return frozenset(values)


def _number(word: str, name: str, *, low: int, high: int, names: list[str]) -> int:
    if word.lower()[:3] in names and word.isalpha():
        return names.index(word.lower()[:3]) + (1 if names is _MONTHS else 0)
    number = whole_number(word)
    if number is None:
        raise ValueError(f"{word!r} is not a valid {name}.")
    if names is _DAYS and number == 7:
        number = 0
    if not low <= number <= high:
        raise ValueError(f"{number} is not a valid {name}: it must be from {low} to {high}.")
    return number


def parse_timespan(text: str) -> timedelta:
    """Read a .NET time, `hh:mm:ss` or `d.hh:mm:ss` with a fraction, or raise ValueError."""
    match = _TIMESPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time: write hh:mm:ss, as in 00:05:00.")
    hours, minutes, seconds = (int(match[part]) for part in ("hours", "minutes", "seconds"))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{text!r} is not a time: at most 23 hours, 59 minutes, 59 seconds.")
    micros = int((match["fraction"] or "0").ljust(7, "0")[:6])
    days = int(match["days"] or 0)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
