"""Curves as a picture (SVG), without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP = 720, 300, 90, 60
COLORS = ("#06c", "#d33", "#393", "#a5a", "#e80")


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line of values, one for each place on the x axis."""

    name: str
    values: Sequence[float]


def picture(title: str, unit: str, places: Sequence[str], curves: Sequence[Curve]) -> str:
    """Return a picture: the places side by side, values from 0 up."""
    top = max([*(value for curve in curves for value in curve.values), 1e-9])
    step = WIDTH / max(1, len(places) - 1)
    bottom = TOP + HEIGHT
    marks = [_text(LEFT, 20, title, 14)]
    for part in range(5):
        y = bottom - HEIGHT * part / 4
        marks.append(f'<path d="M{LEFT} {y:.0f}h{WIDTH}" stroke="#ddd"/>')
        marks.append(_text(LEFT - 8, y + 4, f"{top * part / 4:.3g} {unit}", anchor="end"))
    for number, place in enumerate(places):
        marks.append(_text(LEFT + step * number, bottom + 20, place, anchor="middle"))
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        points = [
            (LEFT + step * place, bottom - HEIGHT * value / top)
            for place, value in enumerate(curve.values)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        marks += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        marks.append(_text(LEFT + 170 * number, 42, curve.name, color=color))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" '
        f'height="{bottom + 40}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(marks)}</svg>\n'
    )


def _text(
    x: float, y: float, text: str, size: int = 11, anchor: str = "start", color: str = "#000"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{color}">{escape(text)}</text>'
    )
