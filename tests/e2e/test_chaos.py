"""A small chaos run: whatever fails, every order ends as the services' own books say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from samples.chaos.__main__ import main

pytestmark = pytest.mark.long


def test_the_books_balance_after_a_small_chaos_run(tmp_path: Path) -> None:
    arguments = ["--orders", "30", "--faults", "4", "--quiet", "60", "--out", str(tmp_path)]
    assert main(arguments) == 0
    report = (tmp_path / "report.txt").read_text("utf-8")
    assert "30 orders, 4 faults" in report
    assert report.endswith("BALANCED\n")
    picture = ET.parse(tmp_path / "faults.svg").getroot()  # noqa: S314  written by this test
    assert len(picture.findall(".//{*}title")) == 4
