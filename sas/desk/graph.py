"""The steps of an order as a graph: each step below the steps that it comes after.

1. A step is in the row below the lowest of the steps before it. So parallel steps are side by side.
2. A line is left out if other lines lead from the one step to the other.
3. A line over several rows gets an empty place in each row between, so that no box covers it.
4. The places of a row are sorted by the middle of the places above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from sas.domain.order import Order, StepRecord
from sas.domain.workflow import Rules

CHARACTER_WIDTH = 8.5
BOX_WIDTH_MIN, BOX_HEIGHT, ROW_HEIGHT = 130.0, 46.0, 76.0
GAP = 18.0


@dataclass(frozen=True, slots=True)
class Box:
    """A step, with the upper left corner of its box."""

    step: StepRecord
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Boxes, all of one size, and lines as paths of SVG. ``label`` says the same in words."""

    boxes: Sequence[Box]
    lines: Sequence[str]
    box_width: float
    width: float
    height: float
    label: str
    box_height: float = BOX_HEIGHT


def graph(order: Order, rules: Rules) -> Graph:
    """Return the graph of an order. Its steps are those of ``rules``."""
    count = len(order.steps)
    rows, above = _places(rules)
    box_width = max(
        BOX_WIDTH_MIN, CHARACTER_WIDTH * max(len(step.name) for step in order.steps) + 2 * GAP
    )
    widths = [box_width if place < count else 0.0 for place in range(len(rows))]
    middles = _middles(rows, above, widths)
    edge = min(x - width / 2 for x, width in zip(middles, widths, strict=True)) - GAP / 2
    middles = [x - edge for x in middles]
    lines = []
    for place, row in enumerate(rows):
        x, top = middles[place], GAP / 2 + row * ROW_HEIGHT
        bend = top - (ROW_HEIGHT - BOX_HEIGHT) / 2
        through = f" V{top + BOX_HEIGHT:.0f}" if place >= count else ""
        for start in above[place]:
            begin, bottom = middles[start], GAP / 2 + rows[start] * ROW_HEIGHT + BOX_HEIGHT
            lines.append(
                f"M{begin:.0f} {bottom:.0f} C{begin:.0f} {bend:.0f} {x:.0f} {bend:.0f} "
                f"{x:.0f} {top:.0f}{through}"
            )
    return Graph(
        boxes=[
            Box(step, middles[number] - box_width / 2, GAP / 2 + rows[number] * ROW_HEIGHT)
            for number, step in enumerate(order.steps)
        ],
        lines=lines,
        box_width=box_width,
        width=max(x + width / 2 for x, width in zip(middles, widths, strict=True)) + GAP / 2,
        height=max(rows) * ROW_HEIGHT + BOX_HEIGHT + GAP,
        label=" ".join(_words(order, rules)),
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
        if row:
            places.sort(key=lambda place: mean(middles[start] for start in above[place]))
        x = -sum(widths[place] + GAP for place in places) / 2
        for place in places:
            middles[place] = x + (widths[place] + GAP) / 2
            x += widths[place] + GAP
    return middles


def _words(order: Order, rules: Rules) -> Iterator[str]:
    for step, rule in zip(order.steps, rules.steps, strict=True):
        after = " and ".join(order.steps[number].name for number in rule.after)
        yield f"{step.name}{f', after {after}' if after else ''}: {step.process_state.value}."
