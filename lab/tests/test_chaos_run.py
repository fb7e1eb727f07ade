"""A small chaos run: under faults, every order ends as the ledgers of the services say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PROJECT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


def test_the_ledgers_balance_after_a_small_chaos_run(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lab.chaos", "--orders", "30", "--faults", "4"]
    argv += ["--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    report = (tmp_path / "report.txt").read_text("utf-8")
    assert "30 orders, 4 faults" in report
    assert report.endswith("\nBALANCED\n")
    picture = ET.parse(tmp_path / "faults.svg").getroot()  # noqa: S314  written by this test
    assert len(picture.findall(".//{*}title")) == 4
