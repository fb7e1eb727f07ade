"""The demo's chart, and what it says to try next."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from samples.demo import display
from samples.demo.chart import History, bars, blocks


def test_each_second_has_what_ended_in_it_also_where_nothing_was_noted() -> None:
    history = History()
    history.note(0.1, 2, 1)
    history.note(0.9, 3, 1)
    history.note(3.2, 7, 5)
    assert history.ended() == [3, 0, 0, 4]
    assert history.faults() == [1, 0, 0, 4]
    assert history.mean() == 7 / 4


def test_blocks_show_the_last_seconds_and_the_highest_is_full() -> None:
    assert blocks([9, 0, 1, 4, 8], 4) == " ▁▄█"
    assert blocks([0, 0], 4) == "  "


@pytest.mark.parametrize("width", [1, 7, 80])
def test_bars_fit_the_width_and_the_height(width: int) -> None:
    lines = bars([0, 1, 2, 3, 2, 1, 0] * 9, width, 4)
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)
    assert bars([0], 5, 2) == ["", ""]
    assert bars([1, 2], 5, 2) == [" █", "██"]


@pytest.mark.parametrize(
    ("orders", "data_folder", "is_default", "parts", "absent_parts"),
    [
        (830, None, True, ["KEEP=1", "make up ", "--seed 7"], ["  make demo  ", "DATA="]),
        (20, None, True, ["  make demo  "], ["ORDERS"]),
        (20, "build/demo", True, ["make up DATA=build/demo", "sas list"], ["KEEP"]),
        (20, None, False, ["KEEP=1"], ["--seed 7"]),
    ],
)
def test_what_was_just_run_is_not_offered(
    orders: int,
    data_folder: str | None,
    is_default: bool,
    parts: list[str],
    absent_parts: list[str],
) -> None:
    console = Console(file=io.StringIO(), width=80)
    display.next_steps(console, orders, data_folder, is_default=is_default)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert [part for part in parts if part not in text] == []
    assert [part for part in absent_parts if part in text] == []
