"""The graph of an order's steps: rows, places, lines, and the same in words."""

from __future__ import annotations

from itertools import combinations

import pytest

from sas.desk.graph import Graph, graph
from tests.unit.domain_cases import submitted, workflow_of


def drawn(**after: tuple[str, ...]) -> Graph:
    rules = workflow_of(after).rules
    return graph(submitted(rules).after, rules)


def test_parallel_steps_are_side_by_side_and_what_follows_is_below() -> None:
    picture = drawn(scan=(), reserve=(), approve=("scan", "reserve"), pay=("approve",))
    scan, reserve, approve, pay = picture.boxes
    assert scan.y == reserve.y < approve.y < pay.y
    assert scan.x + picture.box_width < reserve.x
    assert approve.x == pay.x == (scan.x + reserve.x) / 2
    assert len(picture.lines) == 3
    assert picture.label == (
        "scan: Pending. reserve: Pending. approve, after scan and reserve: Pending. "
        "pay, after approve: Pending."
    )


def test_a_line_is_left_out_where_others_lead_from_the_one_step_to_the_other() -> None:
    assert len(drawn(a=(), b=("a",), c=("a", "b"), d=("a", "b", "c")).lines) == 3


def test_a_line_over_several_rows_passes_beside_the_boxes() -> None:
    picture = drawn(a=(), b=("a",), c=("b",), d=(), e=("c", "d"))
    through = [line for line in picture.lines if "V" in line]
    assert len(through) == 2
    for line in through:
        x = float(line.rpartition(" V")[0].split()[-2])
        assert not any(box.x <= x <= box.x + picture.box_width for box in picture.boxes[1:3])


@pytest.mark.parametrize("count", [1, 2, 30])
def test_no_box_covers_another_and_all_are_inside(count: int) -> None:
    names = [f"step-{number}" for number in range(count)]
    picture = drawn(**{name: tuple(names[: index // 3]) for index, name in enumerate(names)})
    assert len(picture.boxes) == count
    for box in picture.boxes:
        assert 0 <= box.x <= picture.width - picture.box_width
        assert 0 <= box.y <= picture.height - picture.box_height
    for first, second in combinations(picture.boxes, 2):
        assert first.y != second.y or abs(first.x - second.x) >= picture.box_width
