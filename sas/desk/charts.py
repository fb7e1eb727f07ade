"""The charts of the overview: counted by minute, drawn as SVG by the template.

The shapes stretch to the width of the page, so the words stand beside the picture, in HTML.
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
    """One rectangle: what it counts, and where it is. ``title`` is shown when it is pointed at."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What a template draws. ``label`` says it in words, for a screen reader."""

    bars: Sequence[Bar]
    lines: Sequence[tuple[str, str]]
    top: str
    label: str


@dataclass(frozen=True, slots=True)
class _Minutes:
    started: Counter[int]
    ended: dict[str, Counter[int]]
    took: dict[int, list[float]]


def of(picture: Picture) -> tuple[Chart, Chart]:
    """Return the charts: orders per minute, and time to completion."""
    found = _counted(picture)
    return _per_minute(found), _time_to_completion(found.took)


def _per_minute(found: _Minutes) -> Chart:
    """Return how many orders were started (a line), ended and failed (bars) in each minute."""
    totals = [sum(of[n] for of in found.ended.values()) for n in range(MINUTES)]
    most = max([1, *totals, *found.started.values()])
    bars: list[Bar] = []
    for number in range(MINUTES):
        floor = HEIGHT
        for kind, of in found.ended.items():
            if of[number]:
                height = of[number] / most * (HEIGHT - 4)
                floor -= height
                ago = MINUTES - 1 - number
                title = f"{ago} min ago: {of[number]:,} {kind}"
                bars.append(_bar(kind, number, y=floor, height=height, title=title))
    line = _line([found.started[n] / most for n in range(MINUTES)])
    words = [f"{sum(found.started.values()):,} started"]
    words += [f"{sum(of.values()):,} {kind}" for kind, of in found.ended.items()]
    lines = [("started", line)] if found.started else []
    return Chart(
        bars=bars, lines=lines, top=f"{most:,}", label=f"In the last hour: {', '.join(words)}."
    )


def _time_to_completion(took: Mapping[int, Sequence[float]]) -> Chart:
    """Return how long orders took that completed in each minute: the median, and 95 of 100."""
    every = [seconds for of in took.values() for seconds in of]
    if not every:
        return Chart(bars=(), lines=(), top="", label="No order completed in the last hour.")
    high = {number: _share(of, 0.95) for number, of in took.items()}
    middle = {number: median(of) for number, of in took.items()}
    most = max(high.values()) or 1.0
    bars = [
        _bar(
            kind,
            number,
            y=HEIGHT - value / most * (HEIGHT - 4),
            height=value / most * (HEIGHT - 4),
            title=(
                f"{MINUTES - 1 - number} min ago: "
                f"{_spelled(value)} for {share} of 100 orders or more"
            ),
        )
        for kind, share, of in (("slow", 95, high), ("median", 50, middle))
        for number, value in sorted(of.items())
    ]
    label = (
        f"In the last hour: half of the completed orders took {_spelled(median(every))} or less, "
        f"95 of 100 took {_spelled(_share(every, 0.95))} or less."
    )
    return Chart(bars=bars, lines=(), top=_spelled(most), label=label)


def _counted(picture: Picture) -> _Minutes:
    first = picture.at.replace(second=0, microsecond=0) - (MINUTES - 1) * MINUTE
    made = _Minutes(Counter(), {kind: Counter() for kind in KINDS}, defaultdict(list))
    kinds = {state: kind for kind, states in KINDS.items() for state in states}
    for row in _recent(picture, first):
        state, since, submitted = row.state, row.since, row.submitted_at
        if submitted is not None and submitted >= first:
            made.started[_minute(submitted, first)] += 1
        if state is None or since is None or since < first or state not in kinds:
            continue
        ended = _minute(since, first)
        made.ended[kinds[state]][ended] += 1
        if state is OrderState.PROCESSED and submitted is not None:
            made.took[ended].append((since - submitted).total_seconds())
    return made


def _recent(picture: Picture, first: datetime) -> Iterator[Row]:
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
