"""The charts of the overview. Orders are counted by minute, and the template draws SVG.

The shapes stretch to the width of the page. Words must not stretch, so they are HTML beside the
SVG. Minute 59 is the present minute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, takewhile
from statistics import median

from sas.desk.watch import Picture
from sas.domain.order import OrderState
from sas.operate.why import spelled

MINUTES = 60
WIDTH, HEIGHT = 600.0, 100.0
KINDS = {
    OrderState.PROCESSED.value: "completed",
    OrderState.COMPENSATED.value: "undone",
    OrderState.ERROR.value: "failed",
    OrderState.REJECTED.value: "failed",
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
    """The bars of one chart. ``label`` says the same in words, for a screen reader."""

    bars: Sequence[Bar]
    top: str
    label: str


def of(picture: Picture) -> tuple[Chart, Chart]:
    """Return the charts of the last hour: orders per minute, and time to completion."""
    first = picture.at.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    newest_first = takewhile(
        lambda row: row.since is None or row.since >= first, reversed([*picture.finished.values()])
    )
    ended: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS.values()}
    durations: dict[int, list[float]] = defaultdict(list)
    for row in chain(picture.in_error, newest_first):
        since, state = row.since, row.process_state or ""
        if since is None or since < first or state not in KINDS:
            continue
        minute = min((since - first).seconds // 60, MINUTES - 1)
        ended[KINDS[state]][minute] += 1
        if state == OrderState.PROCESSED.value and row.submitted_at is not None:
            durations[minute].append((since - row.submitted_at).total_seconds())
    return _per_minute(ended), _time_to_completion(durations)


def _per_minute(ended: dict[str, Counter[int]]) -> Chart:
    """Return how many orders ended or failed in each minute."""
    top = max([1, *sum(ended.values(), Counter[int]()).values()])
    floors = dict.fromkeys(range(MINUTES), 0)  # the bars of one minute stand on each other
    bars = []
    for kind, counts in ended.items():
        for number, count in sorted(counts.items()):
            share = floors[number] / top, count / top
            bars.append(_bar(kind, number, share, f"{count:,} {kind}"))
            floors[number] += count
    words = ", ".join(f"{counts.total():,} {kind}" for kind, counts in ended.items())
    return Chart(bars=bars, top=f"{top:,}", label=f"In the last hour: {words}.")


def _time_to_completion(durations: dict[int, list[float]]) -> Chart:
    """Return the time to completion of the orders of each minute: median and 95 of 100."""
    seconds = [span for minute in durations.values() for span in minute]
    if not seconds:
        return Chart(bars=(), top="", label="No order completed in the last hour.")
    slow = {number: _slow(minute) for number, minute in durations.items()}
    middle = {number: median(minute) for number, minute in durations.items()}
    top = max(slow.values()) or 1.0
    return Chart(
        bars=[
            _bar(kind, number, (0.0, span / top), f"{share} of 100 took {_spelled(span)} or less")
            for kind, share, spans in (("slow", 95, slow), ("median", 50, middle))
            for number, span in sorted(spans.items())
        ],
        top=_spelled(top),
        label=f"In the last hour: half of the completed orders took {_spelled(median(seconds))} "
        f"or less, 95 of 100 took {_spelled(_slow(seconds))} or less.",
    )


def _slow(seconds: Sequence[float]) -> float:
    """Return the time that 95 of 100 do not exceed."""
    return sorted(seconds)[min(int(len(seconds) * 0.95), len(seconds) - 1)]


def _spelled(seconds: float) -> str:
    return spelled(timedelta(seconds=seconds))


def _bar(kind: str, number: int, share: tuple[float, float], words: str) -> Bar:
    """Return a bar. ``share`` has where it begins and how high it is, as shares of the height."""
    step, floor, height = WIDTH / MINUTES, *(part * (HEIGHT - 4) for part in share)
    return Bar(
        kind=kind,
        x=number * step + 1,
        y=round(HEIGHT - floor - height, 2),
        width=step - 2,
        height=round(height, 2),
        title=f"{MINUTES - 1 - number} min ago: {words}",
    )
