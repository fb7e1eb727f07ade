"""Rows of docs/failure-modes.md and cells of docs/security.md name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILURE_MODES = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def notes_of(page: str) -> dict[str, str]:
    """The footnotes of a page: the tests of each row or cell."""
    return dict(re.findall(r"^\[\^(\d+)\]: (.+)$", page, re.MULTILINE))


@pytest.mark.parametrize("page", [FAILURE_MODES, SECURITY], ids=["failure modes", "security"])
def test_every_footnote_names_tests_that_exist_and_comes_in_order(page: str) -> None:
    notes = notes_of(page)
    references = re.findall(r"\[\^(\d+)\](?!:)", page)
    assert list(notes) == list(dict.fromkeys(references))
    for number, note in notes.items():
        test_names = re.findall(r"`((?:devstack/)?tests/[\w/]+\.py)::(test_\w+)`", note)
        assert test_names, number
        for path, name in test_names:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_failure_mode_has_a_footnote() -> None:
    rows = re.findall(r"^\| .*\[\^(\d+)\] \|$", FAILURE_MODES, re.MULTILINE)
    assert list(notes_of(FAILURE_MODES)) == rows


def test_every_cell_of_the_security_table_has_a_verdict_and_a_footnote() -> None:
    rows = [line for line in SECURITY.splitlines() if line.startswith("| ")][1:]
    for _who, *cells in (line.strip("| ").split(" | ") for line in rows):
        assert len(cells) == 4
        for cell in cells:
            assert re.match(r"\*(cannot|can|trusted)\*", cell, re.IGNORECASE), cell
            assert re.search(r"\[\^\d+\]$", cell), cell
