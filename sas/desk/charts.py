"""The charts of the overview. Orders are counted by minute, and the template draws SVG.

The shapes stretch to the width of the page. Words must not stretch, so they are HTML beside the
SVG.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from sas.desk.rows import Row
from sas.desk.watch import Picture
from sas.domain.order import OrderState
from sas.operate.why import spelled

MINUTES = 60
WIDTH, HEIGHT = 600.0, 100.0
MINUTE = timedelta(minutes=1)
KINDS = {
    "completed": (OrderState.PROCESSED,),
    "undone": (OrderState.COMPENSATED,),
    "failed": (OrderState.ERROR, OrderState.REJECTED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One rectangle: what it counts, and its place. A pointer over it shows the ``title``."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The bars and lines of one chart. ``label`` says the same in words, for a screen reader."""

    bars: Sequence[Bar]
    lines: Sequence[tuple[str, str]]
    top: str
    label: str


@dataclass(frozen=True, slots=True)
class _Minutes:
    """What happened in each of the minutes 0 to 59. Minute 59 is the present minute.

    ``ended`` counts by kind. ``durations`` has the seconds of each order that completed.
    """

    started: Counter[int]
    ended: dict[str, Counter[int]]
    durations: dict[int, list[float]]


def of(picture: Picture) -> tuple[Chart, Chart]:
    """Return the charts: orders per minute, and time to completion."""
    minutes = _counted(picture)
    return _per_minute(minutes), _time_to_completion(minutes.durations)


def _per_minute(minutes: _Minutes) -> Chart:
    """Return how many orders were started (a line), ended and failed (bars) in each minute."""
    totals = [sum(counts[n] for counts in minutes.ended.values()) for n in range(MINUTES)]
    top = max([1, *totals, *minutes.started.values()])
    bars: list[Bar] = []
    for number in range(MINUTES):
        floor = HEIGHT  # the bars of one minute stand on each other: y grows downwards
        for kind, counts in minutes.ended.items():
            if counts[number]:
                height = counts[number] / top * (HEIGHT - 4)
                floor -= height
                ago = MINUTES - 1 - number
                title = f"{ago} min ago: {counts[number]:,} {kind}"
                bars.append(_bar(kind, number, y=floor, height=height, title=title))
    line = _line([minutes.started[n] / top for n in range(MINUTES)])
    words = [f"{sum(minutes.started.values()):,} started"]
    words += [f"{sum(counts.values()):,} {kind}" for kind, counts in minutes.ended.items()]
    lines = [("started", line)] if minutes.started else []
    return Chart(
        bars=bars, lines=lines, top=f"{top:,}", label=f"In the last hour: {', '.join(words)}."
    )


def _time_to_completion(durations: Mapping[int, Sequence[float]]) -> Chart:
    """Return the time to completion of the orders of each minute: median and 95 of 100."""
    all_seconds = [seconds for minute in durations.values() for seconds in minute]
    if not all_seconds:
        return Chart(bars=(), lines=(), top="", label="No order completed in the last hour.")
    slow = {number: _share(minute, 0.95) for number, minute in durations.items()}
    middle = {number: median(minute) for number, minute in durations.items()}
    top = max(slow.values()) or 1.0
    bars = [
        _bar(
            kind,
            number,
            y=HEIGHT - seconds / top * (HEIGHT - 4),
            height=seconds / top * (HEIGHT - 4),
            title=(
                f"{MINUTES - 1 - number} min ago: "
                f"{_spelled(seconds)} for {share} of 100 orders or more"
            ),
        )
        for kind, share, values in (("slow", 95, slow), ("median", 50, middle))
        for number, seconds in sorted(values.items())
    ]
    label = (
        f"In the last hour: half of the completed orders took "
        f"{_spelled(median(all_seconds))} or less, "
        f"95 of 100 took {_spelled(_share(all_seconds, 0.95))} or less."
    )
    return Chart(bars=bars, lines=(), top=_spelled(top), label=label)


def _counted(picture: Picture) -> _Minutes:
    first = picture.at.replace(second=0, microsecond=0) - (MINUTES - 1) * MINUTE
    minutes = _Minutes(Counter(), {kind: Counter() for kind in KINDS}, defaultdict(list))
    kinds = {state: kind for kind, states in KINDS.items() for state in states}
    for row in _recent(picture, first):
        state, since, submitted = row.state, row.since, row.submitted_at
        if submitted is not None and submitted >= first:
            minutes.started[_minute(submitted, first)] += 1
        if state is None or since is None or since < first or state not in kinds:
            continue
        number = _minute(since, first)
        minutes.ended[kinds[state]][number] += 1
        if state is OrderState.PROCESSED and submitted is not None:
            minutes.durations[number].append((since - submitted).total_seconds())
    return minutes


def _recent(picture: Picture, first: datetime) -> Iterator[Row]:
    """Yield every order that may have started or ended since ``first``, and some older orders."""
    yield from picture.under_way
    yield from picture.in_error
    for block in reversed(picture.blocks):  # the newest are last
        if block.newest < first:
            return
        yield from block


def _minute(at: datetime, first: datetime) -> int:
    return min((at - first).seconds // 60, MINUTES - 1)


def _spelled(seconds: float) -> str:
    return spelled(timedelta(seconds=seconds))


def _share(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _bar(kind: str, number: int, y: float, height: float, title: str) -> Bar:
    step = WIDTH / MINUTES
    return Bar(
        kind=kind,
        x=number * step + 1,
        y=round(y, 2),
        width=step - 2,
        height=round(height, 2),
        title=title,
    )


def _line(shares: Sequence[float]) -> str:
    """Return the points of a line over all minutes, in the units of the picture."""
    step = WIDTH / len(shares)
    return " ".join(
        f"{(number + 0.5) * step:.1f},{HEIGHT - share * (HEIGHT - 4):.1f}"
        for number, share in enumerate(shares)
    )
