"""Times as .NET writes them in host.json: `hh:mm:ss`, `d.hh:mm:ss`, with fractions."""

import re
from datetime import timedelta

_FORM = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2}):(?P<seconds>\d{2})"
    r"(?:\.(?P<fraction>\d{1,7}))?"
)


def parse_timespan(text: str) -> timedelta:
    """Read a TimeSpan.

    Raises:
        ValueError: it is none; the message is one sentence.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time: write hh:mm:ss, as in 00:05:00.")
    hours, minutes, seconds = (int(match[part]) for part in ("hours", "minutes", "seconds"))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{text!r} is no time: at most 23 hours, 59 minutes, 59 seconds.")
    micros = int((match["fraction"] or "0").ljust(7, "0")[:6])
    days = int(match["days"] or 0)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
