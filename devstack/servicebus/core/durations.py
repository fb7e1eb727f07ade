"""ISO 8601 durations as Service Bus writes them: ``PT1M``, ``P10675199DT2H48M5.4775807S``."""

import re

#: The longest duration of .NET, which Service Bus uses for "for ever", in seconds.
FOREVER_S = 10675199 * 86400.0 + 2 * 3600 + 48 * 60 + 5.4775807

_PATTERN = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


def parse_duration(text: str) -> float:
    """Read an ISO 8601 duration of days and less; return seconds.

    Raises ValueError with a sentence for anything else (years and months have no fixed length).
    """
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"{text!r} is no ISO 8601 duration such as PT30S, PT1M, PT1H or P1D")
    part = {name: float(value) for name, value in match.groupdict(default="0").items()}
    whole = part["days"] * 86400 + part["hours"] * 3600 + part["minutes"] * 60
    return whole + part["seconds"]


def format_duration(seconds: float) -> str:
    """Write seconds as an ISO 8601 duration."""
    if seconds >= FOREVER_S:
        return "P10675199DT2H48M5.4775807S"
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    time = "".join(
        f"{value:g}{unit}"
        for value, unit in ((hours, "H"), (minutes, "M"), (round(rest, 6), "S"))
        if value
    )
    if not days and not time:
        return "PT0S"
    return "P" + (f"{days:g}D" if days else "") + (f"T{time}" if time else "")
