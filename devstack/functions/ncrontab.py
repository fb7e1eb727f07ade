"""NCRONTAB: cron with seconds, as timer triggers write it.

    {second} {minute} {hour} {day} {month} {day of week}

Five fields are taken as cron without seconds, which the host allows too. Both day fields
must match where both are given (NCrontab's rule; Unix cron takes either).
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from devstack.numbers import whole_number

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
# Four years reach every 29 February but one around 2100; eight reach them all.
_HORIZON = timedelta(days=8 * 366)


@dataclass(frozen=True)
class Schedule:
    """When a timer fires."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Read a schedule.

        Raises:
            ValueError: it is none, or never occurs; the message is one sentence.
        """
        words = text.split()
        if len(words) == 5:
            words = ["0", *words]
        if len(words) != 6:
            raise ValueError(
                f"{text!r} is no NCRONTAB schedule: it needs six fields, "
                "{second} {minute} {hour} {day} {month} {day of week}."
            )
        sets = [_field(word, *spec) for word, spec in zip(words, _FIELDS, strict=True)]
        schedule = cls(text, *sets)
        if schedule.next_after(datetime(2024, 1, 1)) is None:  # noqa: DTZ001  # calendar only
            raise ValueError(f"{text!r} never occurs: no month has such a day.")
        return schedule

    def next_after(self, moment: datetime) -> datetime | None:
        """The first occurrence strictly after `moment`, in its own time zone.

        None when the next eight years hold none.
        """
        now = moment.replace(microsecond=0) + timedelta(seconds=1)
        end = moment + _HORIZON
        while now < end:
            if now.month not in self.months:
                year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
                now = now.replace(year=year, month=month, day=1, hour=0, minute=0, second=0)
            elif now.day not in self.days or now.isoweekday() % 7 not in self.weekdays:
                now = now.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif now.hour not in self.hours:
                now = now.replace(minute=0, second=0) + timedelta(hours=1)
            elif now.minute not in self.minutes:
                now = now.replace(second=0) + timedelta(minutes=1)
            elif now.second not in self.seconds:
                now += timedelta(seconds=1)
            else:
                return now
        return None


def _field(word: str, name: str, low: int, high: int, names: list[str]) -> frozenset[int]:
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no {name}: write a number, a-b, *, or */n.")
        found |= _part(match, name, low, high, names)
    return frozenset(found)


def _part(match: re.Match[str], name: str, low: int, high: int, names: list[str]) -> set[int]:
    step = int(match["step"] or 1)
    if step < 1:
        raise ValueError(f"A step of {step} in the {name} goes nowhere: use 1 or more.")
    if match["low"] == "*":
        if match["high"]:
            raise ValueError(f"{match.group()!r} is no {name}: a range needs two numbers.")
        return set(range(low, high + 1, step))
    first = _number(match["low"], name, low, high, names)
    if match["high"]:
        last = _number(match["high"], name, low, high, names)
    else:
        last = high if match["step"] else first
    if last < first:
        raise ValueError(f"The {name} {match.group()!r} runs backwards: write it as two parts.")
    return set(range(first, last + 1, step))


def _number(word: str, name: str, low: int, high: int, names: list[str]) -> int:
    if word.lower()[:3] in names and word.isalpha():
        return names.index(word.lower()[:3]) + (1 if names is _MONTHS else 0)
    number = whole_number(word)
    if number is None:
        raise ValueError(f"{word!r} is no {name}.")
    if names is _DAYS and number == 7:
        number = 0
    if not low <= number <= high:
        raise ValueError(f"{number} is no {name}: it lies between {low} and {high}.")
    return number
