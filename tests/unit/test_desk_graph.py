"""The places of an order's steps in a picture: rows, boxes, lines."""

from __future__ import annotations

from itertools import combinations

import pytest

from sas.desk.graph import BOX_HEIGHT, Graph, graph
from tests.unit.domain_cases import workflow_of

WIDTH = 150.0


def drawn(**after: tuple[str, ...]) -> Graph:
    return graph(len(after), workflow_of(after).rules, WIDTH)


def test_parallel_steps_are_side_by_side_and_what_follows_is_below() -> None:
    picture = drawn(scan=(), reserve=(), approve=("scan", "reserve"), pay=("approve",))
    (scan, top), (reserve, beside), (approve, below), (pay, bottom) = picture.corners
    assert top == beside < below < bottom
    assert scan + WIDTH < reserve
    assert approve == pay == (scan + reserve) / 2
    assert len(picture.lines) == 3


def test_a_line_is_left_out_where_others_lead_from_the_one_step_to_the_other() -> None:
    assert len(drawn(a=(), b=("a",), c=("a", "b"), d=("a", "b", "c")).lines) == 3


def test_a_line_over_several_rows_passes_beside_the_boxes() -> None:
    picture = drawn(a=(), b=("a",), c=("b",), d=(), e=("c", "d"))
    through = [line for line in picture.lines if "V" in line]
    assert len(through) == 2
    for line in through:
        x = float(line.rpartition(" V")[0].split()[-2])
        assert not any(corner <= x <= corner + WIDTH for corner, _ in picture.corners[1:3])


@pytest.mark.parametrize("has_rules", [True, False])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_no_box_covers_another_and_all_are_inside(count: int, has_rules: bool) -> None:
    names = [f"step-{number}" for number in range(count)]
    after = {name: tuple(names[: index // 3]) for index, name in enumerate(names)}
    picture = drawn(**after) if has_rules else graph(count, None, WIDTH)
    assert len(picture.corners) == count
    assert has_rules or not picture.lines
    for x, y in picture.corners:
        assert 0 <= x <= picture.width - WIDTH
        assert 0 <= y <= picture.height - BOX_HEIGHT
    for (x, y), (other_x, other_y) in combinations(picture.corners, 2):
        assert y != other_y or abs(x - other_x) >= WIDTH
