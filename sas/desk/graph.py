"""The places of the steps of an order in a picture: each step below those that it comes after.

1. A step is in the row below the lowest of the steps before it. So parallel steps are side by side.
2. A line is left out if other lines lead from the one step to the other.
3. A line over several rows gets an empty place in each row between, so that no box covers it.
4. The places of a row are sorted by the middle of the places above them.
5. An order does not tell which steps come before which; only its workflow does. Without the
   workflow there are no lines, and the boxes stand one after another as text does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from sas.domain.workflow import Rules

BOX_HEIGHT, ROW_HEIGHT, GAP = 66.0, 96.0, 18.0
PER_ROW = 3
"""Boxes in a row of a picture without lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The upper left corner of each step's box, all of one size, and lines as paths of SVG."""

    corners: Sequence[tuple[float, float]]
    lines: Sequence[str]
    box_width: float
    width: float
    height: float
    box_height: float = BOX_HEIGHT


def graph(count: int, rules: Rules | None, box_width: float) -> Graph:
    """Return the picture of ``count`` steps, which are those of ``rules`` if these are known."""
    rows, above = _places(rules) if rules else ([number // PER_ROW for number in range(count)], [])
    widths = [box_width if place < count else 0.0 for place in range(len(rows))]
    middles = _middles(rows, above, widths)
    edge = min(x - width / 2 for x, width in zip(middles, widths, strict=True)) - GAP / 2
    middles = [x - edge for x in middles]
    lines = []
    for place, earlier in enumerate(above):
        x, top = middles[place], GAP / 2 + rows[place] * ROW_HEIGHT
        bend = top - (ROW_HEIGHT - BOX_HEIGHT) / 2
        through = f" V{top + BOX_HEIGHT:.0f}" if place >= count else ""
        for start in earlier:
            begin, bottom = middles[start], GAP / 2 + rows[start] * ROW_HEIGHT + BOX_HEIGHT
            lines.append(
                f"M{begin:.0f} {bottom:.0f} C{begin:.0f} {bend:.0f} {x:.0f} {bend:.0f} "
                f"{x:.0f} {top:.0f}{through}"
            )
    return Graph(
        corners=[
            (middles[number] - box_width / 2, GAP / 2 + rows[number] * ROW_HEIGHT)
            for number in range(count)
        ],
        lines=lines,
        box_width=box_width,
        width=max(x + width / 2 for x, width in zip(middles, widths, strict=True)) + GAP / 2,
        height=max(rows) * ROW_HEIGHT + BOX_HEIGHT + GAP,
    )


def _places(rules: Rules) -> tuple[list[int], list[list[int]]]:
    """Return the row of each place, and the places above it that lead to it.

    First come the steps, by number, and then the empty places.
    """
    after = [_nearest(rules, number) for number in range(len(rules.steps))]
    rows: list[int] = []
    for earlier in after:
        rows.append(1 + max((rows[number] for number in earlier), default=-1))
    above: list[list[int]] = [[] for _ in after]
    for number, earlier in enumerate(after):
        for start in earlier:
            place = start
            for row in range(rows[start] + 1, rows[number]):
                rows.append(row)
                above.append([place])
                place = len(rows) - 1
            above[number].append(place)
    return rows, above


def _nearest(rules: Rules, number: int) -> list[int]:
    """Return the steps before a step that are not also before another of these."""
    after = rules.steps[number].after
    indirect = {earlier for other in after for earlier in rules.predecessors(other)}
    return [earlier for earlier in after if earlier not in indirect]


def _middles(
    rows: Sequence[int], above: Sequence[Sequence[int]], widths: Sequence[float]
) -> list[float]:
    """Return the middle of each place; each row has its middle at 0."""
    middles = [0.0] * len(rows)
    for row in range(max(rows) + 1):
        places = [place for place, its_row in enumerate(rows) if its_row == row]
        if row and above:
            places.sort(key=lambda place: mean(middles[start] for start in above[place]))
        x = -sum(widths[place] + GAP for place in places) / 2
        for place in places:
            middles[place] = x + (widths[place] + GAP) / 2
            x += widths[place] + GAP
    return middles
