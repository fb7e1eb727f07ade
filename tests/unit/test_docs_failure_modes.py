"""Every row of docs/failure-modes.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| .*\[\^(\d+)\] \|$", PAGE, re.MULTILINE)
NOTES = dict(re.findall(r"^\[\^(\d+)\]: (.+)$", PAGE, re.MULTILINE))
"""The footnotes: the tests of each row."""


def test_every_row_has_a_footnote_and_every_footnote_names_tests_that_exist() -> None:
    assert list(NOTES) == ROWS
    for number, note in NOTES.items():
        test_names = re.findall(r"`((?:devstack/)?tests/[\w/]+\.py)::(test_\w+)`", note)
        assert test_names, number
        for path, name in test_names:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
